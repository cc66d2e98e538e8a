// Package jetstream keeps the queues of workers on any number of machines in a stream of
// NATS JetStream.
//
//	engine, err := jetstream.Open(ctx, "nats://127.0.0.1:4222") // several addresses with commas
//	…
//	defer engine.Close()
//	orders := delivery.NewQueue[Order](engine, "orders", delivery.RetryAfter(time.Minute, 10*time.Minute, time.Hour))
//
// [Open] makes the stream if it is missing: one for all queues, jobs, locks and reports
// of workers. On a cluster use [WithReplicas] (3). The servers must sync each write
// (sync_interval: always), even in a cluster: a killed server that does not may bring
// back messages that are done. Package embedded runs a server in the process, package
// jscheckpoint is for pipelines with checkpoints.
//
// # Guarantees
//
// The guarantees of [store.Keeper]. The server's clock decides when messages are due and
// how long a lease lasts, to the nanosecond, over restarts of the server too (law D3). If
// that clock is set forward, or a server whose clock is ahead takes over, messages are
// due as much earlier.
//
// Each message of a queue has its own subject, which holds one message of the stream: its
// state. A change of state is published only directly behind the previous change, so the
// loser of a lease cannot change it (law P1). A Put or Done of up to 1,000 messages is a
// transaction, as is a Move of up to 500; larger calls are split. A full stream returns
// [store.ErrFull] (law D5), also for writes of jobs: make room by [Engine.Purge] or a
// higher limit. A replicated stream reserves the last 4,000 messages of MaxMsgs and 64
// MiB of MaxBytes, or a hundredth if that is more, but at most half, for changes of
// present messages, such as leases. Concurrent Puts of several processes may take some of
// that. Messages of other programs in the stream are logged and left alone. An unreadable
// message of weir's goes to the dead letters with all its bytes, as undecodable and with
// an unknown outcome. Its id has the name of the stream and its position.
//
// # Cost
//
// An engine that takes from a queue, or inspects it, has an index of that queue in
// memory, of about 200 bytes a message. It is built from the headers of the messages,
// which have the state, cause and reasons, once for each queue and process and again
// after a broken connection: some 50,000 messages a second. After that it follows each
// change. Counts by cause, reason and time do not read messages. A filter for ids, a key,
// a source, a provider or an error reads some 10,000 messages a second. An index that was
// unused for ten minutes is removed when another index is needed.
//
// A message that is done leaves a mark of some 250 bytes for two minutes. Take and Extend
// write the whole message again. If the stream has replicas and a limit, a Put asks for
// its size first. All consumers of a queue try the same messages first, and the losers
// try others.
//
// Some five to ten minutes after its last Put, the name of an empty queue is removed when
// another name is published.
//
// # Streams of other programs
//
// [NewSource] reads a stream that other programs write, and [NewSink] publishes to one
// that they read. A queue of the engine has the layers and dead letters: see Queue.Source
// of package delivery. docs/jetstream.md lists the abilities of a queue that such a
// stream lacks.
//
// # Permissions
//
// A worker publishes to weir.store.<stream>.>, $JS.API.STREAM.INFO.<stream>,
// $JS.API.STREAM.MSG.GET.<stream>, $JS.API.STREAM.MSG.DELETE.<stream>,
// $JS.API.CONSUMER.*.<stream>.> and $JS.API.CONSUMER.MSG.NEXT.<stream>.>, and subscribes
// to _INBOX.>. To make the stream it also publishes to $JS.API.STREAM.CREATE.<stream>.
// docs/reference/permissions.md has the permissions for sources and sinks. The
// connection's error handler gets violations, with the subject; the call itself waits
// until its timeout. Credentials do not appear in logs or errors.
package jetstream
