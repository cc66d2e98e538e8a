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
	Of      any           // the function: it finds its batch under call.BatchKey{Of: Of}
	MaxSize int           // in members
	MaxWait time.Duration // for an element that may start; 0 means one step
}

// Batches starts calls for several elements, in place of Machine.startWaiting. Each
// member has its own attempt. All members share the job and the permits, which takePermit
// takes for the first member.
//
// A batch starts when it is complete, or when its first member has waited for MaxWait.
type Batches[IN, OUT any] struct {
	Batching
	core       *Machine[IN, OUT]
	inputEnded bool
}

// calls returns the number of calls for a number of elements, which is at least 1.
func (b *Batches[IN, OUT]) calls(elements int) int { return 1 + (elements-1)/b.MaxSize }

// EndInput notes that batches need not wait for more elements.
func (b *Batches[IN, OUT]) EndInput() { b.inputEnded = true }

// isComplete reports whether a batch need not wait for more elements.
func (b *Batches[IN, OUT]) isComplete() bool {
	isFull := b.core.startable() >= b.MaxSize
	if isFull || b.inputEnded {
		return true
	}
	// If there is no free slot, and the head of the queue cannot leave, the next element
	// comes after an element in flight has ended. That element may be waiting for this
	// batch.
	return b.core.FreeSlots() == 0 && b.core.Queue.Head() == nil
}

// startsAt returns when the next batch may start: Now if it is complete or has waited for
// MaxWait, otherwise the end of this wait. The wait begins with the earliest of these:
//
//   - without key order, when the oldest element in phase fresh was accepted
//   - with key order, since when there are elements in phase fresh
//   - since when there are elements in phase ready
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

// startComplete starts complete batches, when an element was accepted.
func (b *Batches[IN, OUT]) startComplete() {
	for n := 0; n < stepLimit && b.core.freePermits > 0 && b.isComplete(); n++ {
		othersMayStart := b.startNext()
		if !othersMayStart {
			return
		}
	}
}

// startDue starts complete batches, and batches that have waited for MaxWait. Only Step
// calls it, so with MaxWait 0 a batch collects the elements that are accepted between two
// steps.
func (b *Batches[IN, OUT]) startDue() {
	for n := 0; n < stepLimit && b.core.freePermits > 0 && b.startsAt() == Now; n++ {
		othersMayStart := b.startNext()
		if !othersMayStart {
			return
		}
	}
}

// startNext starts a batch if an element waits for a permit. It reports whether other
// elements may start now.
func (b *Batches[IN, OUT]) startNext() (othersMayStart bool) {
	s := b.core.nextStart()
	if s == nil {
		return false
	}
	p, _ := b.start(s)
	return p != refused
}

// startFull starts a full batch, and reports whether it became a job. If a timer is due,
// the timer goes first (law T1), and startFull returns false.
func (b *Batches[IN, OUT]) startFull() (sent bool) {
	g := b.core
	s := g.nextStart()
	if s == nil || g.freePermits == 0 || g.startable() < b.MaxSize || g.nextTimer() <= g.now {
		return false
	}
	_, sent = b.start(s)
	return sent
}

// start starts a batch. s is its first member, and the others follow in the order of
// nextStart. While members begin, the batch is Machine.forming. start returns the
// permission of s, and whether the batch became a job.
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

// send makes a job of the batch that is being formed, and reports whether it did. If
// wrappers have completed all members without a call, it frees the permits instead.
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
