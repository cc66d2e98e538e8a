package backend

import (
	"github.com/weirflow/weir/internal/gate"
)

// permits are the permits that operators hold at a shared backend. A permit is valid as
// long as its source: a lease, or the calls without an engine. Afterwards a call with it
// waits until it is valid again (law B5). Guarded by Backend.mu.
type permits struct {
	all     map[gate.Stamp]*permit
	last    gate.Stamp
	source  int // grows when the share's source changes
	counted int // permits whose calls may be at the service, or may begin at any time
	probes  int // permits of probes
}

// permit allows one call at a time. It is taken from the share, or lent by the permit of
// the call around its operator. Calls are counted at the root.
type permit struct {
	stamp  gate.Stamp
	seat   *seat   // nil for an additional permit of a call
	root   *permit // the outermost one, or the permit itself
	around *permit // that has lent it, or nil
	isLent bool
	source int // from which it is valid; of a root

	own         int     // calls that run with it
	inner       int     // calls with permits that it has lent
	waiting     int     // calls with it or permits lent by it that wait for the lease; of a root
	waitingLent int     // of these, with permits lent by it; of a root
	lentCalls   int     // running calls with permits lent by it; of a root
	isCounted   bool    // a call may be at the service, or may begin at any time; of a root
	calledFunc  bool    // a function that makes its calls by itself was called
	lentTo      *permit // the permit that it has lent for a call, or nil
	isReleased  bool    // by its operator; its calls may still run
	isProbe     bool    // its call probes the service
}

func newPermits() permits { return permits{all: map[gate.Stamp]*permit{}} }

// grant returns the stamp of a seat's new permit. The seat has already counted the call.
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

// noteProbe notes that a stamp's call probes the service, until its release.
func (x *permits) noteProbe(stamp gate.Stamp) {
	x.all[stamp].isProbe = true
	x.probes++
}

// change notes another source of the share, which invalidates all permits.
func (x *permits) change() {
	x.source++
	for _, p := range x.all {
		x.count(p)
	}
}

// find returns a stamp's permit. A call whose permit was released needs an additional
// one, so its permit is not counted.
func (x *permits) find(stamp gate.Stamp) *permit {
	p, ok := x.all[stamp]
	if !ok {
		p = &permit{isLent: true, isReleased: true}
		p.root = p
	}
	return p
}

// count updates whether p is counted, after each change of a root.
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
// time. A call that waits for the lease is not at the service, nor is a call around it.
func (x *permits) mayRun(p *permit) bool {
	return p.lentCalls > 0 || p.source == x.source || p.own > 0 && p.waitingLent == 0 || p.calledFunc && p.waiting == 0
}

func (x *permits) wait(p *permit, n int) {
	p.root.waiting += n
	if p.isLent {
		p.root.waitingLent += n
	}
	x.count(p.root)
}

// renew makes p valid if the share has a free permit, and reports whether it is valid.
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

// isBusy reports whether the permit has a call, so that another one needs its own permit.
// A permit lends itself to one call at a time.
func (p *permit) isBusy() bool {
	if !p.isLent {
		return p.own > 0 || p.isReleased
	}
	around := p.around
	return p.own > 0 || around == nil || around.isReleased || around.lentTo != nil && around.lentTo != p
}

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

// endLending notes that the permit around p may be lent again, unless p still makes a
// call.
func (p *permit) endLending() {
	isDone := p.own == 0 && (!p.calledFunc || p.isReleased)
	if p.around != nil && p.around.lentTo == p && isDone {
		p.around.lentTo = nil
	}
}

func (p *permit) isOver() bool { return p.isReleased && p.own == 0 && p.inner == 0 }

// passOn passes a released lent permit to another call of the seat, which counts its
// other calls.
func (x *permits) passOn(released *permit) {
	for _, p := range x.all {
		if p.seat == released.seat && !p.isLent {
			x.lend(released.around, p)
			return
		}
	}
}

// lend turns the root p into a permit lent by around, which is nil if that was released.
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
