package asyncop

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/internal/lazyerr"
	"github.com/weirflow/weir/predicates"
)

// retryableDelegator stands between the outcome of an attempt and the element: it shows the attempt to the policy, which
// says whether and when there is another. It holds no state of elements; that is in their slots.
type retryableDelegator[OUT any] struct {
	policy *decision.Steps[OUT]
	whole  bool // the policy looks at more of an attempt than its number and outcome
	atOnce bool // the strategy does not block: it is asked on the loop
	random *rand.Rand

	// view is what the policy sees of the attempt that is being judged. There is one, used again and again; a strategy that
	// is asked off the loop gets a copy.
	view predicates.Attempt[OUT]
}

func newRetryableDelegator[OUT any](policy *decision.Steps[OUT], source rand.Source) retryableDelegator[OUT] {
	if source == nil {
		source = rand.NewPCG(rand.Uint64(), rand.Uint64())
	}
	return retryableDelegator[OUT]{
		policy: policy, whole: policy.NeedsElement(), atOnce: policy.AtOnce, random: rand.New(source),
	}
}

// forget lets go of what the view refers to.
func (d *retryableDelegator[OUT]) forget() {
	if d.whole {
		d.view = predicates.Attempt[OUT]{}
		return
	}
	d.view.Results, d.view.Err = nil, nil
}

// exhausted is the failure of an element whose results asked for a retry that there is not.
func exhausted(d decision.Decision) error {
	return fmt.Errorf("%w (%v: %v)", ErrRetriesExhausted, d.Verdict, d.Reason)
}

// ownPanic returns the error of a failed decision, in which a panic that the policy met is a [*PanicError] of this
// package, as all others are. It looks no further than what the policy itself has joined: everything else may have
// methods that panic in turn.
func ownPanic(err error) error {
	joined, ok := err.(lazyerr.JoinedErrors) //nolint:errorlint // As would call methods of user errors
	if !ok || len(joined) == 0 {
		return err
	}
	p, ok := joined[0].(*decision.PanicError) //nolint:errorlint // the same
	if !ok {
		return err
	}
	joined = slices.Clone(joined)
	joined[0] = &PanicError{Value: p.Value, Stack: p.Stack}
	return joined
}
