package strategies_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/strategies"
)

// R18
func TestBestEffortWithBackoff_Delays(t *testing.T) {
	delay := func(s *strategies.BestEffortStrategy[string], number int) time.Duration {
		a := failedAttempt(number)
		a.Reason = allowing
		action, err := s.Decide(t.Context(), a)
		require.NoError(t, err)
		require.True(t, action.Retry)
		return action.Delay
	}
	best := strategies.BestEffort[string]()
	for i, want := range []time.Duration{
		ms, 2 * ms, 4 * ms, 8 * ms, 16 * ms, 32 * ms, 64 * ms, 128 * ms, 256 * ms, 500 * ms, 500 * ms,
	} {
		assert.Equal(t, want, delay(best, i+1), "attempt %d", i+1)
	}
	assert.Equal(t, 500*ms, delay(best, math.MaxInt))

	var asked []int
	other := best.WithBackoff(func(attempts int) time.Duration {
		asked = append(asked, attempts)
		return time.Duration(attempts) * time.Second
	})
	assert.Equal(t, time.Second, delay(other, 1))
	assert.Equal(t, 7*time.Second, delay(other, 7))
	assert.Equal(t, []int{1, 7}, asked, "it counts attempts, as CanRetry and BackoffTime do")
}
