package decision_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/weirflow/weir/internal/decision"
)

// R27
func TestControlledBackoff(t *testing.T) {
	const ms = time.Millisecond
	for retries, want := range map[int]time.Duration{
		math.MinInt: ms, -1: ms, 0: ms, 1: 10 * ms, 2: 50 * ms, 3: 100 * ms, 4: 500 * ms,
		5: time.Second, 6: time.Second, math.MaxInt - 1: time.Second, math.MaxInt: time.Second,
	} {
		assert.Equal(t, want, decision.ControlledBackoff(retries), "retries %d", retries)
	}
}
