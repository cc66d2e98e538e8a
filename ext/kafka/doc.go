// Package kafka keeps the queues of a delivery.Queue in topics of Kafka, through
// franz-go, and has exactly-once inputs and outputs for pipelines:
//
//	engine, err := kafka.Open(ctx, "kafka://broker-1:9092,broker-2:9092,broker-3:9092", kafka.WithPartitions(12), kafka.WithReplicas(3))
//	…
//	defer engine.Close()
//	orders := delivery.NewQueue[Order](engine, "orders", delivery.RetryAfter(time.Minute, time.Hour))
//	receipts := delivery.NewQueue[Receipt](engine, "receipts")
//	op := asyncop.OrderedWaitWithRetry(charge, timeout, capacity, strategy, asyncop.WithFailureSink(orders.TakeFailure))
//	summary, err := delivery.Run(ctx, orders, op, receipts)
//
// # Vocabulary
//
//   - A queue "orders" is the topic orders, or the topics of [WithTopics]. Its layers are
//     the topics orders-retry-1 and so on, its dead letters orders-dead, and its workers
//     the members of the consumer group orders.
//   - A record becomes a message. Its origin is topic, partition and offset. Its id is in
//     weir's headers ([message.Meta.ToHeaders]), or is made of the origin and the
//     incarnation of the topic: "orders:Q3pX9aVn/0/17". The incarnation is the beginning
//     of the topic id, so a topic that was deleted and created again has other ids at the
//     same offsets. Brokers before 3.1 do not send the topic id, and the id lacks the
//     incarnation.
//   - The position of a partition is the offset that the group has committed: all before
//     it is settled.
//
// # Headers of other programs
//
// Where a record has no headers of weir ([message.Meta.ToHeaders]), its metadata comes
// from the headers that Spring Kafka and Kafka Connect write to dead letters and retry
// topics:
//
//	Origin      kafka_dlt-original-topic, -partition, -offset      __connect.errors.topic, .partition, .offset
//	LastError   kafka_dlt-exception-message                        __connect.errors.exception.message
//	Reasons     kafka_dlt-exception-fqcn                           __connect.errors.exception.class.name
//	Visit       retry_topic-attempts
//	Due         retry_topic-backoff-timestamp
//
// In retry topics, Spring's names begin with kafka_original- and kafka_exception-.
// Without these headers the metadata comes from the record: its key, and its topic,
// partition and offset as origin. Other headers are Meta.Headers. Of several headers with
// the same name, the last keeps it, and the earlier are Weir-Earlier-1-name and so on, so
// that a record written from the Meta has all of them as they were.
//
// Dead letters that weir writes have weir's headers, and the first three lines of both
// columns.
//
// # Guarantees
//
// A message is delivered at least once. A worker commits the lowest offset that is not
// settled (law D1), and the settled ranges above it in the metadata of the commit. So
// after a rebalance or a restart, only unsettled messages are delivered again; after a
// kill, also messages that were settled since the last commit, up to a second before.
// Offsets that never arrive, since compaction has removed them or they belong to
// transactions, count as settled. Offsets of a lost partition are not committed, and a
// message that still runs here when its partition returns is not delivered a second time:
// its settlement counts (D2). Each process counts deliveries by itself, so a message that
// kills its process is redelivered without end.
//
// A message that was nacked never returns before its delay is over (D3), even after a
// rebalance, once the delay is committed. Its new owner compares with its own clock, so a
// delay can be wrong by the difference between the hosts' clocks. If the delays do not
// fit into the metadata, some become longer.
//
// Messages of a partition are delivered in the order of their offsets, except nacked
// messages. A partition is given to its next owner when all its messages in flight are
// settled, or after the time of [WithSettleTime]. So messages of a key are done in order,
// even over a rebalance, if they are done in order here, are not nacked, take at most the
// settle time, and no worker is killed.
//
// Put returns nil when all replicas in sync have the records (acks=all). After an error
// or a crash, the same message may be there twice, with the same id.
//
// Records that the retention of a topic removes before they are read are lost: the worker
// continues behind them, and logs a warning. An input ([OpenInput]) returns an error.
//
// # Retries
//
// Each record of a layer has the time when it is due, by the clock of the host that wrote
// it. A worker keeps a record that is not due, and stops fetching that partition when its
// limit is reached (see Limits). The records of a layer are due in their order, but for
// those whose server demanded a longer wait (Retry-After): 1,000 of them in a partition
// delay all later records of that partition until they are due. So give the topics of
// layers enough partitions, and if servers often demand long waits, keep the layers on
// PostgreSQL or JetStream.
//
// A failed message keeps its bytes, key and headers as received. Layers and dead letters
// have weir's headers, and dead letters also the headers that Spring Kafka and Kafka
// Connect write.
//
// Topics cannot find a message by its id and do not have leases, and only the whole topic
// of dead letters can be purged. The documentation of delivery.NewQueue lists the options
// that are therefore refused. If you need them, use the layers and dead letters of a
// queue on PostgreSQL or JetStream: its Source takes the source of a queue here as its
// first source.
//
// A [View] shows, counts and purges dead letters, and its Merge sends them back, each
// once. The command weir does the same.
//
// The payload in a layer was written by the codec of the program, without its schema: use
// a codec that reads the output of its earlier versions.
//
// # Checkpoints
//
// [OpenInput] opens a partition as an input of a pipeline with checkpoints (package
// checkpoint): its position is in the checkpoint, and it does not need a group. A record
// that it cannot read fails the pipeline each time it is restarted, unless there is a
// queue for dead letters. [NewOutput] returns an output that writes to a topic exactly
// once, for consumers that read committed records. It keeps the records in the state of
// the checkpoint, and publishes them in a transaction together with their number when the
// checkpoint is complete.
// [Group] shares partitions out between workers, with a pipeline for each (package
// partitions).
//
// # Limits
//
// The metadata of a commit has 4,096 characters, or fewer if the brokers take fewer. It
// has a bit for each record where settled and unsettled records mix, and some bytes for a
// long range of one kind: that is room for 10,000 to 15,000 records of a partition, and
// any number of settled records behind an unsettled one. Before it is full, the partition
// is not fetched. The same holds while 1,000 messages of the partition, or messages with
// 16 MiB, wait here after a Nack or a snooze, for their time or for dead letters. So each
// partition of a worker takes up to 16 MiB of memory, and a poll more, beside the
// messages in flight. The client's own buffers are bounded by kgo.FetchMaxBytes for each
// broker: 50 MiB by default.
//
// A partition that was paused for one of these reasons is fetched again after
// kgo.FetchMaxWait at most: 500 ms by default.
//
// A message that was nacked or snoozed (predicates.WithSnooze) waits in memory, so both
// are for short delays. For long delays use a layer, which is durable and does not hold
// the position back.
//
// A record has at most the size that the client takes (kgo.ProducerBatchMaxBytes, about 1
// MB by default) and the topic takes (max.message.bytes). A larger record is refused
// ([message.ErrRefused]), and its message goes to the dead letters: with its bytes as
// received, without most of its history if that does not fit, or without its bytes and
// with the topic, partition and offset where they stay, until the retention of the topic
// removes them. Where messages may be that large, raise both limits for layers and dead
// letters. If the topic of the dead letters refuses even a pointer without bytes, as a
// compacted topic does with records without a key, the run ends with an error, and the
// position of the message is not committed.
//
// # Permissions
//
// docs/reference/permissions.md lists the rights (ACLs) of each part. An error names a
// right that is missing, and ends the start, the worker or the [Group]. Brokers before
// 2.8 want IDEMPOTENT_WRITE on the cluster, too.
//
// A worker or a [Group] waits for a topic of others that does not exist, and logs a
// warning after three seconds, once for each topic. TLS and SASL are options of the
// client; this package does not log them.
//
// # Tests
//
// The tests run on kfake, franz-go's Kafka in memory, which does not replicate and is not
// a server for users. With WEIR_KAFKA they run on real brokers (Apache Kafka 4.3), some
// on three of them that are killed meanwhile: see CONTRIBUTING.md.
package kafka
