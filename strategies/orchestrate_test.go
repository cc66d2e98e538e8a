package strategies_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/httpretry"
	"github.com/weirflow/weir/predicates/netretry"
	"github.com/weirflow/weir/strategies"
	"github.com/weirflow/weir/strategies/strategiestest"
)

var (
	allowing  = predicates.NewReason("ALLOWING", true, false)
	forbidden = predicates.NewReason("FORBIDDING", false, false)
	always    = predicates.NewReason("ALWAYS", true, true)
)

// The reasons of predicates.
var (
	resultMatched    = predicates.NewReason("RESULT_MATCHED", true, false)
	exceptionMatched = predicates.NewReason("EXCEPTION_MATCHED", false, false)
)

type (
	attempt = predicates.Attempt[string]
	decide  = strategies.ReasonStrategyFunc[string]
)

// say returns a classifier that always returns r.
func say(r predicates.Reason) predicates.Classifier[string] {
	return func(*attempt) (predicates.Reason, bool) { return r, true }
}

// answer is a strategy that always returns the same action, and counts its calls.
func answer(asked *int, action strategies.Action, err error) strategies.ReasonStrategy[string] {
	return decide(func(context.Context, *attempt) (strategies.Action, error) {
		*asked++
		return action, err
	})
}

func failFast(asked *int) strategies.ReasonStrategy[string] {
	return answer(asked, strategies.Action{}, nil)
}

func failedAttempt(number int) *attempt {
	return &attempt{Number: number, Err: io.ErrUnexpectedEOF, Remaining: decision.NoDeadline}
}

// R17, R24, R26 to R28: stage × idempotent × reason × strategy.
func TestMatrix(t *testing.T) {
	var asked int
	const number = 3 // so 2 retries were made
	allStrategies := []struct {
		name     string
		strategy strategies.ReasonStrategy[string]
		want     func(r predicates.Reason, idempotent bool) (retry bool, delay time.Duration)
	}{
		{"best effort", strategies.BestEffort[string](), func(r predicates.Reason, idempotent bool) (bool, time.Duration) {
			return idempotent || r.AllowsNonIdempotentRetry(), 4 * ms
		}},
		{"best effort by default", nil, func(r predicates.Reason, idempotent bool) (bool, time.Duration) {
			return idempotent || r.AllowsNonIdempotentRetry(), 4 * ms
		}},
		{
			"best effort, UNKNOWN refused", strategies.BestEffort[string]().RefuseUnknown(),
			func(r predicates.Reason, idempotent bool) (bool, time.Duration) {
				return r.Name() != "UNKNOWN" && (idempotent || r.AllowsNonIdempotentRetry()), 4 * ms
			},
		},
		{
			"best effort, other back-off", strategies.BestEffort[string]().WithBackoff(strategies.ExponentialBackoff[string](0, 2*ms, 100*ms, 5).BackoffTime),
			func(r predicates.Reason, idempotent bool) (bool, time.Duration) {
				return idempotent || r.AllowsNonIdempotentRetry(), 50 * ms
			},
		},
		{"fail fast", failFast(&asked), func(predicates.Reason, bool) (bool, time.Duration) { return false, 0 }},
		{
			"pushback", strategies.HonorPushback(strategies.BestEffort[string]()),
			func(r predicates.Reason, idempotent bool) (bool, time.Duration) {
				return idempotent || r.AllowsNonIdempotentRetry(), 4 * ms
			},
		},
	}
	stages := []predicates.Stage{
		predicates.Unreported, predicates.ClientDispatch, predicates.NetworkTime, predicates.ResponseReceived,
	}
	reasons := append(netretry.Reasons(), predicates.Unknown, allowing, forbidden, always, resultMatched, exceptionMatched)
	for _, s := range allStrategies {
		t.Run(s.name, func(t *testing.T) {
			for _, stage := range stages {
				for _, idempotent := range []bool{false, true} {
					for _, r := range reasons {
						for _, finishing := range []bool{false, true} {
							a := failedAttempt(number)
							a.Stage, a.Idempotent = stage, idempotent
							d := decision.StepsOf(strategies.ReasonAware(say(r), s.strategy)).
								Decide(t.Context(), a, &decision.Situation{Finishing: finishing})

							want := decision.Decision{NoRetryReason: decision.Refused, Reason: r, Err: a.Err}
							retry, delay := s.want(r, idempotent)
							switch {
							case finishing:
								want.NoRetryReason = decision.Finishing
							case r.AlwaysRetry():
								want.NoRetryReason, want.Delay = decision.Retried, 50*ms // R27: n is 2
							case retry:
								want.NoRetryReason, want.Delay, want.NeedsBudget = decision.Retried, delay, true
							}
							assert.Equal(t, want, d, "%v, idempotent %t, %v", stage, idempotent, r)
							assert.Equal(t, r, a.Reason)
						}
					}
				}
			}
		})
	}
}

