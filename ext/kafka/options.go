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

// Option is a setting of [Open]. The last of several options of a kind counts, but the
// options of several [WithClientOptions] are joined, and each queue has its own
// [WithTopics].
type Option func(*settings)

type settings struct {
	client         []kgo.Opt
	partitions     int                 // of topics that the engine makes; 0 if it makes no topics
	replicas       int                 // of these topics; 0 means the brokers' default
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
// kgo.SessionTimeout, kgo.Balancers and others. The engine sets groups, topics, rebalance
// callbacks, acks and isolation itself.
func WithClientOptions(opts ...kgo.Opt) Option {
	return func(s *settings) { s.client = append(s.client, opts...) }
}

// WithPartitions makes missing topics of a queue, with n partitions, and logs that. By
// default a missing topic is an error. It panics if n is less than 1 or above
// 2,147,483,647.
//
// These topics have no limit in bytes and are not compacted (retention.bytes=-1,
// cleanup.policy=delete). Dead letters are kept at any age (retention.ms=-1); the
// brokers' log.retention.ms limits the age of other messages. An existing topic is
// refused if it is compacted, if it is a layer with a limit in bytes, or if it has dead
// letters and a limit in bytes or in time. The error has the command that changes it.
func WithPartitions(n int) Option {
	if n < 1 || n > math.MaxInt32 {
		panic(fmt.Sprintf("kafka: WithPartitions: %d is not from 1 to %d: leave the option out to make no topics", n, math.MaxInt32))
	}
	return func(s *settings) { s.partitions = n }
}

// WithReplicas sets the number of replicas of the topics that [WithPartitions] makes. The
// default is the brokers' default.replication.factor. With three replicas or more, a
// record is on at least two (min.insync.replicas=2). It panics if n is less than 1 or
// above 32,767.
func WithReplicas(n int) Option {
	if n < 1 || n > math.MaxInt16 {
		panic(fmt.Sprintf("kafka: WithReplicas: %d is not from 1 to %d: leave the option out for the default of the brokers", n, math.MaxInt16))
	}
	return func(s *settings) { s.replicas = n }
}

// WithTopics takes the new messages of a queue from topics of other programs, as the
// group named like the queue. By default a queue has one topic, with its own name. Put
// writes to the first topic. Failed messages go to the queue's layers and dead letters as
// usual, with bytes and headers as received. A worker waits for a missing topic. Give the
// option once for each queue. It panics if a name is empty or there are no topics.
func WithTopics(queue string, topics ...string) Option {
	if queue == "" || len(topics) == 0 || slices.Contains(topics, "") {
		panic(fmt.Sprintf("kafka: WithTopics: queue %q with the topics %q: name the queue and at least one topic", queue, topics))
	}
	topics = slices.Clone(topics)
	return func(s *settings) { s.topics[queue] = topics }
}

// WithSettleTime sets how long a worker that loses partitions in a rebalance waits for
// their messages in flight. The default is 5 s. It blocks the rebalance, so it must be
// shorter than the client's rebalance timeout (60 s by default). A message that is not
// settled by then goes to the next owner while it may still run here: choose a time
// longer than a message takes. WithSettleTime panics if d is not positive.
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
