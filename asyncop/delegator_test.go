package asyncop

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

var errDown = errors.New("down")

// recordingStrategy tells what it was asked.
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

// Without a predicate there is no retry, and nothing is asked per element.
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
			d := newRetryableDelegator(s, nil)
			assert.False(t, d.asks(nil))
			assert.False(t, d.asks(errDown))
			assert.Equal(t, []string{"what"}, s.asked)
		})
	}
}

func TestDelegatorOfNoRetry(t *testing.T) {
	d := newRetryableDelegator(strategies.NoRetry[int](), nil)
	assert.False(t, d.asks(nil))
	assert.False(t, d.asks(errDown))
}

// The missing predicate of a pair means never, and does not hide the other one.
func TestDelegatorAsksByKind(t *testing.T) {
	results := newRetryableDelegator(&recordingStrategy{predicate: retryPair(predicates.EmptyResult, nil)}, nil)
	assert.True(t, results.asks(nil))
	assert.False(t, results.asks(errDown))

	exceptions := newRetryableDelegator(&recordingStrategy{predicate: retryPair(nil, predicates.HasException)}, nil)
	assert.False(t, exceptions.asks(nil))
	assert.True(t, exceptions.asks(errDown))
}

func TestDelegatorDecides(t *testing.T) {
	both := retryPair(predicates.EmptyResult, predicates.ErrorIs(errDown))
	tests := []struct {
		name     string
		attempts int
		results  []int
		err      error
		final    bool
		want     decision
		asked    []string
	}{
		{"result", 1, []int{1}, nil, false, decision{}, nil},
		{"other error", 1, nil, errors.New("other"), false, decision{}, nil},
		{"empty", 1, nil, nil, false, decision{again: true, may: true, delay: time.Second}, []string{"may", "when"}},
		{"error", 2, nil, errDown, false, decision{again: true, may: true, delay: 2 * time.Second}, []string{"may", "when"}},
		{"last attempt", 3, nil, errDown, false, decision{again: true}, []string{"may"}},
		{"far beyond", 1 << 30, nil, errDown, false, decision{again: true}, []string{"may"}},
		{"nobody retries any more", 1, nil, errDown, true, decision{again: true}, nil},
		{"nor wants to", 1, []int{1}, nil, true, decision{}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := &recordingStrategy{predicate: both, retries: 2, base: time.Second}
			d := newRetryableDelegator(s, nil)
			assert.Equal(t, tt.want, d.decide(tt.attempts, tt.results, tt.err, tt.final))
			assert.Equal(t, append([]string{"what"}, tt.asked...), s.asked, "the predicate is read once, by the constructor")
		})
	}
}

func TestDelegatorRefusesANegativeBackoff(t *testing.T) {
	d := newRetryableDelegator(&recordingStrategy{
		predicate: retryPair(nil, predicates.HasException), retries: 5, base: -time.Second,
	}, nil)
	dec := d.decide(2, nil, errDown, false)
	assert.False(t, dec.may)
	assert.EqualError(t, dec.err, "asyncop: strategy *asyncop.recordingStrategy: negative BackoffTime(2): -2s")
}

// The jitter is applied to the strategy's base delay, from the injected source: equal sources, equal delays.
func TestDelegatorAppliesTheJitter(t *testing.T) {
	strategy := strategies.FixedDelay[int](strategies.Unlimited, time.Second).
		RetryIfException(predicates.HasException).WithJitter(strategies.EqualJitter)
	a := newRetryableDelegator(strategy, rand.NewPCG(1, 2))
	b := newRetryableDelegator(strategy, rand.NewPCG(1, 2))
	c := newRetryableDelegator(strategy, nil)
	seen := map[time.Duration]bool{}
	for n := 1; n <= 50; n++ {
		d := a.decide(n, nil, errDown, false).delay
		assert.Equal(t, d, b.decide(n, nil, errDown, false).delay)
		for _, d := range []time.Duration{d, c.decide(n, nil, errDown, false).delay} {
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
	d := newRetryableDelegator(strategy, nil)
	assert.Equal(t, decision{again: true, may: true}, d.decide(1, nil, errDown, false))
}
