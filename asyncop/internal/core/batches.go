package core

import (
	"time"

	"github.com/weirflow/weir/asyncop/internal/call"
)

// Batching configures calls for several elements.
//
// User.Invoke is called for each member. The user's function, perhaps inside wrappers,
// joins the batch in its context. Then the batch becomes a job.
type Batching struct {
	Of      any           // the key under which the function finds its batch
	MaxSize int           // in members
	MaxWait time.Duration // for an element that may start; 0 means one step
}

// Batches starts calls for several elements, in place of Machine.startWaiting. The
// members have their own attempts. They share the job and the permits, which takePermit
// takes for the first one.
type Batches[IN, OUT any] struct {
	Batching
	core       *Machine[IN, OUT]
	inputEnded bool
}

func (b *Batches[IN, OUT]) calls(elements int) int { return 1 + (elements-1)/b.MaxSize }

// EndInput notes that batches need not wait for more elements.
func (b *Batches[IN, OUT]) EndInput() { b.inputEnded = true }

// isComplete reports whether a batch can start without waiting for more elements: it is
// full, the input has ended, or no element may be accepted and the head cannot leave.
// Then only the end of a running call could let another element in.
func (b *Batches[IN, OUT]) isComplete() bool {
	return b.core.startable() >= b.MaxSize || b.inputEnded || b.core.FreeSlots() == 0 && b.core.Queue.Head() == nil
}

// startsAt returns when the next batch may start: Now if it is complete or has waited for
// MaxWait, otherwise the end of this wait. First attempts wait from the acceptance of the
// oldest fresh element, retries (and with key order first attempts) from the time when
// the first became ready.
func (b *Batches[IN, OUT]) startsAt() time.Duration {
	g, since := b.core, Never
	if g.keys != nil {
		since = g.keys.freshSince()
	} else if g.fresh != nil {
		since = max(0, g.fresh.accepted) // restored elements may be older than the clock
	}
	if g.ready.Len() > 0 {
		since = min(since, g.readySince)
	}
	due := later(since, b.MaxWait)
	if g.now < due && !b.isComplete() {
		return due
	}
	return Now
}

// startWaiting starts complete batches. If isStep is set, it also starts batches that
// have waited for MaxWait. Between steps it does not: if MaxWait is 0, a batch collects
// the elements of a step.
func (b *Batches[IN, OUT]) startWaiting(isStep bool) {
	g := b.core
	for n := 0; n < stepLimit && g.freePermits > 0; n++ {
		s := g.nextStart()
		if s == nil || !b.isComplete() && !(isStep && b.startsAt() == Now) {
			return
		}
		p, _ := b.start(s)
		if p == refused {
			return
		}
	}
}

// startFull starts a full batch, and reports whether it became a job. Timers that are due
// go first (law T1).
func (b *Batches[IN, OUT]) startFull() (sent bool) {
	g := b.core
	s := g.nextStart()
	if s == nil || g.freePermits == 0 || g.startable() < b.MaxSize || g.nextTimer() <= g.now {
		return false
	}
	_, sent = b.start(s)
	return sent
}

// start starts a batch with s as its first member, and the others in the order of
// nextStart. It returns the permission of s, and whether the batch became a job. While
// members begin, the batch is Machine.forming.
func (b *Batches[IN, OUT]) start(s *Slot[IN, OUT]) (p permission, sent bool) {
	g := b.core
	if g.lookups != nil && g.lookups.start(s) {
		return passedOver, false
	}
	p = g.takePermit(s)
	if p != granted {
		return p, false
	}
	size := min(g.startable(), b.MaxSize)
	g.forming = call.NewBatch[IN, OUT](g.Host, b.Of, size)
	g.forming.Stamp = g.stamp
	g.begin(s)
	for s = g.nextStart(); s != nil && g.forming.Len() < size && g.state.Failure == nil; s = g.nextStart() {
		if g.lookups != nil && g.lookups.start(s) {
			continue
		}
		member := g.takePermit(s)
		if member == refused {
			break
		}
		if member == granted {
			g.begin(s)
		}
	}
	return granted, b.send()
}

// send sends the batch that is being formed, and reports whether it became a job. If no
// member has joined, because wrappers have completed all, it frees the permits.
func (b *Batches[IN, OUT]) send() (sent bool) {
	g, formed := b.core, b.core.forming
	if formed == nil {
		return false
	}
	g.forming = nil
	if formed.Close() {
		*g.Jobs = append(*g.Jobs, call.Job[IN, OUT]{Task: func() { g.User.CallBatch(formed) }})
		return true
	}
	g.freePermits++
	g.Host.FreeBackendPermit(formed.Stamp)
	if g.keys != nil {
		g.keys.freeReturned() // a batch without a call has returned
	}
	return false
}
