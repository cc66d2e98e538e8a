package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/examples/internal/bank"
	"github.com/weirflow/weir/ext/kafka"
)

const topicPartitions = 4

// openKafka opens a worker's engine. A restarted worker has the same instance id, and
// gets its partitions back without a rebalance.
func openKafka(ctx context.Context, at location, worker int) (store.Engine, error) {
	return kafka.Open(ctx, at.URL, kafka.WithPartitions(topicPartitions), kafka.WithClientOptions(
		kgo.InstanceID(fmt.Sprintf("worker-%d", worker)), kgo.SessionTimeout(6*time.Second),
	))
}

// inKafka is the supervisor's engine. It counts by offsets, because a topic has no index.
type inKafka struct {
	at     location
	engine *kafka.Engine
	queues
	client *kgo.Client
	admin  *kadm.Client
	double *kfake.Cluster // nil with real brokers
}

// startKafka creates the topics. Without an address it starts franz-go's test double,
// with topics in memory.
func startKafka(ctx context.Context, at location) (_ engine, err error) {
	e := &inKafka{at: at}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.close(false))
		}
	}()
	if e.at.URL == "" {
		e.double, err = kfake.NewCluster(kfake.NumBrokers(1))
		if err != nil {
			return nil, err
		}
		e.at.URL = onKafka + "://" + strings.Join(e.double.ListenAddrs(), ",")
	}
	e.engine, err = kafka.Open(ctx, e.at.URL, kafka.WithPartitions(topicPartitions))
	if err != nil {
		return nil, err
	}
	e.queues = queuesOn(e.engine, e.at)
	e.client, err = kgo.NewClient(e.seeds())
	if err != nil {
		return nil, err
	}
	e.admin = kadm.NewClient(e.client)
	queues, dead := e.topics()
	err = e.create(ctx, nil, queues)
	if err != nil {
		return nil, err
	}
	forever := "-1" // brokers must keep dead letters
	err = e.create(ctx, map[string]*string{"retention.ms": &forever}, dead)
	if err != nil {
		return nil, err
	}
	return e, nil
}

// create creates missing topics.
func (e *inKafka) create(ctx context.Context, config map[string]*string, topics []string) error {
	made, err := e.admin.CreateTopics(ctx, topicPartitions, -1, config, topics...)
	if err != nil {
		return err
	}
	for _, topic := range made.Sorted() {
		if topic.Err != nil && !errors.Is(topic.Err, kerr.TopicAlreadyExists) {
			return fmt.Errorf("topic %s: %w", topic.Topic, topic.Err)
		}
	}
	return nil
}

func (e *inKafka) seeds() kgo.Opt {
	return kgo.SeedBrokers(strings.Split(strings.TrimPrefix(e.at.URL, onKafka+"://"), ",")...)
}

// topics returns the topics of the queues with their layers, and of the dead letters.
func (e *inKafka) topics() (queues, dead []string) {
	queues = []string{e.payments.Name()}
	for _, q := range e.orders {
		queues = append(queues, q.Name())
		for i := range layers {
			queues = append(queues, fmt.Sprintf("%s-retry-%d", q.Name(), i+1))
		}
		dead = append(dead, q.DeadLetters())
	}
	return queues, dead
}

func (e *inKafka) allTopics() []string {
	queues, dead := e.topics()
	return append(queues, dead...)
}

func (e *inKafka) location() location { return e.at }

func (e *inKafka) keeps() store.Engine { return nil } // -ui is refused

// look compares the topics' end offsets with the committed offsets. It reads the
// committed offsets first: a committed order was already put elsewhere.
func (e *inKafka) look(ctx context.Context) (c counts, err error) {
	worked, isDead := kadm.OffsetResponses{}, map[string]bool{}
	for _, q := range e.orders {
		offsets, err := e.admin.FetchOffsets(ctx, q.Name())
		if err != nil && !errors.Is(err, kerr.GroupIDNotFound) {
			return c, err
		}
		maps.Copy(worked, offsets)
		isDead[q.DeadLetters()] = true
	}
	ends, err := e.admin.ListEndOffsets(ctx, e.allTopics()...)
	if err != nil {
		return c, err
	}
	ends.Each(func(end kadm.ListedOffset) {
		err = errors.Join(err, end.Err)
		switch {
		case isDead[end.Topic]:
			c.dead += end.Offset
		case end.Topic == e.payments.Name():
			c.paid += end.Offset
		default:
			c.open += end.Offset
			if o, ok := worked.Lookup(end.Topic, end.Partition); ok && o.At > 0 {
				c.open -= o.At
			}
		}
	})
	return c, err
}

func (e *inKafka) dead(ctx context.Context) (dead []bank.Order, err error) {
	for _, q := range e.orders {
		of, err := readTopic(ctx, e, q.DeadLetters(), ordersCodec)
		if err != nil {
			return nil, err
		}
		dead = append(dead, of...)
	}
	return dead, nil
}

func (e *inKafka) receipts(ctx context.Context) ([]bank.Payment, error) {
	return readTopic(ctx, e, e.payments.Name(), paymentsCodec)
}

func readTopic[T any](ctx context.Context, e *inKafka, topic string, c codec.Codec[T]) ([]T, error) {
	v, err := kafka.OpenView(ctx, topic, "", e.seeds())
	if err != nil {
		return nil, err
	}
	defer v.Close()
	return listAll(ctx, v.List, c)
}

func (e *inKafka) close(temporary bool) (err error) {
	if e.engine != nil {
		err = e.engine.Close()
	}
	if e.client != nil {
		if temporary && e.double == nil {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			_, topicsErr := e.admin.DeleteTopics(ctx, e.allTopics()...)
			_, groupsErr := e.admin.DeleteGroups(ctx, e.orders[bank.North].Name(), e.orders[bank.South].Name())
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
