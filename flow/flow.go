package flow

import (
	"log/slog"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/reugn/go-streams"

	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/wiring"
	"github.com/weirflow/weir/message"
)

// Flow is a step of a pipeline, made by [NewMap], [NewFilter], [NewFlatMap] or [Merge].
// It has no state, so it does not take part in checkpoints.
//
// It works on one element at a time, in order. The function gets the value of a message
// ([message.Message]), and the results carry its acknowledgement. A function that is
// typed on messages passes the acknowledgement on itself.
//
// A flow fails if its function panics or calls runtime.Goexit, or if an element is of a
// wrong type. It then closes Out, discards and counts later elements, releases their
// messages, and logs the error and the count once through slog.Default(). The failure
// travels
//
//   - downstream: an operator or a sink of weir behind it fails with the same error, and
//     so does the run of a coordinator whose barriers it passes. Your own step gets the
//     failure if it is a participant.Passer.
//   - upstream: operators and flows of weir before it end with an asyncop.DownstreamError
//     that names this flow, unless it has [WithUpstreamRunning]
//   - to the source, if it has [WithUpstreamCancel]
//
// The flow also ends when a later operator or flow of weir fails. Steps of go-streams,
// including FanOut, take a failure for a normal end and do not forward it: check Err
// there. In a stream with barriers, a message with its own acknowledgement is a failure,
// too.
type Flow struct {
	linked
	in, out chan any
	name    string // of its kind
	config  config // read-only
	node    wiring.Node
	taken   wiring.Taken // by Via or To

	err       atomic.Pointer[error] // why it ended early; the first reason
	failure   error                 // for the next step: its own or an upstream failure; written before out is closed
	cut       chan struct{}         // closed when an earlier step was cancelled and could not deliver
	cutOnce   sync.Once
	cancelled sync.Once // config.cancelUpstream was called

	discarded, undelivered atomic.Int64

	mu      sync.Mutex
	last    participant.Barrier // guarded by mu
	misread error               // set if the reader of Out breaks the order of barriers; guarded by mu
}

type linked = wiring.Linked // the node of a flow or a sink

var _ streams.Flow = (*Flow)(nil)

// buffer is the capacity of each end of a Flow.
const buffer = 64

