package store

import (
	"context"
	"log/slog"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/message"
)

// Engine keeps messages. It declares its other abilities by the interfaces that it
// implements, as the package documentation lists them. A queue checks for the interfaces
// that its options need.
//
// The name of a queue is UTF-8, without NUL, and not empty. The methods are safe for
// concurrent use, keep no references to their arguments, and return soon after ctx has
// ended. After an error a call may have taken effect or not, and can be repeated. After
// Close they return [ErrClosed].
type Engine interface {
	// Put stores messages durably. It stores all or none, as far as a transaction of the
	// engine has room: any number on SQLite and PostgreSQL, 1,000 on JetStream. Kafka
	// lacks such a transaction: there the error is a [*PutError] if some messages may be
	// stored. The error matches [ErrFull] if the engine is full.
	//
	// A message has no effect if the queue has a message of the same identity, even if
	// that is leased, or if the call has an earlier one.
	Put(ctx context.Context, queue string, ms ...Message) error

	// Close releases the engine's resources. Leases end by themselves. A second Close has
	// no effect.
	Close() error
}

// Consumer is an engine without leases. The workers of a queue share it as members of a
// group, such as the consumers of a topic. A queue on a Consumer refuses options that
// need an index or a lease: see delivery.NewQueue. Put of a Consumer does not compare
// identities. It may store only some messages, and then returns a [*PutError].
type Consumer interface {
	Engine

	// Consume begins to receive the messages of a queue and of its layers.
	Consume(ctx context.Context, c Consumption) (Receiver, error)
}

// Consumption is the argument of [Consumer.Consume].
type Consumption struct {
	Queue  string
	Layers []string
	// IsLayer reports whether a queue is a layer: messages may also wait in layers that
	// only another version of the program has.
	IsLayer func(name string) bool
	Dead    string // for rejected messages, with their bytes as received
	Clock   clock.Clock
	Logger  *slog.Logger
}

// Receiver is a delivery.Source of messages as they are stored.
type Receiver interface {
	Receive(ctx context.Context, n int) ([]message.Message[[]byte], error)
	Close(ctx context.Context) error
}

// Store is an engine that leases messages. Engines without an index implement Store and
// not [Inspector].
//
// Extend, Done, Release, Amend and [Inspector].Move refuse lost leases with a
// *[LeaseError] that names them, and serve the others. A lease that has ended is not lost
// yet. It is lost when the message was settled, purged, or taken again, or when a person
// holds the message after the lease has ended.
type Store interface {
	Engine

	// Take leases up to max due messages, the earliest due first, and returns them. It
	// does not wait if fewer messages are due. With an error it returns no messages.
	//
	// A message is not taken before its delay has passed (law D3), and not again before
	// its lease has ended, both by the clock of the store. That clock does not go back
	// with the clock of the machine, except on PostgreSQL. If the clock of the database
	// server is set back, messages are due later by the same time.
	//
	// Take stops after the message with which the payloads reach 16 MiB. So it returns a
	// due message whatever its size.
	Take(ctx context.Context, queue string, max int, lease time.Duration) ([]Leased, error)

	// Extend makes the leases end after the time d from now, even if that is sooner than
	// before.
	Extend(ctx context.Context, d time.Duration, leases ...Lease) error

	// Done removes messages that were taken.
	Done(ctx context.Context, leases ...Lease) error

	// Release makes messages available again. They are due after the delay, at least 0.
	Release(ctx context.Context, delay time.Duration, leases ...Lease) error

	// Amend changes a taken message. The lease continues. When it returns nil, the change
	// is as safe as the message. A store that cannot change messages returns
	// [errors.ErrUnsupported].
	Amend(ctx context.Context, lease Lease, a Amendment) error
}

