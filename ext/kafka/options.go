package kafka

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	defaultCommitInterval = time.Second
	defaultSettleTime     = 5 * time.Second
	maxMetadata           = 4096 // what brokers take by default
	minMetadata           = 128
)

type settings struct {
	client         []kgo.Opt
	partitions     int32 // 0: topics are not made
	replication    int16
	foreign        map[string][]string
	settleTime     time.Duration
	commitInterval time.Duration
}

// Option changes a setting of [Open].
type Option func(*settings)

// WithClient adds options of the clients: kgo.DialTLSConfig, kgo.SASL, kgo.SessionTimeout, kgo.Balancers and others. The
// engine sets groups, topics, the callbacks of a rebalance, acks and isolation itself.
func WithClient(opts ...kgo.Opt) Option {
	return func(s *settings) { s.client = append(s.client, opts...) }
}

// WithTopics makes the missing topics of a queue, with these numbers of partitions and replicas, and logs it. With 0 replicas the brokers'
// default.replication.factor decides. With three replicas or more a record is on at least two of them (min.insync.replicas=2), and dead letters
// are kept for ever (retention.ms=-1). Without this option a topic that is missing is an error. It panics with less than one partition, or a
// negative number of replicas.
func WithTopics(partitions, replication int) Option {
	if partitions < 1 || partitions > math.MaxInt32 || replication < 0 || replication > math.MaxInt16 {
		panic(fmt.Sprintf("kafka: WithTopics: %d partitions, %d replicas: want at least 1, and 0", partitions, replication))
	}
	if replication == 0 {
		replication = -1 // as the protocol has it
	}
	return func(s *settings) { s.partitions, s.replication = int32(partitions), int16(replication) }
}

// WithForeign takes the new messages of a queue from topics which other programs write; Put writes to the first of them. The rest is the same: a
// failed message goes to the layers and dead letters of the queue, with its bytes and headers as received. A worker waits for a topic of these
// that is missing. It panics if a name is empty.
func WithForeign(queue string, topics ...string) Option {
	if queue == "" || len(topics) == 0 || slices.Contains(topics, "") {
		panic(fmt.Sprintf("kafka: WithForeign: the queue %q and its topics %q must have names", queue, topics))
	}
	return func(s *settings) { s.foreign[queue] = slices.Clone(topics) }
}

// WithSettleTime sets how long a worker that loses partitions in a rebalance waits for their messages in flight; the default is 5 s. It
// blocks the rebalance, so it must be shorter than the client's rebalance timeout (60 s by default). A message that is not settled then is
// delivered to the next owner while it may still run here: choose a time that is longer than a message takes. It panics if d ≤ 0.
func WithSettleTime(d time.Duration) Option {
	if d <= 0 {
		panic(fmt.Sprintf("kafka: WithSettleTime: %v is not positive", d))
	}
	return func(s *settings) { s.settleTime = d }
}
