package backend

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A lent permit is released while another call of its operator waits. That call runs on
// the permit around it from then on, and its wait counts there.
func TestPermits_PassOnToACallThatWaits(t *testing.T) {
	x := newPermits()
	outside, inside := &seat{calls: 1}, &seat{lent: 1}
	around := x.all[x.grant(outside)]
	around.begin()
	inside.around, inside.calls = around.stamp, 1
	lent := x.all[x.grant(inside)]
	inside.calls = 2
	own := x.all[x.grant(inside)]
	require.True(t, lent.isLent)
	require.Equal(t, around, lent.root)
	require.False(t, own.isLent)
	require.Equal(t, 2, x.running())

	x.source++ // the lease has ended
	require.Equal(t, 1, x.running(), "the call around them")
	f := &fleetShare{permits: x}
	f.countWait(own, 1)
	delete(x.all, lent.stamp)
	x.passOn(lent)
	require.True(t, own.isLent)
	require.Equal(t, around, own.root)
	require.Zero(t, x.running(), "the call around the operator waits, too")
	f.countWait(own, -1)
	require.Equal(t, 1, x.running())
	require.Zero(t, around.waiting+around.waitingLent+own.waiting)
}

// The permit of a call may be lent to one call at a time, and it is over when all calls
// with it have ended.
func TestPermits_LentToOneCall(t *testing.T) {
	x := newPermits()
	outside, first, second := &seat{calls: 1}, &seat{lent: 1, calls: 1}, &seat{lent: 1, calls: 1}
	around := x.all[x.grant(outside)]
	first.around, second.around = around.stamp, around.stamp
	a, b := x.all[x.grant(first)], x.all[x.grant(second)]
	require.False(t, a.isBusy())
	a.begin()
	require.True(t, a.isBusy(), "a second call of the attempt")
	require.True(t, b.isBusy(), "another operator in the same call")
	around.isReleased = true
	require.False(t, around.isOver())
	a.end()
	require.True(t, around.isOver())
	require.True(t, b.isBusy(), "the permit around it was released")
}

// After the end of a lease, permits are valid again as far as the share has free permits.
func TestPermits_ValidAgain(t *testing.T) {
	x := newPermits()
	s := &seat{calls: 1}
	a, b, c := x.all[x.grant(s)], x.all[x.grant(s)], x.all[x.grant(s)]
	a.begin() // and does not end with the lease
	x.source++
	require.Equal(t, 1, x.running())
	require.False(t, x.isValid(b, 0))
	require.False(t, x.isValid(b, 1))
	require.True(t, x.isValid(b, 2))
	require.False(t, x.isValid(c, 2))
	require.True(t, x.isValid(b, 2), "it stays valid")
	a.end()
	require.True(t, x.isValid(c, 2))
	require.Equal(t, 2, x.running())
}
