package flow

import (
	"log/slog"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/reugn/go-streams"

	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/wiring"
	"github.com/weirflow/weir/message"
)

// Flow is a step of a pipeline. [NewMap], [NewFilter] and [NewFlatMap] make a Flow. It does not have a state, so it does not take part in
// checkpoints.
//
// It works on a single element at a time, in order. Of a message ([message.Message]) the function gets the value, and the results have the
// acknowledgement of that message. A function that is typed on messages gets the message, and passes the acknowledgement on itself.
//
// When its function panics or calls runtime.Goexit, or an element is of a wrong type, the flow has failed: it closes Out, discards later
// elements, nacks the messages among them, and logs the error once through slog.Default(). An operator or a sink of weir behind it fails with the
// same error, and so does the run of a coordinator whose barriers it passes. Steps of go-streams, FanOut included, take the end for a clean one,
// and so does what is behind them: look at Err. A step of your own gets the failure if it is a participant.Passer. A message with an acknowledgement of its own in a stream with barriers
// is such an error, too.
type Flow struct {
	in, out chan any
	name    string
	err     atomic.Pointer[error]
	failure error        // for the next step: its own, or one from upstream. Written before out is closed
	taken   wiring.Taken // by Via or To

	takes, sends reflect.Type

	mu      sync.Mutex
	last    participant.Barrier // the last that has come; guarded by mu
	misread error               // who reads Out lets barriers overtake elements; guarded by mu
}

var _ streams.Flow = (*Flow)(nil)

// buffer is the number of places at both ends of a Flow.
const buffer = 64

// NewMap returns a flow that emits the result of f for every element.
//
//	in  -- 1 -- 2 -- W -- 3 --
//	out -- f1 - f2 - W -- f3 -
//
// It panics if f is nil.
func NewMap[T, R any](f func(T) R) *Flow {
	guard.RefuseNil("flow: NewMap", "function", f)
	return newFlow[T, R]("Map", func(e element[T], emit func(any)) error {
		r := f(e.value)
		if !e.carried {
			emit(r)
			return nil
		}
		if isMessage(r) {
			return errNested
		}
		emit(message.With(e.handle, r))
		return nil
	})
}

// NewFilter returns a flow that emits the elements for which keep is true. It acknowledges messages that it drops.
//
//	in  -- 1 -- 2 -- W -- 3 --
//	out -- 1 ------- W -- 3 --
//
// It panics if keep is nil.
func NewFilter[T any](keep func(T) bool) *Flow {
	guard.RefuseNil("flow: NewFilter", "function", keep)
	return newFlow[T, T]("Filter", func(e element[T], emit func(any)) error {
		if keep(e.value) {
			emit(e.whole)
		} else {
			e.handle.Ack()
		}
		return nil
	})
}

// NewFlatMap returns a flow that emits all that f returns for an element. The values for a message are parts of it ([message.Split]).
//
//	in  -- 1 -------- W -- 2 ------
//	out -- 1a - 1b -- W -- 2a - 2b -
//
// It panics if f is nil.
func NewFlatMap[T, R any](f func(T) []R) *Flow {
	guard.RefuseNil("flow: NewFlatMap", "function", f)
	return newFlow[T, R]("FlatMap", func(e element[T], emit func(any)) error {
		rs := f(e.value)
		if !e.carried {
			for _, r := range rs {
				emit(r)
			}
			return nil
		}
		if slices.ContainsFunc(rs, isMessage[R]) {
			return errNested
		}
		for _, part := range message.Split(e.handle, rs...) {
			emit(part)
		}
		return nil
	})
}

func newFlow[T, R any](name string, apply func(e element[T], emit func(any)) error) *Flow {
	f := &Flow{in: make(chan any, buffer), out: make(chan any, buffer), name: name, takes: reflect.TypeFor[T](), sends: reflect.TypeFor[R]()}
	l := &loop[T]{Flow: f, decoder: newDecoder[T](), apply: apply}
	go l.run()
	return f
}

// loop is the goroutine of a flow. It ends when In is closed.
type loop[T any] struct {
	*Flow
	decoder  decoder[T]
	apply    func(e element[T], emit func(any)) error
	barriers wiring.Barriers
	held     message.Message[struct{}] // the message that is being worked on

	acknowledged, checkpointed bool // what has come
}

func (l *loop[T]) run() {
	err, returned := error(nil), false
	defer func() { // the function may not return (law A6)
		if !returned {
			err = guard.Recovered("", recover())
		}
		if err != nil {
			l.fail(err)
		}
		close(l.out)
		l.giveBack(l.held.Nack) // law D1
		for v := range l.in {
			if m, ok := message.FromElement(v); ok {
				l.giveBack(m.Nack)
			}
		}
	}()
	err = l.all()
	returned = true
}

