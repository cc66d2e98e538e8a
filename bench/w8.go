package bench

import (
	"slices"

	"github.com/reugn/go-streams/flow"
)

// w8 has two operators in sequence, and four pipelines in parallel.
func w8(c Config) []Group {
	elems := c.elems(400_000, 4_000)
	build := []struct {
		impl  string
		kind  Kind
		stage func(fn call) stages
	}{
		{"passthrough", Peer, func(call) stages { return oneStage(flow.NewPassThrough()) }},
		{"map", Peer, func(fn call) stages { return mapFlow(c, fn, 1) }},
		{"passthrough-buffered", Peer, func(call) stages { return passBuffered(c.buffer()).stages() }},
		{"goroutines-reorder", Peer, func(fn call) stages { return framed(runGoroutinesReorder)(c, fn, 64) }},
		{"rill-orderedmap", Peer, func(fn call) stages { return workerNamed("rill-orderedmap").build(c, fn, 64) }},
		{"conc-stream", Peer, func(fn call) stages { return workerNamed("conc-stream").build(c, fn, 64) }},
	}
	chain := Group{Workload: "W8", Variant: "mode=ordered/case=chain", Title: "two operators in a row", Elems: elems}
	four := Group{
		Workload: "W8", Variant: "mode=ordered/case=parallel", Title: "four pipelines at once, a quarter of the elements each",
		Elems: elems,
	}
	add := func(impl string, kind Kind, stage func() stages) {
		p := pipeline{ends: c.Ends, ordered: true}
		chain.Rows = append(chain.Rows, flowRow(impl, kind, p, func() stages { return inARow(stage(), stage()) }))
		four.Rows = append(four.Rows, Row{Impl: impl, Kind: kind, Run: func(m *Meter, n int) error {
			const at = 4
			ps := make([]pipeline, at)
			for i := range ps {
				ps[i] = pipeline{elems: n / at, ends: c.Ends, ordered: true}
				ps[i].prepare()
			}
			m.Start()
			err := parallel(at, func(i int) error { return ps[i].run(stage()) })
			m.Stop()
			return err
		}})
	}
	for _, w := range weirW8(c) {
		add(w.impl, Weir, w.stage)
	}
	for _, b := range build {
		add(b.impl, b.kind, func() stages { return b.stage(count) })
	}
	return []Group{chain, four}
}

func workerNamed(name string) worker {
	all := slices.Concat(workers(true), workers(false))
	return all[slices.IndexFunc(all, func(w worker) bool { return w.name == name })]
}

func inARow(a, b stages) stages {
	return stages{flows: slices.Concat(a.flows, b.flows), err: func() error {
		for _, st := range []stages{a, b} {
			if st.err == nil {
				continue
			}
			if err := st.err(); err != nil {
				return err
			}
		}
		return nil
	}}
}

// weirStage is a weir operator for W8.
type weirStage struct {
	impl  string
	stage func() stages
}
