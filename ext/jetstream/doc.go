// Package jetstream keeps messages in queues in a stream of NATS JetStream: an engine for
// workers on any number of machines, without a database.
//
//	engine, err := jetstream.Open(ctx, "nats://127.0.0.1:4222") // several addresses with commas
//	…
//	defer engine.Close()
//	orders := delivery.NewQueue[Order](engine, "orders", delivery.RetryAfter(time.Minute, 10*time.Minute, time.Hour))
//
// [Open] makes the stream if it is missing: a single stream for all queues, jobs, locks
// and reports of workers. On a cluster use [WithReplicas] (3). The servers must sync each
// write (sync_interval: always), even in a cluster: a server that does not, and is
// killed, may bring back messages that are done. For a server in the process there is
// ext/jetstream/embedded, for pipelines with checkpoints ext/jetstream/jscheckpoint.
//
// # Guarantees
//
// The guarantees of [store.Keeper]. The server's clock decides when messages are due and
// how long a lease lasts, to the nanosecond, over restarts of the server too (law D3). If
// that clock is set forward, messages are due as much earlier. The same happens when
// another server of a cluster takes over whose clock is ahead.
//
// Each message of a queue has a subject of its own, which holds a single message of the
// stream: its state. A change of state is published only directly behind the previous
// change, so the loser of a lease cannot change it (law P1). A Put or Done of up to 1,000
// messages is a transaction, as is a Move of up to 500; larger calls are split. A full
// stream returns [store.ErrFull] (law D5): it refuses the writes of jobs as well, so make
// room by [Engine.Purge] or a higher limit. If it has replicas, the last 4,000 messages
// of MaxMsgs and 64 MiB of MaxBytes, or a hundredth if that is more, but at most half,
// are kept for changes of messages that are there: leases need room in such a stream.
// Puts of several processes at the same time may take some of that. Messages that
// another program publishes to the stream are logged and left alone. A message of weir's
// that cannot be read goes to the dead letters with all its bytes, as undecodable and
// with an unknown outcome. Its id has the name of the stream and its position.
//
// # Cost
//
// An engine that takes from a queue, or looks into it, has an index of that queue in
// memory, of about 200 bytes a message. The index itself is not stored: it is built from
// the headers of the messages, which have the state, cause and reasons, so it survives
// restarts. It reads them once for each queue and process, some 50,000 a second, and
// again after the connection was broken. After that it gets each change. So counts by
// cause, reason and time do not read messages, and a merge or a purge takes a single
// pass. A filter for ids, a key, a source, a provider or an error reads the messages:
// some 10,000 a second. An index that was not used for ten minutes is removed when
// another index is needed.
//
// A message that is done leaves a mark of some 250 bytes in the stream, for other
// indexes; the server removes it after two minutes. Take and Extend write the message
// again, so large payloads cost as much again. If the stream has replicas and a limit, a
// Put asks for its size first. All consumers of a queue try the same messages first, and
// the losers try others.
//
// A process publishes the name of a queue once, and again with the first Put after five
// minutes. The name is removed when the queue is empty and its name was not published for
// ten minutes, as soon as another name is published.
//
// # Streams of other programs
//
// [NewSource] reads a stream that other programs write, through a durable consumer that
// any number of workers share. [NewSink] publishes to a stream that other programs read:
// each message once for its id within the Duplicates window, and only to the expected
// stream. A queue of the engine beside them has the layers and dead letters: see
// Queue.Source of package delivery. docs/jetstream.md lists the abilities of a queue that
// such a stream lacks.
//
// # Permissions
//
// A worker publishes to weir.store.<stream>.>, $JS.API.STREAM.INFO.<stream>,
// $JS.API.STREAM.MSG.GET.<stream>, $JS.API.STREAM.MSG.DELETE.<stream>,
// $JS.API.CONSUMER.*.<stream>.> and $JS.API.CONSUMER.MSG.NEXT.<stream>.>, and subscribes
// to _INBOX.>. To make the stream it also publishes to $JS.API.STREAM.CREATE.<stream>.
// docs/reference/permissions.md has the permissions for sources and sinks. A violation is
// reported to the error handler of the connection, with the subject; the call itself
// waits for an answer until its time is over. Credentials do not appear in logs or
// errors.
package jetstream
