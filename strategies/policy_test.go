package strategies_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"

	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// PolicyOf a FLIP-232 strategy decides as the strategy does.
func TestPolicyOfAFLIPStrategyLosesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		maxRetries := rapid.IntRange(0, 5).Draw(t, "maxRetries")
		d := drawExponential(t)
		base := strategies.ExponentialBackoff[string](maxRetries, d.initial, d.max, d.multiplier)
		if rapid.Bool().Draw(t, "onResult") {
			base = base.RetryIfResult(predicates.EmptyResult)
		}
		if rapid.Bool().Draw(t, "onException") {
			base = base.RetryIfException(predicates.ErrorIs(io.EOF))
		}
		var flip strategies.AsyncRetryStrategy[string] = base
		policy := strategies.PolicyOf(flip)

		a := &attempt{
			Number:     rapid.IntRange(1, 7).Draw(t, "number"),
			Idempotent: rapid.Bool().Draw(t, "idempotent"),
			Stage:      rapid.SampledFrom([]predicates.Stage{predicates.Unreported, predicates.NetworkTime}).Draw(t, "stage"),
			Results:    rapid.SliceOfN(rapid.Just("x"), 0, 1).Draw(t, "results"),
			Remaining:  decision.NoDeadline,
		}
		a.Err = rapid.SampledFrom([]error{nil, io.EOF, io.ErrClosedPipe}).Draw(t, "err")
		finishing := rapid.Bool().Draw(t, "finishing")

		// FLIP-232 by hand.
		again := false
		if pair := flip.RetryPredicate(); pair != nil {
			if a.Err != nil && pair.ExceptionPredicate() != nil {
				again = pair.ExceptionPredicate()(a.Err)
			}
			if a.Err == nil && pair.ResultPredicate() != nil {
				again = pair.ResultPredicate()(a.Results)
			}
		}
		want := decision.Decision{Err: a.Err}
		if again {
			want.NoRetryReason, want.Reason = decision.Refused, exceptionMatched
			if a.Err == nil {
				want.Reason = resultMatched
			}
			switch {
			case !flip.CanRetry(a.Number):
			case finishing:
				want.NoRetryReason = decision.Finishing
			default:
				want.NoRetryReason, want.Delay = decision.Retried, flip.BackoffTime(a.Number)
				want.Capped = want.Delay == decision.NoDeadline
			}
		}
		got := decision.Decision{Err: a.Err}
		if s := decision.StepsOf(policy); a.Err != nil && s.ConsidersErrors || a.Err == nil && s.ConsidersResults {
			got = decision.StepsOf(policy).Decide(context.Background(), a, &decision.Situation{Finishing: finishing})
		}
		if got.Before != nil || got.NoRetryReason != want.NoRetryReason || got.Reason != want.Reason || got.Delay != want.Delay ||
			got.Capped != want.Capped || !errors.Is(got.Err, want.Err) {
			t.Fatalf("%+v, not %+v", got, want)
		}

		if (policy.RetryPredicate() == nil) != (flip.RetryPredicate() == nil) {
			t.Fatal("predicate lost")
		}
	})
}

func TestPolicyOfReadsThePredicateOnce(t *testing.T) {
	s := &counting{}
	p := strategies.PolicyOf[string](s)
	for n := range 5 {
		decision.StepsOf(p).Decide(t.Context(), failedAttempt(n+1), &decision.Situation{})
	}
	assert.Equal(t, 1, s.read)
}

type counting struct{ read int }

func (*counting) CanRetry(int) bool             { return true }
func (*counting) BackoffTime(int) time.Duration { return 0 }
func (s *counting) RetryPredicate() predicates.AsyncRetryPredicate[string] {
	s.read++
	return predicates.RetryIf(predicates.EmptyResult[string], predicates.HasException)
}

