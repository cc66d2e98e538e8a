package bench

import (
	"context"
	"iter"
	"sync"
	"time"

	"github.com/destel/rill"
	"github.com/reugn/go-streams/flow"
	"github.com/sourcegraph/conc/pool"
	"github.com/sourcegraph/conc/stream"
)

type call func(it *Item) (*Item, error)

// worker runs blocking calls for a stream's elements, at most n at once.
type worker struct {
	name    string
	ordered bool
	run     runner                                // nil for go-streams' own Map
	flow    func(c Config, fn call, n int) stages // nil means framed(run)
	many    bool                                  // run calls out from many goroutines
}

// runner reads in to its end, calls fn for every element, at most n at once, and out for
// every result.
type runner func(c Config, fn call, n int, in iter.Seq[*Item], out func(*Item)) error

func (w worker) build(c Config, fn call, n int) stages {
	if w.flow != nil {
		return w.flow(c, fn, n)
	}
	return framed(w.run)(c, fn, n)
}

func workers(ordered bool) []worker {
	var ws []worker
	for _, w := range []worker{
		{name: "map", flow: mapFlow},
		{name: "pool", run: runPool, flow: poolFlow, many: true},
		{name: "goroutines", run: runGoroutines, many: true},
		{name: "rill-map", run: runRill(rill.Map[*Item, *Item])},
		{name: "conc-pool", run: runConcPool, many: true},
		{name: "pool-reorder", ordered: true, run: runPoolReorder},
		{name: "goroutines-reorder", ordered: true, run: runGoroutinesReorder},
		{name: "rill-orderedmap", ordered: true, run: runRill(rill.OrderedMap[*Item, *Item])},
		{name: "conc-stream", ordered: true, run: runConcStream},
	} {
		if w.ordered == ordered {
			ws = append(ws, w)
		}
	}
	return ws
}

func framed(run runner) func(c Config, fn call, n int) stages {
	return func(c Config, fn call, n int) stages {
		return newChanFlow(c.buffer(), func(in <-chan any, out chan<- any) error {
			elements := func(yield func(*Item) bool) {
				for e := range in {
					if !yield(e.(*Item)) {
						return
					}
				}
			}
			return run(c, fn, n, elements, func(it *Item) { out <- it })
		}).stages()
	}
}

type firstError struct {
	once sync.Once
	err  error
}

func (f *firstError) set(err error) { f.once.Do(func() { f.err = err }) }

// mapFlow is go-streams' own Map with unbuffered ends. Map has no error path, so a final
// failure becomes an invalid element, which the sink reports.
func mapFlow(_ Config, fn call, n int) stages {
	return oneStage(flow.NewMap(func(it *Item) *Item {
		r, err := fn(it)
		if err != nil {
			return &Item{Seq: -1}
		}
		return r
	}, n))
}

// runPool has n goroutines on one channel, and emits results in completion order.
func runPool(c Config, fn call, n int, in iter.Seq[*Item], out func(*Item)) error {
	jobs := make(chan *Item, c.buffer())
	go func() {
		defer close(jobs)
		for it := range in {
			jobs <- it
		}
	}()
	return pooled(fn, n, jobs, func(it *Item) *Item { return it }, out)
}

// poolFlow is runPool with goroutines that share the ends of the flow.
func poolFlow(c Config, fn call, n int) stages {
	return newChanFlow(c.buffer(), func(in <-chan any, out chan<- any) error {
		return pooled(fn, n, in, func(e any) *Item { return e.(*Item) }, func(it *Item) { out <- it })
	}).stages()
}

func pooled[T any](fn call, n int, in <-chan T, item func(T) *Item, out func(*Item)) error {
	var failed firstError
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			for e := range in {
				if r, err := fn(item(e)); err != nil {
					failed.set(err)
				} else {
					out(r)
				}
			}
		})
	}
	wg.Wait()
	return failed.err
}

