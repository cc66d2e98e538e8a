// Package jsqueue has a source and a sink of messages (package delivery) over streams of NATS JetStream. Any number of workers
// share the messages of one durable pull consumer; each message is acknowledged when all that was made of it is safe.
//
//	consumer, err := js.CreateOrUpdateConsumer(ctx, "orders", jetstream.ConsumerConfig{
//		Durable: "billing", AckPolicy: jetstream.AckExplicitPolicy, AckWait: 30 * time.Second, MaxAckPending: 1000,
//	})
//	…
//	source, err := jsqueue.NewSource(ctx, js, consumer, codec.JSON[Order](), jsqueue.WithDeadLetters(dead, "orders dead"))
//	…
//	defer source.Close(ctx)
//	sink := jsqueue.NewSink(js, "bills", codec.JSON[Bill]())
//
// # Guarantees
//
// A message is delivered at least once. The server has confirmed a verdict before the source forgets the message, and has
// confirmed what a sink has published before PutAll returns. Values have the id of their message as Nats-Msg-Id: what is published
// again within the time window of the stream (jetstream.StreamConfig.Duplicates, 2 minutes by default, over all subjects of the
// stream) is stored once.
//
// While a message is in flight its lease, the AckWait of the consumer, is extended. A worker that is killed, or stopped or cut off for
// longer than that, loses its messages to other workers. When it goes on, it gives back and extends nothing of them, so a delay that
// another one has set since then holds. (The server cannot know a late request from another one: a network that holds one back for longer
// than AckWait, and then delivers it, may shorten a delay.) Its acknowledgement counts: what it has made of the message is safe.
//
// A Nack that the server does not confirm is not sent again after its delay: the message comes again when its lease ends. So does one that the
// server sends while Close ends the request for it, such as one that was nacked just before.
//
// # Settings of the consumer
//
//   - MaxAckPending bounds the messages in flight in all workers together; those that wait after a Nack with a delay count. So delay by Nack
//     for seconds, and put what waits longer in a layer (delivery.Queue), which frees the place.
//   - MaxDeliver must not be set: the server would stop delivering a message that is not done. A worker gives up by Reject.
//   - BackOff must not be set: it takes the place of AckWait.
//
// # Dead letters
//
// A rejected message is put into the queue of [WithDeadLetters], and then terminated. One that is too large for that stays in the stream,
// and its dead letter, without a payload, says where. A stream with work-queue or interest retention would remove it: there it is nacked
// for 100 years, and keeps one place of MaxAckPending.
//
// # Delays
//
// A message that was nacked with a delay is not delivered before the delay is over (law D3), over restarts of the server too,
// and while its source is open not much later. If that was closed or killed, it comes a second later at most. The server rounds
// what it keeps of delays down to seconds, so the source adds one, and asks for the message itself when the delay is over.
//
// # Permissions
//
// A worker publishes to $JS.API.CONSUMER.MSG.NEXT.<stream>.<consumer>, $JS.API.CONSUMER.INFO.<stream>.<consumer>,
// $JS.ACK.<stream>.<consumer>.> and the subjects of its sink, and subscribes to _INBOX.>. What is not allowed is reported to the
// error handler of the connection. Connections, credentials and TLS are
// the caller's: nothing of them is in logs or errors.
package jsqueue