func TestPolicyOfLooksAtWhatHasAPredicate(t *testing.T) {
	bare := strategies.FixedDelay[string](3, 0)
	tests := []struct {
		strategy        strategies.AsyncRetryStrategy[string]
		results, errors bool
	}{
		{strategies.NoRetry[string](), false, false},
		{bare, false, false},
		{bare.RetryIfResult(predicates.EmptyResult), true, false},
		{bare.RetryIfException(predicates.HasException), false, true},
		{bare.RetryIfResult(predicates.EmptyResult).RetryIfException(predicates.HasException), true, true},
		{typedNil{}, false, false},
	}
	for _, tt := range tests {
		p := strategies.PolicyOf(tt.strategy)
		assert.Equal(t, tt.results, decision.StepsOf(p).ConsidersResults)
		assert.Equal(t, tt.errors, decision.StepsOf(p).ConsidersErrors)
		assert.False(t, decision.StepsOf(p).HasReasons())
		assert.True(t, decision.StepsOf(p).AtOnce)
	}
	assert.PanicsWithValue(t, "strategies: PolicyOf: nil <nil>", func() { strategies.PolicyOf[string](nil) })
}

// typedNil is a strategy whose predicate is a typed nil.
type typedNil struct{}

func (typedNil) CanRetry(int) bool             { return true }
func (typedNil) BackoffTime(int) time.Duration { return 0 }
func (typedNil) RetryPredicate() predicates.AsyncRetryPredicate[string] {
	var p *nilPredicate
	return p
}

type nilPredicate struct{}

func (*nilPredicate) ResultPredicate() predicates.ResultPredicate[string] { panic("nil") }
func (*nilPredicate) ExceptionPredicate() predicates.ExceptionPredicate   { panic("nil") }

func TestPolicyOf_WithJitter(t *testing.T) {
	s := strategies.FixedDelay[string](3, 0)
	assert.Nil(t, decision.StepsOf(strategies.PolicyOf[string](s)).Jitter)
	assert.NotNil(t, decision.StepsOf(strategies.PolicyOf[string](s.WithJitter(strategies.FullJitter).RetryIfException(predicates.HasException))).Jitter)
}

// A policy does not have CanRetry and BackoffTime, and its predicate depends on its
// reasons.
func TestPolicyIsARetry(t *testing.T) {
	aware := strategies.ReasonAware(say(allowing), nil)
	var carried strategies.Retry[string] = aware
	assert.Same(t, aware, strategies.PolicyOf(carried))
	assert.True(t, decision.StepsOf(aware).HasReasons())
	_, isStrategy := carried.(strategies.AsyncRetryStrategy[string])
	assert.False(t, isStrategy)

	pair := carried.RetryPredicate()
	assert.True(t, pair.ExceptionPredicate()(io.EOF))
	assert.True(t, pair.ResultPredicate()(nil))
	assert.Nil(t, aware.ErrorsOnly().RetryPredicate().ResultPredicate())
	rejected := strategies.ReasonAware(say(predicates.NewRejection("REJECTED")), nil)
	assert.False(t, rejected.RetryPredicate().ExceptionPredicate()(io.EOF))

	empty := strategies.PolicyOf(strategies.FixedDelay[string](3, 0).RetryIfResult(predicates.EmptyResult)).RetryPredicate()
	assert.True(t, empty.ResultPredicate()(nil))
	assert.False(t, empty.ResultPredicate()([]string{"a"}))
	assert.Nil(t, empty.ExceptionPredicate())
	assert.Nil(t, strategies.PolicyOf(strategies.NoRetry[string]()).RetryPredicate())
}

// A type that embeds a policy is not a policy. With the other two methods it is a
// strategy with the predicate of the policy.
func TestPolicy_Embedded(t *testing.T) {
	aware := strategies.ReasonAware(say(allowing), nil)
	for _, r := range []strategies.Retry[string]{once{aware}, &once{aware}} {
		assert.PanicsWithValue(t, fmt.Sprintf("strategies: PolicyOf: %T is neither a *Policy nor an AsyncRetryStrategy", r),
			func() { strategies.PolicyOf(r) })
	}
	policy := strategies.PolicyOf[string](thrice{once{aware}})
	assert.Equal(t, decision.Retried, decision.StepsOf(policy).Decide(t.Context(), failedAttempt(3), &decision.Situation{}).NoRetryReason)
	assert.Equal(t, decision.Refused, decision.StepsOf(policy).Decide(t.Context(), failedAttempt(4), &decision.Situation{}).NoRetryReason)
}

type once struct{ *strategies.Policy[string] }

func (once) CanRetry(n int) bool { return n <= 1 }

type thrice struct{ once }

