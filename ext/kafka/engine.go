package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/storearg"
)

const closeWait = 3 * time.Second

// Engine keeps the messages of queues in topics: see the package documentation. It is a
// [store.Consumer]: delivery.NewQueue lists the options that it refuses. Safe for
// concurrent use.
type Engine struct {
	settings settings
	producer *producer

	mu     sync.Mutex // guards the fields below; not held while a client is called
	known  map[string]bool
	open   map[*source]bool
	closed bool
}

var _ store.Consumer = (*Engine)(nil)

// Put implements [store.Engine]: when it returns nil, all replicas in sync have the
// records (acks=all). The producer is idempotent, so retries of the client do not
// duplicate messages. A message that is put again is written again, with the same id. The
// message's key is the record's key, so messages of a key go to the same partition, in
// order. Only if a batch is too large for the topic (max.message.bytes) are its records
// written one by one, behind records of later batches. The error is a [*store.PutError]
// once the records were sent. A record whose partition has no leader or too few replicas
// in sync fails after about 15 s (kgo.RecordDeliveryTimeout in [WithClientOptions]). So
// do other records that wait for that partition, and records that are older than that
// after a pause of the process.
func (e *Engine) Put(ctx context.Context, queue string, ms ...store.Message) error {
	if err := storearg.Put(queue, ms...); err != nil {
		return err
	}
	topic := queue
	if of := e.settings.topics[queue]; of != nil {
		topic = of[0]
	} else if err := e.ensure(ctx, queue); err != nil {
		return err
	}
	if e.isClosed() {
		return store.ErrClosed
	}
	err := e.producer.put(ctx, topic, ms)
	if errors.Is(err, kerr.UnknownTopicOrPartition) { // the topic was removed
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.known, topic)
	}
	return err
}

func (e *Engine) isClosed() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.closed
}

func (e *Engine) unknown(topics []string) ([]string, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, store.ErrClosed
	}
	return slices.DeleteFunc(slices.Clone(topics), func(topic string) bool { return e.known[topic] }), nil
}

// ensure makes missing topics and checks the others, once for each topic.
func (e *Engine) ensure(ctx context.Context, topics ...string) error {
	topics, err := e.unknown(topics)
	if err != nil || len(topics) == 0 {
		return err
	}
	missing, err := missingTopics(ctx, e.producer.client, topics)
	switch {
	case err != nil:
		return fmt.Errorf("kafka: %w", err)
	case len(missing) > 0 && e.settings.partitions == 0:
		return guard.MarkPermanent(fmt.Errorf("kafka: the topics %s are missing: make them, each by kafka-topics.sh --bootstrap-server HOST:PORT "+
			"--create --topic %s --partitions N --replication-factor N, or let the engine do so by WithPartitions",
			strings.Join(missing, ", "), missing[0]))
	}
	existing := slices.DeleteFunc(slices.Clone(topics), func(topic string) bool { return slices.Contains(missing, topic) })
	if err := e.check(ctx, existing); err != nil {
		return err
	}
	for _, topic := range missing {
		if err := e.create(ctx, topic); err != nil {
			return err
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, topic := range topics {
		e.known[topic] = true
	}
	return nil
}

func (e *Engine) create(ctx context.Context, topic string) error {
	configs, replicas := map[string]*string{}, int16(e.settings.replicas) //nolint:gosec // bounded
	if replicas == 0 {
		replicas = -1 // the protocol's default
	}
	if e.settings.replicas >= 3 {
		configs["min.insync.replicas"] = new("2")
	}
	for _, s := range newTopic(topic) {
		configs[s.key] = new(s.value)
	}
	made, err := kadm.NewClient(e.producer.client).CreateTopic(ctx, int32(e.settings.partitions), replicas, configs, topic) //nolint:gosec // bounded
	err = cmp.Or(made.Err, err)
	switch {
	case errors.Is(err, kerr.TopicAlreadyExists):
		return nil
	case err == nil:
		guard.Logger(nil).LogAttrs(ctx, slog.LevelInfo, "kafka: made a topic", slog.String("topic", topic),
			slog.Int("partitions", e.settings.partitions), slog.Int("replicas", int(made.ReplicationFactor)))
		return nil
	}
	if detail := made.ErrMessage; detail != "" {
		err = fmt.Errorf("%w: %s", err, detail)
	}
	err = fmt.Errorf("kafka: making the topic %s: %w", topic, lacking(err, "CREATE on the topic or the cluster"))
	if isRefusal(err) {
		return guard.MarkPermanent(err)
	}
	return err
}

// isRefusal reports whether brokers refuse a request for good.
func isRefusal(err error) bool {
	is, ok := errors.AsType[*kerr.Error](err)
	return ok && !is.Retriable
}

// Consume implements [store.Consumer].
func (e *Engine) Consume(ctx context.Context, c store.Consumption) (store.Receiver, error) {
	topics := e.settings.topics[c.Queue]
	own := append(slices.Clone(c.Layers), c.Dead)
	if topics == nil {
		topics, own = []string{c.Queue}, append(own, c.Queue)
	}
	if err := e.ensure(ctx, own...); err != nil {
		return nil, err
	}
	layers := func(ctx context.Context) ([]string, error) { return e.layers(ctx, c) }
	others, err := layers(ctx)
	if err != nil {
		return nil, err
	}
	s, err := newSource(c.Queue, slices.Concat(topics, c.Layers, others), sourceSettings{
		client: e.settings.client, clock: c.Clock, logger: c.Logger, commitInterval: e.settings.commitInterval, settleTime: e.settings.settleTime, metadata: maxMetadata,
		dead:   func(ctx context.Context, ms ...store.Message) error { return e.Put(ctx, c.Dead, ms...) },
		others: layers,
	})
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		go func() { _ = s.Close(context.WithoutCancel(ctx)) }()
		return nil, store.ErrClosed
	}
	e.open[s] = true
	s.forgotten = func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.open, s)
	}
	return s, nil
}

// layers returns the layers that only other versions have.
func (e *Engine) layers(ctx context.Context, c store.Consumption) (others []string, err error) {
	all, err := kadm.NewClient(e.producer.client).ListTopics(ctx)
	if err != nil {
		return nil, fmt.Errorf("kafka: looking for topics: %w", err)
	}
	for _, topic := range all.Names() {
		if c.IsLayer(topic) && !slices.Contains(c.Layers, topic) {
			others = append(others, topic)
		}
	}
	return others, nil
}

// Close implements [store.Engine]. It ends workers that are still open: their unsettled
// messages are redelivered.
func (e *Engine) Close() error {
	e.mu.Lock()
	open := slices.Collect(maps.Keys(e.open))
	closed := e.closed
	e.closed = true
	e.mu.Unlock()
	if closed {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeWait)
	defer cancel()
	errs := make([]error, len(open))
	for i, s := range open {
		errs[i] = s.Close(ctx)
	}
	e.producer.close()
	return errors.Join(errs...)
}
