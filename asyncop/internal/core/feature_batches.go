package core

import (
	"time"

	"github.com/weirflow/weir/asyncop/internal/call"
)

// Batching says how calls for several elements are made.
//
// Config.Invoke is called for each member. Its function, which may have wrappers around it, finds the batch in the context and
// joins it. Then the batch is a job.
type Batching[IN, OUT any] struct {
	Of      any                          // the function, as it looks for its batch
	MaxSize int                          // members
	MaxWait time.Duration                // of an element that may start; 0: a turn
	Call    func(b *call.Batch[IN, OUT]) // makes the call, on a worker
}

// Batches forms calls for several elements.
type Batches[IN, OUT any] struct {
	Batching[IN, OUT]
	core    *Machine[IN, OUT]
	forming *call.Batch[IN, OUT] // or nil
	sent    bool                 // the last one that was formed is to be called
	last    bool                 // no element follows those that are here
}

// AddBatches adds the feature: a call is for several elements.
func AddBatches[IN, OUT any](g *Machine[IN, OUT], batching Batching[IN, OUT]) *Batches[IN, OUT] {
	b := &Batches[IN, OUT]{Batching: batching, core: g}
	g.exact = true
	g.start = func(newest *Slot[IN, OUT]) { b.startSome(newest == nil) }
	g.startsAt = b.startsAt
	g.callsOf = func(elements int) int { return 1 + (elements-1)/b.MaxSize }
	g.newAttempt = func(*Slot[IN, OUT]) *call.Attempt[OUT] { return b.forming.Add() }
	g.own = func(*call.Attempt[OUT]) call.Cancellable { return b.forming.Context() }
	g.turnBegins = append(g.turnBegins, b.startFull)
	g.brokenOff = append(g.brokenOff, b.send)
	g.cut = append(g.cut, b.send) // one that user code has broken off gives its permits back
	g.forget = append(g.forget, func() { b.forming = nil })
	return b
}

// NoneFollows says that no element follows those that are here: a batch does not wait for others any more.
func (b *Batches[IN, OUT]) NoneFollows() { b.last = true }

// isEnough reports whether a batch starts without a wait: it has all its members, or no others can come. An element that waits to
// leave makes room when downstream takes it.
func (b *Batches[IN, OUT]) isEnough() bool {
	return b.core.startable() >= b.MaxSize || b.last || b.core.State().Room == 0 && b.core.Queue.Head() == nil
}

// startsAt returns when the next batch starts, if there is a permit: Now if it is enough, or has waited, else when the first of those that
// may start has waited for MaxWait. Retries count as one group from the first on, and so do first attempts in key order.
func (b *Batches[IN, OUT]) startsAt() time.Duration {
	g, since := b.core, Never
	if g.freshSince != nil {
		since = g.freshSince()
	} else if g.fresh != nil {
		since = max(0, g.fresh.accepted) // that of a restored one may be before the start
	}
	if g.ready.Len() > 0 {
		since = min(since, g.readied)
	}
	if due := later(since, b.MaxWait); g.now < due && !b.isEnough() {
		return due
	}
	return Now
}

// startSome starts batches that may start, with waits or without.
func (b *Batches[IN, OUT]) startSome(withWaits bool) {
	g := b.core
	for n := 0; n < turnLimit && g.wantsStart() && (b.isEnough() || withWaits && b.startsAt() == Now); n++ {
		if s := g.nextStart(); !b.startOne(s) && g.nextStart() == s {
			return
		}
	}
}

// startFull starts a full batch, if there is one, and reports whether it is to be handed out. Then the turn ends: what other calls have
// completed is looked at later, since that takes as long as a short call. Timers that are due go first (law T1).
func (b *Batches[IN, OUT]) startFull() (ends bool) {
	g := b.core
	return g.wantsStart() && b.core.startable() >= b.MaxSize && g.nextTimer() > g.now && b.startOne(g.nextStart()) && b.sent
}

// startOne starts a batch of those that may start, s first, and reports whether it has: retries before first attempts, oldest first.
// s is asked for what the call as a whole needs.
func (b *Batches[IN, OUT]) startOne(s *Slot[IN, OUT]) bool {
	g := b.core
	b.sent = false
	if !g.mayStart(s) {
		return false
	}
	size := min(b.core.startable(), b.MaxSize)
	b.forming = call.NewBatch[IN, OUT](g.Host, b.Of, size)
	b.forming.Stamp = g.stamp
	g.forming = b.forming
	g.calledAfter = b.forming.After
	g.begin(s)
	for s = g.nextStart(); s != nil && b.forming.Len() < size && !g.overdue && g.state.Failure == nil; s = g.nextStart() {
		if g.mayStart(s) {
			g.begin(s)
		}
	}
	b.send()
	return true
}

// send ends the forming of a batch, if there is one. Members that wrappers of the function have completed are not called.
func (b *Batches[IN, OUT]) send() {
	g, formed := b.core, b.forming
	if formed == nil {
		return
	}
	b.forming, g.forming, g.calledAfter = nil, nil, nil
	if b.sent = formed.Close(); b.sent {
		*g.Jobs = append(*g.Jobs, call.Job[IN, OUT]{Task: func() { b.Call(formed) }})
		return
	}
	g.permits++
	g.Host.LeaveSeat(formed.Stamp)
	for _, f := range g.freed {
		f()
	}
}