// R26, R32
func TestAlwaysRetryDoesNotAsk(t *testing.T) {
	var asked int
	p := strategies.ReasonAware(say(always), failFast(&asked)).WithJitter(func(time.Duration, *rand.Rand) time.Duration {
		t.Error("the controlled back-off is not spread")
		return 0
	})
	for n, want := range []time.Duration{ms, 10 * ms, 50 * ms, 100 * ms, 500 * ms, time.Second, time.Second} {
		d := decision.StepsOf(p).Decide(t.Context(), failedAttempt(n+1), &decision.Situation{Random: rand.New(rand.NewPCG(1, 2))})
		assert.Equal(t, decision.Retried, d.NoRetryReason)
		assert.Equal(t, want, d.Delay)
	}
	a := failedAttempt(4)
	a.Remaining = 100 * ms // exactly the delay
	d := decision.StepsOf(p).Decide(t.Context(), a, &decision.Situation{})
	assert.True(t, d.Capped, "bounded by the timeout")
	assert.Zero(t, asked)
}

// R30: a delay is cut to the remaining time: 1 s becomes 0.5 s after 2 of 2.5 s.
func TestCap(t *testing.T) {
	tests := []struct {
		delay, remaining, want time.Duration
		capped                 bool
	}{
		{time.Second, 500 * ms, 500 * ms, true},
		{500 * ms, 500 * ms, 500 * ms, true}, // A5: no attempt starts at the deadline
		{499 * ms, 500 * ms, 499 * ms, false},
		{0, 1, 0, false},
		{0, 0, 0, true},
		{time.Second, -time.Second, 0, true}, // the deadline passed during Decide
		{time.Hour, decision.NoDeadline, time.Hour, false},
		{decision.NoDeadline - 1, decision.NoDeadline, decision.NoDeadline - 1, false},
	}
	for _, tt := range tests {
		var asked int
		a := failedAttempt(1)
		a.Elapsed, a.Remaining = 2*time.Second, tt.remaining
		d := decision.StepsOf(strategies.ReasonAware(say(allowing), answer(&asked, strategies.RetryAfter(tt.delay), nil))).
			Decide(t.Context(), a, &decision.Situation{})
		assert.Equal(t, decision.Retried, d.NoRetryReason)
		assert.Equal(t, tt.want, d.Delay, "%v of %v", tt.delay, tt.remaining)
		assert.Equal(t, tt.capped, d.Capped, "%v of %v", tt.delay, tt.remaining)
		assert.Equal(t, 1, asked)
	}
}

// R12: the zero Action refuses a retry, and RetryAfter(0) retries at once.
func TestRetryAfter_ZeroDelay(t *testing.T) {
	var asked int
	d := decision.StepsOf(strategies.ReasonAware(say(allowing), answer(&asked, strategies.RetryAfter(0), nil))).
		Decide(t.Context(), failedAttempt(1), &decision.Situation{})
	assert.Equal(t, decision.Retried, d.NoRetryReason)
	assert.Zero(t, d.Delay)
	assert.Equal(t, strategies.Action{}, strategies.Action{})
}

func TestOrchestrate_NoReason(t *testing.T) {
	var asked int
	strategy := failFast(&asked)
	no := func(*attempt) (predicates.Reason, bool) { return allowing, false }
	for _, c := range []predicates.Classifier[string]{no, say(predicates.Reason{})} {
		for _, a := range []*attempt{failedAttempt(1), {Number: 1, Results: []string{"x"}}} {
			d := decision.StepsOf(strategies.ReasonAware(c, strategy)).Decide(t.Context(), a, &decision.Situation{})
			assert.Equal(t, decision.Decision{Err: a.Err}, d)
			assert.True(t, a.Reason.IsZero())
		}
	}
	assert.Zero(t, asked)
}

