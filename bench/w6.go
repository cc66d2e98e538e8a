package bench

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/RussellLuo/timingwheel"
)

// w6 measures timers without an operator.
func w6(c Config) []Group {
	pending := c.elems(1_000_000, 5_000)
	armCancel := Group{
		Workload: "W6", Variant: "case=arm-cancel", Elems: pending, Heavy: !c.Short,
		Title: fmt.Sprintf("arm and cancel a timer while %d others are pending, due times over 10 s", pending),
		Rows: []Row{
			weirW6ArmCancel(pending),
			{Impl: "time-afterfunc", Kind: Peer, Run: func(m *Meter, n int) error {
				timers := make([]*time.Timer, 0, pending)
				random := newRandom()
				for range pending {
					timers = append(timers, time.AfterFunc(pendingDelay(random), func() {}))
				}
				m.Start()
				for range n {
					if !time.AfterFunc(pendingDelay(random), func() {}).Stop() {
						return errFiredEarly
					}
				}
				m.Stop()
				for _, t := range timers {
					t.Stop()
				}
				return nil
			}},
			{Impl: "public-wheel", Kind: Peer, Run: func(m *Meter, n int) error {
				wheel := timingwheel.NewTimingWheel(time.Millisecond, 512)
				wheel.Start()
				defer wheel.Stop()
				random := newRandom()
				for range pending {
					wheel.AfterFunc(pendingDelay(random), func() {})
				}
				m.Start()
				for range n {
					if !wheel.AfterFunc(pendingDelay(random), func() {}).Stop() {
						return errFiredEarly
					}
				}
				m.Stop()
				return nil
			}},
		},
		Aims: []Aim{
			{Impl: "weir", Against: "time-afterfunc", Max: 0.4},
			{Impl: "weir", Metric: AllocsPerElem, Max: 0.001},
		},
	}
	base, spread := 3*time.Second, time.Second
	if pending < 100_000 {
		base, spread = 200*time.Millisecond, 50*time.Millisecond
	}
	fire := Group{
		Workload: "W6", Variant: "case=lateness", Elems: pending, Key: LateP99, Heavy: !c.Short,
		Title: "timers that fire over " + spread.String(),
		Rows: []Row{
			{Impl: "weir", Kind: Weir, Run: func(m *Meter, n int) error { return weirW6Fire(m, n, base, spread) }},
			{Impl: "time-afterfunc", Kind: Peer, Run: func(m *Meter, n int) error {
				return fireEach(m, n, base, spread, func(d time.Duration, f func()) { time.AfterFunc(d, f) })
			}},
			{Impl: "public-wheel", Kind: Peer, Run: func(m *Meter, n int) error {
				wheel := timingwheel.NewTimingWheel(time.Millisecond, 512)
				wheel.Start()
				defer wheel.Stop()
				return fireEach(m, n, base, spread, func(d time.Duration, f func()) { wheel.AfterFunc(d, f) })
			}},
		},
	}
	return []Group{armCancel, fire}
}

var errFiredEarly = fmt.Errorf("a timer of more than %v fired while it was being cancelled", minPending)

const minPending = 30 * time.Second

func pendingDelay(random *rand.Rand) time.Duration {
	return minPending + time.Duration(random.Int64N(int64(10*time.Second)))
}

func newRandom() *rand.Rand { return rand.New(rand.NewPCG(1, 2)) }

// fireEach arms n timers with spread due times, and reports their lateness.
func fireEach(m *Meter, n int, base, spread time.Duration, arm func(d time.Duration, f func())) error {
	late := make([]int64, n)
	var fired sync.WaitGroup
	var early atomic.Bool
	fired.Add(n)
	random := newRandom()
	m.Start()
	start := now()
	for i := range n {
		due := start + int64(base) + random.Int64N(int64(spread))
		d := time.Duration(due - now())
		if d <= 0 {
			early.Store(true)
		}
		arm(d, func() {
			late[i] = now() - due
			fired.Done()
		})
	}
	fired.Wait()
	m.Stop()
	if early.Load() {
		return fmt.Errorf("arming %d timers took more than %v", n, base)
	}
	reportLateness(m, late)
	return nil
}
