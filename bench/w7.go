package bench

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// w7 measures backpressure and the end of the input.
func w7(c Config) []Group {
	const capacity, delay = 1_000, 5 * time.Millisecond
	var groups []Group
	for _, ordered := range []bool{true, false} {
		slow := slowConsumer{c: c, ordered: ordered, capacity: capacity, delay: delay}
		rows := weirW7Slow(c, slow)
		for _, w := range workers(ordered) {
			if w.name == "pool" || w.name == "pool-reorder" {
				rows = append(rows, slow.row(w.name+"+by-hand", Peer, func(fn call) stages {
					return w.build(c, byHand(fn, delay), capacity)
				}))
			}
		}
		groups = append(groups, Group{
			Workload: "W7", Variant: modeVariant(ordered) + "/case=slow-consumer",
			Title: "a burst into a full queue before a consumer of about 17,000 elements a second, capacity 1,000, 10 % retry",
			Elems: c.elems(20_000, 2_000), Key: LateP99, Rows: rows,
		})
	}
	for _, ordered := range []bool{true, false} {
		rows := weirW7Drain(c, ordered)
		if !ordered {
			rows = append(rows, Row{Impl: "waiting-goroutines", Kind: Peer, Run: drainGoroutines})
		}
		groups = append(groups, Group{
			Workload: "W7", Variant: modeVariant(ordered) + "/case=drain",
			Title: "the input ends while all elements wait for a retry: from the end of the input to the end of the output",
			Elems: c.elems(1_000_000, 5_000), Heavy: true, Rows: rows,
		})
	}
	return groups
}

type slowConsumer struct {
	c        Config
	ordered  bool
	capacity int
	delay    time.Duration
}

// row checks that the operator holds at most its capacity, and reports the lateness of
// retries.
func (s slowConsumer) row(impl string, kind Kind, build func(fn call) stages) Row {
	return Row{Impl: impl, Kind: kind, Run: func(m *Meter, n int) error {
		const napEvery = 20
		var held, heldMax, taken atomic.Int64
		p := pipeline{elems: n, ends: s.c.Ends, ordered: s.ordered, calls: twiceIfFailing}
		p.received = func(int) {
			held.Add(-1)
			if taken.Add(1)%napEvery == 0 {
				time.Sleep(time.Millisecond)
			}
		}
		fn := func(it *Item) (*Item, error) {
			it.Calls++
			if it.Calls > 1 {
				it.late = now() - it.due
				return it, nil
			}
			for h := held.Add(1); ; {
				seen := heldMax.Load()
				if h <= seen || heldMax.CompareAndSwap(seen, h) {
					break
				}
			}
			if FailsFirst(it.Seq) {
				it.due = now() + int64(s.delay)
				return nil, errUnavailable
			}
			return it, nil
		}
		if err := p.measure(m, func() stages { return build(fn) }); err != nil {
			return err
		}
		var late []int64
		for i := range p.items {
			if p.items[i].Calls > 1 {
				late = append(late, p.items[i].late)
			}
		}
		reportLateness(m, late)
		m.Report(HeldMax, float64(heldMax.Load()))
		// Twice the output's buffer (Out is filled until Via or To has its ring), the
		// sink's buffer, and one element in each goroutine between.
		if most := int64(s.capacity + 2*s.c.buffer() + s.c.Ends + 8); heldMax.Load() > most && kind == Weir {
			return fmt.Errorf("%d elements were held at once: capacity and output allow %d", heldMax.Load(), most)
		}
		return nil
	}}
}

// drainGoroutines has a goroutine per element that waits for its timer or the end of the
// input.
func drainGoroutines(m *Meter, n int) error {
	items := newItems(n)
	ctx, endOfInput := context.WithCancel(context.Background())
	out := make(chan any, DefaultBuffer)
	var wg sync.WaitGroup
	for i := range items {
		it := &items[i]
		wg.Go(func() {
			t := time.NewTimer(longDelay)
			defer t.Stop()
			select {
			case <-t.C:
			case <-ctx.Done():
			}
			it.Calls++
			out <- it
		})
	}
	runtime.Gosched()
	c := NewChecker(n, false)
	m.Start()
	endOfInput()
	go func() {
		wg.Wait()
		close(out)
	}()
	for e := range out {
		c.Saw(e.(*Item).Seq)
	}
	m.Stop()
	return c.Err()
}

const longDelay = 10 * time.Minute
