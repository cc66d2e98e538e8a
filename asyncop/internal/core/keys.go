package core

import (
	"maps"
	"time"

	"github.com/weirflow/weir/asyncop/internal/call"
)

// Key order, law K1. The elements of a key that have not ended are a lane, in input order. Only the first of a lane may be called;
// the others are in phase behind. One that times out there keeps its place: its results, or its failure, take effect when it is
// the first. The queue of a key-ordered core is unordered, and elements of a key complete in it in the order of their lane.

// Keys finds the lanes of elements. Its type parameters are not those of the keys, so that the core has none for them.
type Keys[IN, OUT any] interface {
	// lane returns the lane of in's key; a new one if there is none. It calls the key function.
	lane(in IN) (*lane[IN, OUT], error)
	// forget ends a lane that has neither elements nor calls.
	forget(l *lane[IN, OUT])
}

// lane are the elements of one key that have not ended. It exists as long as there are some, or calls that keep the key.
type lane[IN, OUT any] struct {
	first, last *Slot[IN, OUT]
	len         int
	calls       int // that run on although their attempts have ended
	owner       any // the keyedLane that it is part of
}

// place is where an element stands in its lane, and the extra of its slot, so that both are one allocation.
type place[IN, OUT any] struct {
	extra      extraAndRare[IN, OUT]
	lane       *lane[IN, OUT] // nil once the element has ended
	prev, next *Slot[IN, OUT]
	turn       time.Duration        // a number: first attempts that may start do so in this order, which is that of the input
	batch      *call.Batch[IN, OUT] // that its attempt is a member of, or nil
}

// outlived is a call that runs on although its attempt has ended.
type outlived[IN, OUT any] struct {
	call interface{ HasReturned() bool }
	lane *lane[IN, OUT]
}

// place returns that of an element of a key-ordered core, or nil.
func (s *Slot[IN, OUT]) standing() *place[IN, OUT] {
	if s.extra == nil || s.extra.rare == nil {
		return nil
	}
	return s.extra.rare.inLane
}

// keepPlaces is how many places and lanes of elements that have left are kept for others.
const keepPlaces = 1024

// join puts s, which was accepted just now, into the lane of its key, and reports whether s goes on. The key function is user
// code: if it breaks, or its key cannot be found again, that is the outcome of s (law A6).
func (g *Machine[IN, OUT]) join(s *Slot[IN, OUT]) bool {
	if g.Keys == nil {
		return true
	}
	g.calling(callKey, s)
	l, err := g.Keys.lane(s.in)
	g.called()
	if err != nil {
		g.fail(s, err)
		return false
	}
	g.link(s, l)
	return true
}

func (g *Machine[IN, OUT]) link(s *Slot[IN, OUT], l *lane[IN, OUT]) {
	p := g.newPlace()
	if r := s.rare(); r != nil { // what else an extra has comes with its attempts
		p.extra.also = *r
		g.keepExtra(s)
	}
	s.extra, p.extra.rare, p.extra.also.inLane = &p.extra.extra, &p.extra.also, p
	g.turns++
	p.lane, p.prev, p.turn = l, l.last, g.turns
	if l.last == nil {
		l.first = s
	} else {
		l.last.standing().next = s
	}
	l.last = s
	if l.len++; l.len == g.MaxWaiting+1 && g.MaxWaiting > 0 {
		g.crowded++
	}
	if g.mayCall(s) {
		g.armHead(s)
	} else {
		g.enter(s, behind)
	}
}

// armHead lets s, which is fresh, compete for a permit.
func (g *Machine[IN, OUT]) armHead(s *Slot[IN, OUT]) {
	if g.heads.Len() == 0 {
		g.headed = g.now
	}
	g.heads.Arm(&s.timer, s.standing().turn)
}

// enterKeyed does what a change of the phase means for what waits.
func (g *Machine[IN, OUT]) enterKeyed(s *Slot[IN, OUT], p phase) {
	switch {
	case s.phase == fresh && p != preparing && p != running: // start has done it then, and armed the timer anew
		g.heads.Cancel(&s.timer)
	case s.phase == behind:
		g.counts.WaitingForKey--
	}
	if p == behind {
		g.counts.WaitingForKey++
	}
}

// mayCall reports whether s is the first of its lane, and no call keeps its key; without key order that is always so.
func (g *Machine[IN, OUT]) mayCall(s *Slot[IN, OUT]) bool {
	p := s.standing()
	return p == nil || p.prev == nil && p.lane.calls == 0
}

// inTurn reports whether no element of its key is before s: then its outcome takes effect.
func (g *Machine[IN, OUT]) inTurn(s *Slot[IN, OUT]) bool {
	p := s.standing()
	return p == nil || p.prev == nil
}

// leaveLane takes s, which has ended, out of its lane. The next one is the first then.
func (g *Machine[IN, OUT]) leaveLane(s *Slot[IN, OUT]) {
	if g.Keys == nil {
		return
	}
	p := s.standing()
	if p == nil || p.lane == nil {
		return
	}
	l := p.lane
	g.unlink(p)
	for l.first != nil && l.first.phase == done { // its timeout handler had results, or a checkpoint
		g.Queue.Complete(l.first.entry)
		g.unlink(l.first.standing())
	}
	if l.first != nil && l.first.phase == failing {
		g.failing.Push(l.first)
	}
	g.release(l)
}

