package flow

import (
	"log/slog"
	"reflect"
	"sync/atomic"

	"github.com/reugn/go-streams"

	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/wiring"
	"github.com/weirflow/weir/message"
)

// Sink is the end of a pipeline. It calls a function for each element, and acknowledges a
// message ([message.Message]) when the function has returned nil for its value. Sinks of
// go-streams drop messages without settling them. A function that is typed on messages
// settles them itself. Watermarks end here.
//
// The sink fails if the function returns an error, panics or calls runtime.Goexit, or if
// an element is of a wrong type. It then releases that message and later ones, discards
// and counts later elements, ends the steps upstream ([WithUpstreamRunning]), and cancels
// the source ([WithUpstreamCancel]). It also fails with a step of weir that Via or To
// connects to it. Err returns the error.
//
// Its methods are safe for concurrent use. This sink refuses barriers: a stream with
// checkpoints needs a sink of package checkpoint.
type Sink[T any] struct {
	linked
	flow    *Flow // its out is unused
	written atomic.Int64
	done    chan struct{} // closed when the sink has ended
}

var _ streams.Sink = (*Sink[any])(nil)

// NewSink returns a sink that calls write for each element, one at a time, in order. It
// panics if write is nil.
func NewSink[T any](write func(T) error, opts ...Option) *Sink[T] {
	guard.RefuseNil("flow: NewSink", "function", write)
	s := &Sink[T]{flow: makeFlow("Sink", reflect.TypeFor[T](), nil, opts), done: make(chan struct{})}
	s.linked = s.flow.linked
	s.flow.node.Kind = "sink"
	s.flow.node.Refuses = errSinkBarriers
	l := &sinkLoop[T]{Sink: s, decoder: newDecoder[T](), write: write}
	go func() {
		defer close(s.done)
		s.flow.run(l.all, func() func() { return l.held.Release })
	}()
	return s
}

// sinkLoop is owned by a sink's goroutine.
type sinkLoop[T any] struct {
	*Sink[T]
	decoder decoder[T]
	write   func(T) error
	held    message.Message[struct{}] // the message in hand
}

// all takes elements for run.
func (l *sinkLoop[T]) all() error {
	f := l.flow
	for v := range f.in {
		if f.err.Load() != nil { // ended from outside
			f.discard(v)
			return nil
		}
		if failure, ok := v.(wiring.Failure); ok {
			f.end(guard.Wrap("flow: Sink: upstream", failure.Err))
			return nil
		}
		if b, ok := v.(participant.Barrier); ok {
			f.mu.Lock()
			f.last = b
			f.mu.Unlock()
			return errSinkBarriers
		}
		if participant.IsControl(v) {
			continue
		}
		if err := l.element(v); err != nil {
			return err
		}
	}
	return nil
}

func (l *sinkLoop[T]) element(v any) error {
	e, err := l.decoder.decode(v)
	l.held = e.handle
	if err != nil {
		return err
	}
	if err := l.write(e.value); err != nil {
		return err
	}
	l.held = message.Message[struct{}]{}
	l.written.Add(1)
	if e.carried {
		l.acknowledge(e.handle)
	}
	return nil
}

// acknowledge acknowledges a message to its source, user code that may break (law A6).
func (l *sinkLoop[T]) acknowledge(m message.Message[struct{}]) {
	broken := func(recovered any) error { return guard.Recovered("flow", recovered) }
	if err := guard.Call(func() error { m.Ack(); return nil }, broken); err != nil {
		guard.Logger(nil).Error("flow: a source broke when a message was acknowledged", slog.String("flow", l.flow.node.String()), slog.Any("error", err))
	}
}

// In returns the channel that upstream sends to and closes.
func (s *Sink[T]) In() chan<- any { return s.flow.in }

// AwaitCompletion returns when In is closed and the function has returned for the last
// element.
func (s *Sink[T]) AwaitCompletion() { <-s.done }

// Err returns why the sink has ended early, or nil: its own failure, or the failure of an
// earlier step of weir. It is final when AwaitCompletion has returned.
func (s *Sink[T]) Err() error { return s.flow.Err() }

// Written returns the number of elements for which the function has returned nil.
func (s *Sink[T]) Written() int64 { return s.written.Load() }

// Discarded returns the number of elements after an early end. It changes until In is
// closed.
func (s *Sink[T]) Discarded() int64 { return s.flow.Discarded() }
