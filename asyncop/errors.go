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
	// another attempt, with [WithExhaustedAsFailure]. The wrapping error names the
	// reason, and why it was not retried.
	ErrRetriesExhausted = errors.New("asyncop: retries exhausted: the last result still matches the retry predicate")

	// ErrBackendDown is matched by the [*TimeoutError] of an element whose time ran out
	// while its backend was down, or never let it start: see [WithBackend]. A call whose
	// own error matches it has failed: to make it later, use [predicates.WithSnooze].
	ErrBackendDown = message.ErrBackendDown

	// ErrBudgetSpent is matched by the error of an operator whose calls have used up its
	// budget: see [Budget].
	ErrBudgetSpent = errors.New("asyncop: the budget is spent")

	// ErrStopped is the error for the function of [WithUpstreamCancel], and for a loop
	// over Results, after Stop. The error of an operator matches it if the context of
	// Stop ended first, and then also the cause of that context. context.Cause of a call
	// that Stop has cut off matches ErrStopped, too; after a timeout it is
	// context.DeadlineExceeded itself.
	ErrStopped = errors.New("asyncop: operator stopped")
)

var (
	// errControlResult is the failure of an element whose function returned a watermark,
	// a barrier or a message.
	errControlResult = errors.New("asyncop: a control element is not a result")

	// errCut is matched by an [*AbandonedError] of an operator that was cancelled or
	// stopped.
	errCut = errors.New("asyncop: cancelled or stopped")

	errHandlerLimit = errors.New("asyncop: the handler of a failure exceeded its limit (WithHandlerLimit)")
)

