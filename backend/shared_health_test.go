package backend_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/backend"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/gate"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/httpretry"
)

// outageService is a service that may be down, and notes when its calls start.
type outageService struct {
	mu      sync.Mutex
	isDown  bool
	demands time.Duration // of the next call; 0 if it demands no pause
	running int
	most    int // calls at the same time
	starts  []time.Time
}

var errTooMany = predicates.WithReason(errFailed, httpretry.TooManyRequests)

func (s *outageService) call(ctx context.Context, in int) (int, error) {
	s.mu.Lock()
	s.running++
	s.most = max(s.most, s.running)
	s.starts = append(s.starts, time.Now())
	isDown, demands := s.isDown, s.demands
	s.demands = 0
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.running--
		s.mu.Unlock()
	}()
	select {
	case <-time.After(100 * time.Millisecond):
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	switch {
	case isDown:
		return 0, errBusy
	case demands > 0:
		return 0, predicates.WithPushback(errTooMany, demands)
	}
	return in, nil
}

// set takes the service down, or up again.
func (s *outageService) set(isDown bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.isDown = isDown
}

// demand makes the next answer ask for a pause.
func (s *outageService) demand(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.demands = d
}

// since returns how many calls have started at a time or later. It forgets the most
// calls at the same time so far.
func (s *outageService) since(at time.Time) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, start := range s.starts {
		if !start.Before(at) {
			n++
		}
	}
	s.most = s.running
	return n
}

// maximum returns the most calls at the same time.
func (s *outageService) maximum() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.most
}

// startOutageWorker starts a worker that always has elements waiting.
func startOutageWorker(t *testing.T, s *outageService, keeper store.Keeper, opts ...backend.Option) *worker {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	w := &worker{Backend: backend.New("payments", append(opts, backend.Shared(keeper), backend.LongestCall(time.Second))...), stop: stop}
	op := asyncop.UnorderedWait(asyncop.Blocking(s.call), time.Hour, 100, asyncop.WithBackend(w.Backend), asyncop.WithContext(ctx), asyncop.WithDropOnFailure())
	w.done.Go(func() {
		for range op.Results(elementsUntil(ctx, 1_000_000)) {
			if ctx.Err() != nil {
				return
			}
		}
	})
	return w
}

// allAre reports whether all backends are in one of the states.
func allAre(fleet []*worker, states ...backend.State) bool {
	for _, w := range fleet {
		is := false
		for _, s := range states {
			is = is || w.Stats().State == s
		}
		if !is {
			return false
		}
	}
	return true
}

// within waits until a condition is met, for at most d, and returns how long that took.
func within(t *testing.T, d time.Duration, condition func() bool) time.Duration {
	t.Helper()
	begin := time.Now()
	for !condition() {
		require.Less(t, time.Since(begin), d)
		time.Sleep(10 * time.Millisecond)
	}
	return time.Since(begin)
}

func stopAll(fleet []*worker) {
	for _, w := range fleet {
		w.stop()
	}
	for _, w := range fleet {
		w.done.Wait()
	}
}

// startFleet starts three workers, and waits until they share the limit.
func startFleet(t *testing.T, s *outageService, engine store.Keeper, opts ...backend.Option) []*worker {
	t.Helper()
	var fleet []*worker
	for range 3 {
		fleet = append(fleet, startOutageWorker(t, s, engine, append(opts, backend.Limit(30))...))
	}
	time.Sleep(10 * time.Second)
	for _, w := range fleet {
		require.Equal(t, 10, w.Stats().Limit)
	}
	return fleet
}

// The fleet has one outage, one probe at a time, and one ramp.
func TestShared_OneOutageOneProbeOneRamp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &outageService{}
		fleet := startFleet(t, s, newEngine(t))
		before := time.Now()
		pace := float64(s.since(before.Add(-5*time.Second))) / 5
		s.set(true)
		within(t, 2*time.Second, func() bool { return allAre(fleet, backend.Down, backend.Probing) })
		time.Sleep(time.Second) // running calls end
		down := time.Now()
		s.since(down)
		time.Sleep(time.Minute)
		require.LessOrEqual(t, s.maximum(), 1, "one probe at a time")
		probes := s.since(down)
		require.Greater(t, probes, 3)
		require.Less(t, probes, 30)

		s.set(false)
		within(t, 15*time.Second, func() bool { return !allAre(fleet, backend.Down, backend.Probing) })
		begun := time.Now().Add(-20 * time.Millisecond)
		for x := 0.0; !allAre(fleet, backend.Up); x = time.Since(begun).Seconds() {
			require.LessOrEqual(t, float64(s.since(begun)), pace*1.1*x*x/(2*5)+3, "after %v s", x)
			require.Less(t, x, 10.0)
			time.Sleep(20 * time.Millisecond)
		}
		require.Greater(t, s.since(begun), 100, "the load grows")
		time.Sleep(5 * time.Second)
		require.InDelta(t, pace, float64(s.since(time.Now().Add(-3*time.Second)))/3, pace/10)
		stopAll(fleet)
	})
}

