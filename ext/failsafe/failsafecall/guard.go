package failsafecall

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/failsafe-go/failsafe-go/circuitbreaker"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/predicates"
)

// trialWait is when a call is made again that a half-open breaker has refused: others are on trial, and how long they take is
// not known.
const trialWait = 20 * time.Millisecond

// Guard returns fn behind a circuit breaker, which may be shared by functions of any type and by operators. The optional
// interfaces of fn stay reachable.
//
//	a call ends with        the breaker records
//	an error                the error
//	one result              the result
//	none, or several        a slice of them
//	a panic                 a failure
//	its time being over     context.DeadlineExceeded
//	a cancel                nothing; a failure if the call was on trial (half-open)
//
// Whether an error or a result is a failure is a matter of the breaker (HandleErrors, HandleIf, HandleResult). What comes after
// the end of the attempt's context is not recorded. Its DelayFunc is not asked, since there is no execution of failsafe-go.
// Listeners of the breaker are called on the operator's loop and must not block.
//
// Guard panics if breaker or fn is nil.
func Guard[IN, OUT any](
	breaker circuitbreaker.CircuitBreaker[any], fn asyncop.AsyncFunction[IN, OUT],
) asyncop.AsyncFunction[IN, OUT] {
	if breaker == nil {
		panic("failsafecall: Guard: nil breaker")
	}
	if fn == nil {
		panic("failsafecall: Guard: nil function")
	}
	return &guarded[IN, OUT]{breaker, fn}
}

type guarded[IN, OUT any] struct {
	breaker circuitbreaker.CircuitBreaker[any]
	fn      asyncop.AsyncFunction[IN, OUT]
}

// Unwrap returns the function, whose optional interfaces are those of g.
func (g *guarded[IN, OUT]) Unwrap() any { return g.fn }

// AsyncInvoke implements asyncop.AsyncFunction.
func (g *guarded[IN, OUT]) AsyncInvoke(ctx context.Context, in IN, result asyncop.ResultFuture[OUT]) error {
	if !g.breaker.TryAcquirePermit() {
		return refused(g.breaker)
	}
	c := &call[OUT]{breaker: g.breaker, result: result}
	c.stop = context.AfterFunc(ctx, func() { c.cutOff(ctx.Err()) })
	returned := false
	defer func() {
		if !returned { // by a panic or runtime.Goexit, which goes on
			c.record(g.breaker.RecordFailure)
		}
	}()
	err := g.fn.AsyncInvoke(ctx, in, c)
	returned = true
	if err != nil {
		c.recordError(err)
	}
	return err
}

// refused returns the error of a call that the breaker does not let through. Nothing was sent.
func refused(breaker circuitbreaker.CircuitBreaker[any]) error {
	wait := breaker.RemainingDelay()
	if wait <= 0 {
		wait = trialWait
	}
	return predicates.WithPushback(predicates.WithReason(
		&predicates.StageError{Stage: predicates.ClientDispatch, Err: circuitbreaker.ErrOpen},
		predicates.CircuitBreakerOpen), wait)
}

// call is a call that the breaker has let through, as its ResultFuture. What it ends with is recorded once.
type call[OUT any] struct {
	breaker  circuitbreaker.CircuitBreaker[any]
	result   asyncop.ResultFuture[OUT]
	stop     func() bool // ends the watch over the context
	recorded atomic.Bool
}

// Complete implements asyncop.ResultFuture.
func (c *call[OUT]) Complete(results ...OUT) {
	c.record(func() {
		if len(results) == 1 {
			c.breaker.RecordResult(results[0])
		} else {
			c.breaker.RecordResult(results)
		}
	})
	c.result.Complete(results...)
}

// CompleteExceptionally implements asyncop.ResultFuture.
func (c *call[OUT]) CompleteExceptionally(err error) {
	if err == nil {
		err = errNil
	}
	c.recordError(err)
	c.result.CompleteExceptionally(err)
}

func (c *call[OUT]) recordError(err error) {
	c.record(func() {
		if _, panicked := errors.AsType[*asyncop.PanicError](err); panicked {
			c.breaker.RecordFailure()
			return
		}
		c.breaker.RecordError(err)
	})
}

// record calls f for the first outcome. It stands before the completion: who decides over a retry sees the breaker as it is
// after the call.
func (c *call[OUT]) record(f func()) {
	if c.recorded.CompareAndSwap(false, true) {
		c.stop()
		f()
	}
}

// cutOff records that the context has ended before the call did. Only a recorded outcome gives a half-open breaker its permit
// back; a closed one must not open because an operator was cancelled.
func (c *call[OUT]) cutOff(err error) {
	switch {
	case !c.recorded.CompareAndSwap(false, true):
	case errors.Is(err, context.DeadlineExceeded):
		c.breaker.RecordError(err)
	case c.breaker.IsHalfOpen():
		c.breaker.RecordFailure()
	}
}

// errNil stands for a nil error.
var errNil = errors.New("failsafecall: CompleteExceptionally was called with a nil error")
