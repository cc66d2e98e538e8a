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

// ArrivedBetween returns positions: the messages of a queue that arrived since a time,
// and before another one, lie behind after, and up to until. Others may lie there, too.
// A zero time is no limit; until is then math.MaxInt64. ArrivedBetween relies on messages
// that arrived in the order of their positions, but for a minute. It makes a few reads
// for each time, and does not read the queue.
func ArrivedBetween(ctx context.Context, s store.Lister, queue string, since, before time.Time) (after, until int64, err error) {
	until = math.MaxInt64
	if !since.IsZero() {
		start := since.Add(-arrivalSlack)
		after, _, err = split(ctx, s, queue, func(e *store.Entry) bool { return e.Arrived.Before(start) })
		if err != nil {
			return 0, 0, err
		}
	}
	if !before.IsZero() {
		end := before.Add(arrivalSlack)
		_, next, err := split(ctx, s, queue, func(e *store.Entry) bool { return e.Arrived.Before(end) })
		if err != nil {
			return 0, 0, err
		}
		until = next - 1
	}
	return after, until, nil
}

// LastPosition returns the position of the last message of a queue, or 0 if the queue is
// empty. It does not count the queue, which may take long.
func LastPosition(ctx context.Context, s store.Lister, queue string) (int64, error) {
	last, _, err := split(ctx, s, queue, func(*store.Entry) bool { return true })
	return last, err
}

// split finds where the messages of a queue cease to be early. last is the position of
// the last early message that it has read, or 0 without one. next is the position of the
// first other message that it has read, or math.MaxInt64 without one. It looks ahead in
// steps that double, and then halve.
func split(ctx context.Context, s store.Lister, queue string, isEarly func(*store.Entry) bool) (last, next int64, err error) {
	next = math.MaxInt64
	// look moves last or next to the first message behind a position.
	look := func(position int64) (hasMoved bool, err error) {
		entries, err := s.List(ctx, queue, store.Filter{}, store.Page{After: position, Max: 1})
		if err != nil || len(entries) == 0 {
			return false, err
		}
		found := entries[0].Position
		if !isEarly(&entries[0]) {
			next = min(next, found)
			return false, nil
		}
		last = found
		return true, nil
	}
	hasMoved, err := look(0)
	step := int64(1)
	for err == nil && hasMoved && step > 0 { // step overflows at the highest positions
		hasMoved, err = look(last + step)
		if hasMoved {
			step *= 2
		}
	}
	for err == nil && last > 0 && step > 0 {
		step /= 2
		_, err = look(last + step)
	}
	return last, next, err
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
