package call

import (
	"context"
	"sync"
	"time"

	"github.com/weirflow/weir/internal/ctxkey"
	"github.com/weirflow/weir/internal/gate"
	"github.com/weirflow/weir/message"
)

// NumberKey finds the number of the attempt in its context; 0 for the handler of a
// failure.
type NumberKey struct{}

// BackendKey finds out, in the context of a call, whether that or a call around it is one
// of this backend: true or nil.
type BackendKey struct{ gate.Backend }

// HostKey finds what runs the blocking calls of an attempt in its context: an [Attempt].
type HostKey struct{}

// BatchKey finds, in the context of a member, the [Batch] that is formed of calls of this
// function.
type BatchKey struct{ Of any }

// Cancellable is the context of a token, of an attempt or of a batch.
type Cancellable interface {
	context.Context
	AfterFunc(f func()) (stop func() bool)
}

// A token is a context. What runs under it has neither a permit that a blocking call
// could keep, nor a stage: that is for calls only, whose context is their [Attempt]. It
// costs nothing until its end is asked for, and is safe for concurrent use.
var _ Cancellable = (*Token)(nil)

// Deadline returns the earlier of the operator context's deadline and the token's. With a
// clock other than the real one it reports none.
func (t *Token) Deadline() (time.Time, bool) {
	if !t.Host.RealTime {
		return time.Time{}, false
	}
	parent, ok := t.Host.User.Deadline()
	if own := t.Host.Clock.Time(t.Until); t.Until != NoDeadline && (!ok || own.Before(parent)) {
		return own, true
	}
	return parent, ok
}

// Done returns a channel that is closed when the token is over.
func (t *Token) Done() <-chan struct{} { return t.endSignal().context().Done() }

// Err returns nil until the token is over, then context.DeadlineExceeded after a timeout
// and context.Canceled else.
func (t *Token) Err() error {
	s := t.state.Load()
	if s&over == 0 {
		return nil
	}
	t.endContext() // Done is closed when Err says so, not a moment later
	if s&expired != 0 {
		return context.DeadlineExceeded
	}
	return context.Canceled
}

// Value returns the values of the operator's context, the number of the attempt, and the
// history of the message that the element is.
func (t *Token) Value(key any) any {
	switch key.(type) {
	case NumberKey:
		return int(t.Number)
	case ctxkey.Message:
		if s := t.signal.Load(); s != nil && s.message != (Message{}) {
			return s.message.Meta()
		}
		return nil // that of an operator around this one is of another element
	}
	return t.parent().Value(key)
}

// AfterFunc arranges for f to run on a goroutine of its own after the token is over; stop
// reports whether it prevented that. Package context uses it for derived contexts instead
// of a goroutine each.
func (t *Token) AfterFunc(f func()) (stop func() bool) {
	return context.AfterFunc(t.endSignal().context(), f)
}

// parent returns what has the values. Also the cause of the end is one of them, as far as
// package context is concerned: it is the operator's only if that has ended the attempt.
func (t *Token) parent() context.Context {
	if t.state.Load()&(over|expired|completed) == over {
		return t.Host.Life
	}
	return t.Host.Values
}

// endSignal returns the signal, which exists from the first call on.
func (t *Token) endSignal() *signal {
	if t.signal.Load() == nil {
		t.signal.CompareAndSwap(nil, new(signal)) // unless another goroutine has made one
	}
	s := t.signal.Load()
	if t.state.Load()&over != 0 {
		s.fire() // the token ended before the signal existed
	}
	return s
}

// endContext reports the end to those who wait for it; the state has it already.
func (t *Token) endContext() {
	if s := t.signal.Load(); s != nil {
		s.fire()
	}
}

// Message is a message without its value: its acknowledgement and its history.
type Message = message.Message[struct{}]

// signal is the end of a token's context for those who wait for it. That of a message is
// there from the start.
type signal struct {
	message Message // read-only

	mu     sync.Mutex
	fired  bool               // guarded by mu
	end    context.Context    //nolint:containedctx // guarded by mu; made when it is asked for
	cancel context.CancelFunc // guarded by mu; of end
}

// fire ends the context.
func (s *signal) fire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fired = true; s.cancel != nil {
		s.cancel()
	}
}

// context returns one that ends with the token, and has nothing else of it.
func (s *signal) context() context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end == nil {
		if s.end, s.cancel = context.WithCancel(context.Background()); s.fired {
			s.cancel()
		}
	}
	return s.end
}
