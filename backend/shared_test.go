package backend_test

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
	"github.com/weirflow/weir/backend"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/gate"
)

// counted is a service that counts its calls.
type counted struct {
	takes     time.Duration // a call
	now, most atomic.Int64
	calls     atomic.Int64
}

func (s *counted) call(ctx context.Context, in int) (int, error) {
	n := s.now.Add(1)
	defer s.now.Add(-1)
	s.calls.Add(1)
	for most := s.most.Load(); n > most && !s.most.CompareAndSwap(most, n); most = s.most.Load() {
	}
	select {
	case <-time.After(s.takes):
		return in, nil
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

// flakyKeeper is an engine that does not answer while it is down.
type flakyKeeper struct {
	store.Keeper
	down    atomic.Bool
	updates atomic.Int64
}

var errEngineDown = errors.New("the engine is down")

func (k *flakyKeeper) Update(ctx context.Context, f func(context.Context, store.Tx) error) error {
	k.updates.Add(1)
	if k.down.Load() {
		return errEngineDown
	}
	return k.Keeper.Update(ctx, f)
}

// worker is an operator at a backend of its own, as in a process of a fleet.
type worker struct {
	*backend.Backend
	in   chan any
	done sync.WaitGroup
}

// startWorker starts a worker with n elements waiting.
func startWorker(t *testing.T, service *counted, n int, keeper store.Keeper, opts ...backend.Option) *worker {
	t.Helper()
	w := &worker{Backend: backend.New("payments", append(opts, backend.Shared(keeper))...), in: make(chan any)}
	op := asyncop.UnorderedWait(asyncop.Blocking(service.call), time.Minute, 100, asyncop.WithBackend(w.Backend))
	w.done.Go(func() {
		for range op.Out() {
		}
	})
	w.done.Go(func() {
		for i := range n {
			op.In() <- i
		}
		for v := range w.in {
			op.In() <- v
		}
		close(op.In())
	})
	return w
}

func (w *worker) end() {
	close(w.in)
	w.done.Wait()
}

func newEngine(t *testing.T) *memory.Engine {
	t.Helper()
	e := memory.Open()
	t.Cleanup(func() { _ = e.Close() })
	return e
}

// Law B5.
func TestShared_LimitOfAFleet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newEngine(t)
		service := &counted{takes: 300 * time.Millisecond}
		var fleet []*worker
		for range 5 {
			fleet = append(fleet, startWorker(t, service, 500, engine, backend.Limit(20)))
		}
		time.Sleep(10 * time.Second)
		for _, w := range fleet {
			require.Equal(t, 4, w.Stats().Limit)
		}
		before := service.calls.Load()
		time.Sleep(10 * time.Second)
		require.InDelta(t, 20/0.3*10, service.calls.Load()-before, 30, "the whole limit is in use")
		for _, w := range fleet {
			w.end()
		}
		require.EqualValues(t, 20, service.most.Load())
		require.EqualValues(t, 2500, service.calls.Load())
		synctest.Wait()
		time.Sleep(time.Second)
		require.Equal(t, `{"members":{}}`, shares(t, engine))
	})
}

// shares returns the record of the shares.
func shares(t *testing.T, k store.Keeper) string {
	t.Helper()
	records, err := k.Records(t.Context(), "fleet payments", "", 2)
	require.NoError(t, err)
	require.Len(t, records, 1)
	return records[0].Value
}

func TestShared_FreePermitsMoveAndAnIdleProcessHasNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		keeper := &flakyKeeper{Keeper: newEngine(t)}
		service := &counted{takes: 100 * time.Millisecond}
		first := startWorker(t, service, 300, keeper, backend.Limit(10))
		second := startWorker(t, service, 0, keeper, backend.Limit(10))
		time.Sleep(3 * time.Second)
		require.Equal(t, 10, first.Stats().Limit)
		require.Zero(t, second.Stats().Limit)
		time.Sleep(5 * time.Second)
		require.Zero(t, first.Stats().Limit, "it is idle now")
		second.in <- 1
		time.Sleep(2100 * time.Millisecond)
		require.EqualValues(t, 301, service.calls.Load())

		time.Sleep(time.Minute + 5*time.Second)
		before := keeper.updates.Load()
		time.Sleep(time.Minute)
		require.Equal(t, before, keeper.updates.Load(), "no writes after an idle minute")
		second.in <- 2
		time.Sleep(2100 * time.Millisecond)
		require.EqualValues(t, 302, service.calls.Load())
		first.end()
		second.end()
	})
}

