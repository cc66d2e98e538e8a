package bench

import (
	"runtime"
	"time"

	"github.com/RussellLuo/timingwheel"
)

func countGoroutines() int { return runtime.NumGoroutine() }

// w4 has a million elements that wait for a retry at once, due over ten seconds.
func w4(c Config) []Group {
	elems := c.elems(1_000_000, 5_000)
	base, spread := ParkTimes(elems)
	parked := func(impl string, kind Kind, run func(m *Meter, p *parking) error) Row {
		return Row{Impl: impl, Kind: kind, Run: patiently(base, func(m *Meter, n int, base time.Duration) error {
			return run(m, newParking(n, base, spread))
		})}
	}
	rows := []Row{
		parked("sleeping-goroutines", Peer, func(m *Meter, p *parking) error {
			return parkEach(m, p, func(it *Item, d time.Duration) {
				go func() {
					time.Sleep(d)
					p.woken(it)
				}()
			})
		}),
		parked("time-afterfunc", Peer, func(m *Meter, p *parking) error {
			return parkEach(m, p, func(it *Item, d time.Duration) {
				time.AfterFunc(d, func() { p.woken(it) })
			})
		}),
		parked("public-wheel", Peer, func(m *Meter, p *parking) error {
			wheel := timingwheel.NewTimingWheel(time.Millisecond, 512)
			wheel.Start()
			defer wheel.Stop()
			return parkEach(m, p, func(it *Item, d time.Duration) {
				wheel.AfterFunc(d, func() { p.woken(it) })
			})
		}),
		{Impl: "bare-sleeper", Kind: Floor, Div: max(1, elems/10), Run: func(m *Meter, _ int) error {
			// A single goroutine, while the others fire.
			const nap = time.Millisecond
			var late []int64
			m.Start()
			for end := now() + int64(spread); now() < end; {
				due := now() + int64(nap)
				time.Sleep(nap)
				late = append(late, now()-due)
			}
			m.Stop()
			reportLateness(m, late)
			return nil
		}},
	}
	return []Group{{
		Workload: "W4", Title: "elements that wait for a retry at once, due times spread over " + spread.String(),
		Elems: elems, Key: LiveBytes, Heavy: true,
		Rows: append([]Row{
			parked("weir-unordered", Weir, weirW4(c, false)),
			parked("weir-ordered", Weir, weirW4(c, true)),
		}, rows...),
		Aims: []Aim{
			{Impl: "weir-unordered", Max: 200},
			{Impl: "weir-unordered", Metric: LateP99, Against: "bare-sleeper", Max: 2, Or: 2},
			{Impl: "weir-unordered", Metric: Goroutines, Max: 20},
		},
	}}
}

// ParkTimes returns how long the first of elems elements waits (twice the time of parking
// and weighing on a busy machine), and the time over which the others are spread.
func ParkTimes(elems int) (base, spread time.Duration) {
	switch {
	case elems < 100_000:
		return 200 * time.Millisecond, 50 * time.Millisecond
	case elems < 1_000_000:
		return 6 * time.Second, 4 * time.Second
	default:
		return 12 * time.Second, 10 * time.Second
	}
}

// parkEach calls weigh with timers that are armed one by one.
func parkEach(m *Meter, p *parking, arm func(it *Item, d time.Duration)) error {
	err := p.weigh(m, func(start int64) error {
		for i := range p.items {
			arm(&p.items[i], p.delay(i, start, now()))
		}
		return nil
	})
	if err == nil {
		p.report(m)
	}
	return err
}
