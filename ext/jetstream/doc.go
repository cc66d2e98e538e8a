// Package jetstream keeps messages in queues in a stream of NATS JetStream: an engine for workers on any number of machines, without a
// database.
//
//	engine, err := jetstream.Open(ctx, "nats://127.0.0.1:4222") // several addresses with commas
//	…
//	defer engine.Close()
//	orders := delivery.NewQueue[Order](engine, "orders", delivery.RetryAfter(time.Minute, 10*time.Minute, time.Hour))
//
// [Open] makes the stream if it is missing: one for all queues, jobs, locks and what workers say about themselves. On a cluster use
// [WithReplicas] (3). The servers must sync each write (sync_interval: always), also in a cluster: one that does not, and is killed, may
// bring back messages that are done. For a server in the process there is ext/jetstream/embedded, for pipelines with checkpoints
// ext/jetstream/jscheckpoint.
//
// # Guarantees
//
// Those of [store.Keeper]. The server's clock decides what is due and how long a lease lasts, to the nanosecond, over restarts of the server
// too (law D3). If that clock is set forward, messages are due as much earlier, also when another server of a cluster takes over whose
// clock is ahead.
//
// Each message of a queue has a subject of its own, which holds one message of the stream: its state. A change of state is published only
// directly behind the one before, so the loser of a lease changes nothing (law P1). A Put or Done of up to 1,000 messages is one
// transaction, and a Move of up to 500; what is more than that is done in portions. A stream that is full is [store.ErrFull] (law D5): it
// refuses what jobs write as well, so make room by [Engine.Purge] or a higher limit. What another program publishes to the stream is logged
// and left alone; if it has replaced a message of a queue, that is lost. A message of weir's that cannot be read goes to the dead letters
// with all its bytes, as undecodable and with an unknown outcome; its id has the name of the stream and its position.
//
// # What it costs
//
// An engine that takes from a queue, or looks into it, has an index of that queue in memory, of about 200 bytes a message. The index itself
// is not stored: it comes from the headers of the messages, which say state, cause and reasons, so it survives restarts. It reads them once
// for each queue and process, some 50,000 a second, and again after the connection was broken. After that it gets each change. So counts by
// cause, reason and time read no messages, and a merge or a purge is one pass. A filter for ids, a key, a source, a provider or an error
// reads the messages: some 10,000 a second. An index that was not used for ten minutes goes when another one is needed.
//
// A message that is done leaves a mark of some 250 bytes in the stream, so that the indexes of others learn of it; the server removes it
// after two minutes. Take and Extend write the message again, so large payloads cost as much again. All consumers of a queue try the same
// messages first, and the losers try others.
//
// A process publishes the name of a queue once, and again with the first Put after five minutes. A name goes when its queue is empty and has
// got nothing for ten minutes, as soon as another name is published.
//
// # Streams of other programs
//
// [WithForeign] says that the new messages of a queue are in a stream that other programs write or read. Any number of workers share its
// durable consumer. Such a message has the id of its headers, if weir has published it; else it is made of the names of the stream and the
// sequence number. The header Nats-Subject of its Meta is the subject; headers with the same name are one, with commas.
//
//   - While a message is in flight its lease, the AckWait of the consumer, is extended. A worker that is killed, or stopped or cut off for
//     longer than that, loses its messages to other workers, and then gives back and extends nothing of them. Its acknowledgement
//     still counts: no worker gets the message again, unless it has failed elsewhere meanwhile, and is in a layer or a dead letter.
//   - The server counts deliveries that were given back, too. After ten that this process has not given back a message goes to the dead
//     letters: its workers die.
//   - What fails, or is nacked with a delay, goes to the engine's stream with the bytes and headers that came, and is then acknowledged. A
//     crash in between doubles it. One that is too large for that stays in its stream, and its dead letter, without a payload, says where.
//     A stream with work-queue or interest retention would remove it: there it is nacked for good, and keeps one place of MaxAckPending.
//   - What a queue publishes has its id as Nats-Msg-Id: it is stored once within the Duplicates of the stream (2 minutes by default, over all
//     its subjects). A Put of several messages there is not all or none.
//   - MaxDeliver, BackOff and HeadersOnly of the consumer are refused: the first drops messages, the second replaces AckWait, the third
//     has no payloads.
//
// # Permissions
//
// A worker publishes to weir.store.<stream>.>, $JS.API.STREAM.INFO.<stream>, $JS.API.STREAM.MSG.GET.<stream>,
// $JS.API.STREAM.MSG.DELETE.<stream>, $JS.API.CONSUMER.*.<stream>.> and $JS.API.CONSUMER.MSG.NEXT.<stream>.>, and subscribes to _INBOX.>. To
// make the stream it also publishes to $JS.API.STREAM.CREATE.<stream>. docs/jetstream.md has those of foreign streams. What is not allowed is
// reported to the error handler of the connection, with the subject; the call itself waits for an answer until its time is over. Nothing of
// credentials is in logs or errors.
package jetstream