func TestShared_IdleProcessWritesOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		keeper := &flakyKeeper{Keeper: newEngine(t)}
		w := startWorker(t, &counted{}, 0, keeper, backend.Limit(10))
		time.Sleep(30 * time.Second)
		require.LessOrEqual(t, keeper.updates.Load(), int64(31))
		w.end()
	})
}

func TestWithoutEngine_WhileTheEngineIsDown(t *testing.T) {
	for n, want := range []int64{0, 1} {
		t.Run(fmt.Sprint("n=", n), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				keeper := &flakyKeeper{Keeper: newEngine(t)}
				service := &counted{takes: 100 * time.Millisecond}
				first := startWorker(t, service, 10000, keeper, backend.Limit(10), backend.WithoutEngine(n))
				time.Sleep(5 * time.Second)
				require.Equal(t, 10, first.Stats().Limit)
				keeper.down.Store(true)
				time.Sleep(3 * time.Second)
				require.Equal(t, 10, first.Stats().Limit, "its lease has not ended")
				time.Sleep(5 * time.Second)
				require.EqualValues(t, want, first.Stats().Limit)
				service.most.Store(0)
				before := service.calls.Load()
				time.Sleep(10 * time.Second)
				require.Equal(t, 100*want, service.calls.Load()-before)
				require.Equal(t, want, service.most.Load())
				keeper.down.Store(false)
				time.Sleep(4 * time.Second)
				require.Equal(t, 10, first.Stats().Limit)
				require.EqualValues(t, 10, service.most.Load())
				go first.end()
				time.Sleep(3 * time.Minute)
			})
		})
	}
}

func TestShared_RateOfAFleet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newEngine(t)
		service := &counted{takes: 10 * time.Millisecond}
		var fleet []*worker
		for range 4 {
			fleet = append(fleet, startWorker(t, service, 1000, engine, backend.Limit(40), backend.Rate(100, time.Second)))
		}
		time.Sleep(5 * time.Second)
		before := service.calls.Load()
		time.Sleep(10 * time.Second)
		require.InDelta(t, 1000, service.calls.Load()-before, 20)
		for _, w := range fleet {
			w.SetLimit(0)
		}
		time.Sleep(3 * time.Second)
		before = service.calls.Load()
		for _, w := range fleet {
			w.SetLimit(40)
		}
		time.Sleep(time.Second)
		require.LessOrEqual(t, service.calls.Load()-before, int64(100), "a share that moves begins with an empty bucket")
		for _, w := range fleet {
			go w.end()
		}
		time.Sleep(3 * time.Minute)
	})
}

func TestShared_SetLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newEngine(t)
		service := &counted{takes: 100 * time.Millisecond}
		first := startWorker(t, service, 5000, engine, backend.Limit(10))
		second := startWorker(t, service, 5000, engine, backend.Limit(10))
		time.Sleep(5 * time.Second)
		first.SetLimit(4)
		second.SetLimit(4)
		time.Sleep(5 * time.Second)
		require.Equal(t, 2, first.Stats().Limit)
		require.Equal(t, 2, second.Stats().Limit)
		service.most.Store(0)
		time.Sleep(5 * time.Second)
		require.EqualValues(t, 4, service.most.Load())
		first.SetLimit(100)
		second.SetLimit(100)
		go first.end()
		second.end()
		time.Sleep(time.Minute)
	})
}

