package core

import (
	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/queue"
)

// slots has the slots of elements, by their places. What is outside of the core, a call that runs or a question to a strategy, holds
// a call.Ref: a place and a turn. A turn is what the element waits for: a call, an answer. When the element goes on, its turn is over, and
// what comes for that turn finds nothing (law A2).
type slots[IN, OUT any] struct {
	table []*Slot[IN, OUT] // by place
	free  []*Slot[IN, OUT] // not taken, to be used again
	gone  []uint32         // places without a slot
	taken int
	turns uint64 // begun so far: no turn comes twice
}

// keepSlots is how many free slots are kept, so that a burst does not pin memory.
const keepSlots = 1024

// take returns a slot that is not taken. All of it is zero but its place.
func (t *slots[IN, OUT]) take() *Slot[IN, OUT] {
	t.taken++
	if n := len(t.free); n > 0 {
		s := t.free[n-1]
		t.free = t.free[:n-1]
		return s
	}
	s := new(Slot[IN, OUT])
	s.timer.Value = s
	if n := len(t.gone); n > 0 {
		s.place = t.gone[n-1]
		t.gone = t.gone[:n-1]
		t.table[s.place] = s
		return s
	}
	s.place = uint32(len(t.table))
	t.table = append(t.table, s)
	return s
}

// leave takes back the slot of an element that has left.
func (t *slots[IN, OUT]) leave(s *Slot[IN, OUT]) {
	t.taken--
	switch {
	case t.taken == 0 && len(t.table) > keepSlots: // a burst is over
		*t = slots[IN, OUT]{turns: t.turns}
		return
	case len(t.free) == keepSlots:
		t.table[s.place] = nil
		t.gone = append(t.gone, s.place)
		return
	}
	*s = Slot[IN, OUT]{place: s.place}
	s.timer.Value = s
	t.free = append(t.free, s)
}

// wait begins a turn of s, and returns the reference for what it waits for.
func (t *slots[IN, OUT]) wait(s *Slot[IN, OUT]) call.Ref {
	t.turns++
	s.turn = t.turns
	return call.Ref{Place: s.place, Turn: s.turn}
}

// find returns the slot whose turn r is, or nil.
func (t *slots[IN, OUT]) find(r call.Ref) *Slot[IN, OUT] {
	if int(r.Place) < len(t.table) {
		if s := t.table[r.Place]; s != nil && s.turn == r.Turn && r.Turn != 0 {
			return s
		}
	}
	return nil
}

// next returns the element after s in the order of the input, or nil.
func (s *Slot[IN, OUT]) next() *Slot[IN, OUT] { return slotOf(s.entry.Next()) }

// first returns the oldest element of the queue, or nil.
func (g *Machine[IN, OUT]) first() *Slot[IN, OUT] { return slotOf(g.Queue.First()) }

// head returns the element whose turn it is to leave, or nil.
func (g *Machine[IN, OUT]) head() *Slot[IN, OUT] { return slotOf(g.Queue.Head()) }

func slotOf[IN, OUT any](e *queue.Entry[*Slot[IN, OUT]]) *Slot[IN, OUT] {
	if e == nil {
		return nil
	}
	return e.Value
}