// NewMap returns a flow that emits the result of f for every element.
//
//	in  -- 1 -- 2 -- W -- 3 --
//	out -- f1 - f2 - W -- f3 -
//
// It panics if f is nil.
func NewMap[T, R any](f func(T) R, opts ...Option) *Flow {
	guard.RefuseNil("flow: NewMap", "function", f)
	return newFlow[T, R]("Map", opts, func(e element[T], emit func(any)) error {
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

// NewFilter returns a flow that emits the elements for which keep is true. It
// acknowledges messages that it drops.
//
//	in  -- 1 -- 2 -- W -- 3 --
//	out -- 1 ------- W -- 3 --
//
// It panics if keep is nil.
func NewFilter[T any](keep func(T) bool, opts ...Option) *Flow {
	guard.RefuseNil("flow: NewFilter", "function", keep)
	return newFlow[T, T]("Filter", opts, func(e element[T], emit func(any)) error {
		if keep(e.value) {
			emit(e.whole)
		} else {
			e.handle.Ack()
		}
		return nil
	})
}

// NewFlatMap returns a flow that emits all results of f. The values for a message are
// parts of it ([message.Split]).
//
//	in  -- 1 -------- W -- 2 ------
//	out -- 1a - 1b -- W -- 2a - 2b -
//
// It panics if f is nil.
func NewFlatMap[T, R any](f func(T) []R, opts ...Option) *Flow {
	guard.RefuseNil("flow: NewFlatMap", "function", f)
	return newFlow[T, R]("FlatMap", opts, func(e element[T], emit func(any)) error {
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

func newFlow[T, R any](kind string, opts []Option, apply func(e element[T], emit func(any)) error) *Flow {
	f := makeFlow(kind, reflect.TypeFor[T](), reflect.TypeFor[R](), opts)
	l := &loop[T]{Flow: f, decoder: newDecoder[T](), apply: apply}
	go f.run(l.all, func() func() { return l.held.Release })
	return f
}

func makeFlow(kind string, in, out reflect.Type, opts []Option) *Flow {
	f := &Flow{in: make(chan any, buffer), out: make(chan any, buffer), name: kind, config: newConfig(opts), cut: make(chan struct{})}
	f.linked = wiring.LinkedBy(&f.node)
	f.node.Kind, f.node.Label = "flow "+kind, f.config.name
	f.node.In, f.node.Out = in, out
	f.node.KeepsUpstream = f.config.keepsUpstream
	f.node.DownstreamFailed = f.downstreamFailed
	f.node.UpstreamCut = f.upstreamCut
	return f
}

// run is the goroutine of a flow. It ends when In is closed. all takes elements until In
// is closed or the flow ends early. held returns the function that releases the message
// in hand.
func (f *Flow) run(all func() error, held func() func()) {
	err, returned := error(nil), false
	defer func() { // the function may not return (law A6)
		if !returned {
			err = guard.Recovered("", recover())
		}
		if err != nil {
			f.fail(err)
		}
		if early := f.Err(); early != nil {
			f.failure = early
			f.failRun(early)
		}
		close(f.out)
		f.release(held()) // law D1
		for v := range f.in {
			f.discard(v)
		}
		f.logCounts()
	}()
	err = all()
	returned = true
}

// discard counts an element after the end, and releases a message.
func (f *Flow) discard(v any) {
	switch v.(type) {
	case inputMark, inputEnd:
		return
	}
	if participant.IsControl(v) {
		return
	}
	f.discarded.Add(1)
	if m, ok := message.FromElement(v); ok {
		f.release(m.Release)
	}
}

func (f *Flow) logCounts() {
	if n := f.discarded.Load(); n > 0 {
		guard.Logger(nil).Warn("flow: elements came after a flow had ended early, and were discarded", slog.String("flow", f.node.String()), slog.Int64("elements", n))
	}
}

// release releases a message to its source, user code that may break (law A6).
func (f *Flow) release(release func()) {
	broken := func(recovered any) error { return guard.Recovered("flow", recovered) }
	if err := guard.Call(func() error { release(); return nil }, broken); err != nil {
		guard.Logger(nil).Error("flow: a source broke when a message was released", slog.String("flow", f.node.String()), slog.Any("error", err))
	}
}

type loop[T any] struct {
	*Flow
	decoder  decoder[T]
	apply    func(e element[T], emit func(any)) error
	barriers wiring.Barriers
	held     message.Message[struct{}] // the message in hand

	acknowledged, checkpointed bool // messages, or barriers, have arrived
}

// all takes elements for run.
func (l *loop[T]) all() error {
	emit := func(v any) { l.out <- v }
	for v := range l.in {
		if l.err.Load() != nil { // ended from outside
			l.discard(v)
			return nil
		}
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

// control forwards a control element, but no failure, because the reader of Out may not
// belong to weir.
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
		l.held = message.Message[struct{}]{} // its results are now responsible for it
	}
	return err
}

// barrier records a barrier, and fails if the checkpoint would not be exact, or a later
// step cannot pass the barrier (law C2).
func (f *Flow) barrier(b participant.Barrier, before *wiring.Barriers) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last = b
	if f.misread != nil {
		return f.misread
	}
	if err := f.node.MarkCheckpointed(); err != nil {
		return err
	}
	return before.Add(b.ID, b.Kind == participant.EndOfInput)
}

// ---- The early end

// end records why the flow ends early, and returns true for the first reason.
func (f *Flow) end(err error) (first bool) { return f.err.CompareAndSwap(nil, &err) }

func (f *Flow) fail(err error) {
	err = guard.Wrap("flow: "+f.name, err)
	if !f.end(err) {
		return
	}
	guard.Logger(nil).Error("flow: a flow has failed", slog.String("flow", f.node.String()), slog.Any("error", err))
	f.node.FailUpstream(err)
	f.cancelUpstream(err)
}

// downstreamFailed ends the flow because a later step has failed, on any goroutine.
func (f *Flow) downstreamFailed(failure *wiring.DownstreamError) {
	err := guard.Wrap("flow: "+f.name, failure)
	if f.end(err) {
		guard.Logger(nil).Info("flow: a flow ends because a later step has failed", slog.String("flow", f.node.String()), slog.Any("error", err))
		f.cancelUpstream(err)
	}
}

// upstreamCut ends the flow because an earlier step was cancelled and could not deliver,
// on any goroutine.
func (f *Flow) upstreamCut(cause error) {
	f.end(guard.Wrap("flow: "+f.name+": upstream", cause))
	f.cutOnce.Do(func() { close(f.cut) })
}

// cancelUpstream cancels the source once, on another goroutine, because the function may
// wait for the source, and that for the flow.
func (f *Flow) cancelUpstream(err error) {
	cancel := f.config.cancelUpstream
	if cancel == nil {
		return
	}
	f.cancelled.Do(func() {
		go func() { // ends with the user's function
			broken := func(recovered any) error { return guard.Recovered("flow", recovered) }
			if err := guard.Call(func() error { cancel(err); return nil }, broken); err != nil {
				guard.Logger(nil).Error("flow: the function of WithUpstreamCancel broke", slog.String("flow", f.node.String()), slog.Any("error", err))
			}
		}()
	})
}

// failRun ends the coordinator's run whose barriers the flow has passed.
func (f *Flow) failRun(err error) {
	f.mu.Lock()
	last := f.last
	f.mu.Unlock()
	last.Fail(f.name, err)
}

// Err returns why the flow has ended early, or nil: its own failure, an
// asyncop.DownstreamError, or the error of a cancelled earlier step. It is set before Out
// closes.
func (f *Flow) Err() error {
	if err := f.err.Load(); err != nil {
		return *err
	}
	return nil
}

// Discarded returns the number of elements after an early end. It changes until In is
// closed.
func (f *Flow) Discarded() int64 { return f.discarded.Load() }

// Undelivered returns the number of results that Via or To could not deliver after an
// operator before the flow was cancelled.
func (f *Flow) Undelivered() int64 { return f.undelivered.Load() }

// ---- Wiring

// In returns the channel that upstream sends to and closes.
func (f *Flow) In() chan<- any { return f.in }

// Out returns the channel of the results. Functions of go-streams that branch or join
// streams must not read it, except FanOut: the flow fails at the first barrier.
func (f *Flow) Out() <-chan any {
	if err := wiring.Reader(); err != nil {
		f.mu.Lock()
		f.misread = err
		last := f.last
		f.mu.Unlock()
		last.Fail(f.name, err) // a barrier may be waiting in Out
	}
	return f.out
}

// Via streams the results to next and returns next, or, in a stream with checkpoints, a
// flow that represents it. It panics for a step of weir that takes elements of another
// type, if Via or To was called before, and in a stream with checkpoints for a flow of
// go-streams that cannot pass barriers. Behind FanOut, which hides checkpoints, the flow
// fails at the first barrier instead.
func (f *Flow) Via(next streams.Flow) streams.Flow {
	f.connect("flow: Via", next)
	go f.transfer(next, next.In()) // ends with Out
	return f.node.Next(next)
}

// To streams the results to sink and returns when the sink has processed them all. It
// panics for a sink of package checkpoint that takes elements of another type, if Via or
// To was called before, and in a stream with checkpoints for a sink of go-streams that
// takes barriers for elements.
//
// If an operator of weir before the flow is cancelled, To returns within a second, even
// if the sink has stopped reading: see Undelivered.
func (f *Flow) To(sink streams.Sink) {
	f.connect("flow: To", sink)
	f.transfer(sink, sink.In())
	completed := make(chan struct{})
	go func() { // ends with the sink
		defer close(completed)
		sink.AwaitCompletion()
	}()
	select {
	case <-completed:
	case <-f.cut:
	}
}

func (f *Flow) connect(method string, next any) {
	f.node.MustTake(method, next)
	f.taken.Take(method)
	f.node.Link(method, next)
}

// transfer forwards the results, and then the failure if next accepts it.
func (f *Flow) transfer(next any, in chan<- any) {
	defer close(in)
	for v := range f.out {
		isDelivered := f.deliver(in, v)
		if !isDelivered && !participant.IsControl(v) {
			f.undelivered.Add(1)
			if m, ok := message.FromElement(v); ok {
				f.release(m.Release)
			}
		}
	}
	if f.failure != nil && wiring.TakesFailures(next) {
		f.deliver(in, wiring.Failure{Err: f.failure})
	}
	if n := f.undelivered.Load(); n > 0 {
		guard.Logger(nil).Warn("flow: results were not delivered: the next step has stopped reading", slog.String("flow", f.node.String()), slog.Int64("results", n))
	}
}

// deliver sends v to the next step. It returns false if the flow was cut before.
func (f *Flow) deliver(in chan<- any, v any) bool {
	select {
	case in <- v: // cheaper than the blocking select
		return true
	default:
	}
	select {
	case in <- v:
		return true
	case <-f.cut:
		return false
	}
}
