// Package store defines engines, which keep messages in durable queues.
//
// # Vocabulary
//
//   - A [Message] is bytes and their metadata ([message.Meta]).
//   - A queue is a name. Putting the first message makes it.
//   - A message is due when its delay has passed. [Store.Take] returns only due messages.
//   - A lease is the right to settle a taken message, until a time. After that another
//     consumer can take the message. The [Lease] carries a fencing number that rises at
//     each take, so that only the last consumer can settle the message.
//   - A held message is not taken until it is released.
//   - In a queue whose consumers take messages in order ([InOrder]), later messages of a
//     key wait for the head of the key. A due message behind the head is parked: it is
//     not taken until it is the head.
//   - To settle a message is to remove it ([Store.Done]), release it ([Store.Release]),
//     move it to another queue ([Inspector.Move]), or replace it in its place
//     ([InOrder].Replace).
//   - A message in a queue has an [Identity]: its id, the origin of its put, its visit
//     and its merges. Putting it again has no effect, so a hand-over can be repeated
//     safely.
//
// # Guarantees
//
// A message stays until it is settled, moved or purged: a store does not remove messages
// by age, number or size. A full store refuses messages with an error (law D5). A message
// is not taken before its delay has passed (law D3). How late it is taken depends on how
// often the consumer asks. When a consumer dies, its leases end and another consumer
// takes its messages: delivery is at least once.
//
// # Engines
//
// Programs use queues (delivery.NewQueue). This package is for authors of engines. An
// engine declares its abilities by the interfaces that it implements:
//
//   - [Engine]: it stores messages
//   - [Store]: it leases them, so that any number of workers share a queue
//   - [Consumer]: it lacks leases; workers share a queue as members of a group
//   - [Inspector]: it looks into its queues, and moves messages between them atomically;
//     it needs an index, such as a database has
//   - [ByKey]: it takes the messages of keys in turn
//   - [InOrder]: it takes the messages of a key one at a time, in the order of the puts
//   - [KeyCounter]: it counts the messages of each key
//   - [Snapshotter]: it gives out positions before a transaction commits
//   - [Waker]: it notifies consumers when to look into a queue
//   - [Keeper]: it has locks, and records for jobs (package delivery/jobs)
//
// The engines of weir have:
//
//	                  Store   Inspector   ByKey   InOrder   Waker   Keeper
//	delivery/memory   x       x           x       x         x       x
//	ext/sqlite        x       x           x       x         x       x
//	ext/postgres      x       x           x       x         x       x
//	ext/jetstream     x       x                             x       x
//
// Without a Waker, consumers poll an empty queue: after 5 ms at first, then every 100 ms.
// Package deliverytest checks an engine of your own.
//
// # Concurrency
//
// Engines are safe for concurrent use.
package store
