package bench

import (
	"sync"
	"time"
)

// remote is a remote system with blocking calls, answered on time. A sleep would last a
// millisecond on an idle processor, so rows with the least CPU time would have the
// slowest calls.
type remote struct {
	backend *backend[chan struct{}]
	replies sync.Pool
}

func newRemote() *remote {
	return &remote{replies: sync.Pool{New: func() any { return make(chan struct{}, 1) }}}
}

func (r *remote) during(callTime time.Duration, run func() error) error {
	r.backend = newBackend(callTime, func(_ *Item, reply chan struct{}) { reply <- struct{}{} })
	defer r.backend.close()
	return run()
}

func (r *remote) call(it *Item) {
	reply := r.replies.Get().(chan struct{})
	r.backend.call(it, reply)
	<-reply
	r.replies.Put(reply)
}

// w3 and w3b have one element in ten that fails at its first attempt. Every call takes
// 0.2 ms. An element waiting for its second attempt holds a worker in some peers, but not
// in weir.
func w3(c Config) []Group {
	const callTime = 200 * time.Microsecond
	var groups []Group
	for _, v := range []struct {
		workload, title          string
		atOnce                   int
		delay                    time.Duration
		unorderedDiv, orderedDiv int // of rows in which a waiting element holds a permit
	}{
		{
			"W3", "10 % retried after 10 ms, 1,000 calls at once",
			1_000, 10 * time.Millisecond, 1, 1,
		},
		{
			"W3b", "10 % retried after 100 ms, 100 calls at once",
			100, 100 * time.Millisecond, 5, 50,
		},
	} {
		if c.Short {
			v.delay = 10 * time.Millisecond
			v.unorderedDiv = 5
			v.orderedDiv = 5
		}
		for _, ordered := range []bool{false, true} {
			g := Group{
				Workload: v.workload, Variant: modeVariant(ordered), Title: v.title,
				Elems: c.elems(100_000, 1_000),
			}
			remote := newRemote()
			faulty := func(it *Item) (*Item, error) {
				it.Calls++
				remote.call(it)
				if it.Calls == 1 && FailsFirst(it.Seq) {
					return nil, errUnavailable
				}
				return it, nil
			}
			p := pipeline{ends: c.Ends, ordered: ordered, calls: twiceIfFailing}
			div, slots := v.unorderedDiv, runGoroutines
			if ordered {
				div, slots = v.orderedDiv, runGoroutinesReorder
			}
			g.Rows = weirW3(c, p, v.atOnce, v.delay, faulty)
			equal := weirEqualCapacity(c, p, v.atOnce, v.delay, faulty)
			equal.Div = div
			g.Rows = append(g.Rows, equal,
				flowRow("goroutines-20k-slots", Peer, p, func() stages {
					return framed(slots)(c, releasing(faulty, v.atOnce, v.delay), manySlots)
				}),
				flowRow("goroutines-20k-slots+failsafe", Peer, p, func() stages {
					return framed(slots)(c, withFailsafeBulkhead(faulty, v.atOnce, v.delay), manySlots)
				}))
			g.Aims = []Aim{{Impl: "weir", Against: BestPeer, Max: 1}}
			for _, w := range workers(ordered) {
				for _, r := range retriers {
					row := flowRow(w.name+"+"+r.name, Peer, p, func() stages {
						return w.build(c, r.wrap(faulty, v.delay), v.atOnce)
					})
					row.Div = div
					g.Rows = append(g.Rows, row)
				}
			}
			// Ideal: every call once and a tenth of them twice with all workers busy, but
			// at least one back-off.
			for i := range g.Rows {
				run := g.Rows[i].Run
				g.Rows[i].Run = func(m *Meter, n int) error {
					ideal := time.Duration(float64(n) * 1.1 / float64(v.atOnce) * float64(callTime))
					m.Ideal(max(ideal, v.delay+2*callTime))
					return remote.during(callTime, func() error { return run(m, n) })
				}
			}
			groups = append(groups, g)
		}
	}
	return groups
}

// manySlots is the number of slots of rows whose waiting elements hold no permit.
const manySlots = 20_000

// releasing is a handwritten retry loop that releases its permit while it waits. A
// waiting element still holds a goroutine.
func releasing(fn call, permits int, delay time.Duration) call {
	sem := make(chan struct{}, permits)
	return byHand(func(it *Item) (*Item, error) {
		sem <- struct{}{}
		r, err := fn(it)
		<-sem
		return r, err
	}, delay)
}
