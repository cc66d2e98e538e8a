package delivery_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

// countingTakes is an engine that counts calls of TakeByKey.
type countingTakes struct {
	*memory.Engine
	takes *atomic.Int64
}

func (e countingTakes) TakeByKey(ctx context.Context, queue string, r store.KeyRound, limit int, lease time.Duration) ([]store.Leased, string, error) {
	e.takes.Add(1)
	return e.Engine.TakeByKey(ctx, queue, r, limit, lease)
}

// countingWithoutWatch is a countingTakes that cannot announce changes.
type countingWithoutWatch struct{ countingTakes }

func (countingWithoutWatch) Watch(context.Context, func()) error { return errors.ErrUnsupported }

// holdable are workers of the queue hooks, in virtual time. The first three calls fail, so
// their messages wait in a layer.
type holdable struct {
	*customers
	t      *testing.T
	jobs   *jobs.Jobs
	engine store.Keeper
	opts   []delivery.QueueOption

	mu     sync.Mutex
	begun  map[string]int // calls by customer
	failed int            // calls
}

func newHoldable(t *testing.T, engine store.Keeper, opts ...delivery.QueueOption) *holdable {
	t.Helper()
	j, err := jobs.New(engine, jobs.Config{Logger: quiet})
	require.NoError(t, err)
	h := &holdable{customers: &customers{}, t: t, jobs: j, engine: engine, begun: map[string]int{}}
	h.opts = append([]delivery.QueueOption{delivery.RetryAfter(time.Second), noLog}, opts...)
	h.queue = delivery.NewQueue[job](engine, "hooks", h.opts...)
	return h
}

// start starts a worker with four slots, whose calls take a second.
func (h *holdable) start(opts ...delivery.RunOption) (stop func()) {
	h.t.Helper()
	queue := delivery.NewQueue[job](h.engine, "hooks", h.opts...)
	call := func(_ context.Context, j job) (string, error) {
		h.mu.Lock()
		h.begun[string(j)]++
		fails := h.failed < 3
		if fails {
			h.failed++
		}
		h.mu.Unlock()
		time.Sleep(time.Second)
		if fails {
			return "", errEndpointDown
		}
		return "", nil
	}
	op := asyncop.UnorderedWait(asyncop.Blocking(call), 0, 4, asyncop.WithFailureSink(queue.TakeFailure), asyncop.WithLogger(quiet))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { // ends with ctx
		defer close(ended)
		_, err := delivery.Run(ctx, queue, op, sinkFunc(func(context.Context, []message.Message[string]) error { return nil }), append(opts, silently, delivery.WithFloodGuard(1, 1))...)
		if err != nil {
			h.t.Error(err)
		}
	}()
	return func() {
		cancel()
		<-ended
	}
}

// calls returns how many calls for a customer have begun.
func (h *holdable) calls(customer string) int {
	synctest.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.begun[customer]
}

// entries describes the messages of a customer in the queue and its layer.
func (h *holdable) entries(customer string) (all []string) {
	h.t.Helper()
	for _, queue := range []string{"hooks", "hooks-retry-1"} {
		list, err := h.engine.List(h.t.Context(), queue, store.Filter{Key: customer}, store.Page{Max: 1000})
		require.NoError(h.t, err)
		for _, e := range list {
			all = append(all, fmt.Sprint(queue, " ", e.Position, " taken ", e.Fence, " visits ", e.Meta.Visit))
		}
	}
	return all
}

// Two seconds after a hold, no worker begins a call for the key, of the queue or its
// layer. The calls that run end, and the messages are not taken. Workers that start later
// obey. All messages are delivered after the resume.
func TestRun_HeldKey(t *testing.T) {
	for _, announces := range []bool{true, false} {
		t.Run(fmt.Sprint("the engine announces changes: ", announces), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				takes := new(atomic.Int64)
				counting := countingTakes{memory.Open(), takes}
				var engine store.Keeper = counting
				if !announces {
					engine = countingWithoutWatch{counting}
				}
				h := newHoldable(t, engine, delivery.WithFairByKey(3))
				h.put(t, "held", 200)
				h.put(t, "other", 50)
				stop := h.start()
				defer stop()
				stopOther := h.start()
				defer func() { stopOther() }()
				time.Sleep(1500 * time.Millisecond)

				_, err := h.jobs.HoldKey(t.Context(), "hooks", "held", "ann", "their server is moved")
				require.NoError(t, err)
				time.Sleep(2 * time.Second)
				begun := h.calls("held")
				before := h.entries("held")
				require.Greater(t, len(before), 150)
				require.Contains(t, before[len(before)-1], "hooks-retry-1", "a message waits in the layer")
				time.Sleep(time.Minute)
				require.Equal(t, begun, h.calls("held"))
				require.GreaterOrEqual(t, h.calls("other"), 50)
				require.Empty(t, h.entries("other"))

				h.put(t, "held", 10)
				stopOther()
				stopOther = h.start()
				time.Sleep(time.Minute)
				require.Equal(t, begun, h.calls("held"))
				after := h.entries("held")
				require.Subset(t, after, before, "the messages are not taken")
				require.Len(t, after, len(before)+10)
				idle := takes.Load()
				time.Sleep(time.Minute)
				synctest.Wait()
				require.LessOrEqual(t, takes.Load()-idle, int64(2400), "two workers look into the queue and its layer ten times a second")

				_, err = h.jobs.ResumeKey(t.Context(), "hooks", "held", "ann", "it is moved")
				require.NoError(t, err)
				time.Sleep(2 * time.Second)
				require.Greater(t, h.calls("held"), begun)
				time.Sleep(5 * time.Minute)
				synctest.Wait()
				require.Empty(t, h.entries("held"))
			})
		})
	}
}

