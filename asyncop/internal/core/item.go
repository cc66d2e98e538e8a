package core

import (
	"cmp"
	"slices"
	"time"

	"github.com/weirflow/weir/asyncop/internal/call"
)

// Item is an element outside the queue: in a checkpoint, or in the driver's backlog.
type Item[IN, OUT any] struct {
	In   IN
	Rest any // see Kind

	// The state of a restored element.

	// First is 0 if an attempt was never made. Otherwise the element is in doubt after a
	// restart, and First is the start of the first attempt that counts, in Unix
	// nanoseconds.
	//
	// With KeepNothing, or without a timeout, attempts of earlier runs do not count. If
	// this run has made no attempt, First is the start of the run, or the instant that
	// restoreFromScratch has set. Then it only marks that the element is in doubt.
	First    int64
	Spent    time.Duration // used time of its timeout: see timeSpent
	Wait     time.Duration // the rest of the back-off at the checkpoint, or 0
	Attempts int32         // begun so far, except an attempt that the next run repeats

	Kind  ItemKind
	Retry RetryKind // of the awaited retry

	Restored bool // from a checkpoint
	isMarker bool // see Marker
}

// ItemKind is the kind of an [Item].
type ItemKind uint8

// Kinds of items.
const (
	Record    ItemKind = iota // to be called; Rest belongs to the driver
	Control                   // Rest is a control element
	Completed                 // Rest has the results
)

// Marker returns the item of a control element that checkpoints do not contain.
func Marker[IN, OUT any](control any) Item[IN, OUT] {
	return Item[IN, OUT]{Kind: Control, Rest: control, isMarker: true}
}

// Results returns the results of a Completed item.
func (it *Item[IN, OUT]) Results() []OUT {
	return it.Rest.(*call.Attempt[OUT]).Results
}

// SetResults makes the item Completed.
func (it *Item[IN, OUT]) SetResults(results []OUT) {
	it.Kind, it.Rest = Completed, &call.Attempt[OUT]{Results: results}
}

// Items appends copies of the elements that law C1 asks for to items, in input order. The
// memory of items beyond its length must be zero.
func (g *Machine[IN, OUT]) Items(items []Item[IN, OUT], withResults bool) []Item[IN, OUT] {
	g.readClock()
	start := g.Timers.Time(0).UnixNano()
	items = slices.Grow(items, g.Queue.Len())
	for s := g.first(); s != nil; s = s.next() {
		if g.holds(s) {
			items = items[:len(items)+1]
			g.item(&items[len(items)-1], s, start, withResults)
		}
	}
	return items
}

// item fills in a zero item. start is the start of the clock in Unix nanoseconds.
func (g *Machine[IN, OUT]) item(it *Item[IN, OUT], s *Slot[IN, OUT], start int64, withResults bool) {
	if s.phase == controlElement {
		it.Kind, it.Rest = Control, g.control.get(s.index)
		return
	}
	it.In = s.in
	it.Spent, it.Attempts = g.timeSpent(s), s.attempts
	wasInDoubt := s.doubt != noDoubt && s.attempts == 0 // from an earlier run: see Restore
	if s.attempts > 0 || wasInDoubt || s.knowsFirst {
		it.First = sinceEpoch(start, s.firstBegan) // before the first attempt, firstBegan is the start of this run
	}
	switch {
	case s.phase == done && withResults:
		it.Kind, it.Rest = Completed, s.attempt // not copied: results do not change
	case s.phase == done:
		// Results are not stored, so the next run repeats the call. The call was in time,
		// so the element gets its whole timeout.
		it.Attempts = max(0, it.Attempts-1)
		it.Spent = 0
		if it.First != 0 {
			it.First = sinceEpoch(start, g.now)
		}
	case s.firstPutOff: // as if fresh
	case s.phase == backoff:
		if due, ok := g.Timers.Due(&s.timer); ok && due > g.now {
			it.Wait, it.Retry = due-g.now, s.retry
		}
	case s.phase == fresh || s.phase == behind || s.phase == ready:
		// All its attempts have ended, so the next run does not repeat one.
	case it.Attempts > 0: // preparing, running, deciding, handling or failing
		it.Attempts-- // its last attempt is repeated, with the same number unless Keep is KeepNothing
	}
}

