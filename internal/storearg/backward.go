package storearg

import (
	"context"

	"github.com/weirflow/weir/delivery/store"
)

// backwardStep is the number of messages that a step of a Backward reads at most.
const backwardStep = 1000

// Backward reads the matching messages of a queue in steps, the newest messages first. It
// ignores messages that arrive after the first step. [ReadBackward] makes it. It is not
// safe for concurrent use.
type Backward struct {
	store  store.Lister
	queue  string
	filter store.Filter
	counts store.Counts // zero if they are not known

	// The positions of the first and the last message at the beginning; isBegun is false
	// before they are known. The steps cover windows of positions, from the last to the
	// first. In a window they read pages in the order of positions.
	isBegun     bool
	first, last int64
	isDone      bool
	until       int64 // the last position of the window
	before      int64 // the position before the window
	after       int64 // the position of the last message that was read in it
	inWindow    int   // messages that were read in it
	window      int64 // its size

	isSparse   bool // few messages of a window matched
	isNarrowed bool // the steps leave out positions that the filter's times exclude
}

// ReadBackward begins to read the messages of a queue that match f. n are the counts of
// these messages, or zero if they are not known: with them it needs fewer steps, and it
// ignores messages behind n.Last.
func ReadBackward(s store.Lister, queue string, f store.Filter, n store.Counts) *Backward {
	return &Backward{store: s, queue: queue, filter: f, counts: n, window: backwardStep}
}

// Step reads up to 1,000 messages, in the order of their positions. It may read none
// before the end. After an error it can be called again, and continues where it was.
func (b *Backward) Step(ctx context.Context) ([]store.Entry, error) {
	if !b.isBegun {
		err := b.begin(ctx)
		if err != nil {
			return nil, err
		}
	}
	if b.isSparse && !b.isNarrowed && !b.isDone {
		err := b.narrow(ctx)
		if err != nil {
			return nil, err
		}
	}
	if b.isDone {
		return nil, nil
	}
	entries, err := b.store.List(ctx, b.queue, b.filter, store.Page{After: b.after, Until: b.until, Max: backwardStep})
	if err != nil {
		return nil, err
	}
	if len(entries) == backwardStep && entries[backwardStep-1].Position < b.until && b.inWindow == 0 {
		return nil, b.shrinkWindow(ctx)
	}
	if len(entries) > 0 {
		b.after = entries[len(entries)-1].Position
		b.inWindow += len(entries)
	}
	if len(entries) == 0 || b.after >= b.until {
		b.nextWindow()
	}
	return entries, nil
}

// IsDone reports whether all messages were read.
func (b *Backward) IsDone() bool { return b.isDone }

// Progress returns the share of the queue that was read, from 0 to 1.
func (b *Backward) Progress() float64 {
	switch {
	case b.isDone:
		return 1
	case !b.isBegun:
		return 0
	}
	return float64(b.last-b.until) / float64(b.last-b.first+1)
}

// begin finds the first and the last position of the queue.
func (b *Backward) begin(ctx context.Context) error {
	first, err := firstBehind(ctx, b.store, b.queue, 0)
	if err != nil {
		return err
	}
	last := first
	switch {
	case b.counts.Messages > 0:
		last = b.counts.Last
	case first > 0:
		last, err = LastPosition(ctx, b.store, b.queue)
		if err != nil {
			return err
		}
	}
	b.isDone = first == 0 || last < first
	b.first = first
	b.last = last
	b.until = last
	if b.counts.Messages > 0 {
		b.window = max(b.window, b.firstWindow())
	}
	b.before = max(first-1, last-b.window)
	b.after = b.before
	b.isBegun = true
	return nil
}

// firstWindow returns a window that has somewhat fewer messages than a step if they are
// spread evenly. If all of them fit into a step, it has all.
func (b *Backward) firstWindow() int64 {
	positions := b.last - b.first + 1
	if b.counts.Messages <= backwardStep {
		return positions
	}
	return int64(0.75 * backwardStep / float64(b.counts.Messages) * float64(positions))
}

// shrinkWindow begins the window again with its newest messages: it has more than a step,
// which would read the oldest first. It halves the window until it has 1,000 positions.
func (b *Backward) shrinkWindow(ctx context.Context) error {
	for b.until-b.before > backwardStep {
		middle := b.until - max((b.until-b.before)/2, backwardStep)
		newer, err := b.store.List(ctx, b.queue, b.filter, store.Page{After: middle, Until: b.until, Max: 1})
		if err != nil {
			return err
		}
		if len(newer) > 0 {
			b.before = middle
		} else {
			b.until = middle
		}
	}
	b.window = backwardStep
	b.after = b.before
	return nil
}

// narrow leaves out the positions that the filter's times exclude, and begins the window
// again.
func (b *Backward) narrow(ctx context.Context) error {
	span, err := ArrivedBetween(ctx, b.store, b.queue, b.filter.Since, b.filter.Before)
	if err != nil {
		return err
	}
	b.isNarrowed = true
	b.first = max(b.first, span.After+1)
	b.beginWindow(min(b.until, span.Until))
	return nil
}

// nextWindow begins the window before this one. Windows grow where few messages match.
func (b *Backward) nextWindow() {
	if b.inWindow < backwardStep/2 {
		b.window *= 2
		b.isSparse = true
	}
	b.beginWindow(b.before)
}

// beginWindow begins the window that ends at a position.
func (b *Backward) beginWindow(until int64) {
	b.inWindow = 0
	b.until = until
	b.isDone = b.until < b.first
	b.before = max(b.first-1, b.until-b.window)
	b.after = b.before
}
