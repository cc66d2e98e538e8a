package bench

import (
	"cmp"
	"fmt"
	"time"
)

// w9 has blocking calls without go-streams, in loops. weir runs with Results and with
// ResultsOf.
func w9(c Config) []Group {
	const answerTime = time.Millisecond
	sleep := func(it *Item) (*Item, error) {
		it.Calls++
		time.Sleep(answerTime)
		return it, nil
	}
	var groups []Group
	for _, ordered := range []bool{true, false} {
		for _, work := range []struct {
			name, title  string
			atOnce       int
			elems, short int
			each         time.Duration
			fn           call
		}{
			{"calls=at-once/inflight=64", "blocking, returns at once, 64 at a time", 64, 200_000, 2_000, 0, count},
			{"calls=sleep/inflight=1000", "sleeps for 1 ms, 1,000 in flight", 1_000, 200_000, 2_000, answerTime, sleep},
			{"calls=sleep/inflight=10000", "sleeps for 1 ms, 10,000 in flight", 10_000, 500_000, 20_000, answerTime, sleep},
		} {
			p := pipeline{ordered: ordered, calls: once}
			g := Group{
				Workload: "W9", Variant: fmt.Sprintf("%s/%s", modeVariant(ordered), work.name),
				Title: work.title, Elems: c.elems(work.elems, work.short),
			}
			g.Aims = []Aim{{Impl: "weir-results", Against: BestPeer, Max: 1.0}}
			g.Rows = append(g.Rows, weirW9(c, p, work.atOnce, work.fn)...)
			for _, w := range workers(ordered) {
				if w.run != nil {
					g.Rows = append(g.Rows, directRow(c, w, p, work.atOnce, work.fn))
				}
			}
			if work.each > 0 {
				for i := range g.Rows {
					g.Rows[i].Run = withIdeal(g.Rows[i].Run, work.atOnce, work.each)
				}
			}
			groups = append(groups, g)
		}
	}
	return groups
}

// directRow runs a worker without a pipeline and without unnecessary channels.
func directRow(c Config, w worker, p pipeline, atOnce int, fn call) Row {
	return Row{Impl: w.name, Kind: Peer, Run: func(m *Meter, n int) error {
		q := p
		q.elems = n
		q.prepare()
		m.Start()
		err := direct(c, w, &q, atOnce, fn)
		m.Stop()
		return cmp.Or(err, q.checkCalls())
	}}
}

// direct passes elements to the worker and receives its results, through a channel only
// if the worker emits from many goroutines.
func direct(c Config, w worker, p *pipeline, atOnce int, fn call) error {
	in := func(yield func(*Item) bool) {
		for i := range p.items {
			if !yield(&p.items[i]) {
				return
			}
		}
	}
	check := p.checker()
	if !w.many {
		err := w.run(c, fn, atOnce, in, func(it *Item) { check.Saw(it.Seq) })
		return cmp.Or(err, check.Err())
	}
	results, failed := make(chan *Item, c.buffer()), error(nil)
	go func() {
		defer close(results)
		failed = w.run(c, fn, atOnce, in, func(it *Item) { results <- it })
	}()
	for it := range results {
		check.Saw(it.Seq)
	}
	return cmp.Or(failed, check.Err())
}
