package strategies_test

import (
	"math"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/strategies"
)

func TestNewBudgetPanics(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	tests := []struct {
		want                string
		fraction, perSecond float64
		burst               int
	}{
		{"fraction outside [0, 1]: -0.1", -0.1, 1, 1},
		{"fraction outside [0, 1]: 1.1", 1.1, 1, 1},
		{"fraction outside [0, 1]: NaN", nan, 1, 1},
		{"perSecond negative or not finite: -1", 0.1, -1, 1},
		{"perSecond negative or not finite: +Inf", 0.1, inf, 1},
		{"perSecond negative or not finite: NaN", 0.1, nan, 1},
		{"burst below 1: 0", 0.1, 1, 0},
	}
	for _, tt := range tests {
		assert.PanicsWithValue(t, "strategies: NewBudget: "+tt.want,
			func() { strategies.NewBudget(tt.fraction, tt.perSecond, tt.burst) })
	}
	extreme := strategies.NewBudget(1, math.MaxFloat64, math.MaxInt)
	assert.InDelta(t, float64(math.MaxInt32), extreme.Balance(), 0)
	assert.PanicsWithValue(t, "strategies: WithClock: nil <nil>", func() { extreme.WithClock(nil) })
}

func TestBudgetWithClockIsFullAndApart(t *testing.T) {
	mock := clock.NewMock()
	first := strategies.NewBudget(0.5, 1, 2).WithClock(mock)
	spend := strategies.ReasonAware(say(allowing), nil).WithBudget(first).Steps()
	for range 2 {
		require.Equal(t, decision.Retried, spend.Decide(t.Context(), failedAttempt(1), decision.Situation{}).Verdict)
	}
	assert.Zero(t, first.Balance())
	assert.InDelta(t, 2, first.WithClock(clock.NewMock()).Balance(), 0)
	mock.Add(500 * ms)
	assert.InDelta(t, 0.5, first.Balance(), 1e-9)
	var none *strategies.Budget
	assert.True(t, math.IsInf(none.Balance(), 1))
}

// A budget in a policy: charged for retries that will be made and were asked for.
func TestPolicyCharges(t *testing.T) {
	mock := clock.NewMock()
	b := strategies.NewBudget(0.5, 0, 2).WithClock(mock)
	p := strategies.ReasonAware(say(allowing), nil).WithBudget(b)
	decide := func(p *strategies.Policy[string], remaining time.Duration) decision.Verdict {
		a := failedAttempt(1)
		a.Remaining = remaining
		return p.Steps().Decide(t.Context(), a, decision.Situation{}).Verdict
	}
	assert.Equal(t, decision.Retried, decide(p, ms), "capped, so it will not be made")
	assert.Equal(t, 2.0, b.Balance())
	assert.Equal(t, decision.Retried, decide(p, time.Hour))
	assert.Equal(t, 1.0, b.Balance())

	others := strategies.ReasonAware(say(always), nil).WithBudget(b) // shared
	assert.Equal(t, decision.Retried, decide(others, time.Hour))
	assert.Equal(t, 1.0, b.Balance(), "always-retry is not charged")
	refusing := strategies.ReasonAware(say(forbidden), nil).WithBudget(b)
	assert.Equal(t, decision.Refused, decide(refusing, time.Hour))
	assert.Equal(t, 1.0, b.Balance())

	assert.Equal(t, decision.Retried, decide(p, time.Hour))
	assert.Equal(t, decision.OverBudget, decide(p, time.Hour))
	assert.Equal(t, decision.Retried, decide(others, time.Hour), "nor refused")
	others.Steps().Budget.Deposit()
	p.Steps().Budget.Deposit()
	assert.Equal(t, decision.Retried, decide(p, time.Hour), "two first attempts earn a retry")
	strategies.ReasonAware(say(allowing), nil).WithBudget(nil).Steps().Budget.Deposit() // without a budget
}