// ordersEngine is an engine that takes time to read the held keys, or fails.
type ordersEngine struct {
	*memory.Engine
	takes time.Duration
	fails *atomic.Bool
}

func (e ordersEngine) Records(ctx context.Context, kind, after string, limit int) ([]store.Record, error) {
	if kind != "held-key" {
		return e.Engine.Records(ctx, kind, after, limit)
	}
	time.Sleep(e.takes)
	if e.fails.Load() {
		return nil, errors.New("the database is unavailable")
	}
	return e.Engine.Records(ctx, kind, after, limit)
}

// A worker reads the held keys before it receives its first message, even if that takes
// long.
func TestRun_HeldKeySlowRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHoldable(t, ordersEngine{memory.Open(), 5 * time.Second, new(atomic.Bool)}, delivery.WithFairByKey(3))
		h.put(t, "held", 10)
		h.put(t, "other", 10)
		_, err := h.jobs.HoldKey(t.Context(), "hooks", "held", "ann", "their server is moved")
		require.NoError(t, err)
		stop := h.start()
		defer stop()
		time.Sleep(time.Minute)
		require.Zero(t, h.calls("held"))
		require.GreaterOrEqual(t, h.calls("other"), 10)
	})
}

// The hold of a key in another queue changes nothing here. While the orders cannot be
// read, the last ones hold. Regression: a worker whose engine announces changes did not
// read the orders again after an error.
func TestRun_HeldKeyUnreadable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fails := new(atomic.Bool)
		h := newHoldable(t, ordersEngine{memory.Open(), 0, fails}, delivery.WithFairByKey(3))
		h.put(t, "held", 200)
		require.NoError(t, h.engine.Put(t.Context(), "mails", store.Message{Meta: message.Meta{ID: "1", Key: "held"}}))
		hold := func(queue, key string) {
			_, err := h.jobs.HoldKey(t.Context(), queue, key, "ann", "their server is moved")
			require.NoError(t, err)
		}
		hold("mails", "held")
		stop := h.start()
		defer stop()
		time.Sleep(2 * time.Second)
		require.NotZero(t, h.calls("held"), "the key is held in another queue")
		hold("hooks", "held")
		time.Sleep(2 * time.Second)
		begun := h.calls("held")
		fails.Store(true)
		hold("mails", "another") // the worker reads the orders again
		time.Sleep(time.Minute)
		require.Equal(t, begun, h.calls("held"))
		_, err := h.jobs.ResumeKey(t.Context(), "hooks", "held", "ann", "it is moved")
		require.NoError(t, err)
		time.Sleep(time.Minute)
		require.Equal(t, begun, h.calls("held"), "the worker cannot know yet")
		fails.Store(false)
		time.Sleep(3 * time.Second)
		require.Greater(t, h.calls("held"), begun, "the engine does not announce the change again")
	})
}

// A worker releases the messages of a held key that it has received and not begun.
func TestRun_HeldKeyReleasesWhatIsNotBegun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHoldable(t, memory.Open(), delivery.WithFairByKey(0))
		h.put(t, "held", 100)
		queue := delivery.NewQueue[job](h.engine, "hooks", h.opts...)
		call := func(context.Context, job) (string, error) {
			h.mu.Lock()
			h.begun["held"]++
			h.mu.Unlock()
			time.Sleep(time.Second)
			return "", nil
		}
		op := wrappedOp[job, string]{asyncop.UnorderedWait(asyncop.Blocking(call), 0, 2, asyncop.WithFailureSink(queue.TakeFailure), asyncop.WithLogger(quiet))}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { // ends with ctx
			_, err := delivery.Run(ctx, queue, op, sinkFunc(func(context.Context, []message.Message[string]) error { return nil }), silently, delivery.WithBatch(50))
			ended <- err
		}()
		defer func() {
			stop()
			require.NoError(t, <-ended)
		}()
		time.Sleep(500 * time.Millisecond)
		_, err := h.jobs.HoldKey(t.Context(), "hooks", "held", "ann", "their server is moved")
		require.NoError(t, err)
		time.Sleep(time.Minute)
		require.Less(t, h.calls("held"), 10, "of 50 messages that were received: two ran, and the operator had taken a few")
		leased := 0
		list, err := h.engine.List(t.Context(), "hooks", store.Filter{}, store.Page{Max: 1000})
		require.NoError(t, err)
		for _, e := range list {
			if !e.LeasedUntil.IsZero() {
				leased++
			}
		}
		require.Zero(t, leased)
	})
}

// A worker that cannot leave out keys reports that, and then a hold is refused.
func TestRun_HeldKeyWithoutFairByKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, fair := range []bool{false, true} {
			var opts []delivery.QueueOption
			if fair {
				opts = append(opts, delivery.WithFairByKey(3))
			}
			h := newHoldable(t, memory.Open(), opts...)
			stop := h.start()
			synctest.Wait()
			_, err := h.jobs.HoldKey(t.Context(), "hooks", "held", "ann", "their server is moved")
			if fair {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, `workers of queue "hooks" cannot leave out the messages of a key (1 of 1)`)
			}
			stop()
		}
	})
}
