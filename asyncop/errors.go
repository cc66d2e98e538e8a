package asyncop

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/wiring"
	"github.com/weirflow/weir/message"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

var (
	// ErrNoResult is returned by a [Blocking] call to complete its attempt without a
	// result.
	ErrNoResult = errors.New("asyncop: no result")

	// ErrRetriesExhausted is the failure of an element whose last result still asked for
	// another attempt, under [WithExhaustedAsFailure]. The error that wraps it names the
	// reason, and says why it was not retried.
	ErrRetriesExhausted = errors.New("asyncop: retries exhausted: the last result still matches the retry predicate")

	// ErrBackendDown is matched by the [*TimeoutError] of an element whose time ran out
	// while its backend was down, or which its backend never let start: see
	// [WithBackend].
	ErrBackendDown = message.ErrBackendDown

	// ErrBudgetSpent is matched by the error of an operator that has ended because its
	// calls have cost as much as its budget: see [Budget].
	ErrBudgetSpent = errors.New("asyncop: the budget is spent")

	// ErrStopped reports that the operator was stopped by Stop: to the function of
	// [WithUpstreamCancel], and to a loop over Results.
	ErrStopped = errors.New("asyncop: operator stopped")
)

// Errors that users see in messages, and cannot match.
var (
	// errControlResult is the failure of an element whose function returned a watermark,
	// a barrier or a message as a result. Control elements come from the source only, and
	// messages are made of results by the operator.
	errControlResult = errors.New("asyncop: a control element is not a result")

	errHandlerLimit = errors.New("asyncop: the handler of a failure exceeded its limit (WithHandlerLimit)")
)

// TimeoutError is the failure of an element whose total time ran out. It matches
// context.DeadlineExceeded and unwraps to the last error of its attempts, if an attempt
// failed.
type TimeoutError struct {
	Limit    time.Duration // the timeout: the operator's, or the element's own; 0 if that had passed before it was accepted
	Attempts int           // attempts begun; 0 if the element waited for a permit all the time
	Last     error         // the last error of an attempt; nil if no attempt failed
	Handler  error         // the error of the failure handler: a panic, or that it took too long; else nil
	Early    bool          // before Limit, since no retry could start within it: see WithEarlyTimeout

	// InDoubt is true if an attempt may have taken effect: an attempt was running, or an
	// earlier attempt ended in a way that does not prove the contrary. The proof is a
	// report of stage ClientDispatch, an error of that stage if the policy looks at
	// reasons, or a reason that allows non-idempotent retry. An element that was called
	// before a restart is in doubt. An element that was never called is not.
	InDoubt bool

	waited  error // why it waited for its backend at the end; nil if it did not
	element any   // for the policy
	policy  idempotence
}

// UnsafeToRepeat reports whether the call is in doubt and not idempotent: see
// [Failure.UnsafeToRepeat]. Predicates are not asked about timeouts.
func (e *TimeoutError) UnsafeToRepeat() bool {
	return e.InDoubt && !isIdempotent(e.policy, e.element)
}

func (e *TimeoutError) Error() string {
	s := fmt.Sprintf("asyncop: timed out after %v and %s", e.Limit, attempts(e.Attempts))
	switch {
	case e.Limit == 0 && e.Attempts == 0:
		s = "asyncop: timed out before the first attempt: the deadline had passed"
	case e.Early:
		s = fmt.Sprintf("asyncop: timed out early, after %s: no retry could start within %v", attempts(e.Attempts), e.Limit)
	}
	if e.waited != nil {
		s += fmt.Sprintf(": it waited: %v", e.waited)
	}
	if e.Last != nil {
		s += fmt.Sprintf(": last error: %v", e.Last) // fmt recovers panics of users' errors
	}
	if e.Handler != nil {
		s += fmt.Sprintf(": handler: %v", e.Handler)
	}
	return s
}

// Is reports that a TimeoutError is a context.DeadlineExceeded, and ErrBackendDown if it
// waited for its backend.
func (e *TimeoutError) Is(target error) bool {
	return target == context.DeadlineExceeded || e.waited != nil && (target == ErrBackendDown || errors.Is(e.waited, target))
}

// Unwrap returns the errors of the last attempt and of the handler, if any.
func (e *TimeoutError) Unwrap() []error { return guard.Join(e.Last, e.Handler) }

// Timeout returns true. It implements net.Error.
func (e *TimeoutError) Timeout() bool { return true }

// Format implements fmt.Formatter: %+v adds the stack of a panic.
func (e *TimeoutError) Format(f fmt.State, verb rune) { format(f, verb, e) }

// AttemptTimeoutError is the outcome of an attempt that took longer than
// [WithAttemptTimeout] allows. It matches context.DeadlineExceeded. It is an outcome like
// any other error: exception predicates decide on a retry.
type AttemptTimeoutError struct {
	Limit   time.Duration // the attempt timeout
	Attempt int           // the number of the attempt, from 1
}

func (e *AttemptTimeoutError) Error() string {
	return fmt.Sprintf("asyncop: attempt %d timed out after %v", e.Attempt, e.Limit)
}

// Is reports that an AttemptTimeoutError is a context.DeadlineExceeded.
func (e *AttemptTimeoutError) Is(target error) bool { return target == context.DeadlineExceeded }

// Timeout returns true. It implements net.Error.
func (e *AttemptTimeoutError) Timeout() bool { return true }

