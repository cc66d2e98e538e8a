package delivery_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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
	"github.com/weirflow/weir/internal/guard"
)

// pausable are workers of the queue orders, in virtual time.
type pausable struct {
	t      *testing.T
	engine store.Keeper
	jobs   *jobs.Jobs
	began  atomic.Int64 // calls
	failed atomic.Int64 // first calls of messages that are due again later
}

func newPausable(t *testing.T, engine store.Keeper) *pausable {
	t.Helper()
	j, err := jobs.New(engine, jobs.Config{})
	require.NoError(t, err)
	return &pausable{t: t, engine: engine, jobs: j}
}

// start starts a worker whose calls take a time. The first call of a message whose number
// is odd fails, so the message waits in a layer.
func (p *pausable) start(takes time.Duration) (monitor *delivery.Monitor, stop func()) {
	p.t.Helper()
	orders := delivery.NewQueue[numbered](p.engine, "orders", delivery.RetryAfter(10*time.Second), noLog)
	call := func(_ context.Context, c numbered) (int, error) {
		p.began.Add(1)
		time.Sleep(takes)
		if c.N%2 == 1 && p.failed.Add(1) == 1 {
			return 0, errors.New("503")
		}
		return c.N, nil
	}
	op := asyncop.UnorderedWait(asyncop.Blocking(call), 0, 4, asyncop.WithFailureSink(orders.TakeFailure), asyncop.WithLogger(slog.New(slog.DiscardHandler)))
	monitor = &delivery.Monitor{}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, err := delivery.Run(ctx, orders, op, delivery.NewQueue[int](p.engine, "results", noLog), delivery.WithFloodGuard(1, 1), delivery.WithMonitor(monitor), noLog)
		if err != nil {
			p.t.Error(err)
		}
	}()
	return monitor, func() {
		cancel()
		<-ended
	}
}

func (p *pausable) put(from, to int) {
	p.t.Helper()
	orders := delivery.NewQueue[numbered](p.engine, "orders", delivery.RetryAfter(10*time.Second), noLog)
	for i := from; i < to; i++ {
		require.NoError(p.t, orders.Put(p.t.Context(), numbered{N: i}, delivery.ID(fmt.Sprint(i))))
	}
}

func (p *pausable) count(queue string) int {
	p.t.Helper()
	n, err := p.engine.Count(p.t.Context(), queue, store.Filter{})
	require.NoError(p.t, err)
	return n.Messages
}

// Two seconds after a pause, no worker begins a call, of the queue or its layers. The
// calls that run end. All messages are processed after the resume.
func TestRun_PausedQueue(t *testing.T) {
	for name, wrap := range map[string]func(*memory.Engine) store.Keeper{
		"an engine that announces changes": func(e *memory.Engine) store.Keeper { return e },
		"an engine that does not":          func(e *memory.Engine) store.Keeper { return withoutWatch{e} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPausable(t, wrap(memory.Open()))
				p.put(0, 100)
				monitor, stop := p.start(time.Second)
				_, stopOther := p.start(time.Second)
				time.Sleep(3500 * time.Millisecond)

				_, err := p.jobs.PauseQueue(t.Context(), "orders", "ann", "the bank loses money")
				require.NoError(t, err)
				time.Sleep(2 * time.Second)
				synctest.Wait()
				began := p.began.Load()
				require.Less(t, began, int64(100))
				require.Equal(t, 1, p.count("orders-retry-1"), "a message waits in the layer")
				p.put(100, 110)
				time.Sleep(time.Minute)
				synctest.Wait()
				require.Equal(t, began, p.began.Load())
				require.Equal(t, 1, p.count("orders-retry-1"), "the layer is paused as well")

				status := monitor.Status()
				require.Equal(t, "paused", status.State)
				require.Zero(t, status.InFlight)
				require.ErrorContains(t, status.Err, `ann has paused queue "orders": the bank loses money`)
				require.NoError(t, monitor.Ready(t.Context()))
				workers, err := p.jobs.Workers(t.Context())
				require.NoError(t, err)
				require.Len(t, workers, 2)
				for _, w := range workers {
					require.True(t, w.Paused)
				}

				_, err = p.jobs.ResumeQueue(t.Context(), "orders", "ann", "it is fixed")
				require.NoError(t, err)
				time.Sleep(2 * time.Second)
				synctest.Wait()
				require.Greater(t, p.began.Load(), began)
				require.Equal(t, "receiving", monitor.Status().State)
				time.Sleep(time.Minute)
				synctest.Wait()
				require.EqualValues(t, 111, p.began.Load(), "110 messages, one of them twice")
				require.Equal(t, 110, p.count("results"))
				stop()
				stopOther()
			})
		})
	}
}

