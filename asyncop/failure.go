package asyncop

import (
	"time"

	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// Failure is what the side output ([WithSideOutput]) receives for an element that was given up.
type Failure[IN any] struct {
	Element      IN
	Err          error         // of the last attempt, a *TimeoutError, ErrRetriesExhausted, or why the operator ended
	Abandoned    bool          // it had not failed: the operator ended, and cut it off; Err is why
	Attempts     int           // begun
	Elapsed      time.Duration // since the element took its slot
	FirstAttempt time.Time     // when its first attempt began; zero if none did
	LastAttempt  time.Time     // when its last attempt began; zero if none did

	// Verdict is why its last outcome was not followed by another attempt: Refused (no retry is left, or the strategy says
	// no), Finishing (the input has ended: see WithDrainRetries), OverBudget, TooManyWaiting, or Failed. It is Accepted if
	// nobody asked for another attempt, or if the element ended otherwise, such as by its timeout.
	Verdict strategies.Verdict

	Reasons predicates.ReasonSet // for which it was retried, as far as a reason-aware strategy named them
}
