package asyncop

import (
	"time"

	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// Failure describes to the failure sink ([WithFailureSink]) an element that was given up.
type Failure[IN any] struct {
	Element      IN
	Err          error         // of the last attempt, a *TimeoutError, ErrRetriesExhausted, or the reason why the operator ended
	Abandoned    bool          // it did not fail: the operator ended, and cut it off; Err is the reason
	Attempts     int           // begun
	Elapsed      time.Duration // since the element took its slot
	FirstAttempt time.Time     // when its first attempt began; zero if none did
	LastAttempt  time.Time     // when its last attempt began; zero if none did

	// Verdict is the reason why the element was not retried: Refused (no retry is left, or the strategy says no), Finishing (the input has
	// ended: see WithDrainRetries), OverBudget, TooManyWaiting, or Failed. It is Final if no predicate asked for another attempt, or if the
	// element ended otherwise, such as by its timeout.
	Verdict strategies.Verdict

	// Reason is the reason of its last outcome, and Reasons are the reasons of the retries that were begun, if a reason-aware strategy has a
	// classifier that names them. A rejection ([predicates.NewRejection]) means that the call was refused for good.
	Reason  predicates.Reason
	Reasons predicates.ReasonSet

	// InDoubt is true if an attempt may have taken effect: see [TimeoutError.InDoubt]. Before you send the element again, call
	// Ambiguous.
	InDoubt bool

	// Tracked is true if the element is in doubt, and the server recognises repeats of all requests that may have taken effect
	// ([predicates.WithTracked]): sending them again under the same ids is harmless, as long as it remembers them. Calls made before a restart
	// are not tracked.
	Tracked bool

	policy idempotence
}

// Ambiguous reports whether the element must not be sent again before its outcome was checked: its call must not happen twice, and may have
// taken effect. See [TimeoutError.Ambiguous].
//
// A FLIP-232 strategy cannot prove whether a call had an effect: under it, each failure is ambiguous unless its stage is reported as
// ClientDispatch. If the calls may happen twice, say so: by [predicates.Idempotent], or by
// strategies.PolicyOf(strategy).Idempotent().
func (f Failure[IN]) Ambiguous() bool { return ambiguous(f.InDoubt, f.policy, f.Element) }
