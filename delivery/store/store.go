package store

import (
	"context"
	"log/slog"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/message"
)

// Engine is where messages are kept. What more it can do, it declares by the interfaces that it implements: [Store] (leases) or [Consumer],
// [Inspector] (filters and positions), [Chooser], [Notifier] or [Waker], and lock.Locks for what only one process may do. A queue asks for what its
// options need when it is made.
//
// The name of a queue is UTF-8, without NUL, and not empty. The methods are safe for concurrent use, keep no reference to what
// they are given, and return soon after ctx has ended. After an error a call may have taken effect or not, and can be repeated.
// After Close they return [ErrClosed].
type Engine interface {
	// Put stores messages durably, all or none. A message whose identity is in the queue already changes nothing, also
	// if it is leased or comes twice in the call. The error matches [ErrFull] if there is no room.
	Put(ctx context.Context, queue string, ms ...Message) error

	// Close gives up what the engine has opened. Leases end by themselves. A second Close does nothing.
	Close() error
}

// Consumer is an engine without leases: the workers of a queue share it as members of a group, such as the consumers of a topic. A queue on
// one is refused what needs an index or a lease: see delivery.NewQueue. Its Put may store some of the messages only, with a [*PutError], and
// knows no identities.
type Consumer interface {
	Engine

	// Consume begins to receive the messages of a queue and of its layers.
	Consume(ctx context.Context, c Consumption) (Receiver, error)
}

// Consumption is what [Consumer.Consume] is asked for.
type Consumption struct {
	Queue  string
	Layers []string
	// IsLayer reports whether a name is that of a layer: in those that only another version has messages may wait, too.
	IsLayer func(name string) bool
	Dead    string // where rejected messages go, with their bytes as received
	Clock   clock.Clock
	Logger  *slog.Logger
}

// Receiver is a delivery.Source of messages as they are stored.
type Receiver interface {
	Receive(ctx context.Context, n int) ([]message.Message[[]byte], error)
	Close(ctx context.Context) error

	// Received returns the payload of a message that was received and is not settled.
	Received(id Identity) (payload []byte, ok bool)
}

// Store is an engine that leases messages. What it lacks beside an [Inspector] is what engines without an index lack.
type Store interface {
	Engine

	// Take leases up to max messages that are due, those due first before others, and returns them: none if none is due.
	// It does not wait. A message is not returned before its delay has passed by the clock of the store, which does not go
	// back when the machine's clock does (law D3). Nor is it taken again before its lease has ended. It stops behind the
	// message with which the payloads have [MaxBytes].
	Take(ctx context.Context, queue string, max int, lease time.Duration) ([]Leased, error)

	// Extend makes the leases end after the time d from now, also if it is sooner than before.
	Extend(ctx context.Context, d time.Duration, leases ...Lease) error

	// Done removes messages that were taken.
	Done(ctx context.Context, leases ...Lease) error

	// Release gives messages back. They are due again after the delay, at least 0.
	Release(ctx context.Context, delay time.Duration, leases ...Lease) error
}

// A lease that was lost is refused by Extend, Done, Release and Move with a *[LeaseError] that names it; the others of the
// call are not affected. A lease is lost when the message was settled, purged, or taken again. One that has ended, and whose
// message no one has taken since, is not lost.

// Lease is the right to settle a message that was taken.
type Lease struct {
	Queue string
	Entry string // names the message in the store, and no message after it
	Fence uint64 // the fencing number: from 1, one higher each time the message is taken
}

// Leased is a message that was taken.
type Leased struct {
	Message
	Lease Lease
	// Position is where the message stands in its queue, if the store is an [Inspector].
	Position Position
	// Lapses is how many of its leases in this queue have ended before it was settled or given back: its consumers died, or hung.
	Lapses int
	// Foreign says that another program may have put it: without a schema it is in that of its queue's codec.
	Foreign bool
	// Damage says what of it cannot be read, so that it goes to the dead letters as undecodable, with the bytes that there are; nil: nothing.
	Damage error
}

// MaxBytes bounds the bytes of the payloads that a call of a store returns: the message with which they have so many is the last one, so
// that one is returned whatever its size is.
const MaxBytes = 16 << 20

