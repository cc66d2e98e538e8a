package main

import (
	"github.com/reugn/go-streams"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/examples/hbase-like/internal/flights"
)

// side is the end of a side output. Barriers of checkpoints do not come here, so
// whoever takes a checkpoint asks for what has come, with sync.
type side struct {
	in     chan any      // unbuffered: what was sent was received
	synced chan struct{} // its goroutine sends when it has no element in hand
	done   chan struct{} // closed at the end
}

var _ streams.Sink = (*side)(nil) // an operator awaits the completion of its side output

// newSide starts a side output that calls take for each failure.
func newSide(take func(asyncop.Failure[flights.Flight])) *side {
	s := &side{in: make(chan any), synced: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(s.done)
		for {
			select {
			case v, open := <-s.in:
				if !open {
					return
				}
				take(v.(asyncop.Failure[flights.Flight]))
			case s.synced <- struct{}{}:
			}
		}
	}()
	return s
}

// In returns the channel that the operator sends to and closes.
func (s *side) In() chan<- any { return s.in }

// AwaitCompletion returns when everything was taken.
func (s *side) AwaitCompletion() { <-s.done }

// sync returns when everything that was sent before was taken.
func (s *side) sync() {
	select {
	case <-s.synced:
	case <-s.done:
	}
}