func (thrice) CanRetry(n int) bool           { return n <= 3 }
func (thrice) BackoffTime(int) time.Duration { return 0 }

func TestPolicyBuildersReturnCopies(t *testing.T) {
	bare := strategies.ReasonAware(say(allowing), nil)
	full := bare.WithJitter(strategies.FullJitter).WithMaxWaiting(1).Idempotent().ErrorsOnly()
	assert.Nil(t, decision.StepsOf(bare).Jitter)
	assert.NotNil(t, decision.StepsOf(full).Jitter)
	assert.False(t, decision.StepsOf(bare).IsIdempotent(1))
	assert.True(t, decision.StepsOf(full).IsIdempotent(1))
	assert.True(t, decision.StepsOf(bare).ConsidersResults)
	assert.False(t, decision.StepsOf(full).ConsidersResults)
	for range 3 {
		assert.Equal(t, decision.Retried, decision.StepsOf(bare).Decide(t.Context(), failedAttempt(1), &decision.Situation{Waiting: 5}).NoRetryReason)
	}
	assert.Equal(t, decision.TooManyWaiting, decision.StepsOf(full).Decide(t.Context(), failedAttempt(1), &decision.Situation{Waiting: 5}).NoRetryReason)
}

// R7: false by default, per operator, per element. The method of the element decides.
func TestPolicyIdempotentAndIdempotentIf(t *testing.T) {
	p := strategies.ReasonAware(say(forbidden), nil)
	assert.False(t, decision.StepsOf(p).IsIdempotent("x"))
	assert.False(t, decision.StepsOf(p).IsIdempotent(nil))
	assert.True(t, decision.StepsOf(p).IsIdempotent(element(true)))
	assert.False(t, decision.StepsOf(p).IsIdempotent(element(false)))
	assert.True(t, decision.StepsOf(p.Idempotent()).IsIdempotent("x"))
	assert.False(t, decision.StepsOf(p.Idempotent()).IsIdempotent(element(false)))
	assert.True(t, decision.StepsOf(p.Idempotent()).IsIdempotent(element(true)))
	byInput := p.IdempotentIf(func(in any) bool { return in == "get" })
	assert.True(t, decision.StepsOf(byInput).IsIdempotent("get"))
	assert.False(t, decision.StepsOf(byInput).IsIdempotent("put"))
	assert.True(t, decision.StepsOf(byInput).IsIdempotent(element(true)), "one of both suffices")
	all := p.IdempotentIf(func(any) bool { return true })
	assert.False(t, decision.StepsOf(all).IsIdempotent(element(false)))
	assert.True(t, decision.StepsOf(byInput.IdempotentIf(nil)).IsIdempotent(element(true)))
}

type element bool

func (e element) Idempotent() bool { return bool(e) }

func TestPolicyImmediate_DecidesAtOnce(t *testing.T) {
	best := strategies.BestEffort[string]()
	custom := decide(func(context.Context, *attempt) (strategies.Action, error) { return strategies.Action{}, nil })
	tests := []struct {
		strategy strategies.ReasonStrategy[string]
		want     bool
	}{
		{best, true},
		{strategies.HonorPushback(best), true},
		{custom, false},
		{strategies.HonorPushback(custom), false},
		{overriding{best}, false}, // it may block, even if it embeds a BestEffort
		{struct {
			strategies.ReasonStrategy[string]
		}{best}, false},
	}
	for i, tt := range tests {
		assert.Equal(t, tt.want, decision.StepsOf(strategies.ReasonAware(say(allowing), tt.strategy)).AtOnce, "%d: %T", i, tt.strategy)
		promised := strategies.ReasonAware(say(allowing), tt.strategy).WithMaxWaiting(1).Immediate().WithJitter(nil)
		assert.True(t, decision.StepsOf(promised).AtOnce, "%d: %T", i, tt.strategy)
	}
}

// R20: extended by embedding.
type overriding struct {
	*strategies.BestEffortStrategy[string]
}

func (s overriding) Decide(ctx context.Context, a *attempt) (strategies.Action, error) {
	if a.Reason == predicates.CircuitBreakerOpen {
		return strategies.Action{}, nil
	}
	return s.BestEffortStrategy.Decide(ctx, a)
}

