package strategies_test

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// What an operator does with the outcome of an attempt, step by step. Only Ask may
// block, so only Ask leaves its loop.
func ExamplePolicy() {
	lost := predicates.NewReason("CONNECTION_LOST", false, false)
	policy := strategies.PolicyOf[string](strategies.ReasonAware( // whatever it was given
		predicates.ByError[string](predicates.ErrorReason{Target: io.ErrUnexpectedEOF, Reason: lost}),
		strategies.BestEffort[string]()).Idempotent())

	var reasons predicates.ReasonSet // kept with the element
	err := io.ErrUnexpectedEOF       // the outcome
	for number := 1; number <= 3; number++ {
		if number == 1 {
			policy.Deposit()
		}
		if !policy.Considers(err) {
			break
		}
		a := &predicates.Attempt[string]{
			Input: "in", Number: number, Err: err, Reasons: reasons,
			Idempotent: policy.IsIdempotent("in"), Remaining: time.Second,
		}
		decision, ask := policy.Judge(a, strategies.Situation{})
		if ask {
			action, err := policy.Ask(context.Background(), a) // on a goroutine, unless policy.DecidesAtOnce()
			decision = policy.Conclude(a, action, err, strategies.Situation{})
		}
		if decision.Verdict == strategies.Retried {
			reasons = reasons.With(decision.Reason)
		}
		fmt.Println(decision.Verdict, decision.Delay, decision.Capped, reasons)
	}
	// Output:
	// retried 1ms false {CONNECTION_LOST}
	// retried 2ms false {CONNECTION_LOST}
	// retried 4ms false {CONNECTION_LOST}
}
