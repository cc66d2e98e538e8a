// Package kafka connects weir to Kafka, through franz-go: messages of a consumer group as a source, topics as sinks, and topics in which failed
// messages wait.
//
//	source, err := kafka.NewSource("billing", []string{"orders"}, codec.JSON[Order](),
//		kafka.WithClient(kgo.SeedBrokers("broker-1:9092"), kgo.DialTLSConfig(config), kgo.SASL(mechanism)),
//		kafka.WithDeadLetters(retries.PutDead))
//	…
//	defer source.Close(ctx)
//	sink, err := kafka.NewSink("invoices", codec.JSON[Invoice](), kgo.SeedBrokers("broker-1:9092"))
//
// # Vocabulary
//
//   - A record of a topic becomes a message. Its origin is topic, partition and offset, and its id is made of them, unless weir's headers
//     say otherwise ([MetaFromRecord]).
//   - The position of a partition is the offset that the group has committed: all before it is settled.
//   - A blocker is a message that is not settled for long, so that the position of its partition stands still.
//
// # Guarantees
//
// A message is delivered at least once. [Source] commits the lowest offset that is not settled (law D1), and what is settled above it in the
// metadata of the commit. So after a rebalance or a restart, only what was not settled is delivered again, and what was settled since the last
// commit if the process was killed. Offsets that never arrive, since compaction has removed them or they belong to transactions, count as
// settled. Nothing is committed for a partition that was lost, and a message that still runs here when its partition comes back is not
// delivered a second time: its verdict counts (D2).
//
// A message that was nacked never comes back before its delay is over (D3), also after a rebalance, once the delay is committed. Its new
// owner compares with its own clock, so the hosts' clocks must agree to what a delay may be wrong by. If the metadata has no room for all delays, some
// become longer.
//
// Messages of a partition are delivered in the order of their offsets, those that were nacked excepted. A partition is given to its next
// owner when what is in flight of it is settled, or after [WithSettleTime]. So messages of a key are done in order, also over a rebalance, if
// they are done in order here, none is nacked, none takes longer than the settle time, and no worker is killed.
//
// A [Sink] returns nil when all replicas in sync have the records (acks=all). What is put again, after an error or a crash, is written again, with
// the same id.
//
// What the retention of a topic removes before it is read is lost: the source goes on behind it, and logs a warning. An [Input] returns an error.
//
// # Retries
//
// [Retries] are topics with a delay each, and one for dead letters. The source reads them beside the new messages:
//
//	retries, err := kafka.NewRetries(kafka.RetriesConfig[Order]{
//		Codec: codec.JSON[Order](),
//		Layers: []kafka.Layer{{Topic: "orders.retry-1m", Delay: time.Minute}, {Topic: "orders.retry-1h", Delay: time.Hour}},
//		DeadLetters: "orders.dead",
//		Client: client,
//	})
//	…
//	source, err := kafka.NewSource("billing", append([]string{"orders"}, retries.Topics()...), codec.JSON[Order](), …)
//	op := asyncop.OrderedWaitWithRetry(charge, timeout, capacity, strategy, asyncop.WithFailureSink(retries.Take))
//
// Each record of a layer says when it is due, by the clock of the host that wrote it. The source keeps what is not due, and stops fetching
// that partition when its limit is reached: the first ones of a layer are due first. So give the topics of layers enough partitions.
//
// That is less than a store of messages (delivery/store), and topics cannot be one: they find no message by its id, so a hand-over that is
// repeated is there twice, with one id; they have no leases for messages; to look at dead letters, one reads all of them, and only all of
// them can be purged. Where that matters, use the layers and dead letters of a delivery.Queue on PostgreSQL or JetStream. Its Source
// takes a [Source] of this package as its first source, and [WithDeadLetters] takes the Put of its engine.
//
// A [View] shows, counts and purges dead letters, and its Merge sends them back, each once. The command weir does the same.
//
// The payload in a layer is what the codec of the program has written, without its schema: use a codec that reads what its earlier versions
// have written.
//
// # Checkpoints
//
// [Input] is a partition as an input of a pipeline with checkpoints (package checkpoint): its position is in the checkpoint, and no group is
// needed. A record that it cannot read fails the pipeline each time it is started again, unless it has a place for dead letters. [Output] writes to a topic exactly once, for consumers that read what is committed. It keeps the records in the state of the
// checkpoint, and publishes them in a transaction together with their number when the checkpoint is complete. [Group] shares partitions out
// between workers, with a pipeline for each (package partitions).
//
// # Limits
//
// The metadata of a commit has 4,096 characters by default. It has a bit for each record where settled ones and others mix, and some bytes
// for a long range of one kind: that is room for 10,000 to 15,000 records of a partition, and any number of settled ones behind a blocker.
// Before it is full, no more is fetched of the partition. The same holds while 1,000 messages of the partition, or messages with 16 MiB,
// wait here after a Nack, for their time or for dead letters. So each partition of a source has up to 16 MiB here, and one poll more, beside
// what is in flight. What the client has fetched and not returned is bounded by kgo.FetchMaxBytes for each broker: 50 MiB by default.
//
// A partition that was not fetched for one of these reasons is fetched again after kgo.FetchMaxWait at most: 500 ms by default.
//
// A Nack waits in memory, so it is for short delays. For long ones put the message into a layer (delivery.Queue), which is
// durable and holds up no position.
//
// A record has at most what the client takes (kgo.ProducerBatchMaxBytes, about 1 MB by default) and what the topic takes (max.message.bytes).
// A [Sink] rejects a larger one, and [Retries] refuse it ([delivery.ErrRefused]), so its source puts it into the dead letters: with its bytes
// as received, without most of its history if that does not fit, or without its bytes and with the topic, partition and offset where they stay,
// until the retention of the topic removes them. Where messages may be that large, raise both limits for layers and dead letters.
//
// # Permissions
//
//   - A source, or a [Group]: READ and DESCRIBE on its topics, READ on its group.
//   - An input: READ and DESCRIBE on its topic.
//   - An output: READ, WRITE and DESCRIBE on its topic, WRITE and DESCRIBE on its transactional id, READ on the group of the same name.
//   - A view: READ and DESCRIBE on its topic, READ on its group, which is weir-merge-TOPIC for dead letters. A merge also DELETE on the topic,
//     WRITE on the topic that it sends to, and WRITE on the transactional id weir-merge-TOPIC. A purge DELETE.
//   - A sink, and retries: WRITE and DESCRIBE on their topics. Brokers before 2.8 want IDEMPOTENT_WRITE on the cluster, too.
//
// No topic is created, unless a broker does so by itself. A source or a [Group] waits for a topic that does not exist, and for brokers that do
// not answer: it logs that as a warning after three seconds, once for each topic. TLS and SASL are options of the client; nothing here logs them.
//
// # Tests
//
// The tests run on kfake, franz-go's Kafka in memory, which has no replication and is no server for users. With WEIR_KAFKA they run on real
// brokers (Apache Kafka 4.3), some on three of them that are killed meanwhile: see CONTRIBUTING.md.
package kafka