// timeSpent returns how much of its timeout s has used.
func (g *Machine[IN, OUT]) timeSpent(s *Slot[IN, OUT]) time.Duration {
	switch {
	case !g.FromAttempt:
		return g.now - s.accepted
	case s.due == Never: // its time begins with its next attempt
		return 0
	}
	left := s.due - g.now
	return max(0, g.ownDeadlines.get(s.index).total-left)
}

// sinceEpoch returns an instant for an item, where 0 means never.
func sinceEpoch(start int64, at time.Duration) int64 {
	return cmp.Or(start+int64(at), 1)
}

// holds reports whether a checkpoint contains s: it has not ended, and is not complete
// without results.
func (g *Machine[IN, OUT]) holds(s *Slot[IN, OUT]) bool {
	switch s.phase {
	case endedWithoutResults:
		return false
	case done:
		return len(s.attempt.Results) > 0
	case controlElement:
		return !s.isMarker
	default:
		return true
	}
}

// Restore takes a slot for an item. There must be a free slot. number is the item's
// number at the observers, or 0: see Observing.Numbers.
func (g *Machine[IN, OUT]) Restore(it Item[IN, OUT], number int64) {
	if it.Kind == Control {
		g.acceptControl(it)
		return
	}
	g.readClock()
	s := g.takeSlot(it.In)
	if it.Kind == Completed {
		s.attempts = it.Attempts
		s.attempt = it.Rest.(*call.Attempt[OUT])
	} else if it.First != 0 {
		s.doubt = notDeduplicated
	}
	if g.introduce(s, introduction{restored: it.Restored, number: number}) {
		g.continueRestored(s, &it)
	}
}

// continueRestored continues with s, the newest element. If s is complete, its results
// wait to leave. Otherwise s starts after the rest of its back-off, with the rest of its
// time.
func (g *Machine[IN, OUT]) continueRestored(s *Slot[IN, OUT], it *Item[IN, OUT]) {
	if it.Kind == Completed {
		g.endElement(s, nil)
		return
	}
	timeout := g.Timeout
	if g.timeouts != nil {
		var err error
		timeout, err = g.timeouts.ask(s.in)
		if err != nil {
			g.failElement(s, err)
			return
		}
	}
	limits := restoredLimits{timeout: timeout, least: g.leastTime(timeout), leftBefore: timeout - it.Spent}
	if timeout < 0 && it.Restored && g.timeoutFailsRun() {
		// The time of the element has passed. To avoid a timeout, it gets the least time
		// of the operator's timeout, after its back-off: with leftBefore at least
		// Wait, extendForBackOff adds the back-off.
		least := cmp.Or(g.leastTime(g.Timeout), leastWithoutTimeout)
		limits = restoredLimits{timeout: least, least: least, leftBefore: it.Wait}
	}
	if g.Restored.Keep == KeepNothing || it.First == 0 || timeout == 0 {
		g.restoreFromScratch(s, it, limits)
	} else {
		hasEnded := g.restoreLimited(s, it, limits)
		if hasEnded {
			return
		}
	}
	// Law C3: wait for the rest of the back-off. Law A5: after the end of the input, only
	// if a server has demanded the wait.
	if it.Wait <= 0 || g.retriesEnded && it.Retry&Demanded == 0 {
		g.startNewest(s)
		return
	}
	s.retry = it.Retry
	g.enter(s, backoff)
	g.state.Stats.WaitingForRetry++
	g.Timers.Arm(&s.timer, later(g.now, it.Wait))
}

