package backend

import (
	"github.com/weirflow/weir/internal/gate"
)

// permits are the permits of a shared backend that operators hold. A permit is valid as
// long as the source of the share that it was taken from: a lease, or the calls without
// an engine. Afterwards a call with it waits until it is valid again (law B5). Guarded by
// Backend.mu.
type permits struct {
	all     map[gate.Stamp]*permit
	last    gate.Stamp
	source  int // grows when the source of the share changes
	counted int // permits whose calls may be at the service, or may begin at any time
	probes  int // permits of probes
}

// permit allows one call at a time. It is taken from the share, or lent by the permit of
// the call in which its operator runs. Calls are counted at the root.
type permit struct {
	stamp  gate.Stamp
	seat   *seat   // nil for an additional permit of a call
	root   *permit // the outermost one, or the permit itself
	around *permit // that has lent it, or nil
	isLent bool
	source int // from which it is valid; of a root

	own         int     // calls that have begun with it and not ended
	inner       int     // calls with permits that it has lent
	waiting     int     // calls with it, and with permits lent by it, that wait for the lease; of a root
	waitingLent int     // of these, calls with permits lent by it; of a root
	lentCalls   int     // calls that have begun with permits lent by it and not ended; of a root
	isCounted   bool    // a call may be at the service, or may begin at any time; of a root
	calledFunc  bool    // a function that makes its calls by itself was called
	lentTo      *permit // the permit that it has lent and that makes a call, or nil
	isReleased  bool    // by its operator; calls with it may not have ended
	isProbe     bool    // its call probes the service
}

func newPermits() permits { return permits{all: map[gate.Stamp]*permit{}} }

// grant returns the stamp of a new permit of a seat, which has counted its call already.
func (x *permits) grant(s *seat) gate.Stamp {
	p := &permit{seat: s, source: x.source, isLent: s.calls <= s.lent}
	p.root = p
	if p.isLent {
		around, ok := x.all[s.around]
		if ok {
			p.around, p.root = around, around.root
		}
	}
	x.add(p)
	return p.stamp
}

func (x *permits) add(p *permit) {
	for x.last++; x.last == 0 || x.all[x.last] != nil; x.last++ {
	}
	p.stamp = x.last
	x.all[p.stamp] = p
	x.count(p)
}

func (x *permits) remove(p *permit) {
	delete(x.all, p.stamp)
	if p.isProbe {
		x.probes--
	}
	x.count(p)
}

// noteProbe notes that the call of a stamp probes the service, until its permit is
// released.
func (x *permits) noteProbe(stamp gate.Stamp) {
	x.all[stamp].isProbe = true
	x.probes++
}

// change notes that the share has another source. All earlier permits become invalid.
func (x *permits) change() {
	x.source++
	for _, p := range x.all {
		x.count(p)
	}
}

// find returns the permit of a stamp. A call whose permit was released already has a
// permit that is not counted, and needs an additional one.
func (x *permits) find(stamp gate.Stamp) *permit {
	p, ok := x.all[stamp]
	if !ok {
		p = &permit{isLent: true, isReleased: true}
		p.root = p
	}
	return p
}

// count updates whether p is counted. It is called after each change of a root.
func (x *permits) count(p *permit) {
	counts := x.all[p.stamp] == p && p.root == p && x.mayRun(p)
	switch {
	case counts && !p.isCounted:
		x.counted++
	case !counts && p.isCounted:
		x.counted--
	}
	p.isCounted = counts
}

// mayRun reports whether a call of a root may be at the service, or may begin at any
// time. A call that waits for the lease is not at the service, and neither is a call
// around it.
func (x *permits) mayRun(p *permit) bool {
	return p.lentCalls > 0 || p.source == x.source || p.own > 0 && p.waitingLent == 0 || p.calledFunc && p.waiting == 0
}

// wait counts n more calls with p that wait for the lease.
func (x *permits) wait(p *permit, n int) {
	p.root.waiting += n
	if p.isLent {
		p.root.waitingLent += n
	}
	x.count(p.root)
}

// renew makes p valid again if it is from an earlier source and the share has a free
// permit. It reports whether p is valid, so that a call with it may begin.
func (x *permits) renew(p *permit, share int) bool {
	root := p.root
	if share == 0 && root.source != x.source {
		return false
	}
	if root.source == x.source {
		return true
	}
	more := 1
	if root.isCounted {
		more = 0
	}
	if x.counted+more > share {
		return false
	}
	root.source = x.source
	x.count(root)
	return true
}

// isBusy reports whether the permit has a call already, so that another one needs a
// permit of its own. A permit lends itself to one call at a time.
func (p *permit) isBusy() bool {
	if !p.isLent {
		return p.own > 0 || p.isReleased
	}
	around := p.around
	return p.own > 0 || around == nil || around.isReleased || around.lentTo != nil && around.lentTo != p
}

// begin counts a call with p.
func (x *permits) begin(p *permit) {
	p.own++
	if p.root != p {
		p.root.lentCalls++
	}
	x.count(p.root)
	if p.around != nil {
		p.around.inner++
		p.around.lentTo = p
	}
}

// end counts the end of a call with p.
func (x *permits) end(p *permit) {
	p.own--
	if p.root != p {
		p.root.lentCalls--
	}
	x.count(p.root)
	if p.around != nil {
		p.around.inner--
		p.endLending()
	}
}

// endLending notes that the permit around p may be lent to another call, unless p still
// makes one.
func (p *permit) endLending() {
	isDone := p.own == 0 && (!p.calledFunc || p.isReleased)
	if p.around != nil && p.around.lentTo == p && isDone {
		p.around.lentTo = nil
	}
}

// isOver reports whether p was released, and all calls with it have ended.
func (p *permit) isOver() bool { return p.isReleased && p.own == 0 && p.inner == 0 }

// passOn passes a lent permit, which its operator has released, to another call of the
// seat, because a seat counts its other calls.
func (x *permits) passOn(released *permit) {
	for _, p := range x.all {
		if p.seat == released.seat && !p.isLent {
			x.lend(released.around, p)
			return
		}
	}
}

// lend turns p, which was a root, into a permit lent by around. around is nil if the
// lending permit was released.
func (x *permits) lend(around, p *permit) {
	p.isLent, p.around = true, around
	if around == nil {
		p.waitingLent = p.waiting
		x.count(p)
		return
	}
	root := around.root
	for _, q := range x.all {
		if q.root == p {
			q.root = root
		}
	}
	root.waiting += p.waiting
	root.waitingLent += p.waiting // calls with p wait with a lent permit now
	root.lentCalls += p.lentCalls + p.own
	p.waiting = 0
	p.waitingLent = 0
	p.lentCalls = 0
	x.count(p)
	x.count(root)
	around.inner += p.own
	if p.own > 0 || p.calledFunc {
		around.lentTo = p
	}
}
