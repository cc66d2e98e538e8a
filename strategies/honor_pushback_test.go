package strategies_test

import (
	"errors"
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

func TestHonorPushback(t *testing.T) {
	const own = 100 * ms
	const nothing = decision.Never - 1 // demanded
	tests := []struct {
		demand    time.Duration
		inner     strategies.Action
		innerErr  error
		want      strategies.Action
		wantAsked int
	}{
		{nothing, strategies.RetryAfter(own), nil, strategies.RetryAfter(own), 1},
		{nothing, strategies.Action{}, nil, strategies.Action{}, 1},
		{0, strategies.RetryAfter(own), nil, strategies.Action{Retry: true, Demanded: true}, 1},
		{time.Second, strategies.RetryAfter(own), nil, strategies.Action{Retry: true, Delay: time.Second, Demanded: true}, 1},
		{ms, strategies.RetryAfter(own), nil, strategies.Action{Retry: true, Delay: ms, Demanded: true}, 1},
		{time.Second, strategies.Action{}, nil, strategies.Action{}, 1}, // not a permission
		{time.Second, strategies.RetryAfter(own), io.EOF, strategies.RetryAfter(own), 1},
		{decision.Never, strategies.RetryAfter(own), nil, strategies.Action{}, 0},
	}
	for _, tt := range tests {
		var asked int
		a := failedAttempt(1)
		if tt.demand != nothing {
			a.Err = predicates.WithPushback(a.Err, tt.demand)
		}
		got, err := strategies.HonorPushback(answer(&asked, tt.inner, tt.innerErr)).Decide(t.Context(), a)
		assert.Equal(t, tt.want, got, "demand %v", tt.demand)
		assert.Equal(t, tt.innerErr, err)
		assert.Equal(t, tt.wantAsked, asked)
	}
}

// A demand can be found by a function in more.
func TestHonorPushbackWithMore(t *testing.T) {
	byText := func(a *attempt) (time.Duration, bool) { return time.Hour, errors.Is(a.Err, io.EOF) }
	never := func(*attempt) (time.Duration, bool) { return decision.Never, true }
	s := strategies.HonorPushback(answer(new(int), strategies.RetryAfter(ms), nil), byText, never)

	a := failedAttempt(1)
	a.Err = io.EOF
	got, _ := s.Decide(t.Context(), a)
	assert.Equal(t, time.Hour, got.Delay, "the first that finds one")
	a.Err = io.ErrUnexpectedEOF
	got, _ = s.Decide(t.Context(), a)
	assert.False(t, got.Retry)
	a.Err = predicates.WithPushback(io.EOF, time.Minute)
	got, _ = s.Decide(t.Context(), a)
	assert.Equal(t, time.Minute, got.Delay, "the outcome's own comes first")
}

// Jitter does not shorten a delay that a server demands.
func TestJitterSparesPushback(t *testing.T) {
	p := strategies.ReasonAware(say(allowing), strategies.HonorPushback(strategies.BestEffort[string]())).
		WithJitter(strategies.FullJitter)
	now := &decision.Situation{Random: rand.New(rand.NewPCG(1, 2))}
	for range 100 {
		a := failedAttempt(1)
		a.Err = predicates.WithPushback(a.Err, time.Second)
		assert.Equal(t, time.Second, decision.StepsOf(p).Decide(t.Context(), a, now).Delay)
	}
}

// A policy obeys the delay of the server with any strategy, unless IgnorePushback is
// used.
func TestPolicyIgnorePushback_Pushback(t *testing.T) {
	const own = 100 * ms
	decideOn := func(p *strategies.Policy[string], demand time.Duration) decision.Decision {
		a := failedAttempt(1)
		a.Err = predicates.WithPushback(a.Err, demand)
		return decision.StepsOf(p).Decide(t.Context(), a, &decision.Situation{})
	}
	for name, s := range map[string]strategies.ReasonStrategy[string]{
		"none":        nil,
		"best effort": strategies.BestEffort[string](),
		"own":         answer(new(int), strategies.RetryAfter(own), nil),
		"explicit":    strategies.HonorPushback(answer(new(int), strategies.RetryAfter(own), nil)),
	} {
		p := strategies.ReasonAware(say(allowing), s)
		d := decideOn(p, time.Minute)
		assert.Equal(t, decision.Retried, d.NoRetryReason, name)
		assert.Equal(t, time.Minute, d.Delay, name)
		assert.Equal(t, time.Minute, d.Demanded, name)
		assert.Equal(t, decision.Refused, decideOn(p, decision.Never).NoRetryReason, name)

		d = decideOn(p.IgnorePushback(), time.Minute)
		assert.Equal(t, name == "explicit", d.Demanded > 0, name)
		assert.Equal(t, name == "explicit", decideOn(p.IgnorePushback(), decision.Never).NoRetryReason == decision.Refused, name)
		assert.Equal(t, decision.Refused, decideOn(strategies.ReasonAware(say(forbidden), nil), time.Minute).NoRetryReason, "not a permission")
	}
	flip := strategies.PolicyOf[string](strategies.FixedDelay[string](3, own).RetryIfException(predicates.HasException))
	assert.Equal(t, own, decideOn(flip, time.Minute).Delay, "FLIP-232 knows of none")
}
