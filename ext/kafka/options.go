package kafka

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/guard"
)

const (
	defaultCommitInterval = time.Second
	defaultSettleTime     = 5 * time.Second
	maxMetadata           = 4096 // what brokers take by default
	minMetadata           = 128
)

// PutFunc stores messages. It returns nil when they are durable. The same messages may come again. [Retries.PutDead] is one; for a queue of
// a store:
//
//	func(ctx context.Context, ms ...store.Message) error { return s.Put(ctx, "orders dead", ms...) }
type PutFunc func(ctx context.Context, ms ...store.Message) error

type sourceSettings struct {
	client         []kgo.Opt
	clock          clock.Clock
	logger         *slog.Logger
	commitInterval time.Duration
	settleTime     time.Duration
	metadata       int
	dead           PutFunc
	blockedFor     time.Duration // 0: blockers are left alone
	handOver       PutFunc       // of blockers; nil: their partition is paused
}

// SourceOption changes a setting of [NewSource].
type SourceOption func(*sourceSettings)

// WithClient adds options of the client: kgo.SeedBrokers, kgo.DialTLSConfig, kgo.SASL, kgo.SessionTimeout, kgo.Balancers and others. The
// source sets the group, the topics, the callbacks of a rebalance and that of fetched offsets, kgo.BlockRebalanceOnPoll and
// kgo.DisableAutoCommit itself. Unless an option here says otherwise, only committed records are read (kgo.ReadCommitted), and brokers
// answer after 500 ms at most when there is nothing new (kgo.FetchMaxWait).
func WithClient(opts ...kgo.Opt) SourceOption {
	return func(s *sourceSettings) { s.client = append(s.client, opts...) }
}

// WithCommitInterval sets how often what is settled is committed; the default is 1 s. What was settled since the last commit is delivered
// again after a crash. It panics if d ≤ 0.
func WithCommitInterval(d time.Duration) SourceOption {
	mustBePositive("WithCommitInterval", d)
	return func(s *sourceSettings) { s.commitInterval = d }
}

// WithSettleTime sets how long a source that loses partitions in a rebalance waits for what is in flight of them; the default is 5 s. It
// holds up the rebalance, so it must be shorter than the client's rebalance timeout (60 s by default). What is not settled then is
// delivered to the next owner while it may still run here: choose a time that is longer than a message takes. It panics if d ≤ 0.
func WithSettleTime(d time.Duration) SourceOption {
	mustBePositive("WithSettleTime", d)
	return func(s *sourceSettings) { s.settleTime = d }
}

// WithMetadataLimit sets how many characters of metadata a commit may have; the default is 4,096, which is the default of a broker's
// offset.metadata.max.bytes. It panics if n is less than 128.
func WithMetadataLimit(n int) SourceOption {
	if n < minMetadata {
		panic(fmt.Sprintf("kafka: WithMetadataLimit: %d characters, must be at least %d", n, minMetadata))
	}
	return func(s *sourceSettings) { s.metadata = n }
}

// WithDeadLetters sets where messages go that were rejected, or that the codec cannot read. They are settled when put has returned nil; an
// error is tried again. Without it, a message that was rejected is logged as an error and stays behind in its topic, and one that cannot be
// read is returned as an error by Receive and never settled.
func WithDeadLetters(put PutFunc) SourceOption {
	guard.RefuseNil("kafka: WithDeadLetters", "function", put)
	return func(s *sourceSettings) { s.dead = put }
}

// WithBlockers says what becomes of a message that is not settled for a time after it has arrived, so that the committed position stands
// still. Without this option, others go on until the metadata of the commit is full.
//
//   - With a function, a message that waits here after a Nack is handed over and settled. One that is being worked on is handed over when it
//     is nacked.
//   - With nil, no more is fetched of its partition until it is settled.
//
// It panics if after ≤ 0.
func WithBlockers(after time.Duration, handOver PutFunc) SourceOption {
	mustBePositive("WithBlockers", after)
	return func(s *sourceSettings) { s.blockedFor, s.handOver = after, handOver }
}

// WithClock sets the clock of delays and intervals; the default is the machine's.
func WithClock(c clock.Clock) SourceOption {
	guard.RefuseNil("kafka: WithClock", "clock", c)
	return func(s *sourceSettings) { s.clock = c }
}

// WithLogger sets the logger; the default is slog.Default(). It names topics, partitions and offsets, not what is in a message.
func WithLogger(l *slog.Logger) SourceOption {
	guard.RefuseNil("kafka: WithLogger", "logger", l)
	return func(s *sourceSettings) { s.logger = l }
}

func mustBePositive(option string, d time.Duration) {
	if d <= 0 {
		panic(fmt.Sprintf("kafka: %s: %v is not positive", option, d))
	}
}
