package core

import (
	"maps"
	"slices"
	"time"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/timers"
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
	// clear lets go of all keys.
	clear()
}

// lane are the elements of one key that have not ended. It exists as long as there are some, or calls that keep the key.
type lane[IN, OUT any] struct {
	first, last *Slot[IN, OUT]
	len         int
	calls       int // that run on although their attempts have ended
	owner       any // the keyedLane that it is part of
}

// standing is the place of an element in its lane.
type standing[IN, OUT any] struct {
	lane       *lane[IN, OUT] // nil once the element has ended
	prev, next *Slot[IN, OUT]
	turn       time.Duration // a number: first attempts that may start do so in this order, which is that of the input
	call       caller        // of its attempt
}

// caller is a call, of one element or of several.
type caller interface{ HasReturned() bool }

// outlived is a call that runs on although its attempt has ended.
type outlived[IN, OUT any] struct {
	call caller
	lane *lane[IN, OUT]
}

// keyOrder lets the elements of a key be called one after the other.
type keyOrder[IN, OUT any] struct {
	core       *Machine[IN, OUT]
	keys       Keys[IN, OUT]
	maxWaiting int // elements of a key beside the one that is called; 0: any number

	of        side[standing[IN, OUT]]
	heads     timers.Heap[*Slot[IN, OUT]] // elements in phase fresh, in input order
	headed    time.Duration               // when the first of them got there
	turns     time.Duration               // the turn of the newest standing
	crowded   int                         // lanes in which as many elements wait as may
	outliving []outlived[IN, OUT]         // calls that keep the keys of elements that have gone on
}

// keepSpare is how many lanes without elements are kept for others.
const keepSpare = 1024

// OrderKeys adds the feature. maxWaiting bounds the elements of a key beside the one that is called; 0: any number. The queue must be
// unordered.
func OrderKeys[IN, OUT any](g *Machine[IN, OUT], keys Keys[IN, OUT], maxWaiting int) {
	o := &keyOrder[IN, OUT]{core: g, keys: keys, maxWaiting: maxWaiting, of: newSide[standing[IN, OUT]](g)}
	g.accepted = append(g.accepted, o.join)
	g.entering = append(g.entering, o.entering)
	g.started = slices.Insert(g.started, 0, func(s *Slot[IN, OUT], a *call.Attempt[OUT]) bool {
		p := o.of.ref(s.place)
		if p.call = a; g.forming != nil {
			p.call = g.forming
		}
		return true
	})
	g.released = append(g.released, o.outlives)
	g.completes = append(g.completes, o.leaveLane)
	g.freed = append(g.freed, o.callsReturned)
	g.forget = append(g.forget, func() {
		o.keys.clear() // the options of the operator keep them
		*o = keyOrder[IN, OUT]{core: g}
	})
	g.isCrowded = func() bool { return o.crowded > 0 }
	g.mayCall = o.mayCall
	g.inTurn = func(s *Slot[IN, OUT]) bool { return o.of.get(s.place).prev == nil } // no element of its key is before it
	g.nextFresh = o.head
	g.freshSince = func() time.Duration {
		if o.heads.Len() > 0 {
			return o.headed
		}
		return Never
	}
}

// join puts s, which was accepted just now, into the lane of its key, and reports whether s goes on. The key function is user
// code: if it breaks, or its key cannot be found again, that is the outcome of s (law A6).
func (o *keyOrder[IN, OUT]) join(s *Slot[IN, OUT]) bool {
	g := o.core
	g.calling(s, g.resumes.fail)
	l, err := o.keys.lane(s.in)
	g.user.after = nil
	if err != nil {
		g.fails(s, err, false)
		return false
	}
	o.turns++
	*o.of.ref(s.place) = standing[IN, OUT]{lane: l, prev: l.last, turn: o.turns}
	if l.last == nil {
		l.first = s
	} else {
		o.of.ref(l.last.place).next = s
	}
	l.last = s
	if l.len++; l.len == o.maxWaiting+1 && o.maxWaiting > 0 {
		o.crowded++
	}
	if o.mayCall(s) {
		o.armHead(s)
	} else {
		g.enter(s, behind)
	}
	return true
}

