package asyncop

import (
	"context"
	"sync"
	"time"

	"github.com/weirflow/weir/internal/stagekey"
)

// AttemptFromContext returns the number of the attempt, from 1, that ctx was made for, and 0 for any other context.
func AttemptFromContext(ctx context.Context) int {
	n, _ := ctx.Value(attemptNumberKey{}).(int)
	return n
}

type attemptNumberKey struct{}

// attemptContext is an attempt seen as the context of its call. It costs nothing until its end is asked for.
//
// It is safe for concurrent use.
type attemptContext[IN, OUT any] attempt[IN, OUT]

var _ context.Context = (*attemptContext[any, any])(nil)

// Deadline returns the earliest of the operator context's deadline, the element's and the attempt's. With a clock other
// than the real one it reports none.
func (c *attemptContext[IN, OUT]) Deadline() (time.Time, bool) {
	if !c.core.realTime {
		return time.Time{}, false
	}
	parent, ok := c.core.ctx.Deadline()
	if c.deadline == noDeadline {
		return parent, ok
	}
	if own := c.core.timers.Time(c.deadline); !ok || own.Before(parent) {
		return own, true
	}
	return parent, true
}

// Done returns a channel that is closed when the attempt is over.
func (c *attemptContext[IN, OUT]) Done() <-chan struct{} { return c.ending().done }

// Err returns nil until the attempt is over, then context.DeadlineExceeded after a timeout and context.Canceled else.
func (c *attemptContext[IN, OUT]) Err() error {
	s := c.state.Load()
	if s&over == 0 {
		return nil
	}
	(*attempt[IN, OUT])(c).endContext() // Done is closed when Err says so, not a moment later
	if s&expired != 0 {
		return context.DeadlineExceeded
	}
	return context.Canceled
}

// Value returns the values of the operator's context, and what this package keeps in an attempt's.
func (c *attemptContext[IN, OUT]) Value(key any) any {
	switch key.(type) {
	case attemptNumberKey:
		return int(c.number)
	case hostKey:
		if c.number == 0 {
			return nil // a timeout handler has no permit that a blocking call could keep
		}
		return (*attempt[IN, OUT])(c)
	case stagekey.Key:
		if c.number == 0 {
			return nil // a timeout handler is no attempt
		}
		return (*stages[IN, OUT])(c)
	}
	return c.parent().Value(key)
}

// parent returns what has the values. Also the cause of the end is one of them, as far as package context is concerned: it is
// the operator's only if that has ended the attempt.
func (c *attemptContext[IN, OUT]) parent() context.Context {
	if c.state.Load()&(over|expired|completed) == over {
		return c.core.life
	}
	return c.core.values
}

// sideContext is the context of what runs beside an element's call, before it or between two: it has neither a permit
// that a blocking call could keep, nor a stage.
type sideContext[IN, OUT any] struct{ *attemptContext[IN, OUT] }

// Value returns the values of the attempt's context.
func (c sideContext[IN, OUT]) Value(key any) any {
	if key == (hostKey{}) || key == (stagekey.Key{}) {
		return nil
	}
	return c.attemptContext.Value(key)
}

// AfterFunc arranges for f to run on a goroutine of its own after the attempt is over; stop tells whether it prevented
// that. Package context uses it for derived contexts instead of a goroutine each.
func (c *attemptContext[IN, OUT]) AfterFunc(f func()) (stop func() bool) {
	return c.ending().afterFunc(f)
}

// ending returns the signal, which exists from the first call on.
func (c *attemptContext[IN, OUT]) ending() *signal {
	s := c.signal.Load()
	if s == nil {
		s = &signal{done: make(chan struct{})}
		if !c.signal.CompareAndSwap(nil, s) {
			s = c.signal.Load()
		}
	}
	if c.state.Load()&over != 0 {
		s.fire() // the attempt ended before the signal existed
	}
	return s
}

// endContext tells whoever waits that the attempt is over; the state says so already.
func (a *attempt[IN, OUT]) endContext() {
	if s := a.signal.Load(); s != nil {
		s.fire()
	}
}

// signal is the end of an attempt's context for those who wait for it.
type signal struct {
	done chan struct{} // closed by fire

	mu    sync.Mutex
	fired bool             // guarded by mu
	funcs map[*func()]bool // guarded by mu; to be started by fire
}

func (s *signal) fire() {
	s.mu.Lock()
	if s.fired {
		s.mu.Unlock()
		return
	}
	s.fired = true
	funcs := s.funcs
	s.funcs = nil
	close(s.done)
	s.mu.Unlock()
	for f := range funcs {
		go (*f)()
	}
}

func (s *signal) afterFunc(f func()) (stop func() bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fired {
		go f()
		return func() bool { return false }
	}
	if s.funcs == nil {
		s.funcs = make(map[*func()]bool)
	}
	key := &f
	s.funcs[key] = true
	return func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		stopped := s.funcs[key]
		delete(s.funcs, key)
		return stopped
	}
}