// A worker that starts while its queue is paused receives no message. The pause of
// another queue does not matter.
func TestRun_StartsInPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPausable(t, withoutWatch{memory.Open()})
		p.put(0, 10)
		_, err := p.jobs.PauseQueue(t.Context(), "orders", "ann", "they migrate")
		require.NoError(t, err)
		_, stop := p.start(0)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Zero(t, p.began.Load())
		require.Equal(t, 10, p.count("orders"))
		_, err = p.jobs.PauseQueue(t.Context(), "others", "ann", "they migrate, too")
		require.NoError(t, err)
		_, err = p.jobs.ResumeQueue(t.Context(), "orders", "ann", "done")
		require.NoError(t, err)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, 10, p.count("results"))
		stop()
	})
}

// withoutRecords is an engine whose records cannot be read for some time.
type withoutRecords struct {
	withoutWatch
	isBroken *atomic.Bool
}

func (e withoutRecords) Records(ctx context.Context, kind, after string, limit int) ([]store.Record, error) {
	if e.isBroken.Load() {
		return nil, errors.New("the records are away")
	}
	return e.withoutWatch.Records(ctx, kind, after, limit)
}

// A worker that cannot read the orders keeps to the last ones.
func TestRun_OrdersCannotBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var isBroken atomic.Bool
		engine := withoutRecords{withoutWatch{memory.Open()}, &isBroken}
		p := newPausable(t, engine)
		isBroken.Store(true)
		p.put(0, 10)
		_, stop := p.start(0)
		time.Sleep(15 * time.Second)
		synctest.Wait()
		require.Equal(t, 10, p.count("results"), "without an order it receives")

		isBroken.Store(false)
		_, err := p.jobs.PauseQueue(t.Context(), "orders", "ann", "they migrate")
		require.NoError(t, err)
		time.Sleep(2 * time.Second)
		isBroken.Store(true)
		p.put(10, 20)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, 10, p.count("results"), "the pause holds")
		isBroken.Store(false)
		_, err = p.jobs.ResumeQueue(t.Context(), "orders", "ann", "done")
		require.NoError(t, err)
		time.Sleep(15 * time.Second)
		synctest.Wait()
		require.Equal(t, 20, p.count("results"))
		stop()
	})
}

// onceForbidden is an engine whose user may not read its records for some time.
type onceForbidden struct {
	withoutRecords
	permanent error
}

func (e onceForbidden) Records(ctx context.Context, kind, after string, limit int) ([]store.Record, error) {
	if e.isBroken.Load() {
		return nil, e.permanent
	}
	return e.withoutWatch.Records(ctx, kind, after, limit)
}

// A worker obeys a pause and a resume that come after a permanent error: its right to read
// the records was missing for five seconds.
func TestRun_PauseAfterAPermanentError(t *testing.T) {
	for _, pausedBefore := range []bool{false, true} {
		t.Run(fmt.Sprint("paused before ", pausedBefore), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				isBroken := new(atomic.Bool)
				e := onceForbidden{withoutRecords{withoutWatch{memory.Open()}, isBroken}, guard.MarkPermanent(errors.New("permission denied for table weir_records"))}
				require.True(t, guard.IsPermanent(e.permanent))
				p := newPausable(t, e)
				p.put(0, 10)
				if pausedBefore {
					_, err := p.jobs.PauseQueue(t.Context(), "orders", "ann", "x")
					require.NoError(t, err)
				}
				_, stop := p.start(0)
				time.Sleep(5 * time.Second)
				isBroken.Store(true)
				time.Sleep(5 * time.Second)
				isBroken.Store(false)
				time.Sleep(30 * time.Second)
				want := 10
				if pausedBefore {
					_, err := p.jobs.ResumeQueue(t.Context(), "orders", "ann", "x")
					require.NoError(t, err)
					want = 20
				} else {
					_, err := p.jobs.PauseQueue(t.Context(), "orders", "ann", "x")
					require.NoError(t, err)
				}
				time.Sleep(10 * time.Second)
				p.put(10, 20)
				time.Sleep(time.Hour)
				synctest.Wait()
				require.Equal(t, want, p.count("results"))
				stop()
			})
		})
	}
}

