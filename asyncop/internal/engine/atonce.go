package engine

import (
	"time"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/queue"
)

// Calls that end at once.
//
// An element that finds the queue empty is called before it gets a place there, with a slot of the engine's own:
//
//	try ─▶ Invoke ─▶ tried ─▶ complete, and it will be emitted ─▶ endEarly ─▶ early ─▶ Head, Left
//	                   └────▶ everything else ─────────────────▶ seat ─────▶ the queue, as if it had been there
//
// So it needs no letter either: the engine looks itself whether its attempt is complete. What has ended so waits in early, which is
// before everything in the queue. It was complete before all of that, so both orders are kept (law Q1). It has a slot all the same
// (law Q2).

// earlyDone is an element whose call has ended at once, and that waits to be emitted.
type earlyDone[IN, OUT any] struct {
	in      IN
	results []OUT
	at      time.Duration // when it was accepted and called
}

// newTrial returns an entry for the element that is tried: its first attempt runs.
func newTrial[IN, OUT any]() *queue.Entry[Slot[IN, OUT]] {
	return &queue.Entry[Slot[IN, OUT]]{Value: Slot[IN, OUT]{attempts: 1, phase: running}}
}

// mayTry reports whether the next element, if it is no message, may be called before it is in the queue: nothing is in there, and
// nothing has to be asked before.
func (g *Engine[IN, OUT]) mayTry() bool {
	if !g.plain || g.permits == 0 || g.Queue.Len() > 0 || g.Host.Share != nil || g.Pace != nil {
		return false
	}
	g.EndIfCancelled() // law A5: now, not when the driver looks
	return g.failure == nil
}

// try accepts an element and starts its first attempt: put and begin for what is not in the queue.
func (g *Engine[IN, OUT]) try(in IN) {
	g.refresh()
	e := g.trial
	s := &e.Value
	s.in, s.accepted, s.first, s.last, s.doubt = in, g.now, g.now, g.now, noDoubt
	a := g.nextAttempt()
	deadline, _ := g.attemptDeadline(e)
	a.Attend(g.Host, deadline)
	s.attempt = a
	g.trying = true
	g.permits--
	g.counts.Accepted++
	g.counts.Attempts++
	g.retry.policy.Deposit()
	g.invoke(e, a)
}

// attemptsAtOnce are allocated in one piece while calls end at once: that takes a third of the time, and fits a size class. Whatever holds
// on to one of them holds on to all, but not to what they were completed with: see endEarly. One that goes on is the last.
const attemptsAtOnce = 5

func (g *Engine[IN, OUT]) nextAttempt() (a *call.Attempt[*queue.Entry[Slot[IN, OUT]], OUT]) {
	if !g.quick {
		return new(call.Attempt[*queue.Entry[Slot[IN, OUT]], OUT])
	}
	if len(g.spare) == 0 {
		g.spare = make([]call.Attempt[*queue.Entry[Slot[IN, OUT]], OUT], attemptsAtOnce)
	}
	a, g.spare = &g.spare[0], g.spare[1:]
	return a
}

// tried goes on after the function has returned, or broken, for the element that is tried: see invoked.
func (g *Engine[IN, OUT]) tried(guarded bool) {
	if a := g.trial.Value.attempt; !a.Completed() {
		e := g.seat()
		if deadline, own := g.attemptDeadline(e); own {
			g.Timers.Arm(&e.Value.timer, deadline)
		}
		if a.Seat(e) {
			g.completed(e, guarded)
		}
		return
	}
	g.completed(g.trial, guarded)
}

// seated returns e or, if that is the one that is tried, its entry in the queue from now on.
func (g *Engine[IN, OUT]) seated(e *queue.Entry[Slot[IN, OUT]]) *queue.Entry[Slot[IN, OUT]] {
	if e == g.trial {
		return g.seat()
	}
	return e
}

// seat gives the element that is tried a place in the queue, which is empty.
func (g *Engine[IN, OUT]) seat() *queue.Entry[Slot[IN, OUT]] {
	g.trying, g.quick, g.spare = false, false, nil
	e := g.Queue.Put(g.trial.Value)
	e.Value.timer.Value = e
	g.live, g.oldest = e, e
	if g.call.entry == g.trial { // what breaks now breaks for e
		g.call.entry = e
	}
	return e
}

// endEarly goes on with the element that is tried: it is complete, and waits for its turn. Its attempt is over, and lets go of the results.
func (g *Engine[IN, OUT]) endEarly() {
	s := &g.trial.Value
	g.trying, g.quick = false, true
	g.early.Push(earlyDone[IN, OUT]{s.in, s.attempt.Results(), s.accepted})
	s.attempt.DropResults()
}

// leftEarly removes the oldest element whose call has ended at once: it has left.
func (g *Engine[IN, OUT]) leftEarly() {
	g.early.Pop()
	g.counts.Completed++
}

// clearTrial lets go of the element that was tried last.
func (g *Engine[IN, OUT]) clearTrial() {
	var none IN
	g.trial.Value.in, g.trial.Value.attempt = none, nil
}

// slot returns the slot that the element would have in the queue.
func (d earlyDone[IN, OUT]) slot() Slot[IN, OUT] {
	s := Slot[IN, OUT]{in: d.in, accepted: d.at, first: d.at, last: d.at, attempts: 1, phase: done}
	if len(d.results) > 0 {
		s.more().held = &kept[OUT]{d.results}
	}
	return s
}

// abandonEarly is Abandon for the elements that are not in the queue.
func (g *Engine[IN, OUT]) abandonEarly() (cut []*queue.Entry[Slot[IN, OUT]]) {
	for d := range g.early.All() {
		e := &queue.Entry[Slot[IN, OUT]]{Value: d.slot()}
		if len(e.Value.results()) == 0 {
			g.Ended(e, Empty)
			continue
		}
		e.Value.doubt = untracked // as there
		cut = append(cut, e)
	}
	return cut
}
