package store

import (
	"context"
	"time"
)

// InOrder is a store that can take the messages of a key ([message.Meta].Key) one at a
// time, in the order of their positions. If a put returned before another put began, its
// message has the lower position. Messages without a key do not wait for others.
//
// # Heads
//
// The head of a key is the message for which the other messages of the key wait. For
// example, messages 1, 2 and 3 of a key are put. TakeInOrder makes 1 the head, and takes
// it. 2 and 3 are not taken. When 1 is done, 2 becomes the head in the same transaction.
//
// TakeInOrder makes the message with the lowest position the head. It stays the head,
// whether it is delayed, leased or held, until it leaves the queue by Done, Move, Purge
// or an [Edit]. The next head counts as due from the moment at which it became the head,
// even if it was put long before. If its own delay ends later, it is due then. So heads of
// other keys that have been due for longer come before it.
//
// A message that a consumer can neither process nor move is set aside, by a Release for
// 100 years or more. Then it is no longer the head, and its key continues.
//
// If the database refuses to make a message the head, the call that removed the last head
// does not fail. The key lacks a head until a later TakeInOrder succeeds.
//
// # Parked messages
//
// A message of a key that is due behind its head is parked: it is not taken as a due
// message until it is the head. Parked messages count as waiting, but not for
// [Counts].Next and [KeyCounts].Next.
//
// # Other consumers
//
// The order holds if all consumers of a queue use TakeInOrder. Take, TakeByKey and Claim
// also return messages behind a head. But when a head that they took is done, the next
// message still becomes the head.
//
// A consumer of an earlier version of an engine ignores heads. If it settles a head, the
// messages behind the head stay parked until a consumer finds them in TakeInOrder. It
// looks for them every 10 seconds, at a thousand keys a second.
type InOrder interface {
	Inspector

	// TakeInOrder is [Store.Take] for the heads of keys, and for messages without a key.
	// The earliest due come first. But if messages that wait for their heads crowd the
	// front of the queue, TakeInOrder takes from the keys behind them in turn.
	//
	// TakeInOrder may return fewer messages than are due, if it has parked many, if other
	// calls are taking or settling them, or if they were held or committed late. A
	// [Waker] wakes consumers soon after.
	//
	// Parking a due message that is not a head costs one write. After a flood of one key
	// each call parks some of its messages, and takes messages of other keys meanwhile.
	// It also reads some of the messages behind the flood, and takes messages without a
	// key there.
	TakeInOrder(ctx context.Context, queue string, max int, lease time.Duration) ([]Leased, error)

	// Replace changes taken messages and ends their leases. They keep their positions. So
	// a failed message waits for its next visit in its place, and its key waits for it.
	// The messages are due after the Delay of the new message, and their ended leases are
	// no longer counted ([Leased].Lapses).
	//
	// If the queue already has a message with the new identity, Replace removes the taken
	// message. The key cannot change: then Replace returns [message.ErrRefused], and has
	// no effect. It refuses lost leases as Done does.
	Replace(ctx context.Context, replacements ...Replacement) error
}

// Replacement is an argument of [InOrder.Replace].
type Replacement struct {
	Lease   Lease
	Message Message
}
