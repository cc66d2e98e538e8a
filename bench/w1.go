package bench

import (
	"slices"
	"sync"

	"github.com/reugn/go-streams/flow"
)

func modeVariant(ordered bool) string {
	if ordered {
		return "mode=ordered"
	}
	return "mode=unordered"
}

// flowRow returns a row that prepares its pipeline outside the measured interval and
// builds it inside.
func flowRow(impl string, kind Kind, p pipeline, build func() stages) Row {
	return Row{Impl: impl, Kind: kind, Run: func(m *Meter, n int) error {
		q := p
		q.elems = n
		return q.measure(m, build)
	}}
}

// w1 has a function that completes at once: the cost of the pipeline itself.
func w1(c Config) []Group {
	const title = "completes at once"
	elems := c.elems(500_000, 2_000)
	aims := []Aim{
		{Impl: "weir", Against: "passthrough", Max: 1.0},
		{Impl: "weir", Against: "passthrough-buffered", Max: 1.5},
		{Impl: "weir", Metric: AllocsPerElem, Max: 2.005}, // two, plus the start spread over all elements
	}
	var groups []Group
	for _, ordered := range []bool{true, false} {
		p := pipeline{ends: c.Ends, ordered: ordered}
		groups = append(groups, Group{
			Workload: "W1", Variant: modeVariant(ordered), Title: title, Elems: elems,
			Rows: slices.Concat(w1Floors(c), w1Peers(c, p, func(it *Item) *Item { return it }), weirW1(c, p)),
			Aims: aims,
		})
	}
	p := pipeline{ends: c.Ends, ordered: true, values: true}
	return append(groups, Group{
		Workload: "W1", Variant: "mode=ordered/elem=value", Title: title + ", elements that are boxed", Elems: elems,
		Rows: slices.Concat(w1Peers(c, p, func(v Value) Value { return v }), weirW1Value(c, p)),
	})
}

func w1Peers[T any](c Config, p pipeline, identity func(T) T) []Row {
	return []Row{
		flowRow("passthrough", Peer, p, func() stages { return oneStage(flow.NewPassThrough()) }),
		flowRow("map", Peer, p, func() stages { return oneStage(flow.NewMap(identity, 1)) }),
		flowRow("passthrough-buffered", Peer, p, func() stages { return passBuffered(c.buffer()).stages() }),
	}
}

func w1Floors(c Config) []Row {
	return []Row{
		{Impl: "hop", Kind: Floor, Run: hops(0)},
		{Impl: "hop-buffered", Kind: Floor, Run: hops(c.buffer())},
		{Impl: "goroutine", Kind: Floor, Run: bareGoroutines},
	}
}

// hops sends all elements through one channel.
func hops(buffer int) func(m *Meter, n int) error {
	return func(m *Meter, n int) error {
		items := newItems(n)
		ch := make(chan any, buffer)
		c := NewChecker(n, true)
		m.Start()
		go func() {
			for i := range items {
				ch <- &items[i]
			}
			close(ch)
		}()
		for e := range ch {
			c.Saw(e.(*Item).Seq)
		}
		m.Stop()
		return c.Err()
	}
}

func bareGoroutines(m *Meter, n int) error {
	const atOnce = 64
	items := newItems(n)
	m.Start()
	var wg sync.WaitGroup
	for i := range items {
		it := &items[i]
		wg.Go(func() { it.Calls++ })
		if i%atOnce == atOnce-1 {
			wg.Wait()
		}
	}
	wg.Wait()
	m.Stop()
	p := pipeline{items: items, calls: once}
	return p.checkCalls()
}

// w1b has blocking calls that return at once, 64 at a time: the cost of a goroutine for
// the call, and of bringing results back into order.
func w1b(c Config) []Group {
	const atOnce = 64
	var groups []Group
	for _, ordered := range []bool{true, false} {
		p := pipeline{ends: c.Ends, ordered: ordered, calls: once}
		rows := weirW1b(c, p, atOnce)
		for _, w := range workers(ordered) {
			rows = append(rows, flowRow(w.name, Peer, p, func() stages { return w.build(c, count, atOnce) }))
		}
		byHandAimed := "pool-reorder"
		if ordered {
			rows = append(rows, flowRow("goroutines-reorder+timeout", Reference, p, func() stages {
				return framed(runGoroutinesReorder)(c, withTimeout(weirTimeout, countCtx), atOnce)
			}))
		} else {
			byHandAimed = "pool"
		}
		aims := []Aim{{Impl: "weir", Against: byHandAimed, Max: 0.7}}
		if ordered {
			aims = append(aims,
				Aim{Impl: "weir", Against: "goroutines-reorder", Max: 0.7},
				Aim{Impl: "weir", Against: "rill-orderedmap", Max: 1.0},
				Aim{Impl: "weir", Against: "conc-stream", Max: 1.0})
		} else {
			aims = append(aims,
				Aim{Impl: "weir", Against: "goroutines", Max: 0.7},
				Aim{Impl: "weir", Against: "rill-map", Max: 1.0},
				Aim{Impl: "weir", Against: "conc-pool", Max: 1.0})
		}
		groups = append(groups, Group{
			Workload: "W1b", Variant: modeVariant(ordered), Title: "blocking, returns at once, 64 at a time",
			Elems: c.elems(200_000, 2_000), Rows: rows, Aims: aims,
		})
	}
	return groups
}

func count(it *Item) (*Item, error) {
	it.Calls++
	return it, nil
}
