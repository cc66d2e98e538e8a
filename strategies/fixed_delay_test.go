package strategies_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"

	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
	"github.com/weirflow/weir/strategies/strategiestest"
)

func TestFixedDelayConforms(t *testing.T) {
	tests := map[string]*strategies.FixedDelayStrategy[int]{
		"bare":      strategies.FixedDelay[int](3, time.Second),
		"zeros":     strategies.FixedDelay[int](0, 0),
		"unlimited": strategies.FixedDelay[int](strategies.Unlimited, math.MaxInt64),
		"dressed": strategies.FixedDelay[int](3, time.Second).
			RetryIfResult(predicates.EmptyResult).
			RetryIfException(predicates.HasException).
			WithJitter(strategies.EqualJitter),
	}
	for name, s := range tests {
		t.Run(name, func(t *testing.T) {
			strategiestest.Run(t, func() *strategies.FixedDelayStrategy[int] { return s })
		})
	}
}

func TestFixedDelayIsFixed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		delay := time.Duration(rapid.Int64Min(0).Draw(t, "delay"))
		n := rapid.Int().Draw(t, "attempt")
		s := strategies.FixedDelay[int](rapid.IntMin(0).Draw(t, "maxRetries"), delay)
		if d := s.BackoffTime(n); d != delay {
			t.Fatalf("d(%d) = %v, not %v", n, d, delay)
		}
	})
}

func TestFixedDelayPanics(t *testing.T) {
	assert.PanicsWithValue(t, "strategies: FixedDelay: negative maxRetries: -1", func() {
		strategies.FixedDelay[int](-1, time.Second)
	})
	assert.PanicsWithValue(t, "strategies: FixedDelay: negative delay: -5ms", func() {
		strategies.FixedDelay[int](3, -5*time.Millisecond)
	})
}
