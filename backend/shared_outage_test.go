package backend_test

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/backend"
	"github.com/weirflow/weir/delivery/store"
)

// slowKeeper is an engine whose steps take long.
type slowKeeper struct {
	store.Keeper
	takes time.Duration
}

func (k *slowKeeper) Update(ctx context.Context, f func(context.Context, store.Tx) error) error {
	time.Sleep(k.takes / 2)
	err := k.Keeper.Update(ctx, f)
	time.Sleep(k.takes / 2)
	return err
}

// Fewer permits than processes, and an engine whose steps take almost a second. The fleet
// comes back after an outage, because a turn lasts until the process has probed.
func TestShared_TurnsAndASlowEngineInAnOutage(t *testing.T) {
	quiet := backend.WithLogger(slog.New(slog.DiscardHandler))
	for _, c := range []struct {
		takes time.Duration
		limit int
	}{{0, 2}, {700 * time.Millisecond, 2}, {800 * time.Millisecond, 2}, {900 * time.Millisecond, 2}, {800 * time.Millisecond, 1}} {
		for range 8 {
			synctest.Test(t, func(t *testing.T) {
				engine, s := newEngine(t), &outageService{}
				var fleet []*worker
				for range 4 {
					fleet = append(fleet, startOutageWorker(t, s, &slowKeeper{engine, c.takes}, backend.Limit(c.limit), quiet))
				}
				time.Sleep(30 * time.Second)
				s.set(true)
				time.Sleep(time.Minute)
				s.set(false)
				within(t, 5*time.Minute, func() bool { return allAre(fleet, backend.Up) })
				stopAll(fleet)
				time.Sleep(time.Minute) // until the engine has recorded the ends
			})
		}
	}
}

// With fewer permits than processes the permit moves on after a lost probe. So a process
// that does not reach the service keeps the fleet down for a while only.
func TestShared_TurnsOfProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine, cut, s := newEngine(t), &outageService{}, &outageService{}
		fleet := []*worker{startOutageWorker(t, cut, engine, backend.Limit(1)), startOutageWorker(t, s, engine, backend.Limit(1))}
		time.Sleep(20 * time.Second)
		cut.set(true)
		within(t, time.Minute, func() bool { return !allAre(fleet, backend.Up) })
		before := fleet[1].Stats().Started
		within(t, time.Minute, func() bool { return fleet[1].Stats().Started > before })
		stopAll(fleet)
	})
}

// Operators in calls of the same backend, two processes and a limit of one. The process
// whose call is running probes with its permit, although it has no share at the time.
func TestShared_NestedInAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine, s := newEngine(t), &outageService{}
		var fleet []*worker
		for range 2 {
			fleet = append(fleet, startNestedWorker(t, s, engine))
		}
		time.Sleep(30 * time.Second)
		s.set(true)
		time.Sleep(time.Minute)
		s.set(false)
		time.Sleep(5 * time.Minute)
		require.Positive(t, s.since(time.Now().Add(-10*time.Second)))
		stopAll(fleet)
	})
}

// startNestedWorker starts a worker whose calls run operators at its own backend, with a
// limit of one.
func startNestedWorker(t *testing.T, s *outageService, keeper store.Keeper) *worker {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	ctx, stop := context.WithCancel(t.Context())
	w := &worker{Backend: backend.New("payments", backend.Limit(1), backend.Shared(keeper), backend.LongestCall(time.Second), backend.WithLogger(quiet)), stop: stop}
	outer := asyncop.Blocking(func(ctx context.Context, i int) (int, error) {
		inner := asyncop.UnorderedWait(asyncop.Blocking(s.call), time.Hour, 2, asyncop.WithBackend(w.Backend), asyncop.WithContext(ctx),
			asyncop.WithDropOnFailure(), asyncop.WithLogger(quiet))
		for range inner.Results(elementsUntil(ctx, 10)) {
			if ctx.Err() != nil {
				break
			}
		}
		return i, ctx.Err()
	})
	op := asyncop.UnorderedWait(outer, time.Hour, 10, asyncop.WithBackend(w.Backend), asyncop.WithContext(ctx), asyncop.WithDropOnFailure(), asyncop.WithLogger(quiet))
	w.done.Go(func() {
		for range op.Results(elementsUntil(ctx, 1_000_000)) {
			if ctx.Err() != nil {
				return
			}
		}
	})
	return w
}

