package call

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirflow/weir/internal/ctxkey"
	"github.com/weirflow/weir/internal/gate"
	"github.com/weirflow/weir/message"
)

// NumberKey is the context key of the number of the attempt; 0 for the handler of a
// failure.
type NumberKey struct{}

// BackendKey is the context key that is true if the call, or a call around it, goes to
// this backend, and nil otherwise.
type BackendKey struct{ gate.Backend }

// HostKey is the context key of the [Attempt] that runs blocking calls.
type HostKey struct{}

// BatchKey is the context key, in the context of a member, of the [Batch] that collects
// calls of this function.
type BatchKey struct{ Of any }

// Cancellable is the context of a token, an attempt or a batch.
type Cancellable interface {
	context.Context
	AfterFunc(f func()) (stop func() bool)
}

// A token is a context. Only calls have a permit that a blocking call could keep, and a
// stage: their context is an [Attempt]. A token costs nothing until somebody asks for its
// end. It is safe for concurrent use.
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

// Done returns a channel that is closed when the token has ended.
func (t *Token) Done() <-chan struct{} { return t.endSignal().context().Done() }

// Err returns nil until the token has ended, then context.DeadlineExceeded after a
// timeout and context.Canceled otherwise.
func (t *Token) Err() error {
	s := t.state.Load()
	if s&ended == 0 {
		return nil
	}
	t.endContext() // Done is closed at the latest when Err returns an error
	if s&expired != 0 {
		return context.DeadlineExceeded
	}
	return context.Canceled
}

// Value returns the values of the operator's context, the number of the attempt and, if
// the element is a message, its history.
func (t *Token) Value(key any) any {
	switch key.(type) {
	case NumberKey:
		return int(t.Number)
	case ctxkey.Message:
		if s := t.signal.Load(); s != nil && s.message != (Message{}) {
			return s.message.Meta()
		}
		return nil // the message of an operator around this one belongs to another element
	}
	return t.parent().Value(key)
}

// AfterFunc arranges for f to run on a goroutine of its own after the token has ended.
// stop reports whether it prevented that. Package context uses this method for derived
// contexts, which then need no goroutine.
func (t *Token) AfterFunc(f func()) (stop func() bool) {
	return context.AfterFunc(t.endSignal().context(), f)
}

// parent returns the context that has the values. For package context the cause of the
// end is one of the values: it is the operator's cause only if the operator has ended the
// attempt.
func (t *Token) parent() context.Context {
	if t.state.Load()&(ended|expired|completed) == ended {
		return t.Host.Life
	}
	return t.Host.Values
}

// ensureSignal returns the signal, which exists from the first call on.
func (t *Token) ensureSignal() *signal {
	if t.signal.Load() == nil {
		t.signal.CompareAndSwap(nil, new(signal)) // unless another goroutine has made one
	}
	return t.signal.Load()
}

// endSignal returns the signal, and fires it if the token has ended.
func (t *Token) endSignal() *signal {
	s := t.ensureSignal()
	if t.state.Load()&ended != 0 {
		s.fire() // the token ended before the signal existed
	}
	return s
}

// endContext ends the contexts that wait for the end of the token. The state has the end
// already.
func (t *Token) endContext() {
	if s := t.signal.Load(); s != nil {
		s.fire()
	}
}

// Message is a message without its value: its acknowledgement and its history.
type Message = message.Message[struct{}]

// signal ends the contexts and channels that wait for the end of a token. A token with a
// message has it from the start.
type signal struct {
	message Message       // read-only
	cost    atomic.Uint64 // reported so far: see Token.ReportCost

	mu     sync.Mutex
	fired  bool               // guarded by mu
	end    context.Context    //nolint:containedctx // guarded by mu; created by context
	cancel context.CancelFunc // guarded by mu; of end
}

// fire ends the context.
func (s *signal) fire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fired = true
	if s.cancel != nil {
		s.cancel()
	}
}

// context returns a context that ends with the token and has no values.
func (s *signal) context() context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end == nil {
		s.end, s.cancel = context.WithCancel(context.Background())
		if s.fired {
			s.cancel()
		}
	}
	return s.end
}
