package core

import (
	"maps"
	"slices"
	"time"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/timers"
)

// Key order, law K1. The elements of a key that have not ended form a lane, in input
// order. Only the first of a lane may be called; the others are in phase behind. An
// element that times out there keeps its place: its results or its failure take effect
// when it is the first. The queue of a core with key order is unordered, and the elements
// of a key complete in the order of their lane.

// Keys finds the lanes of elements. It hides the type of the keys from the core.
type Keys[IN, OUT any] interface {
	// lane returns the lane of in's key, and makes it if there is none. It calls the key
	// function.
	lane(in IN) (*lane[IN, OUT], error)
	// forget removes a lane that has neither elements nor calls.
	forget(l *lane[IN, OUT])
	// clear removes all lanes.
	clear()
}

// lane has the elements of one key that have not ended. It exists while there are such
// elements, or calls that keep the key.
type lane[IN, OUT any] struct {
	first, last *Slot[IN, OUT]
	len         int
	calls       int // that still run although their attempts have ended
	owner       any // the keyedLane that contains it
}

// laneSeat is the position of an element in its lane.
type laneSeat[IN, OUT any] struct {
	lane       *lane[IN, OUT] // nil once the element has ended
	prev, next *Slot[IN, OUT]
	number     time.Duration // of the element in input order: first attempts start in this order
	call       caller        // of its attempt
}

// caller is a call of one element, or of a batch.
type caller interface {
	// HasReturned reports whether the function of the call has returned.
	HasReturned() bool
}

// outlivingCall is a call that still runs although its attempt has ended.
type outlivingCall[IN, OUT any] struct {
	call caller
	lane *lane[IN, OUT]
}

// keyOrder calls the elements of a key one after the other.
type keyOrder[IN, OUT any] struct {
	core       *Machine[IN, OUT]
	keys       Keys[IN, OUT]
	maxWaiting int // elements of a key besides the one that is called; 0 means no bound

	of        perSlot[laneSeat[IN, OUT]]
	heads     timers.Heap[*Slot[IN, OUT]] // elements in phase fresh, in input order
	headed    time.Duration               // when the first of them became fresh
	numbers   time.Duration               // the number of the newest seat
	crowded   int                         // lanes in which as many elements wait as may
	outliving []outlivingCall[IN, OUT]    // they keep the keys of elements that have continued
}

// keepSpare bounds the unused lanes that are kept.
const keepSpare = 1024

// OrderKeys adds key order. maxWaiting bounds the elements of a key besides the one that
// is called; 0 means no bound. The queue must be unordered.
func OrderKeys[IN, OUT any](g *Machine[IN, OUT], keys Keys[IN, OUT], maxWaiting int) {
	g.keys = &keyOrder[IN, OUT]{core: g, keys: keys, maxWaiting: maxWaiting, of: newPerSlot[laneSeat[IN, OUT]](g)}
}

// forget drops all lanes: the options of the operator keep o.keys.
func (o *keyOrder[IN, OUT]) forget() {
	o.keys.clear()
	*o = keyOrder[IN, OUT]{core: o.core}
}

// isFirst reports whether no element of its key is before s.
func (o *keyOrder[IN, OUT]) isFirst(s *Slot[IN, OUT]) bool { return o.of.get(s.index).prev == nil }

// freshSince returns when the first of the elements in phase fresh got there, or Never.
func (o *keyOrder[IN, OUT]) freshSince() time.Duration {
	if o.heads.Len() == 0 {
		return Never
	}
	return o.headed
}

// started notes the call of an attempt of s.
func (o *keyOrder[IN, OUT]) started(s *Slot[IN, OUT], a *call.Attempt[OUT]) {
	p := o.of.ref(s.index)
	p.call = a
	if b := o.core.batches; b != nil && b.forming != nil {
		p.call = b.forming
	}
}

// join appends s, which was accepted just now, to the lane of its key, and reports
// whether s continues. If the key function breaks, or its key could not be found again, s
// fails (law A6).
func (o *keyOrder[IN, OUT]) join(s *Slot[IN, OUT]) (continues bool) {
	g := o.core
	l, err := o.findLane(s.in)
	if err != nil {
		g.failElement(s, err, false)
		return false
	}
	o.numbers++
	*o.of.ref(s.index) = laneSeat[IN, OUT]{lane: l, prev: l.last, number: o.numbers}
	if l.last == nil {
		l.first = s
	} else {
		o.of.ref(l.last.index).next = s
	}
	l.last = s
	l.len++
	if o.maxWaiting > 0 && l.len == o.maxWaiting+1 {
		o.crowded++
	}
	if o.mayBeCalled(s) {
		o.addHead(s)
	} else {
		g.enter(s, behind)
	}
	return true
}

// findLane calls the key function.
func (o *keyOrder[IN, OUT]) findLane(in IN) (l *lane[IN, OUT], err error) {
	o.core.ranCode = true
	returned := false
	defer func() {
		if !returned {
			err = o.core.broke("the key function", recover())
		}
	}()
	l, err = o.keys.lane(in)
	returned = true
	return l, err
}