// One process has DryRun. It neither obeys the outage of the others nor ends it by its own
// calls, which go on. It obeys a hold, and the end of a hold.
func TestDryRun_InAFleet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine, s, log := newEngine(t), &outageService{}, new(lockedLog)
		fleet := []*worker{startOutageWorker(t, s, engine, backend.Limit(30), log.option(), backend.DryRun())}
		for range 2 {
			fleet = append(fleet, startOutageWorker(t, s, engine, backend.Limit(30), log.option()))
		}
		time.Sleep(10 * time.Second)
		s.set(true)
		for range 600 {
			time.Sleep(100 * time.Millisecond)
			require.Equal(t, backend.Up, fleet[0].Stats().State)
		}
		require.Zero(t, log.count("backend: ramping"))
		require.True(t, allAre(fleet[1:], backend.Down, backend.Probing))
		s.set(false)
		within(t, time.Minute, func() bool { return allAre(fleet, backend.Up) })

		fleet[1].Hold("for maintenance")
		within(t, 2*time.Second, func() bool { return allAre(fleet, backend.Held) })
		fleet[0].Resume()
		within(t, time.Minute, func() bool { return allAre(fleet, backend.Up) })
		stopAll(fleet)
	})
}

// Fewer permits than processes, and a process with DryRun has the only permit when the
// service goes down. It passes the permit on, so that the other one can probe.
func TestDryRun_PassesOnItsPermit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine, s := newEngine(t), &outageService{}
		quiet := backend.WithLogger(slog.New(slog.DiscardHandler))
		dry := startOutageWorker(t, s, engine, backend.Limit(1), quiet, backend.DryRun())
		other := startOutageWorker(t, s, engine, backend.Limit(1), quiet)
		time.Sleep(20 * time.Second)
		s.set(true)
		within(t, time.Minute, func() bool { return other.Stats().State == backend.Down })
		s.set(false)
		within(t, time.Minute, func() bool { return other.Stats().State == backend.Up })
		stopAll([]*worker{dry, other})
	})
}

// Resume in a process that has not read the hold of another one yet.
func TestShared_ResumeBeforeTheHoldIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine, s := newEngine(t), &outageService{}
		fleet := []*worker{startOutageWorker(t, s, engine, backend.Limit(10)), startOutageWorker(t, s, engine, backend.Limit(10))}
		time.Sleep(10 * time.Second)
		before := shares(t, engine)
		for shares(t, engine) == before { // the other process has just made a step
			time.Sleep(time.Millisecond)
		}
		fleet[0].Hold("for maintenance")
		for !strings.Contains(shares(t, engine), "maintenance") {
			time.Sleep(time.Millisecond)
		}
		require.Equal(t, backend.Up, fleet[1].Stats().State)
		fleet[1].Resume()
		within(t, time.Minute, func() bool { return allAre(fleet, backend.Up) })
		stopAll(fleet)
	})
}

// Resume in a process that rests, or does not have operators, ends the hold of another
// process.
func TestShared_ResumeInARestingProcess(t *testing.T) {
	for _, hasOperator := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			engine, s := newEngine(t), &outageService{}
			holder := startOutageWorker(t, s, engine, backend.Limit(10))
			other := &worker{Backend: backend.New("payments", backend.Limit(10), backend.Shared(engine)), stop: func() {}}
			if hasOperator {
				other = startWorker(t, &counted{}, 0, engine, backend.Limit(10))
			}
			time.Sleep(90 * time.Second)
			holder.Hold("for maintenance")
			time.Sleep(time.Minute)
			require.Contains(t, shares(t, engine), "for maintenance")
			other.Resume()
			within(t, time.Minute, func() bool { return holder.Stats().State == backend.Up })
			stopAll([]*worker{other, holder})
			time.Sleep(5 * time.Second)
		})
	}
}

// Hold in a process without operators, or just before its operator ends.
func TestShared_HoldWithoutOperators(t *testing.T) {
	for _, hasOperator := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			engine, s := newEngine(t), &outageService{}
			w := startOutageWorker(t, s, engine, backend.Limit(10))
			holder := &worker{Backend: backend.New("payments", backend.Limit(10), backend.Shared(engine)), stop: func() {}}
			if hasOperator {
				holder = startWorker(t, &counted{}, 0, engine, backend.Limit(10))
			}
			time.Sleep(5 * time.Second)
			holder.Hold("for maintenance")
			stopAll([]*worker{holder})
			time.Sleep(time.Minute)
			require.Equal(t, backend.Held, w.Stats().State)
			stopAll([]*worker{w})
		})
	}
}

