package asyncop

import (
	"context"
	"errors"

	"github.com/weirflow/weir/asyncop/internal/call"
)

// Blocking makes an [AsyncFunction] of a blocking call. Each running call has a
// goroutine, which is reused for later calls; an element that waits does not.
//
// An error that is [ErrNoResult], wrapped or not, completes the attempt without a result.
// predicates.EmptyResult may ask for another attempt. A panic or runtime.Goexit is a
// [*PanicError].
//
// The call keeps its permit ([WithMaxConcurrentCalls]) until it returns, even if its
// element has timed out. The constructors refuse a nil call.
func Blocking[IN, OUT any](call func(ctx context.Context, in IN) (OUT, error)) AsyncFunction[IN, OUT] {
	if call == nil {
		return nil
	}
	return &blocking[IN, OUT]{one: call}
}

// BlockingMany is [Blocking] for calls with any number of results.
func BlockingMany[IN, OUT any](call func(ctx context.Context, in IN) ([]OUT, error)) AsyncFunction[IN, OUT] {
	if call == nil {
		return nil
	}
	return &blocking[IN, OUT]{many: call}
}

type blocking[IN, OUT any] struct {
	one  func(ctx context.Context, in IN) (OUT, error)
	many func(ctx context.Context, in IN) ([]OUT, error)
}

// blockingHost runs blocking calls: an attempt of an operator. Wrappers need not know it.
type blockingHost interface {
	// RunBlocking runs task on a goroutine. ctx is the context of the call, which must
	// not be made if ctx has ended or late, the reason against it, is not nil.
	RunBlocking(ctx context.Context, task func(late error))
}

var _ blockingHost = (*call.Attempt[int])(nil)

// AsyncInvoke starts the call on a goroutine of the operator of ctx or, without one, on a
// new goroutine.
func (f *blocking[IN, OUT]) AsyncInvoke(ctx context.Context, in IN, result ResultFuture[OUT]) error {
	if host, ok := ctx.Value(call.AttemptKey{}).(blockingHost); ok {
		host.RunBlocking(ctx, func(late error) {
			if late == nil {
				late = ctx.Err() // a wrapper may have derived ctx
			}
			f.run(ctx, in, result, late)
		})
	} else {
		go f.run(ctx, in, result, ctx.Err())
	}
	return nil
}

// run makes the call, and completes result however it ends (law A6). If late is not nil,
// it only completes result (law A5).
func (f *blocking[IN, OUT]) run(ctx context.Context, in IN, result call.Future[OUT], late error) {
	returned := false
	defer func() {
		if !returned { // a panic or runtime.Goexit
			result.CompleteExceptionally(call.Panicked(recover()))
		}
	}()
	var out OUT
	var many []OUT
	err := late
	switch {
	case err != nil:
	case f.many != nil:
		many, err = f.many(ctx, in)
	default:
		out, err = f.one(ctx, in)
	}
	if f.many != nil && err == nil {
		result.Complete(many...)
	} else {
		complete(result, out, err)
	}
	returned = true
}

// returner takes one result without an allocation: a future of package call.
type returner[OUT any] interface {
	Return(result OUT, err error)
}

var _ returner[int] = (*call.Attempt[int])(nil)

// complete completes a blocking call.
func complete[OUT any](future call.Future[OUT], result OUT, err error) {
	one, ok := future.(returner[OUT])
	switch {
	case errors.Is(err, ErrNoResult):
		future.Complete()
	case ok:
		one.Return(result, err)
	case err != nil:
		future.CompleteExceptionally(err)
	default:
		future.Complete(result)
	}
}

// directCall returns the blocking call of fn, or nil if fn is another function or has a
// user's wrapper.
func directCall[IN, OUT any](fn AsyncFunction[IN, OUT]) *blocking[IN, OUT] {
	if h, ok := fn.(*withFallback[IN, OUT]); ok {
		return directCall(h.AsyncFunction)
	}
	call, _ := fn.(*blocking[IN, OUT])
	return call
}

// AttemptFromContext returns the number of the attempt of ctx, from 1, or 0 without one.
// A message begins at 1 at each visit: message.MetaFromContext has the visit.
func AttemptFromContext(ctx context.Context) int {
	n, _ := ctx.Value(call.NumberKey{}).(int)
	return n
}
