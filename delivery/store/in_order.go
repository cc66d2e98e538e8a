package store

import (
	"context"
	"time"
)

// InOrder is a store that can take the messages of a key ([message.Meta].Key) one at a
// time, in the order of their positions. A message that was put before another put began
// has the lower position.
//
// The head of a key is the message for which the others of the key wait. TakeInOrder
// makes the message with the lowest position the head. It stays the head, whether
// delayed, leased or held, until it leaves the queue by Done, Move, Purge or an [Edit].
// The key's next message becomes the head in the same transaction. It is due since then,
// unless its own delay has not passed, and comes after heads of other keys that have been
// due for longer. So a dead letter and a purge free the key, and a message that is put
// back is the last of its key.
//
// A consumer that can neither process nor move a message sets it aside by a Release for
// 100 years or more. The message gives up the head, and its key continues. If the
// database refuses to make a message the head, the call that removed the last head does
// not fail, and the key lacks a head until a later TakeInOrder succeeds.
//
// Messages of a key that are due behind their head are parked: they are not taken as due
// messages until they are the head. They count as waiting, but not for [Counts].Next and
// [KeyCounts].Next. Messages without a key do not wait for others.
//
// The order holds if all consumers of a queue use TakeInOrder. Take, TakeByKey and Claim
// return messages whose predecessors are still in the queue; when a head that they took
// is done, the next message still becomes the head. A consumer of an earlier version of
// an engine ignores heads. Messages parked behind a head that it has settled are due
// again when a consumer calls TakeInOrder for the queue, which looks for them every 10
// seconds, at a thousand keys a second.
type InOrder interface {
	Inspector

	// TakeInOrder is [Store.Take] for the heads of keys, and for messages without a key.
	// Those that could be taken first come first, unless many messages of some keys are
	// in front of them: then keys come in turn. It may return fewer messages than are
	// due: it has parked many, other calls are taking or settling them, or they were held
	// or committed late. A [Waker] wakes consumers soon after.
	//
	// Parking a due message that is not a head costs one write. After a flood of one key
	// each call parks some, and takes messages of other keys meanwhile. It also reads
	// some of the messages behind the flood, and takes messages without a key there.
	TakeInOrder(ctx context.Context, queue string, max int, lease time.Duration) ([]Leased, error)

	// Replace changes taken messages and ends their leases. They keep their positions, so
	// a failed message waits for its next visit in its place, and its key waits for it.
	// They are due after the Delay of the new message, and count no ended leases. If the
	// queue already has a message with the new identity, the taken message is removed.
	// The key cannot change: Replace returns [message.ErrRefused] and has no effect then.
	// It refuses lost leases as Done does.
	Replace(ctx context.Context, replacements ...Replacement) error
}

// Replacement is an argument of [InOrder.Replace].
type Replacement struct {
	Lease   Lease
	Message Message
}
