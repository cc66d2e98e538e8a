package bench

import (
	"time"
)

// w3 and w3b: one element in ten fails at first and succeeds at its second attempt; every call takes 0.2 ms. What waits
// for its second attempt holds a worker (peers) or not (weir).
func w3(c Config) []Group {
	const callTime = 200 * time.Microsecond
	var groups []Group
	for _, v := range []struct {
		workload, title  string
		atOnce           int
		delay            time.Duration
		unorderedDiv     int
		orderedDiv       int
		unordered, order float64 // aims: times the best peer's throughput
	}{
		{
			"W3", "10 % fail at first and succeed 10 ms later, calls of 0.2 ms, 1,000 at once",
			1_000, 10 * time.Millisecond, 1, 1, 1, 5,
		},
		{
			"W3b", "10 % fail at first and succeed 100 ms later, calls of 0.2 ms, 100 at once",
			100, 100 * time.Millisecond, 5, 50, 7, 50,
		},
	} {
		for _, ordered := range []bool{false, true} {
			g := Group{
				Workload: v.workload, Variant: modeVariant(ordered), Title: v.title,
				Elems: c.elems(100_000, 1_000),
			}
			faulty := func(it *Item) (*Item, error) {
				it.Calls++
				time.Sleep(callTime)
				if it.Calls == 1 && failsFirst(it.Seq) {
					return nil, errUnavailable
				}
				return it, nil
			}
			p := pipeline{ends: c.Ends, ordered: ordered, calls: twiceIfFailing}
			g.Rows = weirW3(c, p, v.atOnce, v.delay, faulty)
			div, throughput := v.unorderedDiv, v.unordered
			if ordered {
				div, throughput = v.orderedDiv, v.order
				g.Rows = append(g.Rows, flowRow("goroutines-20k-slots", Reference, p, func() stages {
					return framed(runManySlots(v.atOnce, v.delay))(c, faulty, orderedSlots)
				}))
			}
			g.Aims = []Aim{{Impl: "weir", Against: BestPeer, Max: 1 / throughput}}
			if c.Short {
				div = min(div, 5)
			}
			for _, w := range workers(ordered) {
				for _, r := range retriers {
					row := flowRow(w.name+"+"+r.name, Peer, p, func() stages {
						return w.build(c, r.wrap(faulty, v.delay), v.atOnce)
					})
					row.Div = div
					g.Rows = append(g.Rows, row)
				}
			}
			// Every call once, a tenth of them twice, all workers busy, and at least one back-off long.
			for i := range g.Rows {
				run := g.Rows[i].Run
				g.Rows[i].Run = func(m *Meter, n int) error {
					ideal := time.Duration(float64(n) * 1.1 / float64(v.atOnce) * float64(callTime))
					m.Ideal(max(ideal, v.delay+2*callTime))
					return run(m, n)
				}
			}
			groups = append(groups, g)
		}
	}
	return groups
}

// orderedSlots is how many elements may be between input and output where order must wait for the slowest.
const orderedSlots = 20_000

// runManySlots is what a user writes who knows the trap: a goroutine per element, as many as there are slots, that gives
// its permit back while it waits for its retry. It is no library and holds a goroutine per slot: a reference.
func runManySlots(permits int, delay time.Duration) runner {
	return func(fn call, slots int, in <-chan any, out chan<- any) error {
		sem := make(chan struct{}, permits)
		permitted := byHand(func(it *Item) (*Item, error) {
			sem <- struct{}{}
			r, err := fn(it)
			<-sem
			return r, err
		}, delay)
		return runGoroutinesReorder(permitted, slots, in, out)
	}
}