// Decision 6: "not retried", joined to the element's error.
func TestFailedDecisions(t *testing.T) {
	broken := errors.New("broken")
	fine := answer(new(int), strategies.RetryAfter(time.Second), nil)
	tests := []struct {
		name     string
		policy   *strategies.Policy[string]
		want     string
		panicked bool
	}{
		{"error", strategies.ReasonAware(say(allowing), answer(new(int), strategies.RetryAfter(0), broken)), "broken", false},
		{
			"panic of the strategy",
			strategies.ReasonAware(say(allowing), decide(func(context.Context, *attempt) (strategies.Action, error) { panic(broken) })),
			"strategies: panic in user code: broken (at orchestrate_test.go:N strategies_test.TestFailedDecisions.func1)", true,
		},
		{
			"panic of the classifier",
			strategies.ReasonAware(func(*attempt) (predicates.Reason, bool) { panic(broken) }, fine),
			"strategies: panic in user code: broken (at orchestrate_test.go:N strategies_test.TestFailedDecisions.func2)", true,
		},
		{
			"panic of the jitter",
			strategies.ReasonAware(say(allowing), fine).WithJitter(func(time.Duration, *rand.Rand) time.Duration { panic(broken) }),
			"strategies: panic in user code: broken (at orchestrate_test.go:N strategies_test.TestFailedDecisions.func3)", true,
		},
		{
			"negative delay", strategies.ReasonAware(say(allowing), answer(new(int), strategies.RetryAfter(-1), nil)),
			"strategies: strategies.ReasonStrategyFunc[string]: negative delay: -1ns", false,
		},
		{
			"negative delay of a FLIP-232 strategy",
			strategies.PolicyOf[string](backwards{strategies.FixedDelay[string](3, 0).RetryIfException(predicates.HasException)}),
			"strategies: strategies_test.backwards: negative BackoffTime(1): -1s", false,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			now := &decision.Situation{Random: rand.New(rand.NewPCG(1, 2))}
			d := decision.StepsOf(tt.policy).Decide(t.Context(), failedAttempt(1), now)
			assert.Equal(t, decision.Failed, d.NoRetryReason)
			require.Equal(t, tt.want+"\nunexpected EOF", withoutLine(d.Err.Error()))
			require.ErrorIs(t, d.Err, io.ErrUnexpectedEOF)
			_, panicked := errors.AsType[*guard.PanicError](d.Err)
			assert.Equal(t, tt.panicked, panicked)
			if tt.panicked {
				require.Contains(t, fmt.Sprintf("%+v", d.Err), "orchestrate_test.go")
				require.Contains(t, fmt.Sprintf("%+v", d.Err), "runtime/debug.Stack")
				require.ErrorIs(t, d.Err, broken)
			}
		})
	}
	// An element with results fails, too.
	a := &attempt{Number: 1, Results: []string{"x"}, Remaining: decision.NoDeadline}
	d := decision.StepsOf(tests[0].policy).Decide(t.Context(), a, &decision.Situation{})
	require.EqualError(t, d.Err, "broken")
}

type backwards struct {
	*strategies.FixedDelayStrategy[string]
}

func (backwards) BackoffTime(int) time.Duration { return -time.Second }

func TestActionWithError_Translation(t *testing.T) {
	var asked int
	better := errors.New("better")
	for _, action := range []strategies.Action{
		strategies.Action{}.WithError(better), strategies.RetryAfter(time.Second).WithError(better),
	} {
		for _, a := range []*attempt{failedAttempt(1), {Number: 1, Results: []string{"x"}, Remaining: decision.NoDeadline}} {
			d := decision.StepsOf(strategies.ReasonAware(say(allowing), answer(&asked, action, nil))).
				Decide(t.Context(), a, &decision.Situation{})
			assert.Equal(t, better, d.Err)
			assert.Equal(t, action.Retry, d.NoRetryReason == decision.Retried)
		}
	}
}

func TestActionWithBefore_PassedOn(t *testing.T) {
	var asked int
	called := false
	action := strategies.RetryAfter(0).WithBefore(func(context.Context) error { called = true; return io.EOF })
	d := decision.StepsOf(strategies.ReasonAware(say(allowing), answer(&asked, action, nil))).
		Decide(t.Context(), failedAttempt(1), &decision.Situation{})
	require.False(t, called)
	require.Equal(t, io.EOF, d.Before(t.Context()))
	assert.True(t, called)
}

