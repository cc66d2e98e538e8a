package asyncop

import (
	"context"

	"github.com/weirflow/weir/internal/guard"
)

// AsyncFunction starts an asynchronous call per element.
//
// A function may also implement these optional interfaces, itself or on the function that
// its Unwrap() any method returns:
//
//   - [Opener]: Open is called before the first element.
//   - [io.Closer]: Close is called once per operator whose Open succeeded, after the last element. Calls that ignored the end of their context
//     may still be running. If the operator ended cleanly, an error of Close becomes its Err.
//   - [TimeoutHandler]: Timeout is called for elements that ran out of time.
//
// One function may serve several operators. Each calls it from its own loop, so it must
// then be safe for concurrent use.
type AsyncFunction[IN, OUT any] interface {
	// AsyncInvoke starts the call for in and returns without waiting for it; result is
	// completed later, from any goroutine, or at once. It is called on the operator's
	// loop, for a single element at a time, and must not block: while it blocks, the
	// whole operator waits, timeouts included. Calls that block go through [Blocking].
	//
	// The call must not change in or any value it points to: every attempt gets it,
	// checkpoints store it, and failures name it.
	//
	// ctx ends when the attempt is over: completed, timed out or cancelled. It carries
	// the deadline, the values of the operator's context and the number of the attempt
	// ([AttemptFromContext]). A resource opened under it, such as a response body, cannot
	// be used after the attempt.
	//
	// A returned error or a panic is an outcome of the attempt like
	// [ResultFuture.CompleteExceptionally], unless it was completed before.
	// runtime.Goexit, which FailNow of package testing calls, ends the operator's loop,
	// so it fails the operator with an error that names the code and matches
	// [*PanicError]. The same holds for all code that the operator calls on its loop:
	// predicates, strategies that do not block, observers, and the functions of options.
	AsyncInvoke(ctx context.Context, in IN, result ResultFuture[OUT]) error
}

// ResultFuture takes the outcome of an attempt. The first completion of the current
// attempt counts; all others are ignored and counted as late (law A2).
//
// It is safe for concurrent use.
type ResultFuture[OUT any] interface {
	// Complete ends the attempt with its results, which may be none. The operator owns a
	// slice that is passed whole (results...) from then on.
	Complete(results ...OUT)
	// CompleteExceptionally ends the attempt with an error. A nil err is replaced by an
	// error that reports the nil.
	CompleteExceptionally(err error)
}

// asyncFunc is a func as an [AsyncFunction].
type asyncFunc[IN, OUT any] func(ctx context.Context, in IN, result ResultFuture[OUT]) error

// AsyncInvoke calls f.
func (f asyncFunc[IN, OUT]) AsyncInvoke(ctx context.Context, in IN, result ResultFuture[OUT]) error {
	return f(ctx, in, result)
}

// Func returns f as an [AsyncFunction]; its types are inferred. A nil f is refused by the
// constructors.
func Func[IN, OUT any](f func(ctx context.Context, in IN, result ResultFuture[OUT]) error) AsyncFunction[IN, OUT] {
	if f == nil {
		return nil
	}
	return asyncFunc[IN, OUT](f)
}

// TimeoutHandler is implemented by a function that returns results for elements that ran
// out of time. [HandleFailure] is for failures of any kind.
type TimeoutHandler[IN, OUT any] interface {
	// Timeout returns the results that the element emits instead of failing with a
	// [*TimeoutError], or the error it fails with. It is called like the fallback of
	// HandleFailure.
	Timeout(ctx context.Context, in IN) ([]OUT, error)
}

// Opener is implemented by a function that must be set up before its first call.
type Opener interface {
	// Open is called once per operator, before its first element, with the operator's
	// context. An error or panic fails the pipeline.
	Open(ctx context.Context) error
}

// HandleFailure returns fn with a fallback: the results of fallback are emitted in place
// of a failure. An element fails when its last error is not retried, or its time runs out
// (Failure.Err is a [*TimeoutError] then).
//
//	lookup = asyncop.HandleFailure(lookup, func(ctx context.Context, f asyncop.Failure[string]) ([]Row, error) {
//		return []Row{{Key: f.Element}}, nil
//	})
//
// If fallback returns no result, the element ends without a result. An error goes to the
// failure policy in place of the failure: for failures that the fallback does not handle,
// return f.Err. Its outcome is final: it is never retried (law A3).
//
// fallback runs on a goroutine of its own and may block, without a permit. The element
// keeps its slot. ctx does not carry the element's deadline, but a deadline for the
// fallback: see [WithHandlerLimit]. If the fallback exceeds it or panics, the element
// fails with both errors joined. It also fails if twice as many fallbacks run as there
// are slots, because they ignore the end of ctx.
//
// A Timeout method of fn ([TimeoutHandler]) is called first, and fallback with the error
// that it returns. Everything else of fn stays reachable. HandleFailure panics if fn or
// fallback is nil.
func HandleFailure[IN, OUT any](
	fn AsyncFunction[IN, OUT], fallback func(ctx context.Context, f Failure[IN]) ([]OUT, error),
) AsyncFunction[IN, OUT] {
	guard.RefuseNil("asyncop: HandleFailure", "function", fn)
	guard.RefuseNil("asyncop: HandleFailure", "fallback", fallback)
	return &withFallback[IN, OUT]{fn, fallback}
}

type withFallback[IN, OUT any] struct {
	AsyncFunction[IN, OUT]
	fallback func(ctx context.Context, f Failure[IN]) ([]OUT, error)
}

// isFallback marks functions with a fallback, whatever their types.
func (f *withFallback[IN, OUT]) isFallback() {}

func (f *withFallback[IN, OUT]) Unwrap() any { return f.AsyncFunction }

// wrapper is a function around another function, which may have other types.
type wrapper interface{ Unwrap() any }

// fallback is a function with a fallback, whatever its types.
type fallback interface{ isFallback() }

// find returns the optional interface T of fn or of what it wraps, outermost first.
func find[T any](fn any) (T, bool) {
	for {
		if t, ok := fn.(T); ok {
			return t, true
		}
		w, ok := fn.(wrapper)
		if !ok {
			var none T
			return none, false
		}
		fn = w.Unwrap()
	}
}