// Amendment is the argument of [Store.Amend]. At least one field must be set.
type Amendment struct {
	// Provider replaces Meta.Provider. It has at most 1,024 bytes, or Amend returns
	// [message.ErrRefused]. nil keeps the provider, and a pointer to "" removes it.
	Provider *string
	// Delay makes the message due after this time from now, by the store's clock, and
	// sets Meta.Due. 0 keeps the due time. It must not be negative. The lease lasts at
	// least until the message is due, so that the message is not taken before (law D3).
	// But a later Extend may shorten the lease. Queues do not set Delay: it is for
	// programs that use a store directly.
	Delay time.Duration
}

// Lease is the right to settle a taken message.
type Lease struct {
	Queue string
	Entry string // names the message in the store; never used for another message
	Fence uint64 // the fencing number: from 1, incremented at each take
}

// Leased is a taken message.
type Leased struct {
	Message
	Lease Lease
	// Position is the place of the message in its queue, if the store is an [Inspector]:
	// see [Entry].
	Position int64
	// Lapses is how many leases of the message in this queue have ended before it was
	// settled or released: its consumers died or hung.
	Lapses int
	// External reports that the message may come from a program without weir. Without a
	// schema, it is read with the schema of the queue's codec.
	External bool
	// Damage names the part that cannot be read, or is nil. A damaged message becomes an
	// undecodable dead letter, with the bytes that are left.
	Damage error
}

// Inspector is a store that can look into its queues.
type Inspector interface {
	Store
	Lister

	// Purge removes the messages that match, also leased messages, and returns their
	// number. Messages that are put after the call began stay. Purge may work in steps,
	// so that other calls need not wait. So after an error some messages may be removed.
	Purge(ctx context.Context, queue string, f Filter) (int, error)

	// Claim leases messages that match and are neither leased nor held, due or not, in
	// the order of their positions. It stops at 16 MiB, as Take does.
	Claim(ctx context.Context, queue string, f Filter, p Page, lease time.Duration) ([]Leased, error)

	// Move settles leases, and puts a message into another queue for each lease. It does
	// so in one transaction, so a crash leaves either the old or the new message. It does
	// not put messages of lost leases.
	Move(ctx context.Context, moves ...Move) error

	// HandOver puts messages that were made of messages in flight, such as their failures
	// and results. It leaves the messages in flight where they are.
	//
	// It puts the message of a move only if the leased message is still in its queue, and
	// its visit has not ended there ([Move].Visit). So a purge wins over running calls.
	// The check is in the transaction that puts; the engine of JetStream checks before it
	// puts. The check ignores the fencing number: a late worker can hand over a message
	// that another worker has taken. A *[LeaseError] names the leases whose messages are
	// gone. The other messages were put.
	//
	// A move without a lease is put as by Put. As for Put, a message whose identity is
	// already queued has no effect, so HandOver can be repeated.
	HandOver(ctx context.Context, moves ...Move) error

	// Queues returns the sorted names of the queues that are not empty.
	Queues(ctx context.Context) ([]string, error)
}

// Lister is the part of an [Inspector] that lists and counts messages.
type Lister interface {
	// List returns messages of a queue in the order of their positions, whether they are
	// due or leased or not. It does not change them. Like Take it stops at 16 MiB.
	//
	// For the next page, set [Page.After] to the position of the last entry. An empty
	// page is the end. A page that is not full need not be the last. Messages that are
	// put or removed meanwhile do not move other messages between pages.
	List(ctx context.Context, queue string, f Filter, p Page) ([]Entry, error)

	// Count counts the messages that match.
	Count(ctx context.Context, queue string, f Filter) (Counts, error)
}

// Snapshotter is an Inspector that gives out positions before a transaction commits, such
// as PostgreSQL. There, a page of List may show a message of a transaction whose earlier
// messages were missing from the pages before it.
type Snapshotter interface {
	// Snapshot calls f with a function that lists messages as [Inspector.List] does, as
	// of the first call of list, and returns the error of f. f must only list, and return
	// soon, since the engine keeps a transaction open. f may run more than once, so it
	// must set its results anew each time.
	Snapshot(ctx context.Context, f func(list func(ctx context.Context, queue string, f Filter, p Page) ([]Entry, error)) error) error
}