func TestJitterComesBeforeTheCapAndSparesDemandedDelays(t *testing.T) {
	double := func(base time.Duration, _ *rand.Rand) time.Duration { return 2 * base }
	random := rand.New(rand.NewPCG(1, 2))
	tests := []struct {
		action strategies.Action
		random *rand.Rand
		want   time.Duration
		capped bool
	}{
		{strategies.RetryAfter(300 * ms), random, 600 * ms, false},
		{strategies.RetryAfter(500 * ms), random, time.Second, true},
		{strategies.RetryAfter(300 * ms), nil, 300 * ms, false},
		{strategies.Action{Retry: true, Delay: 300 * ms, Demanded: true}, random, 300 * ms, false},
		{strategies.Action{Retry: true, Delay: time.Minute, Demanded: true}, random, time.Second, true},
	}
	for _, tt := range tests {
		a := failedAttempt(1)
		a.Remaining = time.Second
		d := decision.StepsOf(strategies.ReasonAware(say(allowing), answer(new(int), tt.action, nil)).WithJitter(double)).
			Decide(t.Context(), a, &decision.Situation{Random: tt.random})
		assert.Equal(t, tt.want, d.Delay)
		assert.Equal(t, tt.capped, d.Capped)
		if tt.action.Demanded {
			assert.Equal(t, tt.action.Delay, d.Demanded, "in full")
		} else {
			assert.Zero(t, d.Demanded)
		}
	}
}

// The strategy gets the reason and one of the three stages.
func TestOrchestrate_Arguments(t *testing.T) {
	var saw attempt
	p := strategies.ReasonAware(
		func(a *attempt) (predicates.Reason, bool) {
			assert.True(t, a.Reason.IsZero(), "a classifier does not see one")
			return allowing, true
		},
		decide(func(_ context.Context, a *attempt) (strategies.Action, error) {
			saw = *a
			return strategies.Action{}, nil
		}))
	a := failedAttempt(2)
	a.Input, a.Reasons, a.Elapsed = "in", predicates.ReasonSet{}.With(always), time.Second
	decision.StepsOf(p).Decide(t.Context(), a, &decision.Situation{})
	assert.Equal(t, "in", saw.Input)
	assert.Equal(t, allowing, saw.Reason)
	assert.Equal(t, predicates.NetworkTime, saw.Stage, "unreported is the safe side")
	assert.True(t, saw.Reasons.Has(always))
	assert.Equal(t, 1, saw.Retries())

	a = failedAttempt(1)
	a.Err = &predicates.StageError{Stage: predicates.ClientDispatch, Err: io.EOF}
	decision.StepsOf(p).Decide(t.Context(), a, &decision.Situation{})
	assert.Equal(t, predicates.ClientDispatch, saw.Stage, "the error proves it")
}

func TestErrorsOnly(t *testing.T) {
	p := strategies.ReasonAware(func(a *attempt) (predicates.Reason, bool) {
		if a.Err == nil {
			t.Error("a result was looked at")
		}
		return allowing, true
	}, nil).ErrorsOnly()
	assert.False(t, decision.StepsOf(p).ConsidersResults)
	assert.True(t, decision.StepsOf(p).ConsidersErrors)
	assert.Equal(t, strategiestest.Decision{}, strategiestest.Decide(p, attempt{Results: []string{"x"}}))
}

func TestPolicyWithMaxWaiting(t *testing.T) {
	for _, r := range []predicates.Reason{allowing, always} {
		p := strategies.ReasonAware(say(r), nil).WithMaxWaiting(2)
		for waiting, want := range []decision.NoRetryReason{decision.Retried, decision.Retried, decision.TooManyWaiting, decision.TooManyWaiting} {
			d := decision.StepsOf(p).Decide(t.Context(), failedAttempt(1), &decision.Situation{Waiting: waiting})
			assert.Equal(t, want, d.NoRetryReason, "%d waiting", waiting)
			assert.Equal(t, r, d.Reason)
			assert.Equal(t, io.ErrUnexpectedEOF, d.Err)
		}
	}
	assert.PanicsWithValue(t, "strategies: WithMaxWaiting: negative number of elements: -1",
		func() { strategies.ReasonAware(say(allowing), nil).WithMaxWaiting(-1) })
}

