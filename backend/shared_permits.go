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
	source  source // of the share
	counted int    // roots whose calls may be at the service, or may begin at any time
	probes  int    // permits of probes
}

// permit allows one call at a time. It is taken from the share, or lent by the permit of
// the call around its operator. A lent permit is valid if its root is.
type permit struct {
	stamp  gate.Stamp
	seat   *seat   // nil for an additional permit of a call
	around *permit // permit of the call around its operator, or nil
	isLent bool    // by around
	root   *permit // the first lender, or the permit itself
	source source  // from which it is valid; of a root

	own        int     // calls that run with it
	inner      int     // calls that run with permits that it has lent, or that these have lent
	waiting    int     // calls with it that wait for the lease
	inside     int     // calls of operators in its call that wait for the lease
	isCounted  bool    // in permits.counted
	calledFunc bool    // a function that makes its calls by itself was called
	lentTo     *permit // the permit that it has lent for a call, or nil
	isReleased bool    // by its operator; its calls may still run
	isProbe    bool    // its call probes the service
}

func newPermits() permits { return permits{all: map[gate.Stamp]*permit{}} }

// grant returns the stamp of a seat's new permit.
func (x *permits) grant(s *seat, isLent bool) gate.Stamp {
	p := &permit{seat: s, source: x.source, around: x.all[s.around], isLent: isLent}
	p.root = p
	if p.lender() != nil {
		p.root = p.around.root
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
func (x *permits) change(from source) {
	x.source = from
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
	isCalled := p.own > 0 || p.calledFunc && p.waiting == 0
	return p.source == x.source || p.inner > 0 || isCalled && p.inside == 0
}

// wait notes that n more calls with p wait for the lease.
func (x *permits) wait(p *permit, n int) {
	p.waiting += n
	x.count(p.root)
	for q := p.around; q != nil; q = q.around {
		q.inside += n
		x.count(q.root)
	}
}

// renew makes p valid if the share has a free permit, and reports whether it is valid.
func (x *permits) renew(p *permit, share int) bool {
	root := p.root
	if root.source == x.source {
		return true
	}
	counted := x.counted
	if !root.isCounted {
		counted++
	}
	if share == 0 || counted > share {
		return false
	}
	root.source = x.source
	x.count(root)
	return true
}

// lender returns the permit that has lent p, or nil.
func (p *permit) lender() *permit {
	if p.isLent {
		return p.around
	}
	return nil
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
	x.addCalls(p, 1)
	p.beginLending()
}

func (x *permits) end(p *permit) {
	x.addCalls(p, -1)
	p.endLending()
}

// addCalls notes that n more calls run with p.
func (x *permits) addCalls(p *permit, n int) {
	p.own += n
	for lender := p.lender(); lender != nil; lender = lender.lender() {
		lender.inner += n
	}
	x.count(p.root)
}

func (p *permit) beginLending() {
	if lender := p.lender(); lender != nil {
		lender.lentTo = p
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