// armHead lets s, which is fresh, compete for a permit.
func (o *keyOrder[IN, OUT]) armHead(s *Slot[IN, OUT]) {
	if o.heads.Len() == 0 {
		o.headed = o.core.now
	}
	o.heads.Arm(&s.timer, o.of.get(s.place).turn)
	o.core.fresh = o.head()
}

// head returns the element that makes its first attempt next, or nil.
func (o *keyOrder[IN, OUT]) head() *Slot[IN, OUT] {
	if t := o.heads.Peek(); t != nil {
		return t.Value
	}
	return nil
}

// entering does what a change of the phase means for what waits.
func (o *keyOrder[IN, OUT]) entering(s *Slot[IN, OUT], p phase) {
	switch s.phase {
	case fresh:
		o.heads.Cancel(&s.timer)
	case behind:
		o.core.state.Stats.WaitingForKey--
	default:
	}
	if p == behind {
		o.core.state.Stats.WaitingForKey++
	}
}

// mayCall reports whether s is the first of its lane, and no call keeps its key.
func (o *keyOrder[IN, OUT]) mayCall(s *Slot[IN, OUT]) bool {
	p := o.of.get(s.place)
	return p.lane == nil || p.prev == nil && p.lane.calls == 0
}

// leaveLane takes s, which has ended, out of its lane. The next one is the first then.
func (o *keyOrder[IN, OUT]) leaveLane(s *Slot[IN, OUT]) {
	g, p := o.core, o.of.get(s.place)
	l := p.lane
	if l == nil {
		return
	}
	o.unlink(s)
	if p.prev != nil { // it ended behind others: one that was given back
		return
	}
	for l.first != nil && l.first.phase == done { // its timeout handler had results, or a checkpoint
		g.Queue.Complete(l.first.entry)
		o.unlink(l.first)
	}
	if l.first != nil && l.first.phase == failing {
		g.on[failing].inTurn(l.first)
	}
	o.release(l)
}

func (o *keyOrder[IN, OUT]) unlink(s *Slot[IN, OUT]) {
	p := o.of.ref(s.place)
	l := p.lane
	if p.prev == nil {
		l.first = p.next
	} else {
		o.of.ref(p.prev.place).next = p.next
	}
	if p.next == nil {
		l.last = p.prev
	} else {
		o.of.ref(p.next.place).prev = p.prev
	}
	p.lane = nil
	if l.len--; l.len == o.maxWaiting && o.maxWaiting > 0 {
		o.crowded--
	}
}

// release lets the first of a lane be called, if it waits for that, unless a call keeps the key. Without elements the lane ends.
func (o *keyOrder[IN, OUT]) release(l *lane[IN, OUT]) {
	g, s := o.core, l.first
	switch {
	case l.calls > 0:
	case s == nil:
		o.keys.forget(l)
	case s.phase == behind:
		g.unbegun++
		g.enter(s, fresh)
		o.armHead(s)
	case s.phase == ready && !s.timer.Armed():
		g.retryNow(s)
	}
}

// outlives notes that the call of an attempt of s runs on although the attempt has ended: it keeps the key until it returns.
func (o *keyOrder[IN, OUT]) outlives(s *Slot[IN, OUT], _ *call.Attempt[OUT], how call.Released) {
	p := o.of.ref(s.place)
	if how.Freed || p.call == nil {
		return
	}
	if !p.call.HasReturned() {
		p.lane.calls++
		o.outliving = append(o.outliving, outlived[IN, OUT]{p.call, p.lane})
	}
	p.call = nil
}

// callsReturned looks which of these calls have returned.
func (o *keyOrder[IN, OUT]) callsReturned() {
	o.outliving = slices.DeleteFunc(o.outliving, func(c outlived[IN, OUT]) bool {
		returned := c.call.HasReturned()
		if returned {
			c.lane.calls--
			o.release(c.lane)
		}
		return returned
	})
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

func (m *keys[K, IN, OUT]) clear() { m.lanes, m.spare = nil, nil }

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
	if k.key = none; len(m.spare) < keepSpare {
		m.spare = append(m.spare, k)
	}
	if m.most > keepSpare && len(m.lanes) <= m.most/8 { // what a burst took is given back, at a constant cost a lane
		small := make(map[K]*keyedLane[K, IN, OUT], len(m.lanes))
		maps.Copy(small, m.lanes)
		m.lanes, m.most = small, len(small)
	}
}
