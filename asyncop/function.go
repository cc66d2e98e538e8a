package asyncop

import (
	"context"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/internal/guard"
)

// AsyncFunction starts an asynchronous call per element.
//
// A function may also implement these optional interfaces, itself or on the function that
// its Unwrap() any method returns:
//
//   - [Opener]: Open is called before the first element.
//   - [io.Closer]: Close is called once per operator whose Open succeeded, after the last
//     element. Calls that ignore their context may still be running. After a clean end,
//     an error of Close becomes Err.
//   - [TimeoutHandler]: Timeout is called for elements that ran out of time.
//
// A function of several operators must be safe for concurrent use.
type AsyncFunction[IN, OUT any] interface {
	// AsyncInvoke starts the call for in and returns. result is completed later, from any
	// goroutine, or at once. It is called on the operator's loop, for one element at a
	// time, and must not block, because even timeouts would wait. Blocking calls go
	// through [Blocking].
	//
	// The call must not change in or values it points to: every attempt gets it,
	// checkpoints store it, and failures name it.
	//
	// ctx ends when the attempt has ended: completed, timed out or cancelled. It has the
	// deadline, the values of the operator's context and the number of the attempt
	// ([AttemptFromContext]). A response body opened with it cannot be read after the
	// attempt.
	//
	// A returned error or a panic is an outcome of the attempt like
	// [ResultFuture.CompleteExceptionally], unless it was completed before.
	// runtime.Goexit (FailNow of package testing) fails the operator with an error that
	// names the code and matches [*PanicError]. So it does in all code on the loop:
	// predicates, strategies that do not block, observers, and functions of options.
	AsyncInvoke(ctx context.Context, in IN, result ResultFuture[OUT]) error
}

// ResultFuture takes the outcome of an attempt. Only the first completion of the current
// attempt has an effect. Others are counted as late (law A2).
//
// It is safe for concurrent use.
type ResultFuture[OUT any] interface {
	// Complete ends the attempt with any number of results. A slice that is passed whole
	// (results...) belongs to the operator.
	Complete(results ...OUT)
	// CompleteExceptionally ends the attempt with an error. A nil err becomes an error
	// that reports this.
	CompleteExceptionally(err error)
}

type asyncFunc[IN, OUT any] func(ctx context.Context, in IN, result ResultFuture[OUT]) error

func (f asyncFunc[IN, OUT]) AsyncInvoke(ctx context.Context, in IN, result ResultFuture[OUT]) error {
	return f(ctx, in, result)
}

// Func returns f as an [AsyncFunction] with inferred types. The constructors refuse a nil
// f.
func Func[IN, OUT any](f func(ctx context.Context, in IN, result ResultFuture[OUT]) error) AsyncFunction[IN, OUT] {
	if f == nil {
		return nil
	}
	return asyncFunc[IN, OUT](f)
}

// TimeoutHandler is implemented by a function that returns results for elements that ran
// out of time. [HandleFailure] is for failures of any kind.
type TimeoutHandler[IN, OUT any] interface {
	// Timeout returns the results of the element in place of a [*TimeoutError], or the
	// error it fails with. It is called like the fallback of HandleFailure.
	Timeout(ctx context.Context, in IN) ([]OUT, error)
}

// Opener is implemented by a function that needs setup before its first call.
type Opener interface {
	// Open is called once per operator, before its first element, with the operator's
	// context. An error or panic fails the pipeline.
	Open(ctx context.Context) error
}

// HandleFailure returns fn with a fallback, whose results are emitted in place of a
// failure. After a timeout, Failure.Err is a [*TimeoutError].
//
//	lookup = asyncop.HandleFailure(lookup, func(ctx context.Context, f asyncop.Failure[string]) ([]Row, error) {
//		return []Row{{Key: f.Element}}, nil
//	})
//
// If fallback returns neither an error nor results, the element ends without a result. An
// error replaces the failure and goes to the failure policy: for failures that fallback
// does not handle, return f.Err. The outcome is never retried (law A3).
//
// fallback runs on a goroutine of its own and may block, without a permit. The element
// keeps its slot. ctx has the fallback's own deadline: see [WithHandlerLimit]. If
// fallback exceeds it or panics, the element fails with both errors joined. It also fails
// if twice as many fallbacks as slots are running.
//
// A Timeout method of fn ([TimeoutHandler]) is called first, and fallback with its error.
// Other interfaces of fn stay reachable. HandleFailure panics if fn or fallback is nil.
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

// isFallback marks functions with a fallback.
func (f *withFallback[IN, OUT]) isFallback() {}

var _ call.Wrapper = (*withFallback[any, any])(nil)

// Unwrap implements [call.Wrapper].
func (f *withFallback[IN, OUT]) Unwrap() any { return f.AsyncFunction }

type fallback interface{ isFallback() }

// lookupsOf returns the lookups of fn, or nil. A wrapper of another package may call its
// function for another element.
func lookupsOf[IN any](fn any) call.Lookups[IN] {
	for {
		l := call.LookupsOf[IN](fn)
		if l != nil {
			return l
		}
		_, isOurs := fn.(fallback)
		w, ok := fn.(call.Wrapper)
		if !isOurs || !ok {
			return nil
		}
		fn = w.Unwrap()
	}
}

// find returns the optional interface T of fn or of a function inside it, outermost
// first.
func find[T any](fn any) (T, bool) {
	for {
		if t, ok := fn.(T); ok {
			return t, true
		}
		w, ok := fn.(call.Wrapper)
		if !ok {
			var none T
			return none, false
		}
		fn = w.Unwrap()
	}
}
