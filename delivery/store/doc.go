// Package store keeps messages in durable queues: those that wait for their next visit, dead letters, staged messages.
//
// # Vocabulary
//
//   - A [Message] is bytes and what is known about them ([delivery.Meta]).
//   - A queue is a name. Putting the first message makes it.
//   - A message is due when its delay has passed. [Store.Take] returns messages that are due.
//   - A lease is the right to settle a message that was taken, until a time. After that another consumer can take the message.
//     The [Lease] carries a fencing number that rises each time the message is taken, so that only the last one who took it
//     can settle it.
//   - To settle is to remove the message ([Store.Done]) or to give it back ([Store.Release]).
//   - A message in a queue has an identity: its id, visit and merges. Putting it again changes nothing, so a hand-over that
//     may have happened is repeated without harm.
//
// # Guarantees
//
// What was put is there until it is settled, moved or purged: a store removes nothing by age, number or size. A store that
// has no room refuses with an error (law D5). No message is taken before its delay has passed (law D3). How late it
// is taken depends on how often the consumer asks. A consumer that dies loses its leases in time, and its messages are taken by another:
// at least once.
//
// # Stores
//
// A [Store] is what every engine can offer. An [Inspector] can also look into its queues, and move a message from one to
// another in one step; it needs an index, as databases have one. [NewMemory] is for tests; ext/sqlite/sqlitestore keeps queues
// for the workers of one machine, ext/postgres/pgstore and ext/jetstream/jsstore for those of many. Package deliverytest checks
// a store of your own.
//
// # Sources and sinks
//
// [NewSource] makes a source of messages of a queue, for a pipeline; [NewSink] puts the values of messages into one. Values
// are encoded by a codec, whose schema is stored with each message, so a later version of a program can read what an earlier
// one has stored.
//
//	source := store.NewSource(s, "orders", "dead", codec.JSON[Order]())
//	defer source.Close(ctx)
//
// # Concurrency
//
// Stores are safe for concurrent use.
package store
