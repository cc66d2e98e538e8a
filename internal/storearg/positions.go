package storearg

import (
	"context"
	"math"
	"time"

	"github.com/weirflow/weir/delivery/store"
)

// arrivalSlack is how much earlier than the message before it a message may have arrived:
// the server's clock was set back, or its Put waited for another transaction.
const arrivalSlack = time.Minute

// Span is a range of positions of a queue: behind After, up to and including Until.
type Span struct{ After, Until int64 }

// ArrivedBetween returns where the messages of a queue lie that arrived since a time, and
// before another one. Others may lie there, too. A zero time is no limit. It relies on
// messages that arrived in the order of their positions, to within a minute. It makes a
// few dozen reads, and does not read the whole queue.
func ArrivedBetween(ctx context.Context, s store.Lister, queue string, since, before time.Time) (Span, error) {
	span := Span{Until: math.MaxInt64}
	if since.IsZero() && before.IsZero() {
		return span, nil
	}
	end, err := LastPosition(ctx, s, queue)
	if err != nil {
		return Span{}, err
	}
	if !since.IsZero() {
		last, _, err := split(ctx, s, queue, end, since.Add(-arrivalSlack))
		if err != nil {
			return Span{}, err
		}
		span.After = last
	}
	if !before.IsZero() {
		_, next, err := split(ctx, s, queue, end, before.Add(arrivalSlack))
		if err != nil {
			return Span{}, err
		}
		span.Until = next - 1
	}
	return span, nil
}

// split finds by bisection the end of the messages of a queue that arrived before a time.
// last is the position of the last such message, or 0 without one. next is the position
// of the first later message, or math.MaxInt64 without one. end is the position
// of the last message of the queue, or 0 if it is empty. If few messages are in the wrong
// order, it probably does not read them, so they do not mislead it.
func split(ctx context.Context, s store.Lister, queue string, end int64, at time.Time) (last, next int64, err error) {
	next = math.MaxInt64
	for until := end; last < until; { // only the messages behind last, up to until, are not known
		middle := last + (until-last)/2
		entries, err := s.List(ctx, queue, store.Filter{}, store.Page{After: middle, Max: 1})
		switch {
		case err != nil:
			return 0, 0, err
		case len(entries) == 0 || entries[0].Position > until:
			until = middle
		case entries[0].Arrived.Before(at):
			last = entries[0].Position
		default:
			next = entries[0].Position
			until = middle
		}
	}
	return last, next, nil
}

// LastPosition returns the position of the last message of a queue, or 0 if the queue is
// empty. It does not count the queue, which may take long. It looks ahead in steps that
// double, and then halve.
func LastPosition(ctx context.Context, s store.Lister, queue string) (last int64, err error) {
	next, err := firstBehind(ctx, s, queue, 0)
	step := int64(1)
	for err == nil && next > 0 && step > 0 { // step overflows at the highest positions
		last = next
		next, err = firstBehind(ctx, s, queue, last+step)
		if next > 0 {
			step *= 2
		}
	}
	for err == nil && last > 0 && step > 0 {
		step /= 2
		next, err = firstBehind(ctx, s, queue, last+step)
		last = max(last, next)
	}
	return last, err
}

// firstBehind returns the position of the first message of a queue behind a position, or
// 0 if the queue ends there.
func firstBehind(ctx context.Context, s store.Lister, queue string, position int64) (next int64, err error) {
	entries, err := s.List(ctx, queue, store.Filter{}, store.Page{After: position, Max: 1})
	if err != nil || len(entries) == 0 {
		return 0, err
	}
	return entries[0].Position, nil
}