// wrappedOp is an operator of the user's around one of asyncop: it does not report slots.
type wrappedOp[IN, OUT any] struct {
	*asyncop.AsyncWaitOperator[IN, OUT]
}

// orderedRun is a worker of the queue orders with WithOrdered, in virtual time, with
// 600 messages. Message i has the key i modulo the number of keys.
type orderedRun struct {
	keys   int
	jobs   *jobs.Jobs
	orders *delivery.Queue[numbered]
	called map[int][]int // by key: the messages whose calls have succeeded
	end    func()
}

// runInOrder starts a worker. op makes an operator of a function.
func runInOrder(t *testing.T, engine store.Keeper, keys int, op func(orders *delivery.Queue[numbered], call func(context.Context, numbered) (int, error)) delivery.Operator[numbered, int], call func() error, opts ...delivery.RunOption) *orderedRun {
	t.Helper()
	j, err := jobs.New(engine, jobs.Config{})
	require.NoError(t, err)
	r := &orderedRun{keys: keys, jobs: j, called: map[int][]int{}}
	r.orders = delivery.NewQueue[numbered](engine, "orders", delivery.RetryAfter(10*time.Second), delivery.WithOrdered(), noLog)
	for i := range 600 {
		require.NoError(t, r.orders.Put(t.Context(), numbered{N: i}, delivery.ID(fmt.Sprint(i)), delivery.Key(fmt.Sprint("k", i%keys))))
		time.Sleep(time.Millisecond)
	}
	var mu sync.Mutex
	operator := op(r.orders, func(_ context.Context, c numbered) (int, error) {
		err := call()
		if err != nil {
			return 0, err
		}
		mu.Lock()
		r.called[c.N%keys] = append(r.called[c.N%keys], c.N)
		mu.Unlock()
		time.Sleep(100 * time.Millisecond)
		return c.N, nil
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { // ends with ctx
		defer close(ended)
		_, err := delivery.Run(ctx, r.orders, operator, delivery.NewQueue[int](engine, "results", noLog), append(opts, noLog)...)
		if err != nil {
			t.Error(err)
		}
	}()
	r.end = func() {
		cancel()
		<-ended
	}
	return r
}

// pauseFor pauses the queue, and resumes it later.
func (r *orderedRun) pauseFor(t *testing.T, d time.Duration) {
	t.Helper()
	_, err := r.jobs.PauseQueue(t.Context(), "orders", "ann", "they migrate")
	require.NoError(t, err)
	time.Sleep(d)
	_, err = r.jobs.ResumeQueue(t.Context(), "orders", "ann", "done")
	require.NoError(t, err)
}

// requireOrder requires that each message was called once, and those of a key in order.
func (r *orderedRun) requireOrder(t *testing.T) {
	t.Helper()
	synctest.Wait()
	n := 0
	for key := range r.keys {
		n += len(r.called[key])
		require.IsIncreasing(t, r.called[key], "key %d", key)
	}
	require.Equal(t, 600, n)
}

// wrapped makes an operator that does not report its free slots, so Run receives a batch.
func wrapped(orders *delivery.Queue[numbered], call func(context.Context, numbered) (int, error)) delivery.Operator[numbered, int] {
	return wrappedOp[numbered, int]{asyncop.UnorderedWait(asyncop.Blocking(call), 0, 2, asyncop.WithFailureSink(orders.TakeFailure), asyncop.WithLogger(slog.New(slog.DiscardHandler)))}
}

// A pause does not break the order of keys: a message that is released stays the first of
// its key.
func TestWithOrdered_Pause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := runInOrder(t, memory.Open(), 10, wrapped, func() error { return nil })
		defer r.end()
		time.Sleep(250 * time.Millisecond)
		r.pauseFor(t, 5*time.Second)
		time.Sleep(5 * time.Minute)
		r.requireOrder(t)
	})
}

// slowTake is an engine behind a network: TakeInOrder needs 30 ms.
type slowTake struct{ *memory.Engine }

