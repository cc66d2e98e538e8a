package fleet_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/backend/internal/fleet"
)

// newTurns returns two processes that need the only permit. They make no calls.
func newTurns() (a, b *member) {
	r := &record{}
	a, b = newMember(r, "a", time.Second), newMember(r, "b", time.Second)
	for _, m := range []*member{a, b} {
		m.local = fleet.Local{Limit: 1, Need: 1, Longest: time.Second, Waits: true}
	}
	return a, b
}

// stepUntil makes steps without calls, and returns the time when condition is true, or
// the limit.
func stepUntil(now, limit time.Duration, condition func(now time.Duration) bool, all ...*member) time.Duration {
	for now < limit && !condition(now) {
		now += fleet.PendingPeriod
		for _, m := range all {
			m.write(now)
			m.commit(now, m.version)
		}
	}
	return now
}

// The operator of a process does not use the permit, for example because its loop is in
// a slow consumer. Its turn ends all the same.
func TestMachine_TurnOfAProcessThatDoesNotCall(t *testing.T) {
	a, b := newTurns()
	now := stepUntil(0, time.Minute, func(now time.Duration) bool { return a.share(now)+b.share(now) == 1 }, a, b)
	first, second := a, b
	if b.share(now) == 1 {
		first, second = b, a
	}
	began := now
	now = stepUntil(now, began+time.Minute, func(now time.Duration) bool { return second.share(now) == 1 }, first, second)
	require.Greater(t, now-began, 3*time.Second)
	require.Less(t, now-began, 8*time.Second)
}

// While the service is down, a process that does not probe passes on its permit with the
// right to probe.
func TestMachine_TurnOfAProcessThatDoesNotProbe(t *testing.T) {
	a, b := newTurns()
	now := stepUntil(0, time.Minute, func(now time.Duration) bool { return a.share(now)+b.share(now) == 1 }, a, b)
	down := fleet.Health{State: fleet.Down, Why: "trip", Until: now}
	a.Propose(a.instant(now), down, false)
	probed := map[*member]bool{}
	began := now
	now = stepUntil(now, began+time.Minute, func(now time.Duration) bool {
		for _, m := range []*member{a, b} {
			probed[m] = probed[m] || m.MayProbe(m.instant(now))
		}
		return len(probed) == 2 && probed[a] && probed[b]
	}, a, b)
	require.Less(t, now-began, 20*time.Second)
}

// A process that waits for its part of a rate keeps its permit, because its part would be
// lost. While the service is held or down, it keeps it until it may probe.
func TestMachine_TurnOfAProcessThatWaits(t *testing.T) {
	for _, wait := range []string{"rate", "hold", "outage"} {
		a, b := newTurns()
		now := stepUntil(0, time.Minute, func(now time.Duration) bool { return a.share(now)+b.share(now) == 1 }, a, b)
		first, second := a, b
		if b.share(now) == 1 {
			first, second = b, a
		}
		switch wait {
		case "rate":
			first.local.IsPaced = true
		case "hold":
			first.Propose(first.instant(now), fleet.Health{State: fleet.Held}, true)
		case "outage":
			first.Propose(first.instant(now), fleet.Health{State: fleet.Down, Until: now + time.Minute}, false)
		}
		began := now
		now = stepUntil(now, began+time.Minute, func(now time.Duration) bool { return second.share(now) == 1 }, first, second)
		require.GreaterOrEqual(t, now-began, time.Minute, wait)
	}
}
