package delivery_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
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
)

// nested is a worker of the queue around, whose first source is the queue orders, in
// virtual time. The first two calls fail, so their messages wait in a layer of around.
type nested struct {
	t      *testing.T
	first  store.Keeper // the engine of orders
	around store.Keeper
	orders *delivery.Queue[numbered]
	jobs   *jobs.Jobs // of first
	logger *slog.Logger

	began atomic.Int64 // calls
	stop  func()
}

// eachNested runs a test with both queues on one engine, and on two.
func eachNested(t *testing.T, f func(n *nested)) {
	for name, engines := range map[string]func() (first, around store.Keeper){
		"one engine": func() (store.Keeper, store.Keeper) {
			e := memory.Open()
			return e, e
		},
		"one engine that does not announce changes": func() (store.Keeper, store.Keeper) {
			e := withoutWatch{memory.Open()}
			return e, e
		},
		"two engines": func() (store.Keeper, store.Keeper) { return memory.Open(), withoutWatch{memory.Open()} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := &nested{t: t, logger: slog.New(slog.DiscardHandler)}
				n.first, n.around = engines()
				var err error
				n.jobs, err = jobs.New(n.first, jobs.Config{})
				require.NoError(t, err)
				f(n)
			})
		})
	}
}

// start starts the worker. Its queues have these options.
func (n *nested) start(ofFirst, ofAround []delivery.QueueOption) {
	n.t.Helper()
	n.orders = delivery.NewQueue[numbered](n.first, "orders", append(ofFirst, noLog)...)
	around := delivery.NewQueue[numbered](n.around, "around", append(ofAround, noLog, delivery.RetryAfter(10*time.Second))...)
	call := func(_ context.Context, c numbered) (int, error) {
		failing := n.began.Add(1) <= 2
		time.Sleep(time.Second)
		if failing {
			return 0, errors.New("503")
		}
		return c.N, nil
	}
	op := asyncop.UnorderedWait(asyncop.Blocking(call), 0, 2, asyncop.WithFailureSink(around.TakeFailure), asyncop.WithLogger(slog.New(slog.DiscardHandler)))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { // ends with ctx
		defer close(ended)
		_, err := delivery.Run(ctx, around.Source(n.orders.Source(nil)), op, delivery.NewQueue[int](n.around, "results", noLog), delivery.WithFloodGuard(1, 1), delivery.WithLogger(n.logger))
		if err != nil {
			n.t.Error(err)
		}
	}()
	n.stop = func() {
		cancel()
		<-ended
	}
}

func (n *nested) put(key string, numbers int) {
	n.t.Helper()
	orders := delivery.NewQueue[numbered](n.first, "orders", noLog)
	for i := range numbers {
		require.NoError(n.t, orders.Put(n.t.Context(), numbered{N: i}, delivery.Key(key)))
	}
}

// later returns how many calls have begun after a time.
func (n *nested) later(d time.Duration) int64 {
	time.Sleep(d)
	synctest.Wait()
	return n.began.Load()
}

// A worker obeys a pause of the queue of its first source: it takes no messages, from the
// layers where the failed messages of that queue wait neither.
func TestRun_PausedFirstSource(t *testing.T) {
	eachNested(t, func(n *nested) {
		n.put("a", 20)
		n.start(nil, nil)
		time.Sleep(3500 * time.Millisecond)
		_, err := n.jobs.PauseQueue(t.Context(), "orders", "ann", "they migrate")
		require.NoError(t, err)
		began := n.later(2 * time.Second)
		require.Less(t, began, int64(15))
		require.Equal(t, began, n.later(time.Minute))
		failed, err := n.around.Count(t.Context(), "around-retry-1", store.Filter{})
		require.NoError(t, err)
		require.Equal(t, 2, failed.Messages)
		workers, err := n.jobs.Workers(t.Context())
		require.NoError(t, err)
		require.Len(t, workers, 1)
		require.True(t, workers[0].Paused)
		require.True(t, workers[0].Takes("orders"))
		require.Contains(t, workers[0].Queues, "orders")

		outer, err := jobs.New(n.around, jobs.Config{})
		require.NoError(t, err)
		_, err = outer.PauseQueue(t.Context(), "around", "bob", "it is busy")
		require.NoError(t, err)
		time.Sleep(2 * time.Second)
		_, err = n.jobs.ResumeQueue(t.Context(), "orders", "ann", "done")
		require.NoError(t, err)
		require.Equal(t, began, n.later(time.Minute), "the other pause holds")
		_, err = outer.ResumeQueue(t.Context(), "around", "bob", "done")
		require.NoError(t, err)
		require.EqualValues(t, 22, n.later(time.Minute), "20 messages, two of them twice")
		n.stop()
	})
}

// A worker that starts while the queue of its first source is paused takes no message.
func TestRun_StartsWithPausedFirstSource(t *testing.T) {
	eachNested(t, func(n *nested) {
		n.put("a", 5)
		_, err := n.jobs.PauseQueue(t.Context(), "orders", "ann", "they migrate")
		require.NoError(t, err)
		n.start(nil, nil)
		require.Zero(t, n.later(time.Minute))
		_, err = n.jobs.ResumeQueue(t.Context(), "orders", "ann", "done")
		require.NoError(t, err)
		require.EqualValues(t, 7, n.later(time.Minute))
		n.stop()
	})
}

