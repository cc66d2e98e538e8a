package core

import (
	"math/rand/v2"

	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/predicates"
)

// retryableDelegator stands between the outcome of an attempt and the element: it shows the attempt to the policy, which
// says whether and when there is another. It holds no state of elements; that is in their slots.
type retryableDelegator[OUT any] struct {
	policy *decision.Steps[OUT]
	whole  bool // the policy looks at more of an attempt than its number and outcome
	atOnce bool // the strategy does not block: it is asked on the goroutine of the core
	random *rand.Rand

	// view is what the policy sees of the attempt that is being judged. There is one, used again and again; a strategy that
	// is asked elsewhere gets a copy.
	view    predicates.Attempt[OUT]
	tracked bool // the servers of the requests in doubt of view recognise them when they come again
}

func newRetryableDelegator[OUT any](policy *decision.Steps[OUT], random *rand.Rand) retryableDelegator[OUT] {
	return retryableDelegator[OUT]{
		policy: policy, whole: policy.NeedsElement(), atOnce: policy.AtOnce, random: random,
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