func TestOverridingASingleReason(t *testing.T) {
	s := overriding{strategies.BestEffort[string]()}
	for r, want := range map[predicates.Reason]decision.NoRetryReason{
		predicates.CircuitBreakerOpen: decision.Refused, allowing: decision.Retried, forbidden: decision.Refused,
	} {
		d := decision.StepsOf(strategies.ReasonAware(say(r), s)).Decide(t.Context(), failedAttempt(1), &decision.Situation{})
		assert.Equal(t, want, d.NoRetryReason, "%v", r)
	}
}

func TestReasonStrategyConstructorsPanic(t *testing.T) {
	for want, f := range map[string]func(){
		"ReasonAware: nil predicates.Classifier[string]":           func() { strategies.ReasonAware[string](nil, nil) },
		"HonorPushback: nil <nil>":                                 func() { strategies.HonorPushback[string](nil) },
		"HonorPushback: nil strategies.ReasonStrategyFunc[string]": func() { strategies.HonorPushback[string](decide(nil)) },
		"HonorPushback: nil function at index 0":                   func() { strategies.HonorPushback[string](strategies.BestEffort[string](), nil) },
		"BestEffort: negative maxRetries: -1":                      func() { strategies.BestEffort[string]().WithMaxRetries(-1) },
		"WithBackoff: nil func(int) time.Duration":                 func() { strategies.BestEffort[string]().WithBackoff(nil) },
	} {
		assert.PanicsWithValue(t, "strategies: "+want, f)
	}
}

// R3: a user's classifier sees each joined error, and an unknown error counts as unsafe.
func TestPolicyHarmless_JoinedErrors(t *testing.T) {
	busy, sentinel := errors.New("busy"), errors.New("lookup failed")
	refused := predicates.NewReason("REFUSED", true, false)
	own := func(a *attempt) (predicates.Reason, bool) { return refused, errors.Is(a.Err, busy) }
	policy := strategies.ReasonAware(own, nil)
	reason := func(p *strategies.Policy[string], err error) (decision.NoRetryReason, predicates.Stage) {
		a := &attempt{Number: 1, Err: err, Remaining: decision.NoDeadline, Idempotent: decision.StepsOf(p).IsIdempotent("x")}
		return decision.StepsOf(p).Decide(t.Context(), a, &decision.Situation{}).NoRetryReason, a.Stage
	}
	for name, tt := range map[string]struct {
		policy *strategies.Policy[string]
		err    error
		want   decision.NoRetryReason
	}{
		"alone":                     {policy, busy, decision.Retried},
		"twice":                     {policy, errors.Join(busy, busy), decision.Retried},
		"and unknown":               {policy, errors.Join(busy, io.EOF), decision.Refused},
		"with a sentinel":           {policy, errors.Join(sentinel, busy), decision.Refused},
		"with a harmless one":       {policy.Harmless(sentinel), errors.Join(sentinel, busy), decision.Retried},
		"two of those":              {policy.Harmless(sentinel).Harmless(io.EOF), errors.Join(sentinel, busy, io.EOF), decision.Retried},
		"a harmless and an unknown": {policy.Harmless(sentinel), errors.Join(sentinel, busy, io.EOF), decision.Refused},
		"but idempotent":            {policy.Idempotent(), errors.Join(busy, io.EOF), decision.Retried},
	} {
		got, _ := reason(tt.policy, tt.err)
		assert.Equal(t, tt.want, got, name)
	}
	_, stage := reason(policy, errors.Join(busy, &predicates.StageError{Stage: predicates.ResponseReceived, Err: io.EOF}))
	assert.Equal(t, predicates.ResponseReceived, stage)
	_, stage = reason(policy, errors.Join(busy, &predicates.StageError{Stage: predicates.ClientDispatch, Err: io.EOF}))
	assert.Equal(t, predicates.NetworkTime, stage)

	flip := strategies.PolicyOf(strategies.FixedDelay[string](1, 0).RetryIfException(func(err error) bool {
		return errors.Is(err, busy) && errors.Is(err, sentinel)
	}))
	got, _ := reason(flip.Harmless(sentinel), errors.Join(busy, sentinel))
	assert.Equal(t, decision.Retried, got, "its predicates see the joined error")
	assert.PanicsWithValue(t, "strategies: Harmless: nil error at index 0", func() { policy.Harmless(nil) })
}