func (s slowTake) TakeInOrder(ctx context.Context, queue string, limit int, lease time.Duration) ([]store.Leased, error) {
	taken, err := s.Engine.TakeInOrder(ctx, queue, limit, lease)
	time.Sleep(30 * time.Millisecond)
	return taken, err
}

// The order of keys holds for an operator that reports its free slots as well: pauses come
// while messages are taken.
func TestWithOrdered_PauseDuringATake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plain := func(orders *delivery.Queue[numbered], call func(context.Context, numbered) (int, error)) delivery.Operator[numbered, int] {
			return asyncop.UnorderedWait(asyncop.Blocking(call), 0, 4, asyncop.WithFailureSink(orders.TakeFailure), asyncop.WithLogger(slog.New(slog.DiscardHandler)))
		}
		r := runInOrder(t, slowTake{memory.Open()}, 10, plain, func() error { return nil })
		defer r.end()
		for i := range 10 {
			time.Sleep(time.Duration(400+7*i) * time.Millisecond)
			r.pauseFor(t, 5*time.Second)
		}
		time.Sleep(10 * time.Minute)
		r.requireOrder(t)
	})
}

// The flood guard does not break the order of keys either.
func TestWithOrdered_Flood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var monitor delivery.Monitor
		up := time.Now().Add(2 * time.Second)
		r := runInOrder(t, memory.Open(), 60, wrapped, func() error {
			if time.Now().Before(up) {
				time.Sleep(100 * time.Millisecond)
				return errors.New("503")
			}
			return nil
		}, delivery.WithFloodGuard(0.5, 10), delivery.WithMonitor(&monitor))
		defer r.end()
		time.Sleep(10 * time.Minute)
		r.requireOrder(t)
		require.NotZero(t, monitor.Status().Floods)
		r.end()
	})
}

// At a pause a worker releases the messages that it has received and not begun, and the
// messages that its source has taken.
func TestRun_PauseReleasesWhatIsNotBegun(t *testing.T) {
	for _, keepsOrder := range []bool{true, false} {
		t.Run(fmt.Sprint("keeps the order of keys: ", keepsOrder), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				engine := memory.Open()
				j, err := jobs.New(engine, jobs.Config{})
				require.NoError(t, err)
				opts := []delivery.QueueOption{delivery.RetryAfter(10 * time.Second), noLog}
				if keepsOrder {
					opts = append(opts, delivery.WithOrdered())
				}
				orders := delivery.NewQueue[numbered](engine, "orders", opts...)
				for i := range 600 {
					require.NoError(t, orders.Put(t.Context(), numbered{N: i}, delivery.ID(fmt.Sprint(i)), delivery.Key(fmt.Sprint("k", i%3))))
					m := store.Message{Payload: []byte(`{"N":1}`)}
					m.Meta.ID = fmt.Sprint("r", i)
					m.Meta.Visit = 1
					require.NoError(t, engine.Put(t.Context(), "orders-retry-1", m))
				}
				call := func(_ context.Context, c numbered) (int, error) {
					time.Sleep(100 * time.Millisecond)
					return c.N, nil
				}
				op := asyncop.UnorderedWait(asyncop.Blocking(call), 0, 8, asyncop.WithFailureSink(orders.TakeFailure), asyncop.WithLogger(slog.New(slog.DiscardHandler)))
				ctx, cancel := context.WithCancel(context.Background())
				ended := make(chan struct{})
				go func() { // ends with ctx
					defer close(ended)
					_, err := delivery.Run(ctx, orders, op, delivery.NewQueue[int](engine, "results", noLog), noLog)
					if err != nil {
						t.Error(err)
					}
				}()
				time.Sleep(750 * time.Millisecond)
				_, err = j.PauseQueue(t.Context(), "orders", "ann", "they migrate")
				require.NoError(t, err)
				time.Sleep(10 * time.Minute)
				synctest.Wait()
				leased := 0
				for _, q := range []string{"orders", "orders-retry-1"} {
					list, err := engine.List(t.Context(), q, store.Filter{}, store.Page{Max: 2000})
					require.NoError(t, err)
					for _, e := range list {
						if !e.LeasedUntil.IsZero() {
							leased++
						}
					}
				}
				require.Zero(t, leased)
				cancel()
				<-ended
			})
		})
	}
}
