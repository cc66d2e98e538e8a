package core

import (
	"maps"
	"slices"
	"time"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/timers"
)

// Key order (law K1). The elements of a key that have not ended form a line, in input
// order. Only the first may be called. The others are in phase behind. If one times out
// there, its results, or its offer to the failure sink, wait until it is the first.
// Without a failure sink, it is dropped or fails the run at once. The queue is unordered:
// elements of a key complete in their line's order.

// Keys finds the lines of elements. It hides the key type from the core.
type Keys[IN, OUT any] interface {
	// line calls the key function and returns the line of the key.
	line(in IN) (*line[IN, OUT], error)
	// forget removes a line without elements and calls.
	forget(l *line[IN, OUT])
	clear()
}

// line has the elements of one key that have not ended. It exists while there are any, or
// calls that hold the key.
type line[IN, OUT any] struct {
	first, last *Slot[IN, OUT]
	len         int
	calls       int // running calls whose attempts have ended
	owner       any // its keyedLine
}

type linePosition[IN, OUT any] struct {
	line       *line[IN, OUT] // nil once the element has ended
	prev, next *Slot[IN, OUT]
	number     time.Duration // position in the input; a Duration, because freshInOrder orders by durations
	call       caller        // of its attempt
}

type caller interface {
	// HasReturned reports whether the function of the call has returned.
	HasReturned() bool
}

// outlivingCall is a running call whose attempt has ended. It holds the key of its line.
type outlivingCall[IN, OUT any] struct {
	call caller
	line *line[IN, OUT]
}

type keyOrder[IN, OUT any] struct {
	core *Machine[IN, OUT]

	positions     perSlot[linePosition[IN, OUT]]
	freshInOrder  timers.Heap[*Slot[IN, OUT]] // elements in phase fresh, by number
	nonEmptySince time.Duration               // of freshInOrder
	lastNumber    time.Duration               // of the newest linePosition
	crowdedLines  int                         // lines that have reached MaxWaitingPerKey
	outliving     []outlivingCall[IN, OUT]
}

const keepSpare = 1024

// forget drops all lines, because the operator's options still refer to Config.Keys.
func (o *keyOrder[IN, OUT]) forget() {
	o.core.Keys.clear()
	*o = keyOrder[IN, OUT]{core: o.core}
}

func (o *keyOrder[IN, OUT]) isFirst(s *Slot[IN, OUT]) bool {
	return o.positions.get(s.index).prev == nil
}

// freshSince returns since when there are elements in phase fresh, or Never.
func (o *keyOrder[IN, OUT]) freshSince() time.Duration {
	if o.freshInOrder.Len() == 0 {
		return Never
	}
	return o.nonEmptySince
}

func (o *keyOrder[IN, OUT]) started(s *Slot[IN, OUT], a *call.Attempt[OUT]) {
	p := o.positions.ref(s.index)
	p.call = a
	if o.core.forming != nil {
		p.call = o.core.forming
	}
	if o.core.lookups != nil && o.core.lookups.reservation != nil {
		p.call = nil // it makes no call
	}
}

// join appends s, the newest element, to the line of its key, and reports whether s
// continues. s fails if the key function panics or the key is unusable (law A6).
func (o *keyOrder[IN, OUT]) join(s *Slot[IN, OUT]) (continues bool) {
	g := o.core
	l, err := o.findLine(s.in)
	if err != nil {
		g.failElement(s, err, false)
		return false
	}
	o.lastNumber++
	*o.positions.ref(s.index) = linePosition[IN, OUT]{line: l, prev: l.last, number: o.lastNumber}
	if l.last == nil {
		l.first = s
	} else {
		o.positions.ref(l.last.index).next = s
	}
	l.last = s
	l.len++
	if o.core.MaxWaitingPerKey > 0 && l.len == o.core.MaxWaitingPerKey+1 {
		o.crowdedLines++
	}
	if o.mayBeCalled(s) {
		o.addFresh(s)
	} else {
		g.enter(s, behind)
	}
	return true
}

func (o *keyOrder[IN, OUT]) findLine(in IN) (l *line[IN, OUT], err error) {
	o.core.ranCode = true
	returned := false
	defer func() {
		if !returned {
			err = o.core.noteBroken("the key function", recover())
		}
	}()
	l, err = o.core.Keys.line(in)
	returned = true
	return l, err
}

func (o *keyOrder[IN, OUT]) addFresh(s *Slot[IN, OUT]) {
	if o.freshInOrder.Len() == 0 {
		o.nonEmptySince = o.core.now
	}
	o.freshInOrder.Arm(&s.timer, o.positions.get(s.index).number)
	o.core.fresh = o.oldestFresh()
}

func (o *keyOrder[IN, OUT]) oldestFresh() *Slot[IN, OUT] {
	if t := o.freshInOrder.Peek(); t != nil {
		return t.Value
	}
	return nil
}

// leavePhase updates freshInOrder, Machine.fresh and statistics when s enters p.
func (o *keyOrder[IN, OUT]) leavePhase(s *Slot[IN, OUT], p phase) {
	switch s.phase {
	case fresh:
		o.freshInOrder.Cancel(&s.timer)
		o.core.fresh = o.oldestFresh()
	case behind:
		o.core.state.Stats.WaitingForKey--
	default:
	}
	if p == behind {
		o.core.state.Stats.WaitingForKey++
	}
}

