package backend_test

import (
	"context"
	"errors"
	"fmt"
	"math"
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

// flakyKeeper is an engine that does not answer while it is down, and on which other
// processes are faster while outpaced is set.
type flakyKeeper struct {
	store.Keeper
	down     atomic.Bool
	outpaced atomic.Bool
	updates  atomic.Int64
}

var errEngineDown = errors.New("the engine is down")

func (k *flakyKeeper) Update(ctx context.Context, f func(context.Context, store.Tx) error) error {
	k.updates.Add(1)
	if k.down.Load() {
		return errEngineDown
	}
	return k.Keeper.Update(ctx, func(ctx context.Context, tx store.Tx) error {
		err := f(ctx, tx)
		if err == nil && k.outpaced.Load() {
			return store.ErrChanged
		}
		return err
	})
}

// worker is an operator at a backend of its own, as in a process of a fleet.
type worker struct {
	*backend.Backend
	in   chan any
	stop context.CancelFunc // ends the operator at once; use it instead of end
	done sync.WaitGroup
}

// startWorker starts a worker with n elements waiting.
func startWorker(t *testing.T, service *counted, n int, keeper store.Keeper, opts ...backend.Option) *worker {
	t.Helper()
	return startWorkerAt(backend.New("payments", append(opts, backend.Shared(keeper))...), service, n, time.Minute)
}

// startWorkerAt starts a worker at a backend.
func startWorkerAt(b *backend.Backend, service *counted, n int, timeout time.Duration) *worker {
	ctx, stop := context.WithCancel(context.Background())
	w := &worker{Backend: b, in: make(chan any), stop: stop}
	op := asyncop.UnorderedWait(asyncop.Blocking(service.call), timeout, 100, asyncop.WithBackend(b), asyncop.WithContext(ctx),
		asyncop.WithDropOnFailure())
	w.done.Go(func() {
		for range op.Out() {
		}
	})
	w.done.Go(func() {
		for i := range n {
			op.In() <- i
		}
		defer close(op.In())
		for {
			select {
			case v, ok := <-w.in:
				if !ok {
					return
				}
				op.In() <- v
			case <-ctx.Done():
				return
			}
		}
	})
	return w
}

// end ends the input, and waits for the end of the operator.
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
				require.InDelta(t, 100*want, service.calls.Load()-before, 1)
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

func TestWithoutEngine_MoreThanTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		keeper := &flakyKeeper{Keeper: newEngine(t)}
		keeper.down.Store(true)
		service := &counted{takes: 100 * time.Millisecond}
		w := startWorker(t, service, 100, keeper, backend.Limit(3), backend.WithoutEngine(50))
		time.Sleep(10 * time.Second)
		w.end()
		require.EqualValues(t, 3, service.most.Load())
	})
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
		second.Resume()
		time.Sleep(5 * time.Second)
		require.Equal(t, backend.Held, second.Stats().State)
		require.Equal(t, backend.Up, first.Stats().State)
		require.NotContains(t, shares(t, engine), "two engines", "the hold concerns one process")
		first.end()

		second.Resume()
		within(t, 5*time.Second, func() bool { return service.calls.Load() == 20 })
		second.end()
	})
}

// granted returns the seat of a process with a permit, and the stamp of the permit.
func granted(t *testing.T, keeper store.Keeper) (seat gate.Seat, stamp gate.Stamp) {
	t.Helper()
	b := backend.New("payments", backend.Limit(1), backend.Shared(keeper), backend.LongestCall(time.Second))
	o := &operator{bench: &bench{T: t, Backend: b}, parked: true}
	seat = gate.Of(b).Attach(o, gate.Caller{})
	return seat, startOn(seat)
}

// startOn waits for a permit of a seat, and returns its stamp.
func startOn(seat gate.Seat) gate.Stamp {
	for {
		answer := seat.Start(time.Now(), &gate.Request{Element: 1})
		if answer.Wait == 0 {
			seat.DoneAsking(time.Now(), false)
			return answer.Stamp
		}
		seat.Wait(time.Now(), 1)
		time.Sleep(100 * time.Millisecond)
	}
}

