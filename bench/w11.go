package bench

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/weirflow/weir/asyncop"
)

const (
	w11Keys  = 10_000
	w11Calls = 1_000
	w11Slots = 4_000 // weir's slots; the workers' channels and calls hold as many
)

func w11Key(it *Item) int { return int(uint32(it.Seq) * 2654435761 >> 8 % w11Keys) }

// w11 has calls of 1 ms, one at a time for each key. The handwritten version has a worker
// for each part of the keys.
func w11(c Config) []Group {
	var groups []Group
	for _, work := range []struct {
		name, title string
		slow        time.Duration // of one call in a thousand
	}{
		{"calls=even", "calls of 1 ms in key order, 10,000 keys", time.Millisecond},
		{"calls=uneven", "the same, one call in a thousand takes 100 ms", 100 * time.Millisecond},
	} {
		fn := func(it *Item) (*Item, error) {
			it.Calls++
			if it.Seq%1_000 == 500 {
				time.Sleep(work.slow)
			} else {
				time.Sleep(time.Millisecond)
			}
			return it, nil
		}
		p := pipeline{calls: once}
		build := func(capacity int, keyed bool) built[*Item] {
			return func() (*asyncop.AsyncWaitOperator[*Item, *Item], func()) {
				opts := []asyncop.Option{asyncop.WithBuffer(c.buffer()), asyncop.WithMaxConcurrentCalls(w11Calls)}
				if !keyed {
					return asyncop.UnorderedWait(blocking(fn), weirTimeout, capacity, opts...), nil
				}
				return asyncop.KeyOrderedWait(blocking(fn), w11Key, weirTimeout, capacity, fixedDelay[*Item](retryDelay), opts...), nil
			}
		}
		g := Group{
			Workload: "W11", Variant: work.name, Title: work.title, Elems: c.elems(200_000, 4_000),
			Aims: []Aim{{Impl: "weir", Against: BestPeer, Max: 1.0}},
			Rows: []Row{
				w11Row("weir", Weir, p, func(in iter.Seq[*Item], out func(*Item)) error {
					op, _ := build(w11Slots, true)()
					return ranged(op, in, out)
				}),
				w11Row("partitions", Peer, p, func(in iter.Seq[*Item], out func(*Item)) error {
					return partitions(c, fn, in, out)
				}),
			},
		}
		unordered := resultsRow("weir-without-order", p, build(w11Slots, false)) // shows the cost of the order
		unordered.Kind = Reference
		g.Rows = append(g.Rows, unordered)
		for i := range g.Rows {
			g.Rows[i].Run = withIdeal(g.Rows[i].Run, w11Calls, time.Millisecond)
		}
		groups = append(groups, g)
	}
	return groups
}

// w11Row returns a row with results in order for each key.
func w11Row(impl string, kind Kind, p pipeline, run func(in iter.Seq[*Item], out func(*Item)) error) Row {
	return Row{Impl: impl, Kind: kind, Run: func(m *Meter, n int) error {
		q := p
		q.elems = n
		q.prepare()
		check := q.checker()
		last := slices.Repeat([]int{-1}, w11Keys)
		var wrong error
		in := func(yield func(*Item) bool) {
			for i := range q.items {
				if !yield(&q.items[i]) {
					return
				}
			}
		}
		m.Start()
		err := run(in, func(it *Item) {
			check.Saw(it.Seq)
			key := w11Key(it)
			if it.Seq < last[key] && wrong == nil {
				wrong = fmt.Errorf("element %d came after %d, which has the same key", it.Seq, last[key])
			}
			last[key] = it.Seq
		})
		m.Stop()
		return cmp.Or(err, wrong, check.Err(), q.checkCalls())
	}}
}

func ranged(op *asyncop.AsyncWaitOperator[*Item, *Item], in iter.Seq[*Item], out func(*Item)) error {
	for it, err := range op.Results(in) {
		if err != nil {
			return err
		}
		out(it)
	}
	return nil
}

// partitions is careful handwritten code: many workers, each with a channel and its own
// keys.
func partitions(c Config, fn call, in iter.Seq[*Item], out func(*Item)) error {
	results := make(chan *Item, c.buffer())
	var failed firstError
	var wg sync.WaitGroup
	workers := make([]chan *Item, w11Calls)
	for i := range workers {
		workers[i] = make(chan *Item, w11Slots/w11Calls-1)
		wg.Go(func() {
			for it := range workers[i] {
				r, err := fn(it)
				if err != nil {
					failed.set(err)
					continue
				}
				results <- r
			}
		})
	}
	go func() {
		for it := range in {
			workers[w11Key(it)%w11Calls] <- it
		}
		for _, w := range workers {
			close(w)
		}
		wg.Wait()
		close(results)
	}()
	for it := range results {
		out(it)
	}
	return failed.err
}
