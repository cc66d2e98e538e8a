package durable

import "github.com/reugn/go-streams"

// Side is the end of a side output that takes elements of type T. Barriers of checkpoints do not come here, so the code that
// takes a checkpoint asks for what has come: see [Side.Settle].
type Side[T any] struct {
	in      chan any      // unbuffered: what was sent was received
	settled chan struct{} // its goroutine sends when it has no element in hand
	done    chan struct{} // closed at the end
}

var _ streams.Sink = (*Side[any])(nil) // an operator awaits the completion of its side output

// NewSide starts a side output that calls take for each element, one at a time.
func NewSide[T any](take func(T)) *Side[T] {
	s := &Side[T]{in: make(chan any), settled: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(s.done)
		for {
			select {
			case v, open := <-s.in:
				if !open {
					return
				}
				take(v.(T))
			case s.settled <- struct{}{}:
			}
		}
	}()
	return s
}

// In returns the channel that the operator sends to and closes.
func (s *Side[T]) In() chan<- any { return s.in }

// AwaitCompletion returns when In is closed and everything was taken.
func (s *Side[T]) AwaitCompletion() { <-s.done }

// Settle returns when everything that was sent before was taken.
func (s *Side[T]) Settle() {
	select {
	case <-s.settled:
	case <-s.done:
	}
}
