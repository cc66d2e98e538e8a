package core

import (
	"cmp"
	"slices"
	"time"

	"github.com/weirflow/weir/asyncop/internal/call"
)

// Item is an element outside of the queue: in a checkpoint, or in the backlog of what waits for a slot. It is small, since
// the core copies all that is in flight at a barrier.
type Item[IN, OUT any] struct {
	In   IN
	Rest any // as its kind says

	// What a restored element brings along. Zero for one that comes from upstream.
	First    int64         // when its first attempt began, in Unix nanoseconds; 0 if none did
	Spent    time.Duration // of its timeout
	Wait     time.Duration // the rest of its back-off when the checkpoint was taken; 0 if there is none
	Attempts int32         // that count as made

	Kind  ItemKind
	Retry RetryKind // of the retry that it waits for

	Restored bool // it comes from a checkpoint
}

// ItemKind is what an item is.
type ItemKind uint8

// Kinds of items.
const (
	Record    ItemKind = iota // to be called; rest is the driver's
	Control                   // a watermark: rest
	Completed                 // a record whose results wait to be emitted: rest has them
)

// Marker returns the item of a control element that is in no checkpoint.
func Marker[IN, OUT any](control any) Item[IN, OUT] {
	return Item[IN, OUT]{Kind: Control, Rest: control, Retry: notKept}
}

// Results returns those of a Completed item.
func (it *Item[IN, OUT]) Results() []OUT {
	return it.Rest.(*call.Attempt[OUT]).Results
}

// SetResults makes it a Completed item.
func (it *Item[IN, OUT]) SetResults(results []OUT) {
	it.Kind, it.Rest = Completed, &call.Attempt[OUT]{Results: results}
}

// Items returns what is in the queue and not settled, in input order (law C1). It makes copies, so that they can be
// encoded while the core goes on. The free places of into must be zero.
func (g *Machine[IN, OUT]) Items(into []Item[IN, OUT], withResults bool) []Item[IN, OUT] {
	g.tick()
	start := g.Timers.Time(0).UnixNano()
	into = slices.Grow(into, g.Queue.Len())
	for s := g.first(); s != nil; s = s.next() {
		if g.holds(s) {
			into = into[:len(into)+1]
			g.item(&into[len(into)-1], s, start, withResults)
		}
	}
	return into
}

// item makes a zero item that of an element, so that only what differs is written. start is that of the clock in Unix nanoseconds.
func (g *Machine[IN, OUT]) item(it *Item[IN, OUT], s *Slot[IN, OUT], start int64, withResults bool) {
	if s.phase == controlElement {
		it.Kind, it.Rest = Control, g.held.get(s.place)
		return
	}
	it.In, it.Spent, it.Attempts = s.in, g.now-s.accepted, s.attempts
	if s.attempts > 0 || s.doubt != noDoubt || s.knows {
		it.First = sinceEpoch(start, s.first)
	}
	switch {
	case s.phase == done && withResults:
		it.Kind, it.Rest = Completed, s.attempt // no copy of the results: they do not change
	case s.phase == done: // its call was in time; the one that takes its place has the whole time, from now on
		it.Attempts = max(0, it.Attempts-1)
		it.Spent = 0
		if it.First != 0 {
			it.First = sinceEpoch(start, g.now)
		}
	case s.retry&noRetry != 0: // as if it were fresh
	case s.phase == backoff:
		if due, ok := g.Timers.Due(&s.timer); ok && due > g.now {
			it.Wait, it.Retry = due-g.now, s.retry
		}
	case s.phase != fresh && s.phase != behind && s.phase != ready && it.Attempts > 0:
		it.Attempts-- // its last attempt will be made again; a fresh one has brought its attempts along, and so has one behind
	}
}

// sinceEpoch returns an instant as an item has it, where 0 means never.
func sinceEpoch(start int64, at time.Duration) int64 {
	return cmp.Or(start+int64(at), 1)
}

// holds reports whether a checkpoint holds an element of the queue: not if it has nothing more to emit.
func (g *Machine[IN, OUT]) holds(s *Slot[IN, OUT]) bool {
	switch s.phase {
	case ended:
		return false
	case done:
		return len(s.attempt.Results) > 0
	case controlElement:
		return s.retry != notKept
	default:
		return true
	}
}

