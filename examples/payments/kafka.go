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
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/examples/internal/bank"
	"github.com/weirflow/weir/ext/kafka"
)

// openKafka opens the ends for a provider: topics of orders and of payments, and a topic for each layer and for the dead letters.
func openKafka(at location, provider string, worker int) (ends, error) {
	client := []kgo.Opt{kgo.SeedBrokers(at.Brokers...)}
	retries, err := kafka.NewRetries(kafka.RetriesConfig[bank.Order]{
		Client: client, Codec: ordersCodec, Layers: at.layers(provider), DeadLetters: at.topic(provider, deadQueue),
	})
	if err != nil {
		return ends{}, err
	}
	// A worker that is started again has the same instance id, and gets its partitions back without a rebalance.
	member := append(client, kgo.InstanceID(fmt.Sprintf("worker-%d", worker)), kgo.SessionTimeout(6*time.Second))
	orders, err := kafka.NewSource(at.group(provider), append([]string{at.topic(provider, ordersQueue)}, retries.Topics()...), ordersCodec,
		kafka.WithClient(member...), kafka.WithDeadLetters(retries.PutDead), kafka.WithCommitInterval(commitInterval), kafka.WithLogger(quiet))
	if err != nil {
		return ends{}, err
	}
	others, err := kafka.NewSink(at.topic(bank.Other(provider), ordersQueue), ordersCodec, client...)
	if err != nil {
		return ends{}, err
	}
	payments, err := kafka.NewSink(at.topic("", paymentsQueue), paymentsCodec, client...)
	if err != nil {
		return ends{}, err
	}
	return ends{orders: orders, failed: retries.Take, others: others, payments: payments, close: func() {
		payments.Close()
		others.Close()
		retries.Close()
	}}, nil
}

const (
	topicPartitions = 4
	commitInterval  = 200 * time.Millisecond
)

// topic returns the name of a topic, of a provider or of all.
func (l location) topic(provider, name string) string { return l.Name + "." + provider + name }

func (l location) group(provider string) string { return l.Name + "." + provider }

func (l location) layers(provider string) (topics []kafka.Layer) {
	for _, layer := range layers {
		topics = append(topics, kafka.Layer{Topic: l.topic(provider, layer.name), Delay: layer.Delay, Jitter: layer.Jitter})
	}
	return topics
}

// all returns all topics.
func (l location) all() []string {
	topics := []string{l.topic("", paymentsQueue)}
	for _, provider := range bank.Providers {
		for _, name := range []string{ordersQueue, layers[0].name, layers[1].name, deadQueue} {
			topics = append(topics, l.topic(provider, name))
		}
	}
	return topics
}

// inKafka is the engine of the supervisor.
type inKafka struct {
	at     location
	client *kgo.Client
	admin  *kadm.Client
	double *kfake.Cluster // nil with brokers
}

// startKafka makes the topics. Without brokers it starts the test double of franz-go: Kafka's protocol over topics in memory, which
// end with this process.
func startKafka(ctx context.Context, brokers []string, name string) (_ engine, err error) {
	e := &inKafka{at: location{Engine: onKafka, Brokers: brokers, Name: name}}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.close(false))
		}
	}()
	if len(brokers) == 0 {
		if e.double, err = kfake.NewCluster(kfake.NumBrokers(1)); err != nil {
			return nil, err
		}
		e.at.Brokers = e.double.ListenAddrs()
	}
	if e.client, err = kgo.NewClient(kgo.SeedBrokers(e.at.Brokers...)); err != nil {
		return nil, err
	}
	e.admin = kadm.NewClient(e.client)
	made, err := e.admin.CreateTopics(ctx, topicPartitions, -1, nil, e.at.all()...)
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

func (e *inKafka) location() location { return e.at }

func (e *inKafka) put(ctx context.Context, orders []bank.Order) error {
	sinks := map[string]delivery.Sink[bank.Order]{}
	for _, provider := range bank.Providers {
		sink, err := kafka.NewSink(e.at.topic(provider, ordersQueue), ordersCodec, kgo.SeedBrokers(e.at.Brokers...))
		if err != nil {
			return err
		}
		defer sink.Close()
		sinks[provider] = sink
	}
	return putFirst(ctx, sinks, orders)
}

// look compares the ends of the topics with what is committed. That is asked for first: what is committed was put elsewhere before.
func (e *inKafka) look(ctx context.Context) (c counts, err error) {
	worked := kadm.OffsetResponses{}
	for _, provider := range bank.Providers {
		offsets, err := e.admin.FetchOffsets(ctx, e.at.group(provider))
		if err != nil && !errors.Is(err, kerr.GroupIDNotFound) {
			return c, err
		}
		maps.Copy(worked, offsets)
	}
	ends, err := e.admin.ListEndOffsets(ctx, e.at.all()...)
	if err != nil {
		return c, err
	}
	ends.Each(func(end kadm.ListedOffset) {
		err = errors.Join(err, end.Err)
		switch {
		case strings.HasSuffix(end.Topic, deadQueue):
			c.dead += end.Offset
		case end.Topic == e.at.topic("", paymentsQueue):
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
	for _, provider := range bank.Providers {
		of, err := readTopic(ctx, e, e.at.topic(provider, deadQueue), ordersCodec)
		if err != nil {
			return nil, err
		}
		dead = append(dead, of...)
	}
	return dead, nil
}

func (e *inKafka) receipts(ctx context.Context) ([]bank.Payment, error) {
	return readTopic(ctx, e, e.at.topic("", paymentsQueue), paymentsCodec)
}

// readTopic returns all that is in a topic.
func readTopic[T any](ctx context.Context, e *inKafka, topic string, c codec.Codec[T]) (all []T, err error) {
	for partition := range int32(topicPartitions) {
		in, err := kafka.OpenInput(ctx, kafka.InputConfig[T]{
			Client: []kgo.Opt{kgo.SeedBrokers(e.at.Brokers...)}, Topic: topic, Partition: partition, ToEnd: true,
			Decode: func(r *kgo.Record) (T, error) { return c.Decode(r.Value) },
		})
		if err != nil {
			return nil, err
		}
		of, err := bank.ReadAll(in)
		if err != nil {
			return nil, err
		}
		all = append(all, of...)
	}
	return all, nil
}

func (e *inKafka) close(temporary bool) (err error) {
	if e.client != nil {
		if temporary && e.double == nil {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			_, err = e.admin.DeleteTopics(ctx, e.at.all()...)
			_, groupsErr := e.admin.DeleteGroups(ctx, e.at.group(bank.North), e.at.group(bank.South))
			err = errors.Join(err, groupsErr)
			cancel()
		}
		e.client.Close()
	}
	if e.double != nil {
		e.double.Close()
	}
	return err
}
