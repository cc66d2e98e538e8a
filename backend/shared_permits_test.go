package backend

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/backend/internal/fleet"
)

// A lent permit is released while another call of its operator waits. From then on this
// call runs on the permit around the operator, and its wait counts there.
func TestPermits_PassOnToACallThatWaits(t *testing.T) {
	x := newPermits()
	outside, inside := &seat{calls: 1}, &seat{lent: 1}
	around := x.all[x.grant(outside)]
	x.begin(around)
	inside.around, inside.calls = around.stamp, 1
	lent := x.all[x.grant(inside)]
	inside.calls = 2
	own := x.all[x.grant(inside)]
	require.True(t, lent.isLent)
	require.Equal(t, around, lent.root)
	require.False(t, own.isLent)
	require.Equal(t, 2, x.counted)

	x.change() // the lease has ended
	require.Equal(t, 1, x.counted, "the call around them")
	x.wait(own, 1)
	x.remove(lent)
	x.passOn(lent)
	require.True(t, own.isLent)
	require.Equal(t, around, own.root)
	require.Zero(t, x.counted, "the call around the operator waits, too")
	x.wait(own, -1)
	require.Equal(t, 1, x.counted)
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
	x.begin(a)
	require.True(t, a.isBusy(), "a second call of the attempt")
	require.True(t, b.isBusy(), "another operator in the same call")
	around.isReleased = true
	require.False(t, around.isOver())
	x.end(a)
	require.True(t, around.isOver())
	require.True(t, b.isBusy(), "the permit around it was released")
}

// After the end of a lease, permits are valid again as far as the share has free permits.
func TestPermits_ValidAgain(t *testing.T) {
	x := newPermits()
	s := &seat{calls: 1}
	a, b, c := x.all[x.grant(s)], x.all[x.grant(s)], x.all[x.grant(s)]
	x.begin(a) // and does not end with the lease
	x.change()
	require.Equal(t, 1, x.counted)
	require.False(t, x.renew(b, 0))
	require.False(t, x.renew(b, 1))
	require.True(t, x.renew(b, 2))
	require.False(t, x.renew(c, 2))
	require.True(t, x.renew(b, 2), "it stays valid")
	x.end(a)
	require.True(t, x.renew(c, 2))
	require.Equal(t, 2, x.counted)
}

// recounted counts the running calls anew, from the calls of each permit.
func recounted(x *permits) int {
	n := 0
	inner := map[*permit]bool{}
	for _, p := range x.all {
		if p.root != p && p.own > 0 {
			inner[p.root] = true
		}
	}
	for _, p := range x.all {
		isRunning := p.own > 0 && p.waitingLent == 0 || p.calledFunc && p.waiting == 0
		if p.root == p && (inner[p] || p.source == x.source || isRunning) {
			n++
		}
	}
	return n
}

// The number of running calls is kept up to date by each change of a permit.
func TestPermits_RunningCount(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		keeper := &fleetShare{backend: New("payments"), machine: fleet.New("p"), changed: make(chan struct{}), permits: newPermits()}
		x := &keeper.permits
		var all []*permit
		waits := map[*permit]int{}
		for range 200 {
			if len(all) == 0 || r.IntN(4) == 0 {
				s := &seat{backend: keeper.backend}
				if len(all) > 0 {
					p := all[r.IntN(len(all))]
					switch r.IntN(3) {
					case 0:
						s.lent, s.around = 1, p.stamp
					case 1:
						s = p.seat
					}
				}
				s.calls++
				keeper.backend.used++
				all = append(all, x.all[x.grant(s)])
			}
			p := all[r.IntN(len(all))]
			switch r.IntN(9) {
			case 0, 1:
				if !p.isBusy() {
					x.begin(p)
				}
			case 2:
				if p.own > 0 {
					x.end(p)
					keeper.freeIfOver(p)
				}
			case 3:
				keeper.countWait(p, 1)
				waits[p]++
			case 4:
				if waits[p] > 0 {
					keeper.countWait(p, -1)
					waits[p]--
				}
			case 5:
				p.isReleased = true
				p.endLending()
				keeper.freeIfOver(p)
			case 6:
				x.renew(p, r.IntN(10))
			case 7:
				x.change()
			case 8:
				p.calledFunc = true
				x.count(p.root)
			}
			require.Equal(t, recounted(x), x.counted, "seed %d", seed)
			all = slices.DeleteFunc(all, func(p *permit) bool { return x.all[p.stamp] != p })
		}
	}
}
