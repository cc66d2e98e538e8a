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

// NumberKey is the context key of the number of the attempt; 0 for handlers.
type NumberKey struct{}

// BackendKey is the context key of the [gate.Stamp] of the call, or of an outer call, at
// this backend.
type BackendKey struct{ gate.Backend }

// AttemptKey is the context key of the [Attempt].
type AttemptKey struct{}

// BatchKey is the context key of the [Batch] for calls of a function.
type BatchKey struct{ Of any }

// Cancellable is the context of a token, an attempt or a batch.
type Cancellable interface {
	context.Context
	AfterFunc(f func()) (stop func() bool)
}

// A token is a context. The context of a call is an [Attempt]. A token is cheap
// until its end is needed. It is safe for concurrent use.
var _ Cancellable = (*Token)(nil)

// Deadline returns the earlier of the deadlines of the token and the user's context. It
// is unknown unless the clock is real.
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

// Done implements context.Context.
func (t *Token) Done() <-chan struct{} { return t.endSignal().context().Done() }

// Err returns nil until the token has ended, then context.DeadlineExceeded after a
// timeout, otherwise context.Canceled.
func (t *Token) Err() error {
	s := t.state.Load()
	if s&contextEnded == 0 {
		return nil
	}
	t.endContext() // before Err returns an error
	if s&expired != 0 {
		return context.DeadlineExceeded
	}
	return context.Canceled
}

// Value returns the number of the attempt, the message's history, or a value of the
// operator's context.
func (t *Token) Value(key any) any {
	switch key.(type) {
	case NumberKey:
		return int(t.Number)
	case ctxkey.Message:
		if s := t.signal.Load(); s != nil && s.message != (Message{}) {
			return s.message.Meta()
		}
		return nil // the message of an outer call belongs to another element
	case ctxkey.Delivery:
		if s := t.signal.Load(); s != nil {
			return message.DeliveryOf(s.message)
		}
		return nil
	}
	return t.parent().Value(key)
}

// AfterFunc runs f on a new goroutine after the end of the token, unless stop prevents
// it. With it, derived contexts need no goroutine.
func (t *Token) AfterFunc(f func()) (stop func() bool) {
	return context.AfterFunc(t.endSignal().context(), f)
}

// parent returns the context with the values. Package context looks up the cause of the
// end as a value, too. So the result depends on how the token has ended:
//
//	not yet, completed, or by a timeout   Host.Values, without a cause
//	by a purge                            the values, with cause message.ErrPurged
//	by the operator                       Host.Life
func (t *Token) parent() context.Context {
	if t.state.Load()&(contextEnded|expired|completed) != contextEnded {
		return t.Host.Values
	}
	s := t.signal.Load()
	if s != nil && t.Host.Life.Err() == nil && s.message.IsPurged() {
		return WithEnd(t.Host.Values, purged)
	}
	return t.Host.Life
}

// purged has the cause message.ErrPurged.
var purged = func() context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(message.ErrPurged)
	return ctx
}()

func (t *Token) ensureSignal() *signal {
	if t.signal.Load() == nil {
		t.signal.CompareAndSwap(nil, new(signal)) // unless another goroutine has set it
	}
	return t.signal.Load()
}

// endSignal returns the signal, which has fired if the token has ended.
func (t *Token) endSignal() *signal {
	s := t.ensureSignal()
	if t.state.Load()&contextEnded != 0 {
		s.fire() // it ended before the signal existed
	}
	return s
}

// endContext fires the signal. The state has the end already.
func (t *Token) endContext() {
	if s := t.signal.Load(); s != nil {
		s.fire()
	}
}

// Message is a message without its value.
type Message = message.Message[struct{}]

// signal ends the contexts and channels that wait for a token. A token with a message
// always has one.
type signal struct {
	message Message       // read-only
	cost    atomic.Uint64 // so far: see Token.ReportCost

	mu     sync.Mutex
	fired  bool               // guarded by mu
	end    context.Context    //nolint:containedctx // guarded by mu; created by context
	cancel context.CancelFunc // guarded by mu
}

func (s *signal) fire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fired = true
	if s.cancel != nil {
		s.cancel()
	}
}

// context returns a context without values that ends with the token.
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