// One process finds the outage, and all processes obey it.
func TestShared_OneProcessFindsTheOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine, log := newEngine(t), new(lockedLog)
		services := []*outageService{{}, {}, {}}
		var fleet []*worker
		for _, s := range services {
			fleet = append(fleet, startOutageWorker(t, s, engine, backend.Limit(30), log.option()))
		}
		time.Sleep(10 * time.Second)
		services[0].set(true)
		within(t, 3*time.Second, func() bool { return fleet[0].Stats().State == backend.Down })
		services[0].set(false)
		before := services[1].since(time.Time{})
		within(t, time.Second, func() bool {
			return !allAre(fleet, backend.Up, backend.Ramping) && fleet[1].Stats().State != backend.Up && fleet[2].Stats().State != backend.Up
		})
		require.Less(t, services[1].since(time.Time{})-before, 100, "it obeys within a second")
		synctest.Wait() // the line is logged after the state has changed
		require.Equal(t, 2, log.count("backend: down, as another process has found"))
		require.Contains(t, fleet[1].Stats().Reason, " were lost, the last one: ")
		require.Zero(t, fleet[1].Stats().Trips)
		within(t, 15*time.Second, func() bool { return allAre(fleet, backend.Up) })
		require.EqualValues(t, 1, fleet[0].Stats().Trips)
		stopAll(fleet)
	})
}

// A hold in one process holds the fleet, however long, and Resume in another process ends
// it.
func TestShared_HoldOfAFleet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &outageService{}
		engine := newEngine(t)
		fleet := startFleet(t, s, engine)
		fleet[0].Hold("for maintenance")
		within(t, 2*time.Second, func() bool { return allAre(fleet, backend.Held) })
		require.Equal(t, "for maintenance", fleet[1].Stats().Reason)
		time.Sleep(time.Second)
		held := time.Now()
		time.Sleep(5 * time.Minute)
		require.Zero(t, s.since(held))

		joined := startOutageWorker(t, s, engine, backend.Limit(30))
		time.Sleep(10 * time.Second)
		require.Zero(t, s.since(held))
		require.Equal(t, backend.Held, joined.Stats().State)

		fleet = append(fleet, joined)
		fleet[1].Resume()
		within(t, 15*time.Second, func() bool { return allAre(fleet, backend.Up) })
		for _, w := range fleet {
			started := w.Stats().Started
			within(t, 10*time.Second, func() bool { return w.Stats().Started > started })
		}
		stopAll(fleet)
	})
}

// A hold ends with the last process of the fleet.
func TestShared_HoldEndsWithTheFleet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, engine := &outageService{}, newEngine(t)
		fleet := startFleet(t, s, engine)
		fleet[0].Hold("for maintenance")
		within(t, 2*time.Second, func() bool { return allAre(fleet, backend.Held) })
		stopAll(fleet[:2])
		time.Sleep(10 * time.Second)
		require.Equal(t, backend.Held, fleet[2].Stats().State)
		stopAll(fleet[2:])
		next := startOutageWorker(t, s, engine, backend.Limit(30))
		within(t, 15*time.Second, func() bool { return next.Stats().Started > 0 })
		stopAll([]*worker{next})
	})
}

// Law B6: a pause that the service demands from one process delays the calls of all.
func TestShared_PauseOfAFleet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &outageService{}
		fleet := startFleet(t, s, newEngine(t))
		s.demand(10 * time.Second)
		asked := time.Now().Add(100 * time.Millisecond)
		time.Sleep(2 * time.Second)
		paused := time.Now()
		time.Sleep(time.Until(asked.Add(10*time.Second - time.Millisecond)))
		require.Zero(t, s.since(paused))
		for _, w := range fleet {
			require.Equal(t, backend.Up, w.Stats().State)
			started := w.Stats().Started
			within(t, 3*time.Second, func() bool { return w.Stats().Started > started })
		}
		stopAll(fleet)
	})
}

// A pause of less than a second ends before others have read it, so it is not recorded.
func TestShared_ShortPauseIsNotRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for d, isRecorded := range map[time.Duration]bool{900 * time.Millisecond: false, time.Second: true} {
			s, engine := &outageService{}, newEngine(t)
			fleet := startFleet(t, s, engine)
			s.demand(d)
			time.Sleep(800 * time.Millisecond)
			require.Equal(t, isRecorded, strings.Contains(shares(t, engine), `"pause":`), d)
			stopAll(fleet)
		}
	})
}

