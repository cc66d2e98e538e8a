package core

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

var errDown = errors.New("down")

// The reasons of predicates.
var (
	resultMatched    = predicates.NewReason("RESULT_MATCHED", true, false)
	exceptionMatched = predicates.NewReason("EXCEPTION_MATCHED", false, false)
)

// recordingStrategy records the calls of its methods.
type recordingStrategy struct {
	predicate func() predicates.AsyncRetryPredicate[int]
	retries   int
	base      time.Duration
	asked     []string
}

func (s *recordingStrategy) CanRetry(attempts int) bool {
	s.asked = append(s.asked, "may")
	return attempts <= s.retries
}

func (s *recordingStrategy) BackoffTime(attempts int) time.Duration {
	s.asked = append(s.asked, "when")
	return s.base * time.Duration(attempts)
}

func (s *recordingStrategy) RetryPredicate() predicates.AsyncRetryPredicate[int] {
	s.asked = append(s.asked, "what")
	if s.predicate == nil {
		return nil
	}
	return s.predicate()
}

func retryPair(result predicates.ResultPredicate[int], exception predicates.ExceptionPredicate) func() predicates.AsyncRetryPredicate[int] {
	return func() predicates.AsyncRetryPredicate[int] { return predicates.RetryIf(result, exception) }
}

// delegator is a policy as the core calls it.
type delegator[OUT any] struct {
	policy *decision.Steps[OUT]
	random *rand.Rand
	view   predicates.Attempt[OUT]
}

func delegatorOf[OUT any](s strategies.Retry[OUT], source rand.Source) delegator[OUT] {
	if source == nil {
		source = rand.NewPCG(1, 1)
	}
	return delegator[OUT]{policy: decision.StepsOf(strategies.PolicyOf(s)), random: rand.New(source)}
}

// decide calls the policy as the core does, for an element without a deadline.
func decide(d *delegator[int], attempts int, results []int, err error, final bool) decision.Decision {
	d.view = predicates.Attempt[int]{Number: attempts, Results: results, Err: err, Remaining: decision.NoDeadline}
	return d.policy.Decide(context.Background(), &d.view, &decision.Situation{Finishing: final, Random: d.random})
}

// Without a predicate there is no retry, and the strategy is not called per element.
func TestDelegatorWithoutPredicate(t *testing.T) {
	type nilPair struct {
		predicates.AsyncRetryPredicate[int]
	}
	for name, predicate := range map[string]func() predicates.AsyncRetryPredicate[int]{
		"nil":          nil,
		"nil of type":  func() predicates.AsyncRetryPredicate[int] { return (*nilPair)(nil) },
		"pair of nils": retryPair(nil, nil),
	} {
		t.Run(name, func(t *testing.T) {
			s := &recordingStrategy{predicate: predicate, retries: 3}
			d := delegatorOf[int](s, nil)
			assert.False(t, d.policy.ConsidersResults)
			assert.False(t, d.policy.ConsidersErrors)
			assert.Equal(t, []string{"what"}, s.asked)
		})
	}
}

func TestDelegatorOfNoRetry(t *testing.T) {
	d := delegatorOf[int](strategies.NoRetry[int](), nil)
	assert.False(t, d.policy.ConsidersResults)
	assert.False(t, d.policy.ConsidersErrors)
}

// A missing predicate of a pair never matches, and does not hide the other predicate.
func TestDelegatorAsksByKind(t *testing.T) {
	results := delegatorOf[int](&recordingStrategy{predicate: retryPair(predicates.EmptyResult, nil)}, nil)
	assert.True(t, results.policy.ConsidersResults)
	assert.False(t, results.policy.ConsidersErrors)

	exceptions := delegatorOf[int](&recordingStrategy{predicate: retryPair(nil, predicates.HasException)}, nil)
	assert.False(t, exceptions.policy.ConsidersResults)
	assert.True(t, exceptions.policy.ConsidersErrors)
}

