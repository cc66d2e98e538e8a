package asyncop

import (
	"math"
	"time"
)

// item is an element outside of the queue: in a checkpoint, or in the backlog of what waits for a slot.
type item[IN, OUT any] struct {
	kind    itemKind
	in      IN
	control any // the element, for a controlItem

	// What a restored element brings along. Zero for one that comes from upstream.
	attempts int32         // that count as made
	first    time.Time     // when its first attempt began; zero if none did
	spent    time.Duration // of its timeout
	results  []OUT         // of a completedItem

	cloneErr error // of one from upstream that could not be cloned: it is to fail
}

type itemKind uint8

const (
	recordItem    itemKind = iota // to be called
	controlItem                   // a watermark
	completedItem                 // a record whose results wait to be emitted
)

// items returns what is in the queue and not settled, in input order (law C1). It makes copies, so that they can be
// encoded while the loop goes on.
func (c *core[IN, OUT]) items(into []item[IN, OUT], withResults bool) []item[IN, OUT] {
	c.tick()
	for e := c.queue.First(); e != nil; e = e.Next() {
		s := &e.Value
		if s.phase == control {
			into = append(into, item[IN, OUT]{kind: controlItem, control: s.extra.control})
			continue
		}
		if s.settled() {
			continue
		}
		it := item[IN, OUT]{in: s.in, attempts: s.attempts, spent: c.now - s.accepted}
		if s.attempts > 0 || s.limited() || s.inDoubt {
			it.first = c.timers.Time(s.first)
		}
		switch {
		case s.phase == done && withResults:
			it.kind, it.results = completedItem, s.attempt.results
		case s.phase != fresh && s.phase != backoff && s.phase != ready && it.attempts > 0:
			it.attempts-- // its last attempt will be made again; a fresh one has brought its attempts along
		}
		into = append(into, it)
	}
	return into
}

// settled tells whether a record has ended as far as a checkpoint is concerned: it has nothing more to emit.
func (s *slot[IN, OUT]) settled() bool {
	return s.phase == done && (s.attempt == nil || len(s.attempt.results) == 0)
}

// restore takes a slot for an item. The queue must have room.
func (c *core[IN, OUT]) restore(it item[IN, OUT]) {
	switch {
	case it.kind == controlItem:
		c.acceptControl(it.control)
	case it.cloneErr != nil:
		c.tick()
		c.fail(c.put(slot[IN, OUT]{in: it.in, accepted: c.now}), it.cloneErr)
	case it.kind == completedItem:
		c.tick()
		e := c.put(slot[IN, OUT]{in: it.in, accepted: c.now, attempts: it.attempts})
		e.Value.attempt = &attempt[IN, OUT]{core: c, results: it.results}
		c.settle(e, nil)
	case c.retryState == FromScratch || it.first.IsZero() || c.timeout == 0:
		c.acceptAgain(it.in, !it.first.IsZero())
	default:
		c.restoreLimited(it)
	}
}

// restoreLimited takes a slot for a record that keeps its attempts and what is left of its timeout. If nothing is left,
// it has its timeout outcome at once: no attempt starts at the deadline (law A5).
func (c *core[IN, OUT]) restoreLimited(it item[IN, OUT]) {
	c.tick()
	left := c.timeout - it.spent
	accepted := c.now - it.spent
	if c.retryState == LatencyFirst {
		since := max(0, c.timers.Time(c.now).Sub(it.first)) // the wall clock may have been set back
		left = min(c.timeout, max(c.timeout-since, c.timeout/time.Duration(min(c.maxRetries, math.MaxInt-1)+1)))
		accepted = c.now - since
	}
	own := &limit[IN, OUT]{due: c.now + left}
	e := c.put(slot[IN, OUT]{
		in: it.in, accepted: accepted, attempts: it.attempts, extra: &extra[IN, OUT]{limit: own},
		first: c.now - c.timers.Time(c.now).Sub(it.first), inDoubt: true,
	})
	own.odd.Value = e
	c.odd.Arm(&own.odd, own.due)
	if left <= 0 {
		c.timeOut(e)
		return
	}
	c.startNew(e)
}
