package bench

import (
	"fmt"
	"iter"
	"sync"
	"time"
)

// w2 has a function that answers after a millisecond, with 100, 1,000 or 10,000 elements
// in flight.
func w2(c Config) []Group {
	const answerTime = time.Millisecond
	sizes := []struct{ inFlight, elems int }{{100, 20_000}, {1_000, 200_000}, {10_000, 500_000}}
	if c.Short {
		sizes = sizes[:2]
	}
	does := map[string]string{"sleep": "sleeps for", "callback": "calls back after"}
	var groups []Group
	for _, ordered := range []bool{true, false} {
		for _, size := range sizes {
			for _, backend := range []string{"sleep", "callback"} {
				p := pipeline{ends: c.Ends, ordered: ordered, calls: once}
				g := Group{
					Workload: "W2",
					Variant:  fmt.Sprintf("%s/inflight=%d/backend=%s", modeVariant(ordered), size.inFlight, backend),
					Title:    fmt.Sprintf("%s 1 ms, %s in flight", does[backend], thousands(float64(size.inFlight))),
					Elems:    c.elems(size.elems, 2*size.inFlight),
					Aims:     []Aim{{Impl: "weir", Against: BestPeer, Max: 1.0}},
				}
				if backend == "sleep" {
					g.Rows = w2Sleep(c, p, size.inFlight, answerTime)
				} else {
					g.Rows = w2Callback(c, p, size.inFlight, answerTime)
				}
				for i := range g.Rows {
					g.Rows[i].Run = withIdeal(g.Rows[i].Run, size.inFlight, answerTime)
				}
				groups = append(groups, g)
			}
		}
	}
	return groups
}

// withIdeal sets the ideal time to the time of n calls, atOnce at a time.
func withIdeal(run func(m *Meter, n int) error, atOnce int, each time.Duration) func(m *Meter, n int) error {
	return func(m *Meter, n int) error {
		m.Ideal(time.Duration(float64(n) / float64(atOnce) * float64(each)))
		return run(m, n)
	}
}

func w2Sleep(c Config, p pipeline, inFlight int, d time.Duration) []Row {
	sleep := func(it *Item) (*Item, error) {
		it.Calls++
		time.Sleep(d)
		return it, nil
	}
	rows := weirW2Sleep(c, p, inFlight, d)
	for _, w := range workers(p.ordered) {
		rows = append(rows, flowRow(w.name, Peer, p, func() stages { return w.build(c, sleep, inFlight) }))
	}
	return append(rows,
		Row{Impl: "sleep", Kind: Floor, Run: func(m *Meter, n int) error {
			m.Start()
			sleepers(n, inFlight, d).Wait()
			m.Stop()
			return nil
		}},
		// The lower bound: an empty pipeline, and as many sleeps in parallel.
		Row{Impl: "passthrough-buffered+sleep", Kind: Floor, Run: func(m *Meter, n int) error {
			q := p
			q.elems = n
			q.ordered = true
			q.calls = nil
			return q.measure(m, func() stages {
				return passBuffered(c.buffer()).stages().andThen(sleepers(n, inFlight, d).Wait)
			})
		}})
}

func sleepers(n, atOnce int, d time.Duration) *sync.WaitGroup {
	wg := new(sync.WaitGroup)
	for i := range atOnce {
		wg.Go(func() {
			for j := i; j < n; j += atOnce {
				time.Sleep(d)
			}
		})
	}
	return wg
}

func w2Callback(c Config, p pipeline, inFlight int, d time.Duration) []Row {
	rows := weirW2Callback(c, p, inFlight, d)
	name, byHand := "callback-semaphore", callbackSemaphore(d)
	if p.ordered {
		name, byHand = "callback-reorder", callbackReorder(d)
	}
	rows = append(rows, flowRow(name, Peer, p, func() stages { return framed(byHand)(c, nil, inFlight) }))
	// Libraries for blocking calls wait for the callback on a channel.
	for _, w := range workers(p.ordered) {
		rows = append(rows, flowRow(w.name, Peer, p, func() stages {
			b := newBackend(d, func(it *Item, reply chan *Item) { reply <- it })
			st := w.build(c, func(it *Item) (*Item, error) {
				it.Calls++
				reply := make(chan *Item, 1)
				b.call(it, reply)
				return <-reply, nil
			}, inFlight)
			return st.andThen(b.close)
		}))
	}
	return append(rows, Row{Impl: "backend", Kind: Floor, Run: func(m *Meter, n int) error {
		sem := make(chan struct{}, inFlight)
		b := newBackend(d, func(*Item, struct{}) { <-sem })
		items := newItems(n)
		m.Start()
		for i := range items {
			sem <- struct{}{}
			b.call(&items[i], struct{}{})
		}
		for range inFlight {
			sem <- struct{}{}
		}
		m.Stop()
		b.close()
		return nil
	}})
}

func (st stages) andThen(end func()) stages {
	err := st.err
	st.err = func() error {
		end()
		if err != nil {
			return err()
		}
		return nil
	}
	return st
}

// callbackReorder is careful callback code in order: a slot per element, emitted in
// order.
func callbackReorder(d time.Duration) runner {
	return func(_ Config, _ call, n int, in iter.Seq[*Item], out func(*Item)) error {
		b := newBackend(d, func(it *Item, done chan *Item) { done <- it })
		defer b.close()
		order := make(chan slot, n-1)
		go func() {
			for it := range in {
				s := slot{it, make(chan *Item, 1)}
				it.Calls++
				order <- s
				b.call(it, s.done)
			}
			close(order)
		}()
		emit(order, out)
		return nil
	}
}

// callbackSemaphore is the same without order: a semaphore, and a channel of results with
// room for all, so the backend never blocks.
func callbackSemaphore(d time.Duration) runner {
	return func(_ Config, _ call, n int, in iter.Seq[*Item], out func(*Item)) error {
		sem, results := make(chan struct{}, n), make(chan *Item, n)
		b := newBackend(d, func(it *Item, _ struct{}) { results <- it })
		defer b.close()
		go func() {
			for it := range in {
				it.Calls++
				sem <- struct{}{}
				b.call(it, struct{}{})
			}
			for range n {
				sem <- struct{}{}
			}
			close(results)
		}()
		for it := range results {
			out(it)
			<-sem
		}
		return nil
	}
}