func (g *Machine[IN, OUT]) unlink(p *place[IN, OUT]) {
	l := p.lane
	if p.prev == nil {
		l.first = p.next
	} else {
		p.prev.standing().next = p.next
	}
	if p.next == nil {
		l.last = p.prev
	} else {
		p.next.standing().prev = p.prev
	}
	p.lane = nil
	if l.len--; l.len == g.MaxWaiting && g.MaxWaiting > 0 {
		g.crowded--
	}
}

// release lets the first of a lane be called, if it waits for that, unless a call keeps the key. Without elements the lane ends.
func (g *Machine[IN, OUT]) release(l *lane[IN, OUT]) {
	s := l.first
	switch {
	case l.calls > 0:
	case s == nil:
		g.Keys.forget(l)
	case s.phase == behind:
		g.unbegun++
		g.enter(s, fresh)
		g.armHead(s)
	case s.phase == ready && !s.timer.Armed():
		g.armReady(s)
	}
}

// outlives notes that the call of an attempt of s runs on although the attempt has ended: it keeps the key until it returns.
func (g *Machine[IN, OUT]) outlives(s *Slot[IN, OUT], a *call.Attempt[OUT]) {
	p := s.standing()
	if p == nil {
		return
	}
	o := outlived[IN, OUT]{a, p.lane}
	if p.batch != nil {
		o.call, p.batch = p.batch, nil
	}
	if !o.call.HasReturned() {
		p.lane.calls++
		g.outliving = append(g.outliving, o)
	}
}

// callsReturned looks which of these calls have returned.
func (g *Machine[IN, OUT]) callsReturned() {
	left := g.outliving[:0]
	for _, o := range g.outliving {
		if !o.call.HasReturned() {
			left = append(left, o)
			continue
		}
		o.lane.calls--
		g.release(o.lane)
	}
	clear(g.outliving[len(left):])
	g.outliving = left
}

func (g *Machine[IN, OUT]) newPlace() *place[IN, OUT] {
	if n := len(g.places); n > 0 {
		p := g.places[n-1]
		g.places = g.places[:n-1]
		return p
	}
	return new(place[IN, OUT])
}

// keepPlace keeps the place of an element that leaves for others.
func (g *Machine[IN, OUT]) keepPlace(s *Slot[IN, OUT]) {
	if p := s.standing(); p != nil && len(g.places) < keepPlaces {
		*p = place[IN, OUT]{}
		g.places = append(g.places, p)
	}
}

// ---- Lanes by key

// NewKeys returns lanes by what key returns. unusable makes an error of a key that is not equal to itself, such as NaN, or that
// cannot be compared: its lane could not be found again.
func NewKeys[K comparable, IN, OUT any](key func(in IN) K, unusable func(key any) error) Keys[IN, OUT] {
	return &keys[K, IN, OUT]{key: key, unusable: unusable, lanes: make(map[K]*keyedLane[K, IN, OUT])}
}

type keys[K comparable, IN, OUT any] struct {
	key      func(in IN) K
	unusable func(key any) error
	lanes    map[K]*keyedLane[K, IN, OUT]
	most     int // lanes since the map was made: a map does not shrink by itself
	spare    []*keyedLane[K, IN, OUT]
}

type keyedLane[K comparable, IN, OUT any] struct {
	lane[IN, OUT]
	key K
}

func (m *keys[K, IN, OUT]) lane(in IN) (*lane[IN, OUT], error) {
	k := m.key(in)
	if !isUsable(k) {
		return nil, m.unusable(k)
	}
	l := m.lanes[k]
	if l == nil {
		if n := len(m.spare); n > 0 {
			l, m.spare = m.spare[n-1], m.spare[:n-1]
		} else {
			l = new(keyedLane[K, IN, OUT])
			l.owner = l
		}
		l.key, m.lanes[k] = k, l
		m.most = max(m.most, len(m.lanes))
	}
	return &l.lane, nil
}

// isUsable reports whether a key is found again.
func isUsable[K comparable](k K) (usable bool) {
	defer func() { _ = recover() }() // of an interface that holds what cannot be compared
	return equal(k, k)
}

func equal[K comparable](a, b K) bool { return a == b }

func (m *keys[K, IN, OUT]) forget(l *lane[IN, OUT]) {
	k := l.owner.(*keyedLane[K, IN, OUT])
	delete(m.lanes, k.key)
	var none K
	if k.key = none; len(m.spare) < keepPlaces {
		m.spare = append(m.spare, k)
	}
	if m.most > keepPlaces && len(m.lanes) <= m.most/8 { // what a burst took is given back, at a constant cost a lane
		small := make(map[K]*keyedLane[K, IN, OUT], len(m.lanes))
		maps.Copy(small, m.lanes)
		m.lanes, m.most = small, len(small)
	}
}