// ByKey is a store that takes the messages of keys ([message.Meta].Key) in turn.
type ByKey interface {
	// TakeByKey is [Store.Take] for a part of a round of keys. A round visits each key
	// once, in an order that the store chooses. TakeByKey takes messages of the next keys
	// after r.After, up to max messages in all. It takes the same number of each key, at
	// least 1, or fewer if fewer are due. It skips the keys in r.Except and keys at
	// r.Limit.
	//
	// The next call continues the round at next, even if this call took no message. next
	// is "" after the last key.
	//
	// Messages without a key come first in a round, if they are among the oldest due
	// messages of the queue.
	//
	// If TakeByKey takes no message because keys are at r.Limit, a [Waker] wakes consumers
	// within about 100 ms, and again as long as this lasts.
	TakeByKey(ctx context.Context, queue string, r KeyRound, max int, lease time.Duration) (taken []Leased, next string, err error)
}

// KeyRound is the rest of a round of keys: see [ByKey.TakeByKey].
type KeyRound struct {
	After  string   // next of the previous call; "" starts a round
	Each   int      // most messages of one key, at least 1
	Except []string // keys to skip
	// Limit is the most messages of a key that are leased at a time, to all consumers
	// together; 0 means no limit. Concurrent calls do not exceed it together.
	//
	// The queues of a family share the limit of a key: "orders", "orders-blocked", and
	// "orders-retry-1", "orders-retry-2" and so on.
	//
	// A lease counts until it ends. Leases that were granted by calls without a limit do
	// not count.
	Limit int
}

// Waker is a store that notifies consumers when to look into a queue.
type Waker interface {
	// Wake calls wake once when it begins to listen, and then whenever a message of the
	// queue may have become due: it was put or released, or its delay or its lease has
	// ended. If misses is true, Wake may miss such events, so the consumer polls as well.
	//
	// Wake ends with ctx or when it fails, and returns the reason. The reason is
	// [ErrClosed] if the store was closed. After another error the consumer polls every
	// 100 ms, and calls Wake again after a second.
	Wake(ctx context.Context, queue string, wake func(misses bool)) error
}

// Page is a part of a queue.
type Page struct {
	After int64 // only messages after it; 0 means from the beginning
	Until int64 // only messages up to and including it; 0 means to the end
	Max   int   // number of messages, at least 1
}

// Entry is a message as [Inspector.List] shows it.
type Entry struct {
	Message
	// Position is the place in the queue, from 1. A later message has a higher position,
	// and no position is used twice. But messages that several clients of a database put
	// at the same time may appear in another order than their positions.
	Position    int64
	Arrived     time.Time // in this queue, by the store's clock
	LeasedUntil time.Time // zero if it is not leased
	Held        bool      // not taken until released: see Hold
	Fence       uint64    // how often it was taken
}

// Counts is the result of [Inspector.Count].
type Counts struct {
	Messages int
	Held     int            // of these
	Oldest   time.Time      // when the first arrived; zero without messages
	Next     time.Time      // when the first delay or lease ends; zero if all are held, or parked behind a held one ([InOrder])
	Causes   map[Cause]int  // of dead letters
	Reasons  map[string]int // a message counts once for each of its reasons
	Last     int64          // the highest position; 0 without messages
	Age      time.Duration  // since Oldest, by the store's clock
}

// Move is an argument of [Inspector.Move] and [Inspector.HandOver].
type Move struct {
	Lease   Lease
	Queue   string // the target, possibly its own queue
	Message Message
	// Visit is for HandOver. It is the number of the visit that began with Lease. HandOver
	// compares it with the Meta.Visit that the queue has now:
	//
	//	lower than Visit    the visit has not ended in the queue
	//	otherwise           another worker has stored the failure of the visit in the place
	//	                    of the message ([InOrder].Replace): the message counts as gone
	//
	// All moves of a lease have the same Visit. 0 leaves out this check.
	Visit int
}