// mayCall reports whether a call with the permit may be made now, and ends it.
func mayCall(t *testing.T, seat gate.Seat, stamp gate.Stamp) bool {
	t.Helper()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	call, err := seat.(gate.Leased).BeginCall(ended, stamp)
	if err != nil {
		require.ErrorIs(t, err, context.Canceled)
		return false
	}
	seat.(gate.Leased).EndCall(call)
	return true
}

// Law B5: the lease is checked directly before the call.
func TestBeginCall_LeaseEndedBeforeTheCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		keeper := &flakyKeeper{Keeper: newEngine(t)}
		seat, stamp := granted(t, keeper)
		require.True(t, mayCall(t, seat, stamp))
		require.True(t, seat.(gate.Leased).MayCall(stamp))

		keeper.down.Store(true)
		time.Sleep(6 * time.Second)
		require.False(t, mayCall(t, seat, stamp))
		require.False(t, seat.(gate.Leased).MayCall(stamp))

		var began atomic.Bool
		go func() {
			_, err := seat.(gate.Leased).BeginCall(t.Context(), stamp)
			began.Store(err == nil)
		}()
		time.Sleep(time.Minute)
		require.False(t, began.Load(), "the lease has ended")
		keeper.updates.Store(0)
		time.Sleep(10 * time.Second)
		require.LessOrEqual(t, keeper.updates.Load(), int64(20), "a call that waits does not hurry the steps")
		keeper.down.Store(false)
		time.Sleep(4 * time.Second)
		require.True(t, began.Load())
		seat.(gate.Leased).EndCall(stamp)
		seat.Release(stamp)
		seat.Leave()
		synctest.Wait()
	})
}

// Law B1: a call whose lease has ended before it was made does not begin while the backend
// is held.
func TestBeginCall_HeldAfterTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		keeper := &flakyKeeper{Keeper: newEngine(t)}
		b := backend.New("payments", backend.Limit(1), backend.Shared(keeper), backend.LongestCall(time.Second))
		seat := gate.Of(b).Attach(&operator{bench: &bench{T: t, Backend: b}, parked: true}, gate.Caller{})
		stamp := startOn(seat)
		keeper.down.Store(true)
		time.Sleep(6 * time.Second)
		b.Hold("for maintenance")
		keeper.down.Store(false)
		began := make(chan gate.Stamp)
		go func() {
			call, err := seat.(gate.Leased).BeginCall(t.Context(), stamp)
			if err == nil {
				began <- call
			}
		}()
		select {
		case <-began:
			require.Fail(t, "the call has begun")
		case <-time.After(time.Minute):
		}
		b.Resume()
		seat.(gate.Leased).EndCall(<-began)
		seat.Release(stamp)
		seat.Leave()
		synctest.Wait()
	})
}

// Law B5: after the end of a lease a call waits until the process has a share again.
func TestBeginCall_AnotherProcessHasThePermit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		keeper := &flakyKeeper{Keeper: newEngine(t)}
		first, stamp := granted(t, keeper)
		keeper.down.Store(true)
		time.Sleep(6 * time.Second)
		second, other := granted(t, &flakyKeeper{Keeper: keeper.Keeper})
		require.True(t, mayCall(t, second, other))

		keeper.down.Store(false)
		var began atomic.Bool
		go func() {
			_, err := first.(gate.Leased).BeginCall(t.Context(), stamp)
			began.Store(err == nil)
		}()
		time.Sleep(20 * time.Second)
		require.False(t, began.Load(), "the only permit is in use")
		second.Release(other)
		second.Leave()
		time.Sleep(4 * time.Second)
		require.True(t, began.Load())
		first.(gate.Leased).EndCall(stamp)
		first.Release(stamp)
		first.Leave()
		synctest.Wait()
	})
}