// giveBack nacks a message. Its source is user code, which may break (law A6).
func (l *loop[T]) giveBack(nack func(delay time.Duration)) {
	broken := func(recovered any) error { return guard.Recovered("flow", recovered) }
	if err := guard.Call(func() error { nack(0); return nil }, broken); err != nil {
		slog.Error("flow: a source broke when a message was given back", slog.String("flow", l.name), slog.Any("error", err))
	}
}

// all takes what comes until In is closed.
func (l *loop[T]) all() error {
	emit := func(v any) { l.out <- v }
	for v := range l.in {
		var err error
		if participant.IsControl(v) {
			err = l.control(v)
		} else {
			err = l.element(v, emit)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// control passes a control element on. A failure goes beside Out, whose reader may not be of weir.
func (l *loop[T]) control(v any) error {
	if f, ok := v.(wiring.Failure); ok {
		l.failure = f.Err
		return nil
	}
	if b, ok := v.(participant.Barrier); ok {
		l.checkpointed = true
		if err := l.barrier(b, &l.barriers); err != nil {
			return err
		}
	}
	if l.checkpointed && l.acknowledged {
		return wiring.ErrAcknowledged
	}
	l.out <- v
	return nil
}

func (l *loop[T]) element(v any, emit func(any)) error {
	e, err := l.decoder.decode(v)
	l.held = e.handle
	l.acknowledged = l.acknowledged || l.held.Pending()
	switch {
	case err != nil:
	case l.checkpointed && l.acknowledged:
		err = wiring.ErrAcknowledged
	default:
		err = l.apply(e, emit)
	}
	if err == nil {
		l.held = message.Message[struct{}]{} // what was emitted has taken its place
	}
	return err
}

// barrier notes that one has come and returns an error if its checkpoint would not be exact (law C2).
func (f *Flow) barrier(b participant.Barrier, before *wiring.Barriers) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last = b
	if f.misread != nil {
		return f.misread
	}
	return before.Add(b.ID, b.Kind == participant.EndOfInput)
}

// fail notes why the flow ends and reports it to all that can do something about it.
func (f *Flow) fail(err error) {
	err = guard.Wrap("flow: "+f.name, err)
	f.err.Store(&err)
	slog.Error("flow: a flow has failed", slog.String("flow", f.name), slog.Any("error", err))
	f.mu.Lock()
	last := f.last
	f.mu.Unlock()
	last.Fail(f.name, err)
	f.failure = err
}

// Err returns why the flow has failed, or nil. It is set before Out closes.
func (f *Flow) Err() error {
	if err := f.err.Load(); err != nil {
		return *err
	}
	return nil
}

// ElementTypes returns the types of the stream's elements, so that Via and To can panic if they do not match.
func (f *Flow) ElementTypes(wiring.Question) (in, out reflect.Type) { return f.takes, f.sends }

// In returns the channel that upstream sends to and closes.
func (f *Flow) In() chan<- any { return f.in }

// Out returns the channel of the results. A function of go-streams that branches or joins streams must not read it, except FanOut: the flow
// fails at the first barrier.
func (f *Flow) Out() <-chan any {
	if err := wiring.Reader(); err != nil {
		f.mu.Lock()
		f.misread = err
		last := f.last
		f.mu.Unlock()
		last.Fail(f.name, err) // a barrier may wait in Out
	}
	return f.out
}

// Via streams the results to next and returns next. It panics for a flow of go-streams that cannot pass barriers, for an operator or a
// flow of weir that takes elements of another type, and if Via or To was called before.
func (f *Flow) Via(next streams.Flow) streams.Flow {
	wiring.MustPass("flow: Via", participant.CanPass(next))
	wiring.MustMatch("flow: Via", f, next)
	f.taken.Take("flow: Via")
	go f.transfer(next, next.In()) // ends with Out
	return next
}

// To streams the results to sink and returns when the sink has processed them all. It panics for a sink of go-streams that
// takes barriers for elements, for a sink of package checkpoint that takes elements of another type, and if Via or To was called before.
func (f *Flow) To(sink streams.Sink) {
	wiring.MustPass("flow: To", participant.CanPass(sink))
	wiring.MustMatch("flow: To", f, sink)
	f.taken.Take("flow: To")
	f.transfer(sink, sink.In())
	sink.AwaitCompletion()
}

// transfer passes on what comes through Out, and then the failure, to a step of weir.
func (f *Flow) transfer(next any, in chan<- any) {
	defer close(in)
	for v := range f.out {
		in <- v
	}
	if f.failure != nil && wiring.TakesFailures(next) {
		in <- wiring.Failure{Err: f.failure}
	}
}
