package bench

import (
	"cmp"
	"context"
	"iter"
	"sync"
	"time"

	"github.com/weirflow/weir/asyncop"
)

// A call of W12 is for up to batchSize elements and takes batchTime. At most batchCalls
// run at once.
const (
	batchSize  = 100
	batchWait  = 5 * time.Millisecond
	batchCalls = 10
	batchTime  = time.Millisecond
)

// w12 has calls for many elements, without go-streams. In the handwritten version a
// goroutine collects batches by size and waiting time, without timeout, retries, or
// errors of single elements.
func w12(c Config) []Group {
	var groups []Group
	for _, ordered := range []bool{true, false} {
		p := pipeline{ordered: ordered, calls: once}
		g := Group{
			Workload: "W12", Variant: modeVariant(ordered), Elems: c.elems(1_000_000, 10_000),
			Title: "calls of 1 ms for up to 100 elements, 10 at once",
			Aims:  []Aim{{Impl: "weir-results", Against: BestPeer, Max: 1.0}},
		}
		build := func() (*asyncop.AsyncWaitOperator[*Item, *Item], func()) {
			return newOperator(c, ordered, asyncop.Batched(lookUp, batchSize, batchWait), weirTimeout, 2*batchSize*batchCalls,
				fixedDelay[*Item](retryDelay), asyncop.WithMaxConcurrentCalls(batchCalls)), nil
		}
		g.Rows = []Row{
			resultsRow("weir-results", p, build), chainedRow("weir-chained", p, build),
			batcherRow("batcher", p, ordered),
		}
		for i := range g.Rows {
			g.Rows[i].Run = withIdeal(g.Rows[i].Run, batchSize*batchCalls, batchTime)
		}
		groups = append(groups, g)
	}
	return groups
}

func lookUp(_ context.Context, items []*Item) ([]asyncop.Result[*Item], error) {
	results := make([]asyncop.Result[*Item], len(items))
	time.Sleep(batchTime)
	for i, it := range items {
		it.Calls++
		results[i].Value = it
	}
	return results, nil
}

// batcherRow is handwritten code: a batcher, calls on goroutines behind a semaphore, and
// in ordered mode a channel of the calls.
func batcherRow(impl string, p pipeline, ordered bool) Row {
	return Row{Impl: impl, Kind: Peer, Run: func(m *Meter, n int) error {
		q := p
		q.elems = n
		q.prepare()
		m.Start()
		check := q.checker()
		err := runBatcher(ordered, func(yield func(*Item) bool) {
			for i := range q.items {
				if !yield(&q.items[i]) {
					return
				}
			}
		}, func(it *Item) { check.Saw(it.Seq) })
		m.Stop()
		return cmp.Or(err, check.Err(), q.checkCalls())
	}}
}

// batchCall is a running call. In ordered mode done has capacity 1, so the send never
// blocks.
type batchCall struct{ done chan []asyncop.Result[*Item] }

func runBatcher(ordered bool, in iter.Seq[*Item], out func(*Item)) error {
	elements := make(chan *Item, batchSize)
	go func() {
		defer close(elements)
		for it := range in {
			elements <- it
		}
	}()
	var failed firstError
	var wg sync.WaitGroup
	results := make(chan []asyncop.Result[*Item], batchCalls) // unordered
	order := make(chan batchCall, batchCalls)
	permits := make(chan struct{}, batchCalls)
	start := func(items []*Item) {
		permits <- struct{}{}
		c := batchCall{results}
		if ordered {
			c.done = make(chan []asyncop.Result[*Item], 1)
			order <- c
		}
		wg.Go(func() {
			r, err := lookUp(context.Background(), items)
			if err != nil {
				failed.set(err)
			}
			<-permits
			c.done <- r
		})
	}
	go func() {
		collect(elements, start)
		close(order)
		wg.Wait()
		close(results)
	}()
	if ordered {
		for c := range order {
			for _, r := range <-c.done {
				out(r.Value)
			}
		}
	}
	for batch := range results {
		for _, r := range batch {
			out(r.Value)
		}
	}
	return failed.err
}

// collect forms batches by size and by the first element's waiting time.
func collect(elements <-chan *Item, start func(items []*Item)) {
	timer := time.NewTimer(batchWait)
	timer.Stop()
	var items []*Item
	send := func() {
		timer.Stop()
		if len(items) > 0 {
			start(items)
			items = nil
		}
	}
	for {
		select {
		case it, ok := <-elements:
			if !ok {
				send()
				return
			}
			if items == nil {
				items = make([]*Item, 0, batchSize)
				timer.Reset(batchWait)
			}
			items = append(items, it)
			if len(items) == batchSize {
				send()
			}
		case <-timer.C:
			send()
		}
	}
}
