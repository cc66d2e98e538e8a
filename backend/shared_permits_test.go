package backend

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/backend/internal/fleet"
)

// lease is a source of permits.
func lease(n int) source { return source{isLeased: true, lease: n} }

// Two calls run in a call: one with the lent permit and one with a permit of its own. After
// the end of the lease the call around them is not at the service while one of them waits.
func TestPermits_CallAroundACallThatWaits(t *testing.T) {
	x := newPermits()
	x.change(lease(1))
	around := x.all[x.grant(&seat{}, false)]
	x.begin(around)
	inside := &seat{lent: 1, around: around.stamp}
	lent := x.all[x.grant(inside, true)]
	own := x.all[x.grant(inside, false)]
	require.Equal(t, around, lent.root)
	require.Equal(t, own, own.root)
	require.Equal(t, 2, x.counted)

	x.change(lease(2))
	require.Equal(t, 1, x.counted, "the call around them")
	for _, p := range []*permit{lent, own} {
		x.wait(p, 1)
		require.Zero(t, x.counted, "the call around it waits, too")
		x.wait(p, -1)
		require.Equal(t, 1, x.counted)
	}
	x.wait(own, 1)
	require.True(t, x.renew(own, 1), "the call around it does not use the share")
	require.Equal(t, 1, x.counted)
}

// The permit of a call may be lent to one call at a time, and it is over when all calls
// with it have ended.
func TestPermits_LentToOneCall(t *testing.T) {
	x := newPermits()
	first, second := &seat{lent: 1}, &seat{lent: 1}
	around := x.all[x.grant(&seat{}, false)]
	first.around, second.around = around.stamp, around.stamp
	a, b := x.all[x.grant(first, true)], x.all[x.grant(second, true)]
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
	s := &seat{}
	a, b, c := x.all[x.grant(s, false)], x.all[x.grant(s, false)], x.all[x.grant(s, false)]
	x.begin(a) // and does not end with the lease
	x.change(lease(1))
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

// Without the engine, permits of an earlier time without it are valid again. They count
// then, so that the process never makes more calls than WithoutEngine allows.
func TestPermits_WithoutEngineAgain(t *testing.T) {
	const most = 2 // WithoutEngine
	alone := source{isAlone: true}
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 4))
		x := newPermits()
		limit := 0
		begun := map[*permit]bool{} // calls that began without the engine
		for i := range 300 {
			stamps := slices.Sorted(maps.Keys(x.all))
			switch r.IntN(8) {
			case 0:
				x.change(lease(i))
				limit = r.IntN(7)
			case 1:
				x.change(alone)
				limit = most
			case 2, 3:
				if len(stamps) < limit {
					x.grant(&seat{}, false)
				}
			case 4, 5, 6:
				if len(stamps) == 0 {
					continue
				}
				p := x.all[stamps[r.IntN(len(stamps))]]
				if x.renew(p, limit) && !p.isBusy() {
					x.begin(p)
					begun[p] = x.source == alone
				}
			case 7:
				if len(stamps) == 0 {
					continue
				}
				p := x.all[stamps[r.IntN(len(stamps))]]
				if p.own > 0 {
					x.end(p)
					delete(begun, p)
				} else {
					x.remove(p)
				}
			}
			calls := 0
			for _, p := range x.all {
				mayBegin := x.source == alone && p.source == alone && p.own == 0
				if begun[p] || mayBegin {
					calls++
				}
			}
			require.LessOrEqual(t, calls, most, "seed %d", seed)
		}
	}
}

// recounted counts the running calls anew, from the calls of each permit. waits are the
// waiting calls of permits, which may have been released.
func recounted(x *permits, waits map[*permit]int) int {
	runsInside, waitsInside := map[*permit]bool{}, map[*permit]bool{}
	for _, p := range x.all {
		if p.root != p && p.own > 0 {
			runsInside[p.root] = true
		}
	}
	for p, n := range waits {
		for q := p.around; q != nil && n > 0; q = q.around {
			waitsInside[q] = true
		}
	}
	n := 0
	for _, p := range x.all {
		isCalled := p.own > 0 || p.calledFunc && p.waiting == 0
		if p.root == p && (runsInside[p] || p.source == x.source || isCalled && !waitsInside[p]) {
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
		for i := range 200 {
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
				isLent := s.onLent < s.lent
				if isLent {
					s.onLent++
				} else {
					s.own++
					keeper.backend.used++
				}
				all = append(all, x.all[x.grant(s, isLent)])
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
				x.change(lease(i))
			case 8:
				p.calledFunc = true
				x.count(p.root)
			}
			require.Equal(t, recounted(x, waits), x.counted, "seed %d", seed)
			all = slices.DeleteFunc(all, func(p *permit) bool { return x.all[p.stamp] != p })
		}
	}
}
