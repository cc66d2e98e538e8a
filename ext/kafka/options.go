package kafka

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	maxMetadata = 4096 // bytes of metadata with an offset that brokers accept by default
	minMetadata = 128
)

// Option is a setting of [Open]. Of several options of a kind the last one counts, except
// that the options of several [WithClientOptions] are joined, and that each queue has its
// own [WithTopics].
type Option func(*settings)

type settings struct {
	client         []kgo.Opt
	partitions     int                 // of topics that the engine makes; 0 if it makes no topics
	replicas       int                 // of these topics; 0 means the default of the brokers
	topics         map[string][]string // of other programs, by the name of the queue
	settleTime     time.Duration
	commitInterval time.Duration
}

func newSettings(opts []Option) settings {
	s := settings{topics: map[string][]string{}, settleTime: 5 * time.Second, commitInterval: time.Second}
	for i, opt := range opts {
		if opt == nil {
			panic(fmt.Sprintf("kafka: Open: option %d is nil", i+1))
		}
		opt(&s)
	}
	return s
}

// WithClientOptions adds options of the clients: kgo.DialTLSConfig, kgo.SASL,
// kgo.SessionTimeout, kgo.Balancers and others. The engine sets groups, topics, the
// callbacks of a rebalance, acks and isolation itself.
func WithClientOptions(opts ...kgo.Opt) Option {
	return func(s *settings) { s.client = append(s.client, opts...) }
}

// WithPartitions makes the missing topics of a queue, with n partitions, and logs that.
// By default a missing topic is an error. It panics if n is less than 1 or above
// 2,147,483,647.
//
// A limit of the brokers in bytes and compaction do not apply to these topics
// (retention.bytes=-1, cleanup.policy=delete). Dead letters are kept at any age
// (retention.ms=-1); the age of other messages is limited by log.retention.ms of the
// brokers. A topic that exists already is refused if it is compacted, if it is a layer
// with a limit in bytes, or if it has dead letters and a limit in bytes or in time. The
// error has the command that changes it.
func WithPartitions(n int) Option {
	if n < 1 || n > math.MaxInt32 {
		panic(fmt.Sprintf("kafka: WithPartitions: %d is not from 1 to %d: leave the option out to make no topics", n, math.MaxInt32))
	}
	return func(s *settings) { s.partitions = n }
}

// WithReplicas sets the number of replicas of the topics that [WithPartitions] makes. The
// default is default.replication.factor of the brokers. With three replicas or more a
// record is on at least two of them (min.insync.replicas=2). It panics if n is less than
// 1 or above 32,767.
func WithReplicas(n int) Option {
	if n < 1 || n > math.MaxInt16 {
		panic(fmt.Sprintf("kafka: WithReplicas: %d is not from 1 to %d: leave the option out for the default of the brokers", n, math.MaxInt16))
	}
	return func(s *settings) { s.replicas = n }
}

// WithTopics takes the new messages of a queue from topics that other programs write, as
// the group with the name of the queue. By default a queue has a topic with its own name.
// Put writes to the first topic. A failed message goes to the layers and dead letters of
// the queue, as in other queues, with its bytes and headers as received. A worker waits
// for a topic that is missing. Give the option once for each queue. It panics if a name
// is empty or there are no topics.
func WithTopics(queue string, topics ...string) Option {
	if queue == "" || len(topics) == 0 || slices.Contains(topics, "") {
		panic(fmt.Sprintf("kafka: WithTopics: queue %q with the topics %q: name the queue and at least one topic", queue, topics))
	}
	topics = slices.Clone(topics)
	return func(s *settings) { s.topics[queue] = topics }
}

// WithSettleTime sets how long a worker that loses partitions in a rebalance waits for
// their messages in flight. The default is 5 s. It blocks the rebalance, so it must be
// shorter than the rebalance timeout of the client (60 s by default). A message that is
// not settled then is delivered to the next owner while it may still run here: choose a
// time that is longer than a message takes. WithSettleTime panics if d is not positive.
func WithSettleTime(d time.Duration) Option {
	if d <= 0 {
		panic(fmt.Sprintf("kafka: WithSettleTime: %v is not positive", d))
	}
	return func(s *settings) { s.settleTime = d }
}

// WithCommitInterval sets how often the positions of settled messages are committed. The
// default is 1 s. It panics if d is not positive.
func WithCommitInterval(d time.Duration) Option {
	if d <= 0 {
		panic(fmt.Sprintf("kafka: WithCommitInterval: %v is not positive", d))
	}
	return func(s *settings) { s.commitInterval = d }
}
