package kafka

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirflow/weir/internal/guard"
)

const (
	maxMetadata = 4096 // what brokers take by default
	minMetadata = 128
)

// Config are the settings of [Open]. A zero field has its default. Where several are given, a field has the last value that is not
// zero, and lists and maps are joined.
type Config struct {
	// Client are options of the clients: kgo.DialTLSConfig, kgo.SASL, kgo.SessionTimeout, kgo.Balancers and others. The engine sets groups, topics,
	// the callbacks of a rebalance, acks and isolation itself.
	Client []kgo.Opt

	// Partitions, if it is not 0, makes the missing topics of a queue, with as many
	// partitions, and logs it. Otherwise a missing topic is an error. Replicas is the
	// number of their replicas; the default is the brokers' default.replication.factor.
	// With three replicas or more a record is on at least two of them
	// (min.insync.replicas=2).
	//
	// A limit of the brokers in bytes and compaction do not apply to these topics
	// (retention.bytes=-1, cleanup.policy=delete). Dead letters are kept at any age
	// (retention.ms=-1); the age of other messages is limited by log.retention.ms of the
	// brokers. A topic that exists already is refused if it is compacted, if it is a
	// layer with a limit in bytes, or if it has dead letters and a limit in bytes or in
	// time. The error has the command that changes it.
	Partitions, Replicas int

	// Foreign takes the new messages of queues from topics which other programs write; Put writes to the first of them. The rest is the same: a
	// failed message goes to the layers and dead letters of the queue, with its bytes and headers as received. A worker waits for a topic of these
	// that is missing.
	Foreign map[string][]string // topics by the name of the queue

	// SettleTime is how long a worker that loses partitions in a rebalance waits for their messages in flight; the default is 5 s. It blocks the
	// rebalance, so it must be shorter than the client's rebalance timeout (60 s by default). A message that is not settled then is delivered to
	// the next owner while it may still run here: choose a time that is longer than a message takes.
	SettleTime time.Duration

	// CommitInterval is how often the positions of settled messages are committed; the default is 1 s.
	CommitInterval time.Duration
}

func configOf(configs []Config) Config {
	c := guard.Merged(configs)
	if c.Partitions < 0 || c.Partitions > math.MaxInt32 || c.Replicas < 0 || c.Replicas > math.MaxInt16 || c.SettleTime < 0 || c.CommitInterval < 0 {
		panic(fmt.Sprintf("kafka: Config: %d partitions, %d replicas, settle time %v, commit interval %v: a number is out of range",
			c.Partitions, c.Replicas, c.SettleTime, c.CommitInterval))
	}
	for queue, topics := range c.Foreign {
		if queue == "" || len(topics) == 0 || slices.Contains(topics, "") {
			panic(fmt.Sprintf("kafka: Config: the queue %q and its topics %q must have names", queue, topics))
		}
	}
	c.SettleTime = cmp.Or(c.SettleTime, 5*time.Second)
	c.CommitInterval = cmp.Or(c.CommitInterval, time.Second)
	return c
}