// addHead adds s, which is fresh, to the elements that wait for a permit.
func (o *keyOrder[IN, OUT]) addHead(s *Slot[IN, OUT]) {
	if o.heads.Len() == 0 {
		o.headed = o.core.now
	}
	o.heads.Arm(&s.timer, o.of.get(s.index).number)
	o.core.fresh = o.head()
}

// head returns the element that makes its first attempt next, or nil.
func (o *keyOrder[IN, OUT]) head() *Slot[IN, OUT] {
	if t := o.heads.Peek(); t != nil {
		return t.Value
	}
	return nil
}

// leavePhase keeps the elements that wait up to date, when s leaves its phase for p.
func (o *keyOrder[IN, OUT]) leavePhase(s *Slot[IN, OUT], p phase) {
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

// mayBeCalled reports whether s is the first of its lane, and no call keeps its key.
func (o *keyOrder[IN, OUT]) mayBeCalled(s *Slot[IN, OUT]) bool {
	p := o.of.get(s.index)
	return p.lane == nil || p.prev == nil && p.lane.calls == 0
}

// leaveLane removes s, which has ended, from its lane. The elements that ended behind s,
// and are now the first of the lane, complete as well: they have timed out, or were
// restored with their results.
func (o *keyOrder[IN, OUT]) leaveLane(s *Slot[IN, OUT]) {
	g, p := o.core, o.of.get(s.index)
	l := p.lane
	if l == nil {
		return
	}
	o.unlink(s)
	if p.prev != nil { // s was released behind others: p is its seat before unlink
		return
	}
	for l.first != nil && l.first.phase == done {
		g.Queue.Complete(l.first.entry)
		o.unlink(l.first)
	}
	if l.first != nil && l.first.phase == failing {
		g.sink.failing.Push(l.first)
	}
	o.release(l)
}

func (o *keyOrder[IN, OUT]) unlink(s *Slot[IN, OUT]) {
	p := o.of.ref(s.index)
	l := p.lane
	if p.prev == nil {
		l.first = p.next
	} else {
		o.of.ref(p.prev.index).next = p.next
	}
	if p.next == nil {
		l.last = p.prev
	} else {
		o.of.ref(p.next.index).prev = p.prev
	}
	p.lane = nil
	l.len--
	if o.maxWaiting > 0 && l.len == o.maxWaiting {
		o.crowded--
	}
}

// release lets the first of a lane be called, unless a call keeps the key. An empty lane
// is removed.
func (o *keyOrder[IN, OUT]) release(l *lane[IN, OUT]) {
	g, s := o.core, l.first
	switch {
	case l.calls > 0:
	case s == nil:
		o.keys.forget(l)
	case s.phase == behind:
		g.unbegun++
		g.enter(s, fresh)
		o.addHead(s)
	case s.phase == ready && !s.timer.Armed():
		g.retryNow(s)
	}
}

// attemptEnded notes the call of an attempt of s that still runs: it keeps the key until
// it returns.
func (o *keyOrder[IN, OUT]) attemptEnded(s *Slot[IN, OUT], how call.Released) {
	p := o.of.ref(s.index)
	if how.Freed || p.call == nil {
		return
	}
	if !p.call.HasReturned() {
		p.lane.calls++
		o.outliving = append(o.outliving, outlivingCall[IN, OUT]{p.call, p.lane})
	}
	p.call = nil
}

// freeReturned frees the keys of the calls that have returned.
func (o *keyOrder[IN, OUT]) freeReturned() {
	o.outliving = slices.DeleteFunc(o.outliving, func(c outlivingCall[IN, OUT]) bool {
		returned := c.call.HasReturned()
		if returned {
			c.lane.calls--
			o.release(c.lane)
		}
		return returned
	})
}

// ---- Lanes by key

// NewKeys returns lanes by the keys that key returns. unusable returns the error for a
// key that is not equal to itself, such as NaN, or that cannot be compared: its lane
// could not be found again.
func NewKeys[K comparable, IN, OUT any](key func(in IN) K, unusable func(key any) error) Keys[IN, OUT] {
	return &keys[K, IN, OUT]{key: key, unusable: unusable, lanes: make(map[K]*keyedLane[K, IN, OUT])}
}

type keys[K comparable, IN, OUT any] struct {
	key      func(in IN) K
	unusable func(key any) error
	lanes    map[K]*keyedLane[K, IN, OUT]
	most     int // the largest number of lanes since the map was made: a map does not shrink
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

// isUsable reports whether a map finds the key again.
func isUsable[K comparable](k K) (usable bool) {
	defer func() { _ = recover() }() // the panic of an interface whose value cannot be compared
	return equal(k, k)
}

func equal[K comparable](a, b K) bool { return a == b }

func (m *keys[K, IN, OUT]) forget(l *lane[IN, OUT]) {
	k := l.owner.(*keyedLane[K, IN, OUT])
	delete(m.lanes, k.key)
	var zero K
	k.key = zero
	if len(m.spare) < keepSpare {
		m.spare = append(m.spare, k)
	}
	if m.most > keepSpare && len(m.lanes) <= m.most/8 { // frees the memory of a burst, at a constant cost for each lane
		small := make(map[K]*keyedLane[K, IN, OUT], len(m.lanes))
		maps.Copy(small, m.lanes)
		m.lanes, m.most = small, len(small)
	}
}
