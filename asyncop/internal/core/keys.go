package core

import (
	"maps"
	"slices"
	"time"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/timers"
)

// Key order (law K1). For example, A1, A2 and B1 have the keys A and B. A1 and B1 are
// called. A2 waits in phase behind until A1 has ended and its call has returned. (A
// restored A2 may wait for the rest of its back-off meanwhile: see continueRestored.)
//
// The elements of a key that have not ended form a line, in input order. Only the first
// may be called. If another one times out, it waits until it is the first: with its
// results, or for its offer to the failure sink. Without a failure sink, it is dropped or
// fails the run at once.
//
// The queue is unordered. Elements of a key complete in the order of their line.

// Keys finds the lines of elements. It hides the key type from the core.
type Keys[IN, OUT any] interface {
	// line calls the key function and returns the line of the key.
	line(in IN) (*line[IN, OUT], error)
	// forget removes a line without elements and calls.
	forget(l *line[IN, OUT])
	clear()
}

// line has the elements of one key that have not ended. It exists while it has elements
// or outliving calls.
type line[IN, OUT any] struct {
	first, last *Slot[IN, OUT]
	len         int
	outliving   int // see outlivingCall
	owner       any // its keyedLine
}

// linePosition is the position of an element in its line.
type linePosition[IN, OUT any] struct {
	line       *line[IN, OUT] // nil once the element has ended
	prev, next *Slot[IN, OUT]
	number     time.Duration // position in the input; a Duration, because freshInOrder orders by durations
	call       runningCall   // of its attempt, or nil
}

// runningCall is a call.Attempt or a call.Batch.
type runningCall interface {
	// HasReturned reports whether the function of the call has returned.
	HasReturned() bool
}

// outlivingCall is a call that still runs, although its attempt has ended. It holds the
// key of its line until it returns.
type outlivingCall[IN, OUT any] struct {
	call runningCall
	line *line[IN, OUT]
}

type keyOrder[IN, OUT any] struct {
	core *Machine[IN, OUT]

	positions     perSlot[linePosition[IN, OUT]]
	freshInOrder  timers.Heap[*Slot[IN, OUT]] // elements in phase fresh, by number
	nonEmptySince time.Duration               // since when freshInOrder is not empty
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
		p.call = nil // an attempt with a reservation makes no call
	}
}

// join appends s, the newest element, to the line of its key, and reports whether s
// continues. s fails if the key function panics or the key is unusable (law A6).
func (o *keyOrder[IN, OUT]) join(s *Slot[IN, OUT]) (continues bool) {
	g := o.core
	l, err := o.findLine(s.in)
	if err != nil {
		g.failElement(s, err)
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

// noteEnter updates freshInOrder, Machine.fresh and statistics when s enters phase p.
func (o *keyOrder[IN, OUT]) noteEnter(s *Slot[IN, OUT], p phase) {
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
	return p.prev == nil && p.line.outliving == 0
}

// leaveLine removes s, which has ended, from its line. The next elements complete as well
// if they already have their results.
func (o *keyOrder[IN, OUT]) leaveLine(s *Slot[IN, OUT]) {
	g, p := o.core, o.positions.get(s.index)
	l := p.line
	if l == nil {
		return
	}
	wasFirst := p.prev == nil
	o.unlink(s)
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
	o.startFirst(l)
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

// startFirst lets the first element of a line wait for its permit, unless a call holds
// the key. It forgets an empty line.
func (o *keyOrder[IN, OUT]) startFirst(l *line[IN, OUT]) {
	g, s := o.core, l.first
	switch {
	case l.outliving > 0: // freeReturned calls startFirst again
	case s == nil:
		o.core.Keys.forget(l)
	case s.phase == behind:
		g.numFresh++
		g.enter(s, fresh)
		o.addFresh(s)
	case s.phase == ready && !s.timer.Armed(): // its back-off ended behind others, or while a call held the key
		g.retryNow(s)
	}
}

// attemptEnded records the call of an attempt of s that has ended, if the call still
// runs. A call that has given its permit back does not run.
func (o *keyOrder[IN, OUT]) attemptEnded(s *Slot[IN, OUT], how call.Released) {
	p := o.positions.ref(s.index)
	if how.OperatorPermit || p.call == nil {
		return
	}
	if !p.call.HasReturned() {
		p.line.outliving++
		o.outliving = append(o.outliving, outlivingCall[IN, OUT]{p.call, p.line})
	}
	p.call = nil
}

// freeReturned frees the keys of outliving calls that have returned.
func (o *keyOrder[IN, OUT]) freeReturned() {
	o.outliving = slices.DeleteFunc(o.outliving, func(c outlivingCall[IN, OUT]) bool {
		returned := c.call.HasReturned()
		if returned {
			c.line.outliving--
			o.startFirst(c.line)
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
	most     int // largest number of lines that this map has had; a map does not shrink
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