// A worker leaves out a key that people hold in the queue of its first source.
func TestRun_HeldKeyOfFirstSource(t *testing.T) {
	eachNested(t, func(n *nested) {
		fair := []delivery.QueueOption{delivery.WithFairByKey(2)}
		n.put("held", 100)
		n.put("other", 5)
		n.start(fair, fair)
		time.Sleep(3500 * time.Millisecond)
		_, err := n.jobs.HoldKey(t.Context(), "orders", "held", "ann", "it is moved")
		require.NoError(t, err)
		time.Sleep(10 * time.Second)
		began := n.later(time.Minute)
		require.Less(t, began, int64(50))
		require.Equal(t, began, n.later(time.Minute))
		others, err := n.first.Count(t.Context(), "orders", store.Filter{Key: "other"})
		require.NoError(t, err)
		require.Zero(t, others.Messages)
		_, err = n.jobs.ResumeKey(t.Context(), "orders", "held", "ann", "done")
		require.NoError(t, err)
		require.EqualValues(t, 107, n.later(5*time.Minute))
		n.stop()
	})
}

// Messages of a held key that the worker had taken from its first source return without a
// visit, in their order. Each message is called after the resume, and none twice.
func TestRun_HeldKeyOfFirstSourceLosesNothing(t *testing.T) {
	eachNested(t, func(n *nested) {
		fair := []delivery.QueueOption{delivery.WithFairByKey(2)}
		n.began.Store(2) // no call fails
		n.put("held", 40)
		n.start(fair, fair)
		for range 3 {
			time.Sleep(3500 * time.Millisecond)
			_, err := n.jobs.HoldKey(t.Context(), "orders", "held", "ann", "it is moved")
			require.NoError(t, err)
			began := n.later(5 * time.Second)
			require.Equal(t, began, n.later(2*time.Minute), "longer than a lease")
			list, err := n.first.List(t.Context(), "orders", store.Filter{Key: "held"}, store.Page{Max: 1000})
			require.NoError(t, err)
			require.Len(t, list, 42-int(began))
			for i, e := range list {
				require.Zero(t, e.Meta.Visit)
				require.Equal(t, list[0].Position+int64(i), e.Position, "the messages that are left are the last")
			}
			_, err = n.jobs.ResumeKey(t.Context(), "orders", "held", "ann", "done")
			require.NoError(t, err)
		}
		require.EqualValues(t, 42, n.later(5*time.Minute))
		n.stop()
	})
}

// A hold is refused if one of the two queues cannot leave out keys.
func TestRun_HeldKeyOfFirstSourceThatCannotLeaveOutKeys(t *testing.T) {
	fair := []delivery.QueueOption{delivery.WithFairByKey(2)}
	for name, options := range map[string][2][]delivery.QueueOption{"first": {nil, fair}, "around": {fair, nil}} {
		t.Run(name, func(t *testing.T) {
			eachNested(t, func(n *nested) {
				n.start(options[0], options[1])
				time.Sleep(time.Second)
				_, err := n.jobs.HoldKey(t.Context(), "orders", "held", "ann", "it is moved")
				require.ErrorContains(t, err, `workers of queue "orders" cannot leave out the messages of a key (1 of 1)`)
				n.stop()
			})
		})
	}
}

// People hold a key in both queues of a worker, and resume it in one after the other.
// Each line of the log names the queue.
func TestRun_HeldKeyOfFirstSourceIsLogged(t *testing.T) {
	eachNested(t, func(n *nested) {
		lines := &bytes.Buffer{}
		n.logger = slog.New(slog.NewTextHandler(lines, nil))
		ofAround, err := jobs.New(n.around, jobs.Config{})
		require.NoError(n.t, err)
		n.start([]delivery.QueueOption{delivery.WithFairByKey(3)}, []delivery.QueueOption{delivery.WithFairByKey(3)})
		time.Sleep(time.Second)
		_, err = n.jobs.HoldKey(n.t.Context(), "orders", "a", "ann", "they migrate")
		require.NoError(n.t, err)
		_, err = ofAround.HoldKey(n.t.Context(), "around", "a", "ann", "they migrate")
		require.NoError(n.t, err)
		n.later(5 * time.Second)
		_, err = n.jobs.ResumeKey(n.t.Context(), "orders", "a", "ann", "they have migrated")
		require.NoError(n.t, err)
		n.later(5 * time.Second)
		_, err = ofAround.ResumeKey(n.t.Context(), "around", "a", "ann", "they have migrated")
		require.NoError(n.t, err)
		n.later(5 * time.Second)
		n.stop()
		text := lines.String()
		require.Contains(n.t, text, `leaves out its messages until it is resumed" queue=orders key=a`)
		require.Contains(n.t, text, `leaves out its messages until it is resumed" queue=around key=a`)
		require.Contains(n.t, text, `people still hold it in another queue of the worker" queue=orders key=a`)
		require.Contains(n.t, text, `the worker takes its messages again" queue=around key=a`)
	})
}
