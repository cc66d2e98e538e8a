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
// makes the message with the lowest position the head. It stays the head while it is
// leased, released or replaced, after its lease has ended, and while it is held or its
// delay has not passed. When it leaves the queue, by Done, Move, Purge or an [Edit], the
// message of its key with the next position becomes the head, in the same transaction. It
// is due since then, unless its own delay has not passed, and comes after the heads of
// other keys that have been due for longer. So a dead letter and a purge free
// the key, and a message that is put back into the queue is the last of its key.
//
// A consumer sets a message aside by a Release for 100 years or more, if it can neither
// process nor move it. Such a message gives up the head, and its key continues. If the
// database refuses to make a message the head, its key is without a head until a later
// call of TakeInOrder succeeds. That does not fail the call that has removed the last head.
//
// Messages of a key that are due behind their head are parked: no method that takes due
// messages returns them until they are the head. They count as waiting, but not for
// [Counts].Next and [KeyCounts].Next. Messages without a key do not wait for others.
//
// The order holds if all consumers of a queue use TakeInOrder. Take, TakeByKey and Claim
// return messages whose predecessors are still in the queue. When a head that they have
// taken is done, the next message becomes the head all the same. A consumer of an earlier
// version of an engine does not notice heads. Messages that are parked behind a head that
// it has settled are due again when a consumer calls TakeInOrder for the queue, which
// looks for them every 10 seconds, at a thousand keys a second.
type InOrder interface {
	Inspector

	// TakeInOrder is [Store.Take] for the heads of keys, and for messages without a key.
	// Those that could be taken first come first, unless many messages of some keys are in
	// front of them: then keys come in turn. It may return fewer messages than are due. If it
	// returns no message, no message is due, or it has parked many, or other calls are taking
	// or settling the messages that are due. A store that is a [Waker] wakes consumers soon
	// after that.
	//
	// It parks due messages that are not the heads of their keys. That costs a write for
	// each of them, once. After a flood of one key each call parks some messages, and takes
	// those of other keys meanwhile.
	TakeInOrder(ctx context.Context, queue string, max int, lease time.Duration) ([]Leased, error)

	// Replace changes messages that were taken, and ends their leases. They keep their
	// positions, so a message that has failed waits for its next visit in its place, and
	// its key waits for it. They are due after the Delay of the new message, and count no
	// ended leases. If the queue has a message with the identity of the new message
	// already, the message that was taken is removed. The key of a message cannot change:
	// Replace returns [message.ErrRefused] and has no effect then. A lease that was
	// lost is refused as by Done.
	Replace(ctx context.Context, replacements ...Replacement) error
}

// Replacement is an argument of [InOrder.Replace].
type Replacement struct {
	Lease   Lease
	Message Message
}
