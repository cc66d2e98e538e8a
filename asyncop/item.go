package asyncop

import (
	"slices"
	"time"

	"github.com/weirflow/weir/queue"
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
	wait     time.Duration // the rest of its back-off when the checkpoint was taken; 0 if there is none
	attempts int32         // that count as made

	kind  itemKind
	retry retryKind // of the retry that it waits for
}

type itemKind uint8

const (
	recordItem    itemKind = iota // to be called
	controlItem                   // a watermark: rest
	completedItem                 // a record whose results wait to be emitted: rest has them
)

// results returns those of a completedItem.
func (it *item[IN, OUT]) results() []OUT { return it.rest.(interface{ Results() []OUT }).Results() }

// items returns what is in the queue and not settled, in input order (law C1). It makes copies, so that they can be
// encoded while the loop goes on. The free places of into must be zero.
func (c *core[IN, OUT]) items(into []item[IN, OUT], withResults bool) []item[IN, OUT] {
	c.tick()
	start := c.timers.Time(0).UnixNano()
	into = slices.Grow(into, c.queue.Len())
	for e := c.queue.First(); e != nil; e = e.Next() {
		s := &e.Value
		if s.settled() || s.phase == control && isEndOfInput(s.extra.held) { // the source will send it again
			continue
		}
		into = into[:len(into)+1]
		it := &into[len(into)-1] // zero, so that only what differs is written
		if s.phase == control {
			it.kind, it.rest = controlItem, s.extra.held
			continue
		}
		it.in, it.spent, it.attempts = s.in, c.now-s.accepted, s.attempts
		if s.attempts > 0 || s.limited() || s.inDoubt {
			it.first = sinceEpoch(start, s.first)
		}
		switch {
		case s.phase == done && withResults:
			it.kind, it.rest = completedItem, s.attempt // no copy of the results: they do not change
			if s.attempt == nil {
				it.rest = s.extra.held
			}
		case s.phase == done: // its call was in time; the one that takes its place has the whole time, from now on
			it.attempts = max(0, it.attempts-1)
			it.spent = 0
			if it.first != 0 {
				it.first = sinceEpoch(start, c.now)
			}
		case s.phase == backoff:
			if due, ok := c.timers.Due(&s.timer); ok && due > c.now {
				it.wait, it.retry = due-c.now, s.retry
			}
		case s.phase != fresh && s.phase != ready && it.attempts > 0:
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
	return s.phase == ended || s.phase == done && len(s.results()) == 0
}

// restore takes a slot for an item. The queue must have room.
func (c *core[IN, OUT]) restore(it item[IN, OUT]) {
	switch {
	case it.kind == controlItem:
		c.acceptControl(it.rest)
	case it.kind == completedItem:
		c.tick()
		e := c.put(slot[IN, OUT]{in: it.in, accepted: c.now, attempts: it.attempts})
		e.Value.more().held = &kept[OUT]{it.results()}
		c.settle(e, nil)
	case c.retryState == FromScratch || it.first == 0 || c.timeout == 0:
		c.restoreFromScratch(it)
	default:
		c.restoreLimited(it)
	}
}

// restoreFromScratch takes a slot for a record that keeps nothing but the rest of its back-off.
func (c *core[IN, OUT]) restoreFromScratch(it item[IN, OUT]) {
	c.tick()
	called := it.first != 0
	if left := c.timeWith(it, c.timeout); c.timeout > 0 && left > c.timeout {
		due := later(c.now, it.wait)
		c.resumeWait(c.putLimited(slot[IN, OUT]{in: it.in, accepted: c.now, first: due, last: due, inDoubt: called}, left), it)
		return
	}
	c.resumeWait(c.putNew(it.in, called), it)
}

// restoreLimited takes a slot for a record that keeps its attempts and what is left of its timeout. If nothing is left, it
// has its timeout outcome at once, since no attempt starts at the deadline (law A5), unless that would fail the pipeline,
// and every restart after it.
func (c *core[IN, OUT]) restoreLimited(it item[IN, OUT]) {
	c.tick()
	left := c.timeout - it.spent
	accepted := c.now - it.spent
	least := c.leastTime()
	sinceFirst := c.timers.Time(c.now).Sub(time.Unix(0, it.first))
	if c.retryState == LatencyFirst {
		since := max(0, sinceFirst) // the wall clock may have been set back
		left = min(c.timeout, max(c.timeout-since, least))
		accepted = c.now - since
	}
	isOver := left <= 0 && (c.hook.timeout != nil || c.policy != failPipeline)
	if !isOver {
		left = c.timeWith(it, max(left, least))
	}
	e := c.putLimited(slot[IN, OUT]{
		in: it.in, accepted: accepted, attempts: it.attempts,
		first: c.now - sinceFirst, last: c.now - sinceFirst, inDoubt: true, // last: the least it can have been
	}, left)
	if isOver {
		c.timeOut(e)
		return
	}
	c.resumeWait(e, it)
}

// leastTime is what a restored element has for an attempt, so that a restart gets on.
func (c *core[IN, OUT]) leastTime() time.Duration {
	least := c.timeout / 10
	if c.retryState == LatencyFirst && c.maxRetries != strategies.Unlimited {
		least = max(least, c.timeout/time.Duration(c.maxRetries+1))
	}
	return least
}

// timeWith returns the time of a restored element that has left, so that the rest of its back-off leaves enough for an
// attempt. A wait that is longer than left was longer before, too: its element waits for its deadline.
func (c *core[IN, OUT]) timeWith(it item[IN, OUT], left time.Duration) time.Duration {
	if it.wait > 0 && it.wait <= left {
		left = max(left, later(it.wait, c.leastTime()))
	}
	return left
}

// putLimited takes a slot for a restored element with a deadline of its own.
func (c *core[IN, OUT]) putLimited(s slot[IN, OUT], left time.Duration) *queue.Entry[slot[IN, OUT]] {
	own := &limit[IN, OUT]{due: later(c.now, left)}
	s.extra = &extra[IN, OUT]{limit: own}
	e := c.put(s)
	own.odd.Value = e
	c.odd.Arm(&own.odd, own.due)
	return e
}

// resumeWait lets a restored element wait for the rest of its back-off (law C3), or starts it. Law A5: after the end of the input
// only what a server demanded is waited for.
func (c *core[IN, OUT]) resumeWait(e *queue.Entry[slot[IN, OUT]], it item[IN, OUT]) {
	if it.wait <= 0 || c.noRetries && it.retry&demanded == 0 {
		c.startNew(e)
		return
	}
	e.Value.retry = it.retry
	c.enter(e, backoff)
	c.stats.WaitingForRetry++
	c.timers.Arm(&e.Value.timer, later(c.now, it.wait))
}
