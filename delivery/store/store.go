package store

import (
	"context"
	"log/slog"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/message"
)

// Engine keeps messages. It declares its other abilities by the interfaces that it
// implements: [Store] (leases) or [Consumer], [Inspector] (filters and positions),
// [Snapshotter], [ByKey], [InOrder], [KeyCounter], [Waker], and [Keeper] (records, and
// locks for work that only a single process may do). A queue checks for the interfaces
// that its options need when it is made.
//
// The name of a queue is UTF-8, without NUL, and not empty. The methods are safe for
// concurrent use, do not keep references to their arguments, and return soon after ctx
// has ended. After an error a call may have taken effect or not, and can be repeated.
// After Close they return [ErrClosed].
type Engine interface {
	// Put stores messages durably: all or none of them, where a transaction of the engine
	// has room for them: on SQLite and PostgreSQL for any number, on JetStream for 1,000.
	// Kafka has no such transaction: there an error is a [*PutError] if some may be
	// stored. Putting a message whose identity is already queued has no effect, even if
	// it is leased, or twice in the call. The error matches [ErrFull] if the engine is
	// full.
	Put(ctx context.Context, queue string, ms ...Message) error

	// Close releases the resources of the engine. Leases end by themselves. A second
	// Close has no effect.
	Close() error
}

// Consumer is an engine without leases: the workers of a queue share it as members of a
// group, such as the consumers of a topic. A queue on a Consumer refuses options that
// need an index or a lease: see delivery.NewQueue. Its Put may store some of the messages
// only, with a [*PutError], and does not compare identities.
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
	Dead    string // where rejected messages go, with their bytes as received
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
// Extend, Done, Release, Amend and [Inspector].Move refuse a lease that was lost with a
// *[LeaseError] that names it. The other leases of the call are not affected. A lease is
// lost when the message was settled, purged, or taken again. A lease that has ended is
// not lost until the message is taken again, or is held by a person after the lease has
// ended.
type Store interface {
	Engine

	// Take leases up to max messages that are due, the earliest due first, and returns
	// them. It does not wait: if no message is due, it returns no message. A message is
	// not returned before its delay has passed by the clock of the store (law D3). That
	// clock does not go back when the clock of the machine does, except on PostgreSQL:
	// there it is the clock of the database server, and if that is set back, messages are
	// due later by the same time. Nor is a message taken again before its lease has
	// ended. It stops after the message with which the payloads reach 16 MiB: so a due
	// message is returned whatever its size. With an error it returns no messages.
	Take(ctx context.Context, queue string, max int, lease time.Duration) ([]Leased, error)

	// Extend makes the leases end after the time d from now, even if that is sooner than
	// before.
	Extend(ctx context.Context, d time.Duration, leases ...Lease) error

	// Done removes messages that were taken.
	Done(ctx context.Context, leases ...Lease) error

	// Release makes messages available again. They are due again after the delay, at
	// least 0.
	Release(ctx context.Context, delay time.Duration, leases ...Lease) error

	// Amend changes a message that was taken. The lease continues. When it returns nil,
	// the change is as safe as the message. A store that cannot change messages returns
	// [errors.ErrUnsupported].
	Amend(ctx context.Context, lease Lease, a Amendment) error
}

// Amendment is a change of a message that was taken: see [Store.Amend]. At least one
// field must be set.
type Amendment struct {
	// Provider replaces Meta.Provider. It has at most 1,024 bytes, or Amend returns
	// [message.ErrRefused]. nil keeps the provider, and a pointer to "" removes it.
	Provider *string
	// Delay makes the message due after this time from now, by the clock of the store:
	// Meta.Due is set to the end of the delay. The lease lasts at least until then, so
	// that the message is not taken before (law D3), unless a later Extend makes the
	// lease end sooner. 0 keeps the due time. It must not be negative. Queues do not set
	// it: it is for programs that use a store directly.
	Delay time.Duration
}

// Lease is the right to settle a message that was taken.
type Lease struct {
	Queue string
	Entry string // names the message in the store; not used again for another message
	Fence uint64 // the fencing number: from 1, incremented each time the message is taken
}

// Leased is a message that was taken.
type Leased struct {
	Message
	Lease Lease
	// Position is the place of the message in its queue, if the store is an [Inspector]:
	// see [Entry].
	Position int64
	// Lapses is how many of its leases in this queue have ended before it was settled or
	// released: its consumers died, or hung.
	Lapses int
	// External reports that the message may come from a program without weir. If it has
	// no schema, it is read with the schema of the queue's codec.
	External bool
	// Damage names the part of it that cannot be read, so that it goes to the dead
	// letters as undecodable, with the bytes that are left; nil if all can be read.
	Damage error
}