// mayBeCalled reports whether s is the first of its line, and no call holds its key.
func (o *keyOrder[IN, OUT]) mayBeCalled(s *Slot[IN, OUT]) bool {
	p := o.positions.get(s.index)
	return p.prev == nil && p.line.calls == 0
}

// leaveLine removes s, which has ended, from its line. The next elements complete as well
// if they already have their results.
func (o *keyOrder[IN, OUT]) leaveLine(s *Slot[IN, OUT]) {
	g, p := o.core, o.positions.get(s.index)
	l := p.line
	if l == nil {
		return
	}
	o.unlink(s)
	wasFirst := p.prev == nil // p is from before unlink
	if !wasFirst {
		return // s ended behind others
	}
	for l.first != nil && l.first.phase == done {
		g.Queue.Complete(l.first.entry)
		o.unlink(l.first)
	}
	if l.first != nil && l.first.phase == failing {
		g.sink.toOffer.Push(l.first)
	}
	o.release(l)
}

func (o *keyOrder[IN, OUT]) unlink(s *Slot[IN, OUT]) {
	p := o.positions.ref(s.index)
	l := p.line
	if p.prev == nil {
		l.first = p.next
	} else {
		o.positions.ref(p.prev.index).next = p.next
	}
	if p.next == nil {
		l.last = p.prev
	} else {
		o.positions.ref(p.next.index).prev = p.prev
	}
	p.line = nil
	l.len--
	if o.core.MaxWaitingPerKey > 0 && l.len == o.core.MaxWaitingPerKey {
		o.crowdedLines--
	}
}

// release lets the first of a line be called, unless a call holds the key. It forgets an
// empty line.
func (o *keyOrder[IN, OUT]) release(l *line[IN, OUT]) {
	g, s := o.core, l.first
	switch {
	case l.calls > 0:
	case s == nil:
		o.core.Keys.forget(l)
	case s.phase == behind:
		g.numFresh++
		g.enter(s, fresh)
		o.addFresh(s)
	case s.phase == ready && !s.timer.Armed():
		g.retryNow(s)
	}
}

// attemptEnded records the call of an attempt of s if it is still running. It holds the
// key until it returns.
func (o *keyOrder[IN, OUT]) attemptEnded(s *Slot[IN, OUT], how call.Released) {
	p := o.positions.ref(s.index)
	if how.OperatorPermit || p.call == nil {
		return
	}
	if !p.call.HasReturned() {
		p.line.calls++
		o.outliving = append(o.outliving, outlivingCall[IN, OUT]{p.call, p.line})
	}
	p.call = nil
}

func (o *keyOrder[IN, OUT]) freeReturned() {
	o.outliving = slices.DeleteFunc(o.outliving, func(c outlivingCall[IN, OUT]) bool {
		returned := c.call.HasReturned()
		if returned {
			c.line.calls--
			o.release(c.line)
		}
		return returned
	})
}

// NewKeys returns lines by the results of key. unusable returns the error for a key that
// a map cannot find, such as NaN or a slice in an interface.
func NewKeys[K comparable, IN, OUT any](key func(in IN) K, unusable func(key any) error) Keys[IN, OUT] {
	return &keys[K, IN, OUT]{key: key, unusable: unusable, lines: make(map[K]*keyedLine[K, IN, OUT])}
}

type keys[K comparable, IN, OUT any] struct {
	key      func(in IN) K
	unusable func(key any) error
	lines    map[K]*keyedLine[K, IN, OUT]
	most     int // largest len(lines) of this map, because a map does not shrink
	spare    []*keyedLine[K, IN, OUT]
}

type keyedLine[K comparable, IN, OUT any] struct {
	line[IN, OUT]
	key K
}

func (m *keys[K, IN, OUT]) clear() { m.lines, m.spare = nil, nil }

func (m *keys[K, IN, OUT]) line(in IN) (*line[IN, OUT], error) {
	k := m.key(in)
	if !isUsable(k) {
		return nil, m.unusable(k)
	}
	l := m.lines[k]
	if l == nil {
		if n := len(m.spare); n > 0 {
			l, m.spare = m.spare[n-1], m.spare[:n-1]
		} else {
			l = new(keyedLine[K, IN, OUT])
			l.owner = l
		}
		l.key, m.lines[k] = k, l
		m.most = max(m.most, len(m.lines))
	}
	return &l.line, nil
}

func isUsable[K comparable](k K) (usable bool) {
	defer func() { _ = recover() }() // the key in an interface may not be comparable
	return equal(k, k)
}

func equal[K comparable](a, b K) bool { return a == b }

func (m *keys[K, IN, OUT]) forget(l *line[IN, OUT]) {
	k := l.owner.(*keyedLine[K, IN, OUT])
	delete(m.lines, k.key)
	var zero K
	k.key = zero
	if len(m.spare) < keepSpare {
		m.spare = append(m.spare, k)
	}
	if m.most > keepSpare && len(m.lines) <= m.most/8 { // frees memory after a burst, at constant cost per line
		small := make(map[K]*keyedLine[K, IN, OUT], len(m.lines))
		maps.Copy(small, m.lines)
		m.lines, m.most = small, len(small)
	}
}