// Law B5: a call that may run for longer than the process has recorded waits for the step
// that records it. Otherwise others would take the permits too early if the process died.
func TestBeginCall_LongerThanRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newEngine(t)
		b := backend.New("payments", backend.Limit(2), backend.Shared(engine))
		attach := func(longest time.Duration) (gate.Seat, gate.Stamp) {
			seat := gate.Of(b).Attach(&operator{bench: &bench{T: t, Backend: b}, parked: true}, gate.Caller{Longest: longest})
			return seat, startOn(seat)
		}
		short, first := attach(time.Second)
		require.True(t, mayCall(t, short, first))
		time.Sleep(5 * time.Second)
		require.Contains(t, shares(t, engine), `"longest":1000000000,`)
		require.NotContains(t, shares(t, engine), `"longest":60000000000,`)

		long, second := attach(time.Minute)
		require.False(t, mayCall(t, long, second))
		require.False(t, long.(gate.Leased).MayCall(second))
		require.True(t, mayCall(t, short, first), "its calls are recorded")
		begin := time.Now()
		call, err := long.(gate.Leased).BeginCall(t.Context(), second)
		require.NoError(t, err)
		require.Contains(t, shares(t, engine), `"longest":60000000000,`)
		require.Less(t, time.Since(begin), time.Second)
		long.(gate.Leased).EndCall(call)
		for seat, stamp := range map[gate.Seat]gate.Stamp{short: first, long: second} {
			seat.Release(stamp)
			seat.Leave()
		}
		synctest.Wait()
	})
}

// A backend that was held for longer than a minute has no share, and gets one again.
func TestShared_ResumeAfterALongHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service := &counted{takes: 100 * time.Millisecond}
		w := startWorker(t, service, 0, newEngine(t), backend.Limit(10))
		w.Hold("for maintenance")
		w.in <- 1
		time.Sleep(50 * time.Second)
		w.in <- 2
		time.Sleep(40 * time.Second)
		require.Zero(t, service.calls.Load())
		w.Resume()
		time.Sleep(5 * time.Second)
		require.EqualValues(t, 1, service.calls.Load(), "the first element has timed out")
		w.end()
	})
}

// The only permit moves on when its process has made a call, however slow the rate is.
func TestShared_SlowRateServesAll(t *testing.T) {
	for _, limit := range []int{1, 3, 10} {
		t.Run(fmt.Sprint("limit=", limit), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				engine := newEngine(t)
				var fleet []*worker
				var calls []*counted
				for range 5 {
					service := &counted{takes: 100 * time.Millisecond}
					calls = append(calls, service)
					b := backend.New("payments", backend.Limit(limit), backend.Rate(12, time.Minute), backend.Shared(engine), backend.LongestCall(time.Second))
					fleet = append(fleet, startWorkerAt(b, service, 1000, time.Hour))
				}
				time.Sleep(4 * time.Minute)
				all := int64(0)
				for _, c := range calls {
					require.GreaterOrEqual(t, c.calls.Load(), int64(3))
					all += c.calls.Load()
				}
				require.LessOrEqual(t, all, int64(4*12+5))
				require.GreaterOrEqual(t, all, int64(4*12/2), "half of the rate at least is used")
				for _, w := range fleet {
					w.stop()
				}
				time.Sleep(2 * time.Minute)
			})
		})
	}
}

// A change of the limit divides the rate anew, even if the share stays the same.
func TestShared_SetLimitDividesTheRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newEngine(t)
		service := &counted{takes: time.Second}
		first := startWorker(t, service, 1000, engine, backend.Limit(2), backend.Rate(1, time.Second))
		second := startWorker(t, service, 1000, engine, backend.Limit(2), backend.Rate(1, time.Second))
		time.Sleep(10 * time.Second)
		require.Equal(t, 1, first.Stats().Limit)
		first.SetLimit(1000)
		second.SetLimit(1000)
		time.Sleep(time.Millisecond)
		require.Equal(t, 1, first.Stats().Limit)
		before := service.calls.Load()
		time.Sleep(500 * time.Millisecond)
		require.LessOrEqual(t, service.calls.Load()-before, int64(2))
		time.Sleep(10 * time.Second)
		before = service.calls.Load()
		time.Sleep(20 * time.Second)
		require.InDelta(t, 20, service.calls.Load()-before, 3)
		first.stop()
		second.stop()
		time.Sleep(2 * time.Minute)
	})
}

// The share is given up when the last operator has ended.
func TestShared_EndReleasesTheShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newEngine(t)
		service := &counted{takes: 100 * time.Millisecond}
		w := startWorker(t, service, 100, engine, backend.Limit(10))
		time.Sleep(2 * time.Second)
		w.end()
		require.Equal(t, `{"members":{}}`, shares(t, engine), "without any wait")
	})
}