// Restore takes a slot for an item, which may have had a number: see Observing.Numbers. There must be room.
func (g *Machine[IN, OUT]) Restore(it Item[IN, OUT], number int64) {
	if it.Kind == Control {
		g.acceptControl(it)
		return
	}
	g.tick()
	s := g.put(it.In, g.now)
	if it.Kind == Completed {
		s.attempts = it.Attempts
		s.attempt = it.Rest.(*call.Attempt[OUT])
	} else if it.First != 0 {
		s.doubt = notDeduplicated
	}
	g.restoring = it
	if g.accept(s, acceptance{restored: it.Restored, number: number, isItem: true}) {
		g.restored(s)
	}
}

// restored goes on with the newest element, which was an item: its results wait for their turn, or it gets what it has left of its time,
// and starts.
func (g *Machine[IN, OUT]) restored(s *Slot[IN, OUT]) {
	it := g.restoring
	g.restoring = Item[IN, OUT]{}
	if it.Kind == Completed {
		g.settle(s, nil)
		return
	}
	own := g.Timeout
	if g.timeoutOf != nil {
		own = g.timeoutOf(s)
	}
	if own < 0 && it.Restored && g.timeoutFailsRun() {
		own = g.leastTime(g.Timeout)
	}
	if g.Restored.Keep == KeepNothing || it.First == 0 || own == 0 {
		g.restoreFromScratch(s, it, own)
	} else if g.restoreLimited(s, it, own) {
		return
	}
	// Law C3: it waits for the rest of its back-off. Law A5: after the end of the input only what a server demanded is waited for.
	if it.Wait <= 0 || g.noRetries && it.Retry&Demanded == 0 {
		g.startNew(s)
		return
	}
	s.retry = it.Retry
	g.enter(s, backoff)
	g.state.Stats.WaitingForRetry++
	g.Timers.Arm(&s.timer, later(g.now, it.Wait))
}

// timeoutFailsRun reports whether an element that has no time left when it is restored would fail the run, and every restart
// after it.
func (g *Machine[IN, OUT]) timeoutFailsRun() bool {
	return g.rescue == nil && g.FailsRun && g.offer == nil
}

// restoreFromScratch goes on with a record that keeps nothing but the rest of its back-off.
func (g *Machine[IN, OUT]) restoreFromScratch(s *Slot[IN, OUT], it Item[IN, OUT], own time.Duration) {
	left := g.timeWith(it, own, own)
	switch {
	case own > 0 && left > own:
		due := later(g.now, it.Wait)
		s.accepted, s.first, s.last, s.knows = g.now, due, due, true
		g.limit(s, later(g.now, left), own)
	case own != g.Timeout:
		g.limit(s, later(s.accepted, own), own)
	}
}

// restoreLimited goes on with a record that keeps its attempts and what is left of its timeout. If nothing is left, it
// has its timeout outcome at once, since no attempt starts at the deadline (law A5), unless that would fail the pipeline,
// and every restart after it.
func (g *Machine[IN, OUT]) restoreLimited(s *Slot[IN, OUT], it Item[IN, OUT], own time.Duration) (isOver bool) {
	least := g.leastTime(own)
	left := own - it.Spent
	accepted := g.now - it.Spent
	sinceFirst := g.Timers.Time(g.now).Sub(time.Unix(0, it.First))
	if g.Restored.Keep == KeepSince {
		since := max(0, sinceFirst) // the wall clock may have been set back
		left = min(own, max(own-since, least))
		accepted = g.now - since
	}
	if isOver = left <= 0 && !g.timeoutFailsRun(); !isOver {
		left = g.timeWith(it, max(left, least), own)
	}
	s.accepted, s.attempts, s.doubt = accepted, it.Attempts, notDeduplicated
	s.first, s.last = g.now-sinceFirst, g.now-sinceFirst // last: the least it can have been
	s.knows = true
	g.limit(s, later(g.now, left), own)
	if isOver {
		g.timeOut(s)
	}
	return isOver
}

// leastTime returns what a restored element with this timeout has for an attempt.
func (g *Machine[IN, OUT]) leastTime(timeout time.Duration) time.Duration {
	if g.Restored.LeastPart == 0 {
		return 0
	}
	return timeout / time.Duration(g.Restored.LeastPart)
}

// timeWith returns the time of a restored element that has left, so that the rest of its back-off leaves enough for an
// attempt. A wait that is longer than left was longer before, too: its element waits for its deadline.
func (g *Machine[IN, OUT]) timeWith(it Item[IN, OUT], left, timeout time.Duration) time.Duration {
	if it.Wait > 0 && it.Wait <= left {
		left = max(left, later(it.Wait, g.leastTime(timeout)))
	}
	return left
}