// Inspector is a store that can look into its queues.
type Inspector interface {
	Store
	Lister

	// Purge removes the messages that match, leased messages included, and returns how
	// many it removed. Messages put after the call began stay. It may work in steps, so
	// that others need not wait: after an error some may be gone.
	Purge(ctx context.Context, queue string, f Filter) (int, error)

	// Claim leases messages that match and are neither leased nor held, due or not, in
	// the order of their positions. It stops at 16 MiB, as Take does.
	Claim(ctx context.Context, queue string, f Filter, p Page, lease time.Duration) ([]Leased, error)

	// Move settles leases, and puts a message in another queue for each, in a
	// transaction: a crash leaves the old or the new. Messages whose lease was lost are
	// not put.
	Move(ctx context.Context, moves ...Move) error

	// HandOver puts messages that were made of messages in flight, such as their failures
	// and results. It leaves the messages in flight where they are. It puts a message
	// only if the message of its lease is still in its queue, which it checks in the same
	// transaction (JetStream's engine checks before it). So a purge wins over the calls
	// that run. The check ignores the fencing number: a late worker still hands over a
	// message that another worker has taken. A move without a lease is put as by Put. A
	// *[LeaseError] names the leases whose messages are gone; the other messages of the
	// call were put. As for Put, a message whose identity is already queued has no
	// effect, and HandOver can be repeated.
	HandOver(ctx context.Context, moves ...Move) error

	// Queues returns the names of the queues that are not empty, in order.
	Queues(ctx context.Context) ([]string, error)
}

// Lister is the part of an [Inspector] that lists and counts messages.
type Lister interface {
	// List returns messages of a queue in the order of their positions, due or not,
	// leased or not, without changing them. To get the next page, set [Page.After] to the
	// position of the last entry. Messages that others put and remove meanwhile do not
	// change a page that was read, and do not move messages from page to page. Like Take
	// it stops at 16 MiB, so only an empty page means the end.
	List(ctx context.Context, queue string, f Filter, p Page) ([]Entry, error)

	// Count counts the messages that match.
	Count(ctx context.Context, queue string, f Filter) (Counts, error)
}

// Snapshotter is an Inspector that gives out positions before a transaction commits, such
// as PostgreSQL. There, a page of List may show a message of a transaction whose earlier
// messages the pages before it did not show yet. Other Inspectors give out positions in
// the order of the commits.
type Snapshotter interface {
	// Snapshot calls f with a function that lists messages as [Inspector.List] does, as
	// they were at the first call of list. f must only list, and return soon: the engine
	// keeps a transaction open meanwhile. f may run more than once, so it must set its
	// results anew each time. Snapshot returns the error of f.
	Snapshot(ctx context.Context, f func(list func(ctx context.Context, queue string, f Filter, p Page) ([]Entry, error)) error) error
}

// ByKey is a store that takes the messages of keys ([message.Meta].Key) in turn.
type ByKey interface {
	// TakeByKey is [Store.Take] for messages of the keys after r.After, in an order that
	// the store chooses. It takes from up to max keys that have messages that are due,
	// the same number from each, at least 1. The next call continues at next, even if
	// this call took no message; next is "" if there are no more keys. At the start of a
	// round, messages without a key come first if they are among the oldest messages that
	// are due.
	TakeByKey(ctx context.Context, queue string, r KeyRound, max int, lease time.Duration) (taken []Leased, next string, err error)
}

// KeyRound is the rest of a round of keys: [ByKey.TakeByKey] visits each key once in a
// round.
type KeyRound struct {
	After  string   // next of the previous call, or "" to start a round
	Each   int      // maximum number of messages of one key, at least 1
	Except []string // keys to skip
}

// Waker is a store that notifies consumers when to look into a queue. Without it
// consumers poll an empty queue: after 5 ms at first, then every 100 ms.
type Waker interface {
	// Wake calls wake when a message of a queue may have become due: it was put or
	// released, or its delay or its lease has ended. It does so until ctx ends or it
	// fails, and returns the reason: [ErrClosed] if the store was closed. When it has
	// begun to listen, it calls wake once, since earlier events are not reported. If
	// misses is true, it may miss events all the same, so that the consumer polls as
	// well: a store that only notices puts, for example. After an error consumers log it,
	// poll every 100 ms, and call Wake again after a second.
	Wake(ctx context.Context, queue string, wake func(misses bool)) error
}

// Page is a part of a queue.
type Page struct {
	After int64 // only messages after it; 0 means from the beginning
	Until int64 // only messages up to it, inclusive; 0 means to the end
	Max   int   // number of messages, at least 1
}

// Entry is a message as [Inspector.List] shows it.
type Entry struct {
	Message
	// Position is the place in the queue: later messages have higher positions, from 1
	// on, and no position is used twice. Messages that were put at the same time by
	// several clients of a database may appear in another order than their positions.
	Position    int64
	Arrived     time.Time // when it was put in this queue, by the store's clock
	LeasedUntil time.Time // zero: it is not leased
	Held        bool      // it is not taken until it is released: see Hold
	Fence       uint64    // how often it was taken
}

// Counts is the result of [Inspector.Count].
type Counts struct {
	Messages int
	Held     int            // of these
	Oldest   time.Time      // when the first of them arrived; zero if there are no messages
	Next     time.Time      // when the delay or the lease of the first of them ends; zero if all are held, or parked behind a held one ([InOrder])
	Causes   map[Cause]int  // of dead letters
	Reasons  map[string]int // a message counts once for each of its reasons
	Last     int64          // the highest position; 0 if there are no messages
	Age      time.Duration  // since Oldest, by the store's clock
}

// Move is a message to be moved or handed over: see [Inspector.Move] and
// [Inspector.HandOver].
type Move struct {
	Lease   Lease
	Queue   string // the target, which may be the queue it comes from
	Message Message
}
