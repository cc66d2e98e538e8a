package asyncop

import (
	"context"
	"errors"

	"github.com/weirflow/weir/asyncop/internal/call"
)

// Blocking makes an [AsyncFunction] of a call that blocks. Each running call has a
// goroutine, which is reused for later calls; an element that waits for a permit or a
// retry does not have a goroutine.
//
// An error that is [ErrNoResult], wrapped or not, completes the attempt without a result,
// so the element does not emit a result unless predicates.EmptyResult asks for another
// attempt. A panic or runtime.Goexit is a [*PanicError].
//
// The call keeps its permit ([WithMaxConcurrentCalls]) until it returns, so a call that
// ignores its context still counts as running after its element has timed out. A nil call
// is refused by the constructors.
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

// blocking runs a call on a goroutine of the operator that called it: of one of these.
type blocking[IN, OUT any] struct {
	one  func(ctx context.Context, in IN) (OUT, error)
	many func(ctx context.Context, in IN) ([]OUT, error)
}

// blockingHost is what runs blocking calls: an attempt of an operator, found through the
// context, so that wrappers around a blocking function need not know of it.
type blockingHost interface {
	// RunBlocking runs task on a goroutine; late, if not nil, is why the call must not be
	// made any more.
	RunBlocking(task func(late error))
}

// AsyncInvoke starts the call on a goroutine: a goroutine of the operator if ctx comes
// from an operator, else a new goroutine.
func (f *blocking[IN, OUT]) AsyncInvoke(ctx context.Context, in IN, result ResultFuture[OUT]) error {
	if host, ok := ctx.Value(call.HostKey{}).(blockingHost); ok {
		host.RunBlocking(func(late error) {
			if late == nil {
				late = ctx.Err() // it may be one that a wrapper has derived
			}
			f.run(ctx, in, result, late)
		})
	} else {
		go f.run(ctx, in, result, ctx.Err())
	}
	return nil
}

// run makes the call and turns every way in which it can end into an outcome (law A6). If
// the element has ended before a processor came to it, late says so, and no call starts
// (law A5); the outcome is reported all the same.
func (f *blocking[IN, OUT]) run(ctx context.Context, in IN, result call.Future[OUT], late error) {
	returned := false
	defer func() {
		if !returned { // a panic, or Goexit
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

// returner is a future that takes one result without an allocation: the futures of
// package call.
type returner[OUT any] interface {
	Return(result OUT, err error)
}

// complete completes an attempt with what a blocking call has returned for its element.
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

// directCall returns the blocking call that fn is, if it is one and nothing of the user's
// is around it.
func directCall[IN, OUT any](fn AsyncFunction[IN, OUT]) *blocking[IN, OUT] {
	if h, ok := fn.(*withFallback[IN, OUT]); ok {
		return directCall(h.AsyncFunction)
	}
	call, _ := fn.(*blocking[IN, OUT])
	return call
}

// AttemptFromContext returns the number of the attempt, from 1, that ctx was made for,
// and 0 for any other context. A message of a queue has its first attempt again at each
// visit: message.MetaFromContext has the number of the visit.
func AttemptFromContext(ctx context.Context) int {
	n, _ := ctx.Value(call.NumberKey{}).(int)
	return n
}