func TestPolicyWithMaxDelay(t *testing.T) {
	for _, c := range []struct {
		policy *strategies.Policy[string]
		err    error
		want   decision.NoRetryReason
	}{
		{strategies.PolicyOf(strategies.FixedDelay[string](3, time.Second).RetryIfException(predicates.HasException)), io.EOF, decision.Retried},
		{strategies.PolicyOf(strategies.FixedDelay[string](3, time.Second+1).RetryIfException(predicates.HasException)), io.EOF, decision.Refused},
		{strategies.ReasonAware(say(allowing), nil), predicates.WithPushback(io.EOF, time.Second), decision.Retried},
		{strategies.ReasonAware(say(allowing), nil), predicates.WithPushback(io.EOF, time.Minute), decision.Refused},
		{strategies.ReasonAware(say(always), nil), predicates.WithPushback(io.EOF, time.Minute), decision.Retried},
	} {
		d := decision.StepsOf(c.policy.WithMaxDelay(time.Second)).Decide(t.Context(), &attempt{Number: 1, Err: c.err, Remaining: time.Hour}, &decision.Situation{})
		assert.Equal(t, c.want, d.NoRetryReason, "%v", c.err)
		assert.Equal(t, c.err, d.Err)
		d = decision.StepsOf(c.policy).Decide(t.Context(), &attempt{Number: 1, Err: c.err, Remaining: time.Hour}, &decision.Situation{})
		assert.Equal(t, decision.Retried, d.NoRetryReason)
	}
	assert.PanicsWithValue(t, "strategies: WithMaxDelay: negative delay: -1ns",
		func() { strategies.ReasonAware(say(allowing), nil).WithMaxDelay(-1) })
}

// Separate steps and a single call make the same decision, even if a changes in between.
func TestStepsOneByOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := rapid.SampledFrom([]predicates.Reason{{}, allowing, forbidden, always}).Draw(t, "reason")
		action := strategies.Action{
			Retry: rapid.Bool().Draw(t, "retry"),
			Delay: time.Duration(rapid.Int64Range(-1, 10).Draw(t, "delay")),
		}
		var failure error
		if rapid.Bool().Draw(t, "fails") {
			failure = io.EOF
		}
		before := &decision.Situation{Finishing: rapid.Bool().Draw(t, "finishing"), Waiting: rapid.IntRange(0, 2).Draw(t, "waiting")}
		after := &decision.Situation{Finishing: rapid.Bool().Draw(t, "finishing"), Waiting: rapid.IntRange(0, 2).Draw(t, "waiting")}
		remaining := time.Duration(rapid.Int64Range(0, 10).Draw(t, "remaining"))
		asked := 0
		p := strategies.ReasonAware(say(r), answer(&asked, action, failure)).WithMaxWaiting(2)

		a := failedAttempt(1)
		_, err := decision.StepsOf(p).FindReason(a)
		require.NoError(t, err)
		d, isDecided := decision.StepsOf(p).DecideAtOnce(a, before)
		ask := !isDecided
		if ask {
			got := decision.StepsOf(p).Ask(t.Context(), a)
			a.Remaining = remaining
			d = decision.StepsOf(p).Conclude(a, got, after)
		}

		// The model.
		want := decision.Refused
		now := before
		if ask {
			now = after
		}
		switch {
		case r.IsZero():
			want = decision.Final
		case before.Finishing:
			want = decision.Finishing
		case !r.AlwaysRetry() && (failure != nil || action.Retry && action.Delay < 0):
			want = decision.Failed
		case !r.AlwaysRetry() && !action.Retry:
		case now.Finishing:
			want = decision.Finishing
		case now.Waiting >= 2:
			want = decision.TooManyWaiting
		default:
			want = decision.Retried
		}
		if d.NoRetryReason != want || ask != (asked == 1) {
			t.Fatalf("%v, not %v; asked %d times", d.NoRetryReason, want, asked)
		}
		if d.NoRetryReason == decision.Retried && ask && (d.Capped != (action.Delay >= remaining) || d.Delay != min(action.Delay, remaining)) {
			t.Fatalf("delay %v, capped %t, of %v in %v", d.Delay, d.Capped, action.Delay, remaining)
		}
		if d.NoRetryReason != decision.Retried && (d.Delay != 0 || d.Capped || d.Before != nil) {
			t.Fatalf("%v with a delay", d)
		}
	})
}