// restoredLimits limit the time of a restored element.
type restoredLimits struct {
	timeout    time.Duration // whole timeout
	least      time.Duration // time that is reserved for an attempt: see leastTime
	leftBefore time.Duration // rest of the timeout at the checkpoint
}

// timeoutFailsRun reports whether the timeout of a restored element would fail the run,
// and each run after a restart.
func (g *Machine[IN, OUT]) timeoutFailsRun() bool {
	return g.handler == nil && g.FailsRun && g.sink == nil
}

// restoreFromScratch sets the deadline of an element that has its whole timeout and the
// rest of its back-off. If the back-off leaves too little time for an attempt, the
// element gets more than its timeout. Then its first attempt is recorded as beginning at
// the end of the back-off, so that this wait does not use up the time of a later run with
// KeepSince.
func (g *Machine[IN, OUT]) restoreFromScratch(s *Slot[IN, OUT], it *Item[IN, OUT], limits restoredLimits) {
	timeout := limits.timeout
	left := it.extendForBackOff(timeout, limits)
	hasMore := timeout > 0 && left > timeout && !g.FromAttempt
	switch {
	case hasMore:
		begins := later(g.now, it.Wait)
		s.firstBegan, s.lastBegan = begins, begins
		s.knowsFirst = true
		g.setDeadline(s, later(g.now, left), timeout)
	case timeout != g.Timeout:
		g.ownTimeout(s, timeout)
	}
}

// restoreLimited sets the deadline of an element that keeps its attempts and the rest of
// its timeout. Without time left it times out at once (law A5), except if
// timeoutFailsRun: then it gets the least time.
func (g *Machine[IN, OUT]) restoreLimited(s *Slot[IN, OUT], it *Item[IN, OUT], limits restoredLimits) (hasEnded bool) {
	timeout, least := limits.timeout, limits.least
	left := timeout - it.Spent
	accepted := g.now - it.Spent
	sinceFirst := g.Timers.Time(g.now).Sub(time.Unix(0, it.First))
	if g.Restored.Keep == KeepSince {
		since := max(0, sinceFirst) // the wall clock may go back
		left = min(timeout, max(timeout-since, least))
		accepted = g.now - since
	}
	hasEnded = left <= 0 && !g.timeoutFailsRun()
	if !hasEnded {
		left = it.extendForBackOff(max(left, least), limits)
	}
	s.accepted = accepted
	s.attempts, s.doubt = it.Attempts, notDeduplicated
	s.firstBegan, s.lastBegan = g.now-sinceFirst, g.now-sinceFirst // the last attempt began then or later
	s.knowsFirst = true
	g.setDeadline(s, later(g.now, left), timeout)
	if hasEnded {
		g.timeOut(s)
	}
	return hasEnded
}

// leastWithoutTimeout is the least time of a restored element whose own timeout has
// passed, if the operator has no timeout.
const leastWithoutTimeout = 10 * time.Second

// leastTime returns the time that is reserved for an attempt of a restored element with
// this timeout: see Restored.ReserveDivisor. It is 0 without a timeout or a reserve.
func (g *Machine[IN, OUT]) leastTime(timeout time.Duration) time.Duration {
	if g.Restored.ReserveDivisor == 0 {
		return 0
	}
	return timeout / time.Duration(g.Restored.ReserveDivisor)
}

// extendForBackOff returns the time of a restored element: left or, if that is too
// little, the rest of the back-off and the least time for an attempt after it.
//
// There is an exception: if the back-off would have ended after the deadline even without
// the restart, the result is left. So the element waits for its deadline, as before.
func (it *Item[IN, OUT]) extendForBackOff(left time.Duration, limits restoredLimits) time.Duration {
	endsInTime := it.Wait <= max(left, limits.leftBefore)
	if it.Wait > 0 && endsInTime {
		left = max(left, later(it.Wait, limits.least))
	}
	return left
}
