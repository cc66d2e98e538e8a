// Package jsstore keeps messages in queues in a stream of NATS JetStream, and locks in a key-value bucket: it is a store
// (package delivery/store) for workers on any number of machines, without a database.
//
//	_, err := js.CreateOrUpdateStream(ctx, jsstore.StreamConfig("retries"))
//	…
//	s, err := jsstore.Open(ctx, js, "retries")
//	…
//	defer s.Close()
//	err = s.Put(ctx, "retry 10m", message)
//
// [StreamConfig] is for one server. In a cluster set Replicas to 3. The servers must sync each write (sync_interval: always), also in
// a cluster: one that does not, and is killed, may bring back messages that are done.
//
// # Guarantees
//
// Those of [store.Inspector]. The server's clock decides what is due and how long a lease lasts, to the nanosecond, over
// restarts of the server too: the delay is a header of ours, and is looked at when a message is taken (law D3). If that clock
// is set forward, messages are due as much earlier, also when another server of a cluster takes over whose clock is ahead.
//
// Each message of a queue has a subject of its own, which holds one message of the stream: its state. A change of state is
// published only directly behind the one before, so the loser of a lease changes nothing (law P1). A Put of up to 1,000
// messages is one transaction, and a Move of up to 500; what is more than that is done in portions. A stream that is full is
// [store.ErrFull] (law D5). What another program publishes to the stream is logged and left alone.
//
// # What it costs
//
// A store that takes from a queue has an index of that queue in memory, of about 150 bytes a message. When it takes the first
// messages, it fills the index from the headers of all of them. Then it keeps the index up to date. Take and Extend write the
// message again, so large payloads cost as much again. All consumers of a queue try the same messages first, and the losers try
// others.
//
// There is no index for filters: Count, Purge and Queues read all messages of a queue, List and Claim those from the page on.
// Each is a request to the leader of the stream: some thousand a second, which is an estimate. Where dead letters are counted in
// millions, keep them in ext/postgres.
//
// # Permissions
//
// A worker publishes to weir.store.<stream>.>, $JS.API.STREAM.INFO.<stream>, $JS.API.STREAM.MSG.GET.<stream>,
// $JS.API.STREAM.MSG.DELETE.<stream>, $JS.API.CONSUMER.*.<stream>.> and $JS.API.CONSUMER.MSG.NEXT.<stream>.>, and for locks
// to $KV.<bucket>.>, $JS.API.STREAM.INFO.KV_<bucket>, $JS.API.DIRECT.GET.KV_<bucket>.> and $JS.API.CONSUMER.*.KV_<bucket>.>.
// It subscribes to _INBOX.>. What is not allowed is reported to the error handler of the connection, with the subject; the call
// itself waits for an answer until its time is over. The connection, its credentials and TLS are the caller's: nothing of them is
// in logs or errors.
package jsstore
