package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/examples/internal/bank"
	"github.com/weirflow/weir/ext/kafka"
)

const topicPartitions = 4

// openKafka opens the engine of a worker. One that is started again has the same instance id, and gets its partitions back without a rebalance.
func openKafka(ctx context.Context, at location, worker int) (delivery.Engine, error) {
	return kafka.Open(ctx, at.URL, kafka.WithTopics(topicPartitions, 0),
		kafka.WithClient(kgo.InstanceID(fmt.Sprintf("worker-%d", worker)), kgo.SessionTimeout(6*time.Second)))
}

// inKafka is the engine of the supervisor. It counts by offsets, as a topic has no index.
type inKafka struct {
	at       location
	engine   *kafka.Engine
	orders   *delivery.Queue[bank.Order]
	payments *delivery.Queue[bank.Payment]
	client   *kgo.Client
	admin    *kadm.Client
	double   *kfake.Cluster // nil with brokers
}

// startKafka makes the topics. Without an address it starts the test double of franz-go: Kafka's protocol over topics in memory, which
// end with this process.
func startKafka(ctx context.Context, at location) (_ engine, err error) {
	e := &inKafka{at: at}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.close(false))
		}
	}()
	if e.at.URL == "" {
		if e.double, err = kfake.NewCluster(kfake.NumBrokers(1)); err != nil {
			return nil, err
		}
		e.at.URL = onKafka + "://" + strings.Join(e.double.ListenAddrs(), ",")
	}
	if e.engine, err = kafka.Open(ctx, e.at.URL, kafka.WithTopics(topicPartitions, 0)); err != nil {
		return nil, err
	}
	e.orders, e.payments = queuesOn(e.engine, e.at)
	if e.client, err = kgo.NewClient(e.seeds()); err != nil {
		return nil, err
	}
	e.admin = kadm.NewClient(e.client)
	made, err := e.admin.CreateTopics(ctx, topicPartitions, -1, nil, e.topics()...)
	if err != nil {
		return nil, err
	}
	for _, topic := range made.Sorted() {
		if topic.Err != nil && !errors.Is(topic.Err, kerr.TopicAlreadyExists) {
			return nil, fmt.Errorf("topic %s: %w", topic.Topic, topic.Err)
		}
	}
	return e, nil
}

func (e *inKafka) seeds() kgo.Opt {
	return kgo.SeedBrokers(strings.Split(strings.TrimPrefix(e.at.URL, onKafka+"://"), ",")...)
}

// topics returns all topics.
func (e *inKafka) topics() []string {
	topics := []string{e.orders.Name(), e.orders.DeadLetters(), e.payments.Name()}
	for i := range layers {
		topics = append(topics, fmt.Sprintf("%s-retry-%d", e.orders.Name(), i+1))
	}
	return topics
}

// merging is the group of the merges.
func (e *inKafka) merging() string { return "weir-merge-" + e.orders.DeadLetters() }

func (e *inKafka) location() location { return e.at }

func (e *inKafka) keeps() store.Engine { return nil } // -ui is refused

func (e *inKafka) put(ctx context.Context, orders []bank.Order) error {
	return putAll(ctx, e.orders, orders)
}

// look compares the ends of the topics with what is committed. That is asked for first: what is committed was put elsewhere before.
func (e *inKafka) look(ctx context.Context) (c counts, err error) {
	worked, err := e.committed(ctx, e.orders.Name())
	if err != nil {
		return c, err
	}
	ends, err := e.admin.ListEndOffsets(ctx, e.topics()...)
	if err != nil {
		return c, err
	}
	ends.Each(func(end kadm.ListedOffset) {
		err = errors.Join(err, end.Err)
		switch end.Topic {
		case e.orders.DeadLetters():
		case e.payments.Name():
			c.paid += end.Offset
		default:
			c.open += end.Offset - at(worked, end)
		}
	})
	if err != nil || c.open > 0 { // a view of the dead letters reads all of them
		return c, err
	}
	dead, err := e.view(ctx, e.orders.DeadLetters())
	if err != nil {
		return c, err
	}
	defer dead.Close()
	n, err := dead.Count(ctx, store.Filter{})
	c.dead = int64(n.Messages)
	return c, err
}

func (e *inKafka) view(ctx context.Context, topic string) (*kafka.View, error) {
	return kafka.OpenView(ctx, topic, "", e.seeds())
}

func (e *inKafka) committed(ctx context.Context, group string) (kadm.OffsetResponses, error) {
	offsets, err := e.admin.FetchOffsets(ctx, group)
	if errors.Is(err, kerr.GroupIDNotFound) {
		return nil, nil
	}
	return offsets, err
}

// at returns what is committed of a partition.
func at(committed kadm.OffsetResponses, p kadm.ListedOffset) int64 {
	if o, ok := committed.Lookup(p.Topic, p.Partition); ok && o.At > 0 {
		return o.At
	}
	return 0
}

// merge sends all dead letters back. One that was put there twice comes back twice, with one id.
func (e *inKafka) merge(ctx context.Context) (int, error) {
	v, err := e.view(ctx, e.orders.DeadLetters())
	if err != nil {
		return 0, err
	}
	defer v.Close()
	done, err := v.Merge(ctx, jobs.Spec{To: e.orders.Name()}, nil)
	return done.Done, err
}

func (e *inKafka) receipts(ctx context.Context) (payments []bank.Payment, err error) {
	v, err := e.view(ctx, e.payments.Name())
	if err != nil {
		return nil, err
	}
	defer v.Close()
	return receipts(ctx, v.List)
}

func (e *inKafka) close(temporary bool) (err error) {
	if e.engine != nil {
		err = e.engine.Close()
	}
	if e.client != nil {
		if temporary && e.double == nil {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			_, topicsErr := e.admin.DeleteTopics(ctx, e.topics()...)
			_, groupsErr := e.admin.DeleteGroups(ctx, e.orders.Name(), e.merging())
			err = errors.Join(err, topicsErr, groupsErr)
			cancel()
		}
		e.client.Close()
	}
	if e.double != nil {
		e.double.Close()
	}
	return err
}
