package strategies_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/backend"
	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/httpretry"
	"github.com/weirflow/weir/strategies"
	"github.com/weirflow/weir/strategies/strategiestest"
)

var badAnswer = predicates.NewReason("BAD_ANSWER", true, false)

func limited() *strategies.Policy[string] {
	return strategies.ReasonAware(predicates.Classifiers(predicates.Named[string](), httpretry.Classifier[string]()), nil).
		Idempotent().WithMaxRetriesFor(badAnswer, 2)
}

func TestWithMaxRetriesFor_Decision(t *testing.T) {
	bad := predicates.WithReason(errors.New("no JSON"), badAnswer)
	for retries, want := range []bool{true, true, false, false} {
		d := strategiestest.Decide(limited(), predicates.Attempt[string]{Number: 9, Err: bad, ReasonRetries: retries})
		require.Equal(t, want, d.Retry, "%v", d)
	}
	unavailable := &httpretry.StatusError{StatusCode: 503}
	require.True(t, strategiestest.Decide(limited(), predicates.Attempt[string]{Number: 9, Err: unavailable, ReasonRetries: 9}).Retry)
	require.False(t, strategiestest.Decide(limited().WithMaxRetriesFor(badAnswer, 0), predicates.Attempt[string]{Err: bad}).Retry)
	require.Empty(t, decision.StepsOf(strategies.ReasonAware(predicates.Named[string](), nil)).MaxRetries, "a copy is changed")
}

func TestWithMaxRetriesFor_Arguments(t *testing.T) {
	for message, f := range map[string]func(){
		"strategies: WithMaxRetriesFor: negative number of retries for BAD_ANSWER: -1": func() { limited().WithMaxRetriesFor(badAnswer, -1) },
		"strategies: WithMaxRetriesFor: NO is not a reason for a retry":                func() { limited().WithMaxRetriesFor(predicates.NewRejection("NO"), 1) },
		"strategies: WithMaxRetriesFor: the policy has no reasons: make it by ReasonAware": func() {
			strategies.PolicyOf(strategies.FixedDelay[string](3, 0)).WithMaxRetriesFor(badAnswer, 1)
		},
	} {
		require.PanicsWithValue(t, message, f)
	}
}

// Each reason has its own count. A retry after a throttle does not count at a backend.
func TestWithMaxRetriesFor_Operator(t *testing.T) {
	for name, c := range map[string]struct {
		outcomes string // of the calls: b a bad answer, u a 503, t a 429, o an answer
		calls    int
		fails    bool
		backend  bool
	}{
		"a bad answer twice":           {"bbo", 3, false, false},
		"three times":                  {"bbbo", 3, true, false},
		"others between":               {"ubuubuo", 7, false, false},
		"others between, and too many": {"ubuubuubo", 8, true, false},
		"throttles":                    {"tttttbbo", 8, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			calls := 0
			call := asyncop.Func(func(_ context.Context, _ string, done asyncop.ResultFuture[string]) error {
				calls++
				switch c.outcomes[calls-1] {
				case 'b':
					return predicates.WithReason(errors.New("no JSON"), badAnswer)
				case 'u':
					return &httpretry.StatusError{StatusCode: 503}
				case 't':
					return predicates.WithPushback(&httpretry.StatusError{StatusCode: 429}, time.Millisecond)
				}
				done.Complete("answer")
				return nil
			})
			var opts []asyncop.Option
			policy := limited()
			if c.backend {
				opts = append(opts, asyncop.WithBackend(backend.New("service")))
				policy = policy.WithMaxRetriesFor(httpretry.TooManyRequests, 2)
			}
			op := asyncop.OrderedWaitWithRetry(call, time.Minute, 1, policy, opts...)
			var failure error
			for _, err := range op.Results(func(yield func(string) bool) { yield("a") }) {
				failure = err
			}
			require.Equal(t, c.calls, calls)
			require.Equal(t, c.fails, failure != nil, "%v", failure)
		})
	}
}

// An element that stays without a result leaves without a failure when its retries are
// used up. Without a limit it times out.
func TestWithMaxRetriesFor_EmptyResult(t *testing.T) {
	absent := predicates.NewReason("ABSENT", true, false)
	classify := predicates.Classifiers(predicates.ByResult(predicates.EmptyResult[string], absent), httpretry.Classifier[string]())
	unlimited := strategies.ReasonAware(classify, nil).Idempotent()
	for name, c := range map[string]struct {
		policy *strategies.Policy[string]
		calls  int // 0 means any number
	}{
		"no classifier of results": {strategies.ReasonAware(httpretry.Classifier[string](), nil).Idempotent(), 1},
		"3 retries":                {unlimited.WithMaxRetriesFor(absent, 3), 4},
		"unlimited":                {unlimited, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				calls := 0
				call := asyncop.Blocking(func(context.Context, string) (string, error) {
					calls++
					return "", asyncop.ErrNoResult
				})
				op := asyncop.OrderedWaitWithRetry(call, time.Minute, 1, c.policy)
				var failure error
				for _, err := range op.Results(slices.Values([]string{"a"})) {
					failure = err
				}
				if c.calls == 0 {
					var timeout *asyncop.TimeoutError
					require.ErrorAs(t, failure, &timeout)
					return
				}
				require.NoError(t, failure)
				require.Equal(t, c.calls, calls)
			})
		})
	}
}