// runGoroutines has a goroutine per element behind a semaphore, and emits results in
// completion order.
func runGoroutines(_ Config, fn call, n int, in iter.Seq[*Item], out func(*Item)) error {
	var failed firstError
	var wg sync.WaitGroup
	sem := make(chan struct{}, n)
	for it := range in {
		sem <- struct{}{}
		wg.Go(func() {
			if r, err := fn(it); err != nil {
				failed.set(err)
			} else {
				out(r)
			}
			<-sem
		})
	}
	wg.Wait()
	return failed.err
}

type slot struct {
	it   *Item
	done chan *Item // capacity 1, so the send never blocks
}

// runPoolReorder has n goroutines, and a channel of slots in input order.
func runPoolReorder(_ Config, fn call, n int, in iter.Seq[*Item], out func(*Item)) error {
	var failed firstError
	var wg sync.WaitGroup
	jobs, order := make(chan slot, n), make(chan slot, n)
	for range n {
		wg.Go(func() {
			for s := range jobs {
				r, err := fn(s.it)
				if err != nil {
					failed.set(err)
				}
				s.done <- r
			}
		})
	}
	go func() {
		for it := range in {
			s := slot{it, make(chan *Item, 1)}
			order <- s
			jobs <- s
		}
		close(jobs)
		close(order)
	}()
	emit(order, out)
	wg.Wait()
	return failed.err
}

// runGoroutinesReorder has a goroutine per element. The channel of slots is also the
// semaphore.
func runGoroutinesReorder(_ Config, fn call, n int, in iter.Seq[*Item], out func(*Item)) error {
	var failed firstError
	order := make(chan slot, n-1) // emit holds one more
	go func() {
		for it := range in {
			s := slot{it, make(chan *Item, 1)}
			order <- s
			go func() {
				r, err := fn(s.it)
				if err != nil {
					failed.set(err)
				}
				s.done <- r
			}()
		}
		close(order)
	}()
	emit(order, out)
	return failed.err
}

func emit(order <-chan slot, out func(*Item)) {
	for s := range order {
		if r := <-s.done; r != nil {
			out(r)
		}
	}
}

// runRill is rill's Map or OrderedMap. Its streams carry Try values, so a goroutine wraps
// the input.
func runRill(
	apply func(in <-chan rill.Try[*Item], n int, f func(*Item) (*Item, error)) <-chan rill.Try[*Item],
) runner {
	return func(c Config, fn call, n int, in iter.Seq[*Item], out func(*Item)) error {
		tries := make(chan rill.Try[*Item], c.buffer())
		go func() {
			defer close(tries)
			for it := range in {
				tries <- rill.Try[*Item]{Value: it}
			}
		}()
		var failed error
		for t := range apply(tries, n, fn) {
			if t.Error != nil {
				failed = t.Error
			} else {
				out(t.Value)
			}
		}
		return failed
	}
}

// runConcPool is conc's pool, and emits results in completion order.
func runConcPool(_ Config, fn call, n int, in iter.Seq[*Item], out func(*Item)) error {
	var failed firstError
	p := pool.New().WithMaxGoroutines(n)
	for it := range in {
		p.Go(func() {
			if r, err := fn(it); err != nil {
				failed.set(err)
			} else {
				out(r)
			}
		})
	}
	p.Wait()
	return failed.err
}

// runConcStream is conc's stream, whose callbacks run in order on a goroutine.
func runConcStream(_ Config, fn call, n int, in iter.Seq[*Item], out func(*Item)) error {
	var failed error
	s := stream.New().WithMaxGoroutines(n)
	for it := range in {
		s.Go(func() stream.Callback {
			r, err := fn(it)
			return func() {
				if err != nil {
					failed = err
				} else {
					out(r)
				}
			}
		})
	}
	s.Wait()
	return failed
}

func withTimeout(d time.Duration, fn func(ctx context.Context, it *Item) (*Item, error)) call {
	return func(it *Item) (*Item, error) {
		ctx, cancel := context.WithTimeout(context.Background(), d)
		defer cancel()
		return fn(ctx, it)
	}
}
