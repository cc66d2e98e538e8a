package bench

import (
	"context"
	"sync"
	"time"

	"github.com/destel/rill"
	"github.com/reugn/go-streams/flow"
	"github.com/sourcegraph/conc/pool"
	"github.com/sourcegraph/conc/stream"
)

// call is a blocking call as peers run it in a worker.
type call func(it *Item) (*Item, error)

// worker is one way to run blocking calls of the elements of a stream, at most n at once.
type worker struct {
	name    string
	ordered bool
	run     runner // nil: go-streams' own Map
}

// build makes a flow of the worker.
func (w worker) build(c Config, fn call, n int) stages {
	if w.run == nil {
		return mapFlow(c, fn, n)
	}
	return framed(w.run)(c, fn, n)
}

// workers are all of them, ordered or not.
func workers(ordered bool) []worker {
	var ws []worker
	for _, w := range []worker{
		{"map", false, nil},
		{"pool", false, runPool},
		{"goroutines", false, runGoroutines},
		{"rill-map", false, runRill(rill.Map[*Item, *Item])},
		{"conc-pool", false, runConcPool},
		{"pool-reorder", true, runPoolReorder},
		{"goroutines-reorder", true, runGoroutinesReorder},
		{"rill-orderedmap", true, runRill(rill.OrderedMap[*Item, *Item])},
		{"conc-stream", true, runConcStream},
	} {
		if w.ordered == ordered {
			ws = append(ws, w)
		}
	}
	return ws
}

// runner reads in to its end and runs fn for every element, at most n calls at once.
type runner func(fn call, n int, in <-chan any, out chan<- any) error

func framed(run runner) func(c Config, fn call, n int) stages {
	return func(c Config, fn call, n int) stages {
		return newChanFlow(c.places(), func(in <-chan any, out chan<- any) error { return run(fn, n, in, out) }).stages()
	}
}

// firstError keeps the first error of calls that run in many goroutines.
type firstError struct {
	once sync.Once
	err  error
}

func (f *firstError) set(err error) { f.once.Do(func() { f.err = err }) }

// mapFlow is go-streams' own, with its unbuffered ends. It has no error path: what fails finally is dropped, and the
// sink finds it missing.
func mapFlow(_ Config, fn call, n int) stages {
	return oneStage(flow.NewMap(func(it *Item) *Item {
		r, err := fn(it)
		if err != nil {
			return &Item{Seq: -1}
		}
		return r
	}, n))
}

// runPool: n goroutines, results as they come.
func runPool(fn call, n int, in <-chan any, out chan<- any) error {
	var failed firstError
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			for e := range in {
				if r, err := fn(e.(*Item)); err != nil {
					failed.set(err)
				} else {
					out <- r
				}
			}
		})
	}
	wg.Wait()
	return failed.err
}

// runGoroutines: a goroutine per element behind a semaphore, results as they come.
func runGoroutines(fn call, n int, in <-chan any, out chan<- any) error {
	var failed firstError
	var wg sync.WaitGroup
	sem := make(chan struct{}, n)
	for e := range in {
		sem <- struct{}{}
		wg.Go(func() {
			if r, err := fn(e.(*Item)); err != nil {
				failed.set(err)
			} else {
				out <- r
			}
			<-sem
		})
	}
	wg.Wait()
	return failed.err
}

// slot is the place of an element in the order of the output.
type slot struct {
	it   *Item
	done chan *Item // one place: whoever completes it never waits
}

// runPoolReorder: n goroutines; a channel of slots keeps the order of the input.
func runPoolReorder(fn call, n int, in <-chan any, out chan<- any) error {
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
		for e := range in {
			s := slot{e.(*Item), make(chan *Item, 1)}
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

// runGoroutinesReorder: a goroutine per element; the channel of slots is the semaphore too.
func runGoroutinesReorder(fn call, n int, in <-chan any, out chan<- any) error {
	var failed firstError
	order := make(chan slot, n-1) // the emitter holds one more
	go func() {
		for e := range in {
			s := slot{e.(*Item), make(chan *Item, 1)}
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

func emit(order <-chan slot, out chan<- any) {
	for s := range order {
		if r := <-s.done; r != nil {
			out <- r
		}
	}
}

// runRill adapts rill's Map or OrderedMap: its streams carry Try values, so one goroutine converts the elements.
func runRill(
	apply func(in <-chan rill.Try[*Item], n int, f func(*Item) (*Item, error)) <-chan rill.Try[*Item],
) runner {
	return func(fn call, n int, in <-chan any, out chan<- any) error {
		tries := make(chan rill.Try[*Item], cap(out))
		go func() {
			defer close(tries)
			for e := range in {
				tries <- rill.Try[*Item]{Value: e.(*Item)}
			}
		}()
		var failed error
		for t := range apply(tries, n, fn) {
			if t.Error != nil {
				failed = t.Error
			} else {
				out <- t.Value
			}
		}
		return failed
	}
}

// runConcPool: conc's pool of goroutines, results as they come.
func runConcPool(fn call, n int, in <-chan any, out chan<- any) error {
	var failed firstError
	p := pool.New().WithMaxGoroutines(n)
	for e := range in {
		p.Go(func() {
			if r, err := fn(e.(*Item)); err != nil {
				failed.set(err)
			} else {
				out <- r
			}
		})
	}
	p.Wait()
	return failed.err
}

// runConcStream: conc's stream, callbacks in order.
func runConcStream(fn call, n int, in <-chan any, out chan<- any) error {
	var failed error
	s := stream.New().WithMaxGoroutines(n)
	for e := range in {
		s.Go(func() stream.Callback {
			r, err := fn(e.(*Item))
			return func() {
				if err != nil {
					failed = err
				} else {
					out <- r
				}
			}
		})
	}
	s.Wait()
	return failed
}

// withTimeout gives each call a context with a deadline: what weir's timeout costs by hand.
func withTimeout(d time.Duration, fn func(ctx context.Context, it *Item) (*Item, error)) call {
	return func(it *Item) (*Item, error) {
		ctx, cancel := context.WithTimeout(context.Background(), d)
		defer cancel()
		return fn(ctx, it)
	}
}