// A process that does not reach its engine has a breaker of its own. When it reaches the
// engine again, it obeys the fleet.
func TestWithoutEngine_OwnBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, engine := &outageService{}, newEngine(t)
		apart := &flakyKeeper{Keeper: engine}
		w := startOutageWorker(t, s, apart, backend.Limit(10), backend.WithoutEngine(6))
		other := startOutageWorker(t, &outageService{}, &flakyKeeper{Keeper: engine}, backend.Limit(10))
		time.Sleep(10 * time.Second)
		apart.down.Store(true)
		time.Sleep(6 * time.Second)
		require.Equal(t, 6, w.Stats().Limit)
		s.set(true)
		within(t, 5*time.Second, func() bool { return w.Stats().State == backend.Down })
		down := time.Now()
		time.Sleep(10 * time.Second)
		require.Greater(t, s.since(down), 1, "it probes by itself")
		require.Equal(t, backend.Up, other.Stats().State)
		s.set(false)
		within(t, 10*time.Second, func() bool { return w.Stats().State == backend.Up })

		other.Hold("for maintenance")
		time.Sleep(2 * time.Second)
		require.Equal(t, backend.Up, w.Stats().State)
		apart.down.Store(false)
		within(t, 3*time.Second, func() bool { return w.Stats().State == backend.Held })
		stopAll([]*worker{w, other})
	})
}

// The process that has the right to probe no longer reaches its engine, so it may be
// dead. Another one probes after its lease and a probe.
func TestShared_ProberIsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, engine := &outageService{}, newEngine(t)
		cut := &flakyKeeper{Keeper: engine}
		dead := startOutageWorker(t, s, cut, backend.Limit(10))
		time.Sleep(5 * time.Second)
		s.set(true)
		within(t, 5*time.Second, func() bool { return dead.Stats().State == backend.Probing })
		cut.down.Store(true)
		next := startOutageWorker(t, s, &flakyKeeper{Keeper: engine}, backend.Limit(10))
		s.set(false)
		within(t, 30*time.Second, func() bool { return next.Stats().State == backend.Up && next.Stats().Started > 0 })
		dead.stop()
		stopAll([]*worker{next})
		dead.done.Wait()
	})
}

// All processes report the recovery of the fleet, with the start of the outage and the pace
// of all. So does a process that has started in the outage.
func TestShared_RecoveryOfTheFleet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, engine := &outageService{}, newEngine(t)
		fleet := startFleet(t, s, engine)
		require.Zero(t, recoveryOf(fleet[0]))
		began := time.Now()
		pace := float64(s.since(began.Add(-5*time.Second))) / 5
		s.set(true)
		time.Sleep(20 * time.Second)
		fleet = append(fleet, startOutageWorker(t, s, engine, backend.Limit(30)))
		time.Sleep(20 * time.Second)
		require.Zero(t, recoveryOf(fleet[0]).Pace)
		s.set(false)
		within(t, 15*time.Second, func() bool { return allAre(fleet, backend.Ramping) })
		time.Sleep(2 * time.Second)
		for _, w := range fleet {
			r := recoveryOf(w)
			late := r.Outage.Sub(began) // each lost probe of another process adds up to a step
			require.GreaterOrEqual(t, late, time.Duration(0))
			require.Less(t, late, 20*time.Second, "half of the outage")
			require.InDelta(t, 3*time.Second, time.Since(r.Begun), float64(1500*time.Millisecond))
			require.InDelta(t, pace*time.Since(r.Begun).Seconds()/5, r.Pace, pace/5)
		}
		time.Sleep(10 * time.Second)
		for _, w := range fleet {
			require.InDelta(t, pace, recoveryOf(w).Pace, pace/5)
		}
		fleet[0].Hold("migration")
		time.Sleep(2 * time.Second)
		for _, w := range fleet {
			require.Zero(t, recoveryOf(w).Pace)
		}
		s.set(true)
		fleet[0].Resume()
		isDown := func(w *worker) bool { return w.Stats().State == backend.Down }
		within(t, 15*time.Second, func() bool { return slices.ContainsFunc(fleet, isDown) })
		require.Zero(t, recoveryOf(fleet[slices.IndexFunc(fleet, isDown)]).Pace)
		stopAll(fleet)
	})
}

func recoveryOf(w *worker) gate.Recovery { return gate.Of(w.Backend).Report().Recovery }