// TimeoutError is the failure of an element whose total time ran out. It matches
// context.DeadlineExceeded and unwraps to the last error of its attempts, if any.
type TimeoutError struct {
	Limit    time.Duration // the timeout of the element; 0 if it was over before the element was accepted
	Attempts int           // begun; 0 if the element always waited for a permit
	Last     error         // the last error of an attempt, or nil
	Handler  error         // a panic or a timeout of the failure handler, or nil
	Early    bool          // before Limit: no retry could start within it (WithEarlyTimeout), or a message's tenant is down

	// InDoubt is true if an attempt may have taken effect: it was running, or ended
	// without proof of the contrary. The proof is a report of stage ClientDispatch, an
	// error of that stage if the policy looks at reasons, a reason that allows
	// non-idempotent retry, or a later refusal that the server keeps for all attempts
	// (caller.Transport of package exactlyonce). Every call before a restart is in doubt.
	InDoubt bool

	waited  error // why it waited for its backend at the end, or nil
	element any   // for the policy
	policy  policy
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
	case e.Early && e.waited != nil:
		s = fmt.Sprintf("asyncop: ended after %s, before its timeout of %v", attempts(e.Attempts), e.Limit)
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

// Is reports whether target is context.DeadlineExceeded or, if the element waited for its
// backend, ErrBackendDown.
func (e *TimeoutError) Is(target error) bool {
	return target == context.DeadlineExceeded || e.waited != nil && (target == ErrBackendDown || errors.Is(e.waited, target))
}

// Unwrap returns the errors of the last attempt and of the handler.
func (e *TimeoutError) Unwrap() []error { return guard.Join(e.Last, e.Handler) }

// Timeout returns true. It implements net.Error.
func (e *TimeoutError) Timeout() bool { return true }

// Format implements fmt.Formatter. %+v adds the stack of a panic.
func (e *TimeoutError) Format(f fmt.State, verb rune) { format(f, verb, e) }

// AttemptTimeoutError is the outcome of an attempt that took longer than
// [WithAttemptTimeout] allows. It matches context.DeadlineExceeded. netretry.Classifier,
// which httpretry, pgretry, couchbase and hbase include, names it netretry.TimedOut, or
// netretry.NotSent if the call was provably not sent. Chain netretry.Classifier behind
// grpcretry and sqliteretry.
type AttemptTimeoutError struct {
	Limit   time.Duration // the attempt timeout
	Attempt int           // from 1
}

func (e *AttemptTimeoutError) Error() string {
	return fmt.Sprintf("asyncop: attempt %d timed out after %v", e.Attempt, e.Limit)
}

// Is reports whether target is context.DeadlineExceeded.
func (e *AttemptTimeoutError) Is(target error) bool { return target == context.DeadlineExceeded }

// Timeout returns true. It implements net.Error.
func (e *AttemptTimeoutError) Timeout() bool { return true }

// ElementError is the failure of a pipeline by an element, under the default failure
// policy.
type ElementError struct {
	Element   any           // the input
	Attempts  int           // begun
	Elapsed   time.Duration // since the element took its slot
	Err       error         // of the last attempt, or a *TimeoutError
	Abandoned int           // other elements that had not ended

	NoRetryReason strategies.NoRetryReason // why it was not retried: see Failure
	Reason        predicates.Reason        // of the last outcome: see Failure
	InDoubt       bool                     // see Failure
	Operator      string                   // its name, or "": see WithName

	label   string
	policy  policy
	retries int // the strategy's limit; 0 if unknown
}

// UnsafeToRepeat is like [Failure.UnsafeToRepeat].
func (e *ElementError) UnsafeToRepeat() bool {
	return unsafeToRepeat(e.InDoubt, e.NoRetryReason, e.policy, e.Element)
}

func (e *ElementError) Error() string {
	s := fmt.Sprintf("asyncop: %selement %s failed after %s in %v%s: %v",
		prefix(e.Operator), e.label, attempts(e.Attempts), e.Elapsed, e.cutOff(), e.Err)
	if e.Abandoned > 0 {
		s += " (" + count(e.Abandoned, "other element") + " in flight abandoned)"
	}
	return s
}

// prefix returns the name of an operator for a message.
func prefix(operator string) string {
	if operator == "" {
		return ""
	}
	return operator + ": "
}

// cutOff returns why the element was not retried.
func (e *ElementError) cutOff() string {
	switch {
	case e.NoRetryReason == strategies.Finishing:
		return ", not retried since the input has ended (see WithDrainRetries)"
	case e.NoRetryReason == strategies.OverBudget || e.NoRetryReason == strategies.TooManyWaiting:
		return fmt.Sprintf(", not retried: %v", e.NoRetryReason)
	case e.NoRetryReason == strategies.Refused && e.policy != nil && e.policy.HasReasons(): // otherwise retries are used up
		why := fmt.Sprintf(", not retried after %v", e.Reason)
		usedUp := e.retries > 0 && e.Attempts > e.retries
		if !usedUp && !e.Reason.AllowsNonIdempotentRetry() && e.UnsafeToRepeat() {
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

// Format implements fmt.Formatter. %+v adds the stack of a panic.
func (e *ElementError) Format(f fmt.State, verb rune) { format(f, verb, e) }

// AbandonedError is the operator's Err when it ended with elements in flight, other than
// by the failure of one.
type AbandonedError struct {
	Cause     error // such as context.Cause of the context that ended
	Abandoned int   // elements that had not ended

	cut bool // this operator or an earlier one was cancelled or stopped
}

func (e *AbandonedError) Error() string {
	return fmt.Sprintf("asyncop: ended with %s in flight: %v", count(e.Abandoned, "element"), e.Cause)
}

// Unwrap returns Cause.
func (e *AbandonedError) Unwrap() error { return e.Cause }

// Is lets the next operator find out whether this one has ended on request.
func (e *AbandonedError) Is(target error) bool { return target == errCut && e.cut }

// Format implements fmt.Formatter. %+v adds the stack of a panic.
func (e *AbandonedError) Format(f fmt.State, verb rune) { format(f, verb, e) }

// TypeError fails a pipeline that sent an element of a wrong type.
type TypeError struct {
	Got      reflect.Type // nil for an untyped nil
	Want     reflect.Type
	Operator string // its name, or "": see WithName
}

func (e *TypeError) Error() string {
	got := "a nil element"
	if e.Got != nil {
		got = "an element of type " + e.Got.String()
	}
	return fmt.Sprintf("asyncop: %sgot %s, want %v", prefix(e.Operator), got, e.Want)
}

// DownstreamError is the reason of the end of an operator or a flow: a later step of the
// pipeline failed or was cancelled. Step names that step, such as operator "enrich", and
// Unwrap returns its error. See [WithUpstreamRunning].
type DownstreamError = wiring.DownstreamError

// PanicError is a panic of user code, or its call of runtime.Goexit. Value is the
// argument of panic, or an error for runtime.Goexit. Unwrap returns Value if it is an
// error. Stack is the stack of the goroutine that panicked, and %+v writes it.
type PanicError = guard.PanicError

// format writes err. %+v adds the stack of the first panic in it.
func format(f fmt.State, verb rune, err error) {
	var stack []byte
	if f.Flag('+') {
		stack = stackOf(err)
	}
	guard.Format(f, verb, err.Error(), stack)
}

// stackOf returns the stack of the first panic in err, or nil. Methods of users' errors
// run off the loop (law A6).
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