func TestDelegatorDecides(t *testing.T) {
	errOther := errors.New("other")
	refused := decision.Decision{NoRetryReason: decision.Refused, Reason: exceptionMatched, Err: errDown}
	both := retryPair(predicates.EmptyResult, predicates.ErrorIs(errDown))
	tests := []struct {
		name     string
		attempts int
		results  []int
		err      error
		final    bool
		want     decision.Decision
		asked    []string
	}{
		{"result", 1, []int{1}, nil, false, decision.Decision{}, nil},
		{"other error", 1, nil, errOther, false, decision.Decision{Err: errOther}, nil},
		{"empty", 1, nil, nil, false, decision.Decision{
			NoRetryReason: decision.Retried, NeedsBudget: true, Reason: resultMatched, Delay: time.Second,
		}, []string{"may", "when"}},
		{"error", 2, nil, errDown, false, decision.Decision{
			NoRetryReason: decision.Retried, NeedsBudget: true, Reason: exceptionMatched, Delay: 2 * time.Second, Err: errDown,
		}, []string{"may", "when"}},
		{"last attempt", 3, nil, errDown, false, refused, []string{"may"}},
		{"far beyond", 1 << 30, nil, errDown, false, refused, []string{"may"}},
		{"nobody retries any more", 1, nil, errDown, true, decision.Decision{
			NoRetryReason: decision.Finishing, Reason: exceptionMatched, Err: errDown,
		}, []string{"may", "when"}},
		{"nobody retries any more, nor may", 3, nil, errDown, true, refused, []string{"may"}},
		{"nor wants to", 1, []int{1}, nil, true, decision.Decision{}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := &recordingStrategy{predicate: both, retries: 2, base: time.Second}
			d := delegatorOf[int](s, nil)
			assert.Equal(t, tt.want, decide(&d, tt.attempts, tt.results, tt.err, tt.final))
			assert.Equal(t, append([]string{"what"}, tt.asked...), s.asked, "the predicate is read once, by the constructor")
		})
	}
}

func TestDelegatorRefusesANegativeBackoff(t *testing.T) {
	d := delegatorOf[int](&recordingStrategy{
		predicate: retryPair(nil, predicates.HasException), retries: 5, base: -time.Second,
	}, nil)
	dec := decide(&d, 2, nil, errDown, false)
	assert.Equal(t, decision.Failed, dec.NoRetryReason)
	require.ErrorIs(t, dec.Err, errDown)
	assert.ErrorContains(t, dec.Err, "*core.recordingStrategy: negative BackoffTime(2): -2s")
}

// The jitter is applied to the strategy's base delay, with the injected source: equal
// sources give equal delays.
func TestDelegatorAppliesTheJitter(t *testing.T) {
	strategy := strategies.FixedDelay[int](strategies.Unlimited, time.Second).
		RetryIfException(predicates.HasException).WithJitter(strategies.EqualJitter)
	a := delegatorOf[int](strategy, rand.NewPCG(1, 2))
	b := delegatorOf[int](strategy, rand.NewPCG(1, 2))
	c := delegatorOf[int](strategy, rand.NewPCG(3, 4))
	seen := map[time.Duration]bool{}
	for n := 1; n <= 50; n++ {
		d := decide(&a, n, nil, errDown, false).Delay
		assert.Equal(t, d, decide(&b, n, nil, errDown, false).Delay)
		for _, d := range []time.Duration{d, decide(&c, n, nil, errDown, false).Delay} {
			assert.GreaterOrEqual(t, d, time.Second/2)
			assert.LessOrEqual(t, d, time.Second)
		}
		seen[d] = true
	}
	assert.Greater(t, len(seen), 40)
}

func TestDelegatorNeverReturnsANegativeDelay(t *testing.T) {
	strategy := strategies.FixedDelay[int](1, time.Second).RetryIfException(predicates.HasException).
		WithJitter(func(base time.Duration, _ *rand.Rand) time.Duration { return -base })
	d := delegatorOf[int](strategy, nil)
	assert.Equal(t, decision.Decision{
		NoRetryReason: decision.Retried, NeedsBudget: true, Reason: exceptionMatched, Err: errDown,
	}, decide(&d, 1, nil, errDown, false))
}
