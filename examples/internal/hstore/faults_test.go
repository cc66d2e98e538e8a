package hstore

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// The same seed injects the same events in the same order.
func TestPlan(t *testing.T) {
	take := func(seed uint64) (events []event) {
		p := newPlan(DefaultFaults(seed))
		for range 400 {
			events = append(events, p.next())
		}
		return events
	}
	events := take(1)
	assert.Equal(t, events, take(1))
	assert.NotEqual(t, events, take(2))

	seen := make(map[Kind]int)
	var last uint64
	for _, e := range events {
		assert.Greater(t, e.at, last)
		last = e.at
		seen[e.kind]++
	}
	assert.Equal(t, map[Kind]int{Move: 150, Drop: 100, Slow: 100, Crash: 50}, seen)
	assert.InDelta(t, 2_000, float64(last)/400, 200)
}

func TestFaults_Lag(t *testing.T) {
	f := Faults{Seed: 1, LateShare: 0.25, MaxLag: time.Second}
	late := 0
	for i := range 10_000 {
		lag, isLate := f.lag(fmt.Sprintf("ROW%04d", i))
		if isLate {
			late++
			assert.GreaterOrEqual(t, lag, 250*time.Millisecond, "late enough to be noticed")
			assert.Less(t, lag, time.Second)
		}
	}
	assert.InDelta(t, 2500, late, 150)
	_, isLate := Faults{MaxLag: time.Second}.lag("ATL")
	assert.False(t, isLate, "no faults, no lag")
}
