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
//   - A record becomes a message. Its origin is topic, partition and offset. Its id comes
//     from weir's headers ([message.Meta.ToHeaders]), or from the origin and the
//     incarnation of the topic: "orders:Q3pX9aVn/0/17". The incarnation is the beginning
//     of the topic id, so ids differ after a topic was deleted and created again. With
//     brokers before 3.1, ids lack the incarnation.
//   - The position of a partition is the group's committed offset: all before it is
//     settled.
//
// # Headers of other programs
//
// The metadata of a record without weir's headers comes from the headers that Spring
// Kafka and Kafka Connect write to dead letters and retry topics:
//
//	Origin      kafka_dlt-original-topic, -partition, -offset      __connect.errors.topic, .partition, .offset
//	LastError   kafka_dlt-exception-message                        __connect.errors.exception.message
//	Reasons     kafka_dlt-exception-fqcn                           __connect.errors.exception.class.name
//	Visit       retry_topic-attempts
//	Due         retry_topic-backoff-timestamp
//
// In retry topics, Spring's names begin with kafka_original- and kafka_exception-.
// Without these headers, a message has the key and the origin of its record. Other
// headers are Meta.Headers. Of several headers with one name, the earlier ones become
// Weir-Earlier-1-name and so on. A record written from the Meta has them as they were.
//
// weir's dead letters have weir's headers, and the first three lines of both columns.
//
// # Guarantees
//
// A message is delivered at least once. A worker commits the lowest offset that is not
// settled (law D1), and the settled ranges above it in the metadata of the commit. So a
// rebalance or a restart redelivers only unsettled messages; a kill, also messages
// settled since the last commit, up to a second before. Offsets that never arrive,
// because of compaction or transactions, count as settled. Offsets of a lost partition
// are not committed. A message that still runs here when its partition returns is not
// delivered a second time: its settlement counts (D2). Each process counts deliveries by
// itself, so a message that kills its process is redelivered without end.
//
// A nacked message never returns before its delay is over (D3), even after a rebalance,
// once the delay is committed. Its new owner compares with its own clock, so a delay can
// be wrong by the difference between the hosts' clocks. If the delays do not fit into the
// metadata, some become longer.
//
// Messages of a partition, except nacked ones, are delivered in the order of their
// offsets. A partition passes to its next owner when its messages in flight are settled,
// or after the time of [WithSettleTime]. So messages of a key stay in order, even over a
// rebalance, if they are processed in order here, are not nacked, take at most the settle
// time, and no worker is killed.
//
// After an error of Put or a crash, a message may be there twice, with the same id.
//
// A worker skips records that the topic's retention removed before they were read, and
// logs a warning. An input ([OpenInput]) returns an error.
//
// # Retries
//
// A record of a layer has the time when it is due, by the clock of the host that wrote
// it. A worker keeps records that are not due, and stops fetching their partition at its
// limit (see Limits). Records of a layer are due in order, unless a server demanded a
// longer wait (Retry-After): 1,000 such records delay all later records of their
// partition until they are due. So give layers enough partitions, and if servers often
// demand long waits, keep the layers on PostgreSQL or JetStream.
//
// A failed message keeps its bytes, key and headers as received, and gets weir's headers.
//
// Topics cannot find a message by its id and do not have leases, and dead letters can
// only be purged as a whole. delivery.NewQueue lists the options that are therefore
// refused. If you need them, keep the layers and dead letters in a queue on PostgreSQL or
// JetStream: its Source takes the source of a queue here as its first source.
//
// A [View], like the command weir, shows, counts and purges dead letters, and sends them
// back, each once.
//
// Payloads in a layer do not carry their schema: use a codec that reads the output of its
// earlier versions.
//
// # Checkpoints
//
// [OpenInput] and [NewOutput] are for pipelines with checkpoints (package checkpoint),
// [Group] for a pipeline for each partition (package partitions).
//
// # Limits
//
// The metadata of a commit has 4,096 characters, or fewer if the brokers take fewer. It
// has a bit for each record where settled and unsettled records mix, and some bytes for a
// long range of one kind. So there is room for 10,000 to 15,000 records of a partition,
// and any number of settled records behind an unsettled one. Fetching of a partition
// pauses before its metadata is full. It also pauses while 1,000 of its messages, or
// messages with 16 MiB, wait here after a Nack or a snooze, for their time or for dead
// letters. So each partition of a worker takes up to 16 MiB of memory, and a poll more,
// beside the messages in flight. The client's own buffers are bounded by
// kgo.FetchMaxBytes for each broker: 50 MiB by default. Fetching resumes after
// kgo.FetchMaxWait at most: 500 ms by default.
//
// Nacked and snoozed (predicates.WithSnooze) messages wait in memory: use both for short
// delays only. A layer is durable and does not hold the position back.
//
// The client (kgo.ProducerBatchMaxBytes, about 1 MB by default) and the topic
// (max.message.bytes) limit the size of a record. A larger record is refused
// ([message.ErrRefused]), and its message goes to the dead letters with its bytes as
// received. If that does not fit, most of its history is left out, or the bytes: then it
// has the topic, partition and offset where they stay until the topic's retention removes
// them. For such messages raise both limits for layers and dead letters. If the topic of
// the dead letters refuses even a pointer without bytes, as a compacted topic does
// without a key, the run ends with an error, and the position of the message is not
// committed.
//
// # Permissions
//
// docs/reference/permissions.md lists the rights (ACLs) of each part. An error names the
// missing right, and ends the start, the worker or the [Group]. Brokers before 2.8 also
// require IDEMPOTENT_WRITE on the cluster.
//
// A worker or a [Group] waits for another program's missing topic, and logs one warning
// for it after three seconds. TLS and SASL are options of the client; this package does
// not log them.
package kafka