// ElementError is the failure of a pipeline by an element: the operator's Err under the
// default failure policy.
type ElementError struct {
	Element   any           // the input
	Attempts  int           // attempts begun
	Elapsed   time.Duration // since the element took its slot
	Err       error         // of the last attempt, or a *TimeoutError
	Abandoned int           // other elements that were in flight and had not ended

	NoRetryReason strategies.NoRetryReason // why it was not retried: see Failure
	Reason        predicates.Reason        // of the last outcome: see Failure
	InDoubt       bool                     // an attempt may have taken effect: see Failure
	Operator      string                   // its name, see WithName; "" if it has none

	label   string
	policy  idempotence
	retries int // that the strategy allows, if it says so
}

// UnsafeToRepeat reports whether the element must not be sent again before somebody has
// checked what its call did: see [Failure.UnsafeToRepeat].
func (e *ElementError) UnsafeToRepeat() bool {
	return unsafeToRepeat(e.InDoubt, e.NoRetryReason, e.Reason, e.policy, e.Element)
}

func (e *ElementError) Error() string {
	s := fmt.Sprintf("asyncop: %selement %s failed after %s in %v%s: %v",
		prefix(e.Operator), e.label, attempts(e.Attempts), e.Elapsed, e.cutOff(), e.Err)
	if e.Abandoned > 0 {
		s += " (" + count(e.Abandoned, "other element") + " in flight abandoned)"
	}
	return s
}

// prefix names an operator that has a name, for a message.
func prefix(operator string) string {
	if operator == "" {
		return ""
	}
	return operator + ": "
}

// cutOff says why there was no other attempt.
func (e *ElementError) cutOff() string {
	switch {
	case e.NoRetryReason == strategies.Finishing:
		return ", not retried since the input has ended (see WithDrainRetries)"
	case e.NoRetryReason == strategies.OverBudget || e.NoRetryReason == strategies.TooManyWaiting:
		return fmt.Sprintf(", not retried: %v", e.NoRetryReason)
	case e.NoRetryReason == strategies.Refused && !e.Reason.IsZero(): // without a reason, the retries are used up
		why := fmt.Sprintf(", not retried after %v", e.Reason)
		usedUp := e.retries > 0 && e.Attempts > e.retries
		if e.policy != nil && !usedUp && !e.Reason.AllowsNonIdempotentRetry() && e.UnsafeToRepeat() {
			why += ", which allows it for idempotent calls only (see strategies.Policy.Idempotent)"
		}
		return why
	case e.NoRetryReason == strategies.Refused && e.retries > 0:
		return fmt.Sprintf(", %d of %d retries used", e.Attempts-1, e.retries)
	}
	return ""
}

// Unwrap returns Err.
func (e *ElementError) Unwrap() error { return e.Err }

// Format implements fmt.Formatter: %+v adds the stack of a panic.
func (e *ElementError) Format(f fmt.State, verb rune) { format(f, verb, e) }

// AbandonedError is the operator's Err when it ended, other than by the failure of an
// element, with elements in flight. With none in flight, Err is the cause itself.
type AbandonedError struct {
	Cause     error // context.Cause of the context that ended, for instance
	Abandoned int   // elements that were in flight and had not ended
}

func (e *AbandonedError) Error() string {
	return fmt.Sprintf("asyncop: ended with %s in flight: %v", count(e.Abandoned, "element"), e.Cause)
}

// Unwrap returns Cause.
func (e *AbandonedError) Unwrap() error { return e.Cause }

// Format implements fmt.Formatter: %+v adds the stack of a panic.
func (e *AbandonedError) Format(f fmt.State, verb rune) { format(f, verb, e) }

// TypeError fails a pipeline that sent an element of a wrong type.
type TypeError struct {
	Got      reflect.Type // nil for an untyped nil
	Want     reflect.Type
	Operator string // its name, see WithName; "" if it has none
}

func (e *TypeError) Error() string {
	got := "a nil element"
	if e.Got != nil {
		got = "an element of type " + e.Got.String()
	}
	return fmt.Sprintf("asyncop: %sgot %s, want %v", prefix(e.Operator), got, e.Want)
}

// DownstreamError is the reason why an operator or a flow has ended: a later step of the
// pipeline failed or was cancelled, so that nothing processes its results. Step names
// that step by its kind, and by its name or the types of its elements: operator "enrich".
// Unwrap returns Err, the error of that step. See [WithUpstreamRunning].
type DownstreamError = wiring.DownstreamError

// abandonedBy returns the error of a run that ended with n elements in flight. The
// failure of an element counts them itself.
func abandonedBy(cause error, byElement bool, n int) error {
	if !byElement {
		return &AbandonedError{Cause: cause, Abandoned: n}
	}
	e := *cause.(*ElementError) //nolint:errorlint // it is our own
	e.Abandoned = n
	return &e
}

// PanicError is a panic of user code, or its call of runtime.Goexit, as FailNow of
// package testing makes it. Value is the argument of panic; for runtime.Goexit, an error
// that says so. Unwrap returns Value if it is an error. Stack is the stack of the
// goroutine that panicked, as runtime/debug.Stack formats it; %+v writes it.
type PanicError = guard.PanicError

// format writes err; %+v adds the stack of the first panic in it.
func format(f fmt.State, verb rune, err error) {
	var stack []byte
	if f.Flag('+') {
		stack = stackOf(err)
	}
	guard.Format(f, verb, err.Error(), stack)
}

// stackOf returns the stack of the first panic in err, or nil. The methods of a user's
// errors may do anything (law A6).
func stackOf(err error) (stack []byte) {
	_ = call.OffLoop(func() error {
		if p, ok := errors.AsType[*PanicError](err); ok {
			stack = p.Stack
		}
		return nil
	})
	return stack
}

func attempts(n int) string { return count(n, "attempt") }

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
