package asyncop

import (
	"slices"
	"time"

	"github.com/weirflow/weir/strategies"
)

// item is an element outside of the queue: in a checkpoint, or in the backlog of what waits for a slot. It is small, since
// the loop copies all that is in flight at a barrier.
type item[IN, OUT any] struct {
	in   IN
	rest any // as its kind says

	// What a restored element brings along. Zero for one that comes from upstream.
	first    int64         // when its first attempt began, in Unix nanoseconds; 0 if none did
	spent    time.Duration // of its timeout
	attempts int32         // that count as made

	kind itemKind
}

type itemKind uint8

const (
	recordItem    itemKind = iota // to be called
	controlItem                   // a watermark: rest
	completedItem                 // a record whose results wait to be emitted, in rest, an *attempt
)

// results returns those of a completedItem.
func (it *item[IN, OUT]) results() []OUT { return it.rest.(*attempt[IN, OUT]).results }

// items returns what is in the queue and not settled, in input order (law C1). It makes copies, so that they can be
// encoded while the loop goes on. The free places of into must be zero.
func (c *core[IN, OUT]) items(into []item[IN, OUT], withResults bool) []item[IN, OUT] {
	c.tick()
	start := c.timers.Time(0).UnixNano()
	into = slices.Grow(into, c.queue.Len())
	for e := c.queue.First(); e != nil; e = e.Next() {
		s := &e.Value
		if s.settled() || s.phase == control && isEndOfInput(s.extra.control) { // the source will send it again
			continue
		}
		into = into[:len(into)+1]
		it := &into[len(into)-1] // zero, so that only what differs is written
		if s.phase == control {
			it.kind, it.rest = controlItem, s.extra.control
			continue
		}
		it.in, it.spent, it.attempts = s.in, c.now-s.accepted, s.attempts
		if s.attempts > 0 || s.limited() || s.inDoubt {
			it.first = sinceEpoch(start, s.first)
		}
		switch {
		case s.phase == done && withResults:
			it.kind, it.rest = completedItem, s.attempt // no copy of the results: they do not change
		case s.phase == done: // its call was in time; the one that takes its place has the whole time, from now on
			it.attempts = max(0, it.attempts-1)
			it.spent = 0
			if it.first != 0 {
				it.first = sinceEpoch(start, c.now)
			}
		case s.phase != fresh && s.phase != backoff && s.phase != ready && it.attempts > 0:
			it.attempts-- // its last attempt will be made again; a fresh one has brought its attempts along
		}
	}
	return into
}

// sinceEpoch returns an instant as an item has it, where 0 means never.
func sinceEpoch(start int64, at time.Duration) int64 {
	if ns := start + int64(at); ns != 0 {
		return ns
	}
	return 1
}

// settled tells whether a record has ended as far as a checkpoint is concerned: it has nothing more to emit.
func (s *slot[IN, OUT]) settled() bool {
	return s.phase == done && (s.attempt == nil || len(s.attempt.results) == 0)
}

// restore takes a slot for an item. The queue must have room.
func (c *core[IN, OUT]) restore(it item[IN, OUT]) {
	switch {
	case it.kind == controlItem:
		c.acceptControl(it.rest)
	case it.kind == completedItem:
		c.tick()
		e := c.put(slot[IN, OUT]{in: it.in, accepted: c.now, attempts: it.attempts})
		e.Value.attempt = &attempt[IN, OUT]{core: c, results: it.results()}
		c.settle(e, nil)
	case c.retryState == FromScratch || it.first == 0 || c.timeout == 0:
		c.startNew(c.putNew(it.in, it.first != 0))
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
	sinceFirst := c.timers.Time(c.now).Sub(time.Unix(0, it.first))
	if c.retryState == LatencyFirst {
		since := max(0, sinceFirst) // the wall clock may have been set back
		share := time.Duration(0)   // of one attempt of an unlimited number
		if c.maxRetries != strategies.Unlimited {
			share = c.timeout / time.Duration(c.maxRetries+1)
		}
		left = min(c.timeout, max(c.timeout-since, share))
		accepted = c.now - since
	}
	own := &limit[IN, OUT]{due: c.now + left}
	e := c.put(slot[IN, OUT]{
		in: it.in, accepted: accepted, attempts: it.attempts, extra: &extra[IN, OUT]{limit: own},
		first: c.now - sinceFirst, last: c.now - sinceFirst, inDoubt: true, // last: the least it can have been
	})
	own.odd.Value = e
	c.odd.Arm(&own.odd, own.due)
	if left <= 0 {
		c.timeOut(e)
		return
	}
	c.startNew(e)
}