func TestShared_RefusesWhatCannotBeShared(t *testing.T) {
	k := newEngine(t)
	require.PanicsWithValue(t, "backend: Shared: nil keeper", func() { backend.Shared(nil) })
	require.PanicsWithValue(t, "backend: New: Shared without Limit: the shares are parts of a limit: add Limit(n)",
		func() { backend.New("payments", backend.Shared(k)) })
	require.PanicsWithValue(t, "backend: New: Shared and Adaptive: a limit that is found by measuring cannot be shared yet: use Limit",
		func() { backend.New("payments", backend.Shared(k), backend.Adaptive(1, 5)) })
	require.PanicsWithValue(t, "backend: New: Shared and AdaptiveRate: a rate that is found by measuring cannot be shared yet: use Rate",
		func() {
			backend.New("payments", backend.Shared(k), backend.Limit(5), backend.AdaptiveRate(1, 5, time.Second))
		})
	require.PanicsWithValue(t, "backend: WithoutEngine: negative number of calls: -1", func() { backend.WithoutEngine(-1) })
	require.PanicsWithValue(t, "backend: LongestCall: not positive: 0s", func() { backend.LongestCall(0) })
}

func TestShared_TwoEnginesForOneService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newEngine(t)
		service := &counted{takes: 100 * time.Millisecond}
		first := startWorker(t, service, 10, engine, backend.Limit(10))
		synctest.Wait()
		second := startWorker(t, service, 10, &flakyKeeper{Keeper: engine}, backend.Limit(10))
		synctest.Wait()
		require.Equal(t, backend.Held, second.Stats().State)
		require.Contains(t, second.Stats().Reason, "is shared on two engines, *memory.Engine and *backend_test.flakyKeeper")
		require.Equal(t, backend.Up, first.Stats().State)
		first.end()
		second.end()
	})
}

// granted returns a call that has a permit of a backend, and has not been made.
func granted(t *testing.T, keeper store.Keeper) (seat gate.Seat, release func()) {
	t.Helper()
	b := backend.New("payments", backend.Limit(1), backend.Shared(keeper), backend.LongestCall(time.Second))
	o := &operator{bench: &bench{T: t, Backend: b}, parked: true}
	seat = gate.Of(b).Attach(o, 0, time.Second)
	for {
		answer := seat.Start(time.Now(), &gate.Request{Element: 1})
		if answer.Wait == 0 {
			seat.DoneAsking(time.Now(), false)
			return seat, func() { seat.Release(answer.Stamp) }
		}
		seat.Wait(time.Now(), 1)
		time.Sleep(100 * time.Millisecond)
	}
}

// Law B5: the lease is checked directly before the call.
func TestAwaitLease_LeaseEndedBeforeTheCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		keeper := &flakyKeeper{Keeper: newEngine(t)}
		seat, release := granted(t, keeper)
		lease := seat.(gate.Leased)
		lease.AwaitLease(t.Context()) // returns at once

		keeper.down.Store(true)
		time.Sleep(6 * time.Second)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		lease.AwaitLease(ended) // returns because the call's context has ended

		var mayCall atomic.Bool
		go func() {
			lease.AwaitLease(t.Context())
			mayCall.Store(true)
		}()
		time.Sleep(time.Minute)
		require.False(t, mayCall.Load(), "the lease has ended")
		keeper.down.Store(false)
		time.Sleep(4 * time.Second)
		require.True(t, mayCall.Load())
		release()
		seat.Leave()
		synctest.Wait()
	})
}

// Law B5: after the end of a lease a call waits until the process has a share again.
func TestAwaitLease_AnotherProcessHasThePermit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		keeper := &flakyKeeper{Keeper: newEngine(t)}
		first, releaseFirst := granted(t, keeper)
		keeper.down.Store(true)
		time.Sleep(6 * time.Second)
		second, releaseSecond := granted(t, &flakyKeeper{Keeper: keeper.Keeper})
		second.(gate.Leased).AwaitLease(t.Context())

		keeper.down.Store(false)
		var mayCall atomic.Bool
		go func() {
			first.(gate.Leased).AwaitLease(t.Context())
			mayCall.Store(true)
		}()
		time.Sleep(20 * time.Second)
		require.False(t, mayCall.Load(), "the only permit is in use")
		releaseSecond()
		second.Leave()
		time.Sleep(4 * time.Second)
		require.True(t, mayCall.Load())
		releaseFirst()
		first.Leave()
		synctest.Wait()
	})
}