// A process that is cut off is told to hold. When it reaches the engine again, the state
// of the fleet has changed: the order has lapsed, and a line says so.
func TestShared_OrderOfACutOffProcessLapses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine, s, log := newEngine(t), &outageService{}, new(lockedLog)
		cut := &flakyKeeper{Keeper: engine}
		w := startOutageWorker(t, s, cut, backend.Limit(10), log.option())
		other := startOutageWorker(t, s, &flakyKeeper{Keeper: engine}, backend.Limit(10))
		time.Sleep(10 * time.Second)
		cut.down.Store(true)
		w.Hold("for maintenance")
		time.Sleep(10 * time.Second)
		other.Hold("for an hour")
		time.Sleep(10 * time.Second)
		other.Resume()
		within(t, time.Minute, func() bool { return other.Stats().State == backend.Up })
		require.Equal(t, backend.Held, w.Stats().State)
		cut.down.Store(false)
		within(t, time.Minute, func() bool { return w.Stats().State == backend.Up })
		require.Equal(t, 1, log.count("backend: an order was not carried out"))
		require.Equal(t, backend.Up, other.Stats().State)
		stopAll([]*worker{w, other})
	})
}

// Hold before the first operator starts, in a process that is alone.
func TestShared_HoldBeforeTheFirstOperator(t *testing.T) {
	for _, wait := range []time.Duration{0, time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			engine, service := newEngine(t), &counted{takes: 100 * time.Millisecond}
			b := backend.New("payments", backend.Limit(10), backend.Shared(engine))
			b.Hold("for maintenance")
			time.Sleep(wait)
			w := startWorkerAt(b, service, 1, time.Hour)
			time.Sleep(time.Minute)
			require.Equal(t, backend.Held, b.Stats().State)
			require.Zero(t, service.calls.Load())
			b.Resume()
			within(t, time.Minute, func() bool { return service.calls.Load() > 0 })
			w.stop()
			w.done.Wait()
		})
	}
}

// hooked calls a function before each call.
type hooked struct {
	asyncop.AsyncFunction[int, int]
	before func()
}

func (h hooked) AsyncInvoke(ctx context.Context, i int, result asyncop.ResultFuture[int]) error {
	h.before()
	return h.AsyncFunction.AsyncInvoke(ctx, i, result)
}

// A process with a probe is paused between its permit and the call, for longer than its
// lease and a probe. Afterwards it does not make the old probe beside a new one.
func TestShared_PausedProber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		quiet := slog.New(slog.DiscardHandler)
		engine, service := &lossyKeeper{}, &limited{}
		var fleet []*fleetProcess
		var pauses atomic.Bool // the next probe of process 0 is paused
		for n := range 2 {
			p := &fleetProcess{link: &link{lossyKeeper: engine}}
			p.Backend = backend.New("payments", backend.WithLogger(quiet), backend.Limit(10), backend.Shared(p.link), backend.LongestCall(2*time.Second))
			ctx, stop := context.WithCancel(context.Background())
			p.stop = stop
			fn := asyncop.Blocking(func(ctx context.Context, i int) (int, error) { return i, service.call(ctx, time.Second) })
			op := asyncop.UnorderedWait[int, int](hooked{fn, func() {
				if n == 0 && p.Stats().State == backend.Probing && pauses.CompareAndSwap(true, false) {
					until := time.Now().Add(20 * time.Second)
					p.link.set(&p.link.cut, until)
					time.Sleep(time.Until(until))
				}
			}}, time.Hour, 20, asyncop.WithBackend(p.Backend), asyncop.WithContext(ctx), asyncop.WithDropOnFailure(), asyncop.WithLogger(quiet))
			p.gone.Go(func() {
				for range op.Results(elementsUntil(ctx, 1_000_000)) {
					if ctx.Err() != nil {
						return
					}
				}
			})
			fleet = append(fleet, p)
		}
		time.Sleep(20 * time.Second)
		service.goDown(time.Now().Add(time.Hour))
		time.Sleep(30 * time.Second)
		service.peak()
		pauses.Store(true)
		most := 0
		for range 1200 {
			time.Sleep(100 * time.Millisecond)
			most = max(most, service.peak())
		}
		require.False(t, pauses.Load())
		require.Equal(t, 1, most, "probes at a time")
		for _, p := range fleet {
			p.stop()
		}
		time.Sleep(time.Minute)
		for _, p := range fleet {
			p.gone.Wait()
		}
	})
}
