// Package kafka connects weir to Kafka, through franz-go: messages of a consumer group as a source.
//
//	source, err := kafka.NewSource("billing", []string{"orders"}, codec.JSON[Order](),
//		kafka.WithClient(kgo.SeedBrokers("broker-1:9092"), kgo.DialTLSConfig(config), kgo.SASL(mechanism)),
//		kafka.WithDeadLetters(func(ctx context.Context, ms ...store.Message) error { return s.Put(ctx, "orders dead", ms...) }))
//	…
//	defer source.Close(ctx)
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
// # Limits
//
// The metadata of a commit has 4,096 characters by default: that is room for the settled ranges of about 450 to 900 messages in flight in a
// partition. Before that, no more is fetched of the partition.
//
// A Nack waits in memory, so it is for short delays. For long ones put the message into a layer (package delivery/ladder), which is
// durable and holds up no position.
//
// # Permissions
//
// A source needs READ and DESCRIBE on its topics, and READ on its group.
//
// # Tests
//
// The tests run on kfake, franz-go's Kafka in memory. It has no replication and is no server for users.
package kafka