func TestNoRetryReason_String(t *testing.T) {
	for v, text := range map[decision.NoRetryReason]string{
		decision.Final: "final", decision.Retried: "retried", decision.Refused: "refused",
		decision.Finishing: "finishing", decision.OverBudget: "over budget",
		decision.TooManyWaiting: "too many waiting", decision.Failed: "decision failed", 99: "NoRetryReason(99)",
	} {
		assert.Equal(t, text, fmt.Sprint(v))
	}
}

func BenchmarkDecide(b *testing.B) {
	flip := strategies.FixedDelay[string](3, time.Second).RetryIfException(predicates.HasException).
		RetryIfResult(predicates.EmptyResult)
	policies := map[string]*strategies.Policy[string]{
		"flip":  strategies.PolicyOf[string](flip),
		"aware": strategies.ReasonAware(httpretry.Classifier[string](), nil),
	}
	attempts := map[string]attempt{
		"result": {Number: 1, Results: []string{"x"}, Remaining: time.Hour},
		"error":  {Number: 1, Err: &httpretry.StatusError{StatusCode: http.StatusServiceUnavailable}, Remaining: time.Hour},
	}
	for kind, p := range policies {
		for outcome, a := range attempts {
			b.Run("strategy="+kind+"/outcome="+outcome, func(b *testing.B) {
				b.ReportAllocs()
				view := new(attempt) // reused, as by an operator
				for b.Loop() {
					*view = a
					decision.StepsOf(p).Decide(context.Background(), view, &decision.Situation{})
				}
			})
		}
	}
}

type panicsInAs struct{ error }

func (panicsInAs) As(any) bool { panic("broken") }

// A panic in a method of the error, which is user code, makes the decision fail.
func TestErrorThatPanicsWhenItsStageIsRead(t *testing.T) {
	errBroken := panicsInAs{errors.New("of the call")}
	p := strategies.ReasonAware(predicates.ByException[int](predicates.HasException, predicates.CircuitBreakerOpen), nil)
	d := decision.StepsOf(p).Decide(t.Context(), &predicates.Attempt[int]{Number: 1, Err: errBroken, Remaining: time.Minute}, &decision.Situation{})
	assert.Equal(t, decision.Failed, d.NoRetryReason)
	assert.Equal(t, "strategies: panic in user code: broken (at orchestrate_test.go:N strategies_test.panicsInAs.As)\nof the call",
		withoutLine(d.Err.Error()))
}

// withoutLine replaces the line number of a test file in text by N.
func withoutLine(text string) string { return placeLine.ReplaceAllString(text, "_test.go:N ") }

var placeLine = regexp.MustCompile(`_test\.go:\d+ `)

// An attempt may be reused for another outcome: results of the first do not affect the
// second.
func TestReasonOfAnEarlierOutcomeIsForgotten(t *testing.T) {
	seen := predicates.Unknown
	p := strategies.ReasonAware(func(a *predicates.Attempt[string]) (predicates.Reason, bool) {
		seen = a.Reason
		if a.Err != nil {
			panic("broken classifier")
		}
		return resultMatched, true
	}, nil)
	a := &predicates.Attempt[string]{Number: 1, Remaining: decision.NoDeadline}
	require.Equal(t, resultMatched, decision.StepsOf(p).Decide(t.Context(), a, &decision.Situation{}).Reason)
	a.Err = errors.New("busy")
	d := decision.StepsOf(p).Decide(t.Context(), a, &decision.Situation{})
	require.Equal(t, decision.Failed, d.NoRetryReason)
	require.True(t, seen.IsZero(), "%v", seen)
	require.True(t, d.Reason.IsZero(), "%v", d.Reason)
}

// A rejection is accepted even if the strategy would retry.
func TestRejectionIsNotRetried(t *testing.T) {
	rejected := predicates.NewRejection("REJECTED")
	for _, finishing := range []bool{false, true} {
		for _, idempotent := range []bool{false, true} {
			var asked int
			p := strategies.ReasonAware(say(rejected), answer(&asked, strategies.RetryAfter(0), nil))
			a := failedAttempt(1)
			a.Idempotent = idempotent
			d := decision.StepsOf(p).Decide(t.Context(), a, &decision.Situation{Finishing: finishing})
			assert.Equal(t, decision.Decision{NoRetryReason: decision.Final, Reason: rejected, Err: io.ErrUnexpectedEOF}, d)
			assert.Equal(t, rejected, a.Reason)
			assert.Zero(t, asked)
		}
	}
}
