package store

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestLag(t *testing.T) {
	f := Faults{Seed: 1, LateShare: 0.25, MaxLag: time.Second}
	late := 0
	var least, most time.Duration = time.Hour, 0
	for i := range 10_000 {
		key := fmt.Sprintf("ROW%04d", i)
		lag, isLate := f.lag(key)
		again, _ := f.lag(key)
		assert.Equal(t, lag, again)
		if isLate {
			late++
			least, most = min(least, lag), max(most, lag)
		}
	}
	assert.InDelta(t, 2500, late, 150)
	assert.InDelta(t, 250*time.Millisecond, least, float64(5*time.Millisecond), "late enough to be noticed")
	assert.InDelta(t, time.Second, most, float64(5*time.Millisecond))
	assert.LessOrEqual(t, most, time.Second)

	_, isLate := Faults{MaxLag: time.Second}.lag("ATL")
	assert.False(t, isLate, "no faults, no lag")
}

func TestLatency(t *testing.T) {
	c := &Cluster{cfg: Config{MinLatency: 2 * time.Millisecond, MaxLatency: 8 * time.Millisecond}}
	slow := 0
	for n := range 10_000 {
		d := c.latency("ATL", n)
		assert.Equal(t, d, c.latency("ATL", n))
		assert.GreaterOrEqual(t, d, c.cfg.MinLatency)
		if d >= c.cfg.MaxLatency {
			slow++
		}
	}
	assert.InDelta(t, 100, slow, 40, "one in a hundred")
}