// delayedKeeper is an engine that needs half a second for a step while a condition holds.
type delayedKeeper struct {
	store.Keeper
	isDelayed func() bool
}

func (k *delayedKeeper) Update(ctx context.Context, f func(context.Context, store.Tx) error) error {
	if k.isDelayed() {
		time.Sleep(500 * time.Millisecond)
	}
	return k.Keeper.Update(ctx, f)
}

// Law B5: the last operator has ended. While the engine records that, another operator
// starts calls with the permits of the process, which keeps them.
func TestShared_CallsStartWhileTheProcessLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service := &counted{takes: 100 * time.Millisecond}
		engine := newEngine(t)
		keeper := &delayedKeeper{engine, func() bool { return service.calls.Load() == 300 && service.now.Load() == 0 }}
		b := backend.New("payments", backend.Limit(10), backend.Shared(keeper))
		first := startWorkerAt(b, service, 300, time.Minute)
		ended := make(chan struct{})
		go func() { // ends with the first worker
			first.end()
			close(ended)
		}()
		within(t, 10*time.Second, keeper.isDelayed)
		long := &counted{takes: 10 * time.Second}
		second := startWorkerAt(b, long, 5, time.Minute)
		within(t, 100*time.Millisecond, func() bool { return long.now.Load() == 5 })
		for range 200 {
			require.Regexp(t, `"share":([5-9]|10),`, shares(t, engine))
			time.Sleep(10 * time.Millisecond)
		}
		<-ended
		second.end()
	})
}

func TestLongestCall_Huge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newEngine(t)
		service := &counted{takes: 100 * time.Millisecond}
		first := startWorker(t, service, 10000, engine, backend.Limit(10), backend.LongestCall(math.MaxInt64))
		second := startWorker(t, service, 10000, engine, backend.Limit(10), backend.LongestCall(math.MaxInt64))
		time.Sleep(30 * time.Second)
		require.Equal(t, 5, first.Stats().Limit)
		require.Equal(t, 5, second.Stats().Limit)
		require.LessOrEqual(t, service.most.Load(), int64(10))
		first.stop()
		second.stop()
		time.Sleep(2 * time.Minute)
	})
}

func TestShared_NamesThatTheEngineCannotStore(t *testing.T) {
	k := newEngine(t)
	for _, name := range []string{"a\x00b", "a\xffb"} {
		require.PanicsWithValue(t, fmt.Sprintf("backend: New: Shared: the name %q is stored in the engine: use valid UTF-8 without NUL", name),
			func() { backend.New(name, backend.Limit(1), backend.Shared(k)) })
	}
}

// firstCall returns the time that a new process waits for its first call.
func firstCall(t *testing.T, engine store.Keeper, calls int) time.Duration {
	t.Helper()
	service := &counted{takes: 100 * time.Millisecond}
	begin := time.Now()
	w := startWorker(t, service, calls, engine, backend.Limit(10), backend.LongestCall(time.Second))
	for service.calls.Load() == 0 {
		time.Sleep(time.Millisecond)
		require.Less(t, time.Since(begin), 10*time.Second)
	}
	took := time.Since(begin)
	w.stop()
	return took
}

// docs/fleet.md states these times.
func TestShared_FirstCallOfANewProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newEngine(t)
		alone := firstCall(t, engine, 1)
		time.Sleep(10 * time.Second)
		var fleet []*worker
		for range 3 {
			fleet = append(fleet, startWorker(t, &counted{takes: 100 * time.Millisecond}, 100000, engine, backend.Limit(10), backend.LongestCall(time.Second)))
		}
		most := time.Duration(0)
		for range 20 {
			time.Sleep(4137 * time.Millisecond)
			most = max(most, firstCall(t, engine, 100))
		}
		t.Logf("alone %v, in a busy fleet at most %v", alone, most)
		require.LessOrEqual(t, alone, 1500*time.Millisecond)
		require.LessOrEqual(t, most, 2500*time.Millisecond)
		for _, w := range fleet {
			w.stop()
		}
		time.Sleep(time.Minute)
	})
}
