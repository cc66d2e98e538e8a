package delivery

import (
	"fmt"

	"github.com/weirflow/weir/delivery/store"
)

// OnEngine is a source or sink that is a queue of an engine, such as a [Queue] or the
// source that [Queue.Source] returns. [Run] runs the jobs of the engine, and reports its
// state there, which `weir workers` and the console show.
type OnEngine interface {
	// Name returns the name of the queue. It does not change.
	Name() string
	// Engine returns the engine of the queue. It does not change.
	Engine() store.Engine
}

// SourceWrapper is a source of your own around another source, such as the source of a
// queue: it filters messages, counts them or changes their values.
//
//	type counted struct{ delivery.Source[Order] }
//
//	func (s counted) Unwrap() delivery.Source[Order] { return s.Source }
//
// [Run] and [Queue.Source] unwrap the source to find its queue ([OnEngine]), to count
// lost leases and refused settlements, and to end the calls of purged messages. Without
// Unwrap, a worker runs no jobs of the queue's engine, `weir workers` does not show the
// queue as its source, and calls of purged messages run to their end.
//
// A wrapper must obey these rules:
//
//   - It makes other messages by [message.With], so that they are settled and keep their
//     delivery.
//   - It settles the messages that it filters out. Then it receives again if no message
//     is left: Receive never returns 0 messages and a nil error.
//   - Its Close closes the wrapped source, since Run does not.
//   - A wrapper around a [Queue] itself is for a single Run, since its Close ends Receive
//     of the queue for good. Wrap [Queue.Source] for each further Run.
type SourceWrapper[T any] interface {
	Source[T]
	// Unwrap returns the wrapped source, the same each time. Run and [Queue.Source] panic
	// if it returns the wrapper, or after 100 wrappers.
	Unwrap() Source[T]
}

const maxWrappers = 100

// ofSource returns the first I among source and the sources that it wraps.
func ofSource[I, T any](source Source[T]) (found I, isFound bool) {
	eachSource(source, func(s Source[T]) bool {
		found, isFound = s.(I)
		return !isFound
	})
	return found, isFound
}

// eachSource calls f with a source and the sources that it wraps, until f returns false.
// A queue wraps the source of its Receive. eachSource panics if the sources do not end.
func eachSource[T any](source Source[T], f func(Source[T]) bool) {
	first := source
	for range maxWrappers {
		if !f(source) {
			return
		}
		switch s := source.(type) {
		case SourceWrapper[T]:
			source = s.Unwrap()
		case *Queue[T]:
			opened, err := s.opened()
			if err != nil {
				return // Receive returns the error
			}
			source = opened
		default:
			return
		}
	}
	panic(fmt.Sprintf("delivery: a %T wraps more than %d sources: its Unwrap, or the Unwrap of a source that it wraps, "+
		"must return the wrapped source, and not the wrapper (SourceWrapper)", first, maxWrappers))
}

// queueSource is the source that [Queue.Source] returns.
type queueSource[T any] struct {
	Source[T]
	queue *Queue[T]
	first Source[T] // or nil: see Queue.Source
}

// Name implements [OnEngine].
func (s *queueSource[T]) Name() string { return s.queue.Name() }

// Engine implements [OnEngine].
func (s *queueSource[T]) Engine() store.Engine { return s.queue.Engine() }

// Unwrap implements [SourceWrapper].
func (s *queueSource[T]) Unwrap() Source[T] { return s.Source }

var (
	_ OnEngine           = (*Queue[any])(nil)
	_ OnEngine           = (*queueSource[any])(nil)
	_ SourceWrapper[any] = (*queueSource[any])(nil)
)