// Inspector is a store that can look into its queues.
type Inspector interface {
	Store

	// List returns messages of a queue in the order of their positions, due or not, leased or not, and changes nothing.
	// To get the next page, set [Page.After] to the position of the last entry. What others put and remove meanwhile
	// changes no page that was read, and moves nothing from one page to another. Like Take it stops at [MaxBytes], so only a page
	// without an entry is behind the last one.
	List(ctx context.Context, queue string, f Filter, p Page) ([]Entry, error)

	// Count counts the messages that match.
	Count(ctx context.Context, queue string, f Filter) (Counts, error)

	// Purge removes what matches, leased messages included, and returns how many that were. What was put after the call began
	// stays. It may go in steps, so that others need not wait: after an error some may be gone.
	Purge(ctx context.Context, queue string, f Filter) (int, error)

	// Claim leases messages that match, are not leased and not held, due or not, in the order of their positions. It stops at [MaxBytes],
	// as Take does.
	Claim(ctx context.Context, queue string, f Filter, p Page, lease time.Duration) ([]Leased, error)

	// Move settles leases, and puts a message in another queue for each, in one transaction: a crash leaves the old or the
	// new. Messages whose lease was lost are not put.
	Move(ctx context.Context, moves ...Move) error

	// Queues returns the names of the queues that are not empty, in order.
	Queues(ctx context.Context) ([]string, error)
}

// Notifier is a store that can say when to look into a queue again, so that its consumers are not late. Sources use it where
// there is one, and look by themselves as well.
type Notifier interface {
	// Notify calls wake when something may have become due in a queue, until ctx ends or it cannot go on: it returns why. It
	// need not notice everything.
	Notify(ctx context.Context, queue string, wake func()) error
}

// ByKey is a store that takes the messages of keys ([message.Meta].Key) in turn.
type ByKey interface {
	// TakeByKey is [Store.Take] for messages of the keys behind t.After, in an order of the store: of as many keys as have messages that are
	// due, up to max, the same number of each, at least one. next is where the next call goes on; it is "" if no key is left, even if
	// nothing was taken. From the first key on, messages without a key come before others, if they are among the oldest that are due.
	TakeByKey(ctx context.Context, queue string, t Turn, max int, lease time.Duration) (taken []Leased, next string, err error)
}

// Turn says of which keys [ByKey.TakeByKey] takes messages.
type Turn struct {
	After  string   // next of the call before; "": from the first key on
	Each   int      // messages of a key at most, at least 1
	Except []string // not of these keys
}

// Chooser is a store that keeps the choice of a provider with a message.
type Chooser interface {
	// Choose sets Meta.Provider of a message that was taken. When it returns nil, that is as safe as the message.
	Choose(ctx context.Context, provider string, lease Lease) error
}

// Waker is a store whose consumers do not poll.
type Waker interface {
	// Wake calls wake when a message of a queue may have become due: it was put or given back, or its delay or its lease has ended. It does
	// so until ctx ends or it cannot go on, and returns why: [ErrClosed] if the store was closed. It calls wake first when it misses
	// nothing any more. After an error consumers log it, poll every 100 ms, and call Wake again after a second.
	Wake(ctx context.Context, queue string, wake func()) error
}

// Position says where a message stands in its queue: later ones have higher positions, and none is used twice. Messages
// that were put at the same time by several clients of a database may appear in another order than their positions.
type Position int64

// Page is a part of a queue.
type Page struct {
	After Position // only what stands behind it; 0: from the beginning
	Until Position // only up to and with it; 0: to the end
	Max   int      // number of messages, at least 1
}

// Entry is a message as [Inspector.List] shows it.
type Entry struct {
	Message
	Position    Position
	Arrived     time.Time // when it was put in this queue, by the store's clock
	LeasedUntil time.Time // zero: it is not leased
	Held        bool      // it is not taken until it is released: see HoldEdit
	Fence       uint64    // how often it was taken
}

// Counts is what [Inspector.Count] found.
type Counts struct {
	Messages int
	Held     int            // of these
	Oldest   time.Time      // when the first of them arrived; zero if there is none
	Next     time.Time      // when one of them can be taken: its delay is over, or the lease of another consumer; zero if none can
	Causes   map[Cause]int  // of dead letters
	Reasons  map[string]int // a message counts once for each of its reasons
	Last     Position       // the highest position; 0 if there is none
	Age      time.Duration  // since Oldest, by the store's clock
}

// Move is a message to be moved: see [Inspector.Move].
type Move struct {
	Lease   Lease
	Queue   string // where it goes, which may be the queue it comes from
	Message Message
}
