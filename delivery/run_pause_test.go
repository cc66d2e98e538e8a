package delivery_test

import (
	"context"
	"errors"
	"fmt"
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
