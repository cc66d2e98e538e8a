package bench

import (
	"sync"

	"github.com/reugn/go-streams"
	"github.com/reugn/go-streams/flow"
)

// chanFlow makes a go-streams flow of a function that reads one channel and writes
// another, for peers that are not flows.
type chanFlow struct {
	in, out chan any
	mu      sync.Mutex
	err     error // guarded by mu
}

var _ streams.Flow = (*chanFlow)(nil)

// newChanFlow starts run, and closes out when run returns. Both channels have the given
// buffer.
func newChanFlow(buffer int, run func(in <-chan any, out chan<- any) error) *chanFlow {
	f := &chanFlow{in: make(chan any, buffer), out: make(chan any, buffer)}
	go func() {
		defer close(f.out)
		err := run(f.in, f.out)
		f.mu.Lock()
		f.err = err
		f.mu.Unlock()
	}()
	return f
}

func (f *chanFlow) In() chan<- any  { return f.in }
func (f *chanFlow) Out() <-chan any { return f.out }

func (f *chanFlow) Via(next streams.Flow) streams.Flow {
	flow.DoStream(f, next)
	return next
}

func (f *chanFlow) To(sink streams.Sink) {
	for e := range f.out {
		sink.In() <- e
	}
	close(sink.In())
	sink.AwaitCompletion()
}

func (f *chanFlow) Err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

func (f *chanFlow) stages() stages { return stages{flows: []streams.Flow{f}, err: f.Err} }

// passBuffered is flow.PassThrough with buffers at both ends: the cost of weir's default
// buffers.
func passBuffered(buffer int) *chanFlow {
	return newChanFlow(buffer, func(in <-chan any, out chan<- any) error {
		for e := range in {
			out <- e
		}
		return nil
	})
}
