package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/examples/internal/bank"
	"github.com/weirflow/weir/ext/kafka"
)

// openKafka opens the ends: topics of orders and of payments, and a topic for each layer and for the dead letters.
func openKafka(at location, worker int) (ends, error) {
	client := []kgo.Opt{kgo.SeedBrokers(at.Brokers...)}
	retries, err := kafka.NewRetries(kafka.RetriesConfig[bank.Order]{
		Client: client, Codec: ordersCodec, Layers: at.layers(), DeadLetters: at.topic(deadQueue),
	})
	if err != nil {
		return ends{}, err
	}
	// A worker that is started again has the same instance id, and gets its partitions back without a rebalance.
	member := append(client, kgo.InstanceID(fmt.Sprintf("worker-%d", worker)), kgo.SessionTimeout(6*time.Second))
	orders, err := kafka.NewSource(at.group(), append([]string{at.topic(ordersQueue)}, retries.Topics()...), ordersCodec,
		kafka.WithClient(member...), kafka.WithDeadLetters(retries.PutDead), kafka.WithCommitInterval(commitInterval), kafka.WithLogger(quiet))
	if err != nil {
		return ends{}, err
	}
	payments, err := kafka.NewSink(at.topic(paymentsQueue), paymentsCodec, client...)
	if err != nil {
		return ends{}, err
	}
	return ends{orders: orders, failed: retries.Take, payments: payments, close: func() {
		payments.Close()
		retries.Close()
	}}, nil
}

const (
	topicPartitions = 4
	commitInterval  = 200 * time.Millisecond
)

func (l location) topic(name string) string { return l.Name + "." + name }
func (l location) group() string            { return l.Name }
func (l location) merging() string          { return l.Name + "-merge" } // the group that reads the dead letters

func (l location) layers() (topics []kafka.Layer) {
	for _, layer := range layers {
		topics = append(topics, kafka.Layer{Topic: l.topic(layer.name), Delay: layer.Delay, Jitter: layer.Jitter})
	}
	return topics
}

// all returns all topics.
func (l location) all() (topics []string) {
	for _, name := range []string{ordersQueue, layers[0].name, layers[1].name, deadQueue, paymentsQueue} {
		topics = append(topics, l.topic(name))
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

func (e *inKafka) keeps() store.Engine { return nil } // -ui is refused

func (e *inKafka) put(ctx context.Context, orders []bank.Order) error {
	sink, err := kafka.NewSink(e.at.topic(ordersQueue), ordersCodec, kgo.SeedBrokers(e.at.Brokers...))
	if err != nil {
		return err
	}
	defer sink.Close()
	return putAll(ctx, sink, orders)
}

// look compares the ends of the topics with what is committed. That is asked for first: what is committed was put elsewhere before.
func (e *inKafka) look(ctx context.Context) (c counts, err error) {
	worked, err := e.committed(ctx, e.at.group())
	if err != nil {
		return c, err
	}
	merged, err := e.committed(ctx, e.at.merging())
	if err != nil {
		return c, err
	}
	ends, err := e.admin.ListEndOffsets(ctx, e.at.all()...)
	if err != nil {
		return c, err
	}
	ends.Each(func(end kadm.ListedOffset) {
		err = errors.Join(err, end.Err)
		switch end.Topic {
		case e.at.topic(deadQueue):
			c.dead += end.Offset - at(merged, end)
		case e.at.topic(paymentsQueue):
			c.paid += end.Offset
		default:
			c.open += end.Offset - at(worked, end)
		}
	})
	return c, err
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

// merge writes all dead letters to the orders. A topic has no index, so they are read; and one that was put there twice comes back
// twice, with one id.
func (e *inKafka) merge(ctx context.Context) (merged int, err error) {
	c, err := e.look(ctx)
	if err != nil || c.dead == 0 {
		return 0, err
	}
	brokers := kgo.SeedBrokers(e.at.Brokers...)
	source, err := kafka.NewSource(e.at.merging(), []string{e.at.topic(deadQueue)}, ordersCodec, kafka.WithClient(brokers), kafka.WithLogger(quiet))
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, source.Close(ctx)) }() // commits
	sink, err := kafka.NewSink(e.at.topic(ordersQueue), ordersCodec, brokers)
	if err != nil {
		return 0, err
	}
	defer sink.Close()
	for merged < int(c.dead) {
		ms, err := source.Receive(ctx, 100)
		if err != nil {
			return merged, err
		}
		if err := sink.PutAll(ctx, ms); err != nil {
			return merged, err
		}
		for _, m := range ms {
			m.Ack()
		}
		merged += len(ms)
	}
	return merged, nil
}

func (e *inKafka) receipts(ctx context.Context) (payments []bank.Payment, err error) {
	for partition := range int32(topicPartitions) {
		ps, err := e.receiptsOf(ctx, partition)
		if err != nil {
			return nil, err
		}
		payments = append(payments, ps...)
	}
	return payments, nil
}

func (e *inKafka) receiptsOf(ctx context.Context, partition int32) ([]bank.Payment, error) {
	in, err := kafka.OpenInput(ctx, kafka.InputConfig[bank.Payment]{
		Client: []kgo.Opt{kgo.SeedBrokers(e.at.Brokers...)}, Topic: e.at.topic(paymentsQueue), Partition: partition, ToEnd: true,
		Decode: func(r *kgo.Record) (bank.Payment, error) { return paymentsCodec.Decode(r.Value) },
	})
	if err != nil {
		return nil, err
	}
	return bank.ReadPayments(in)
}

func (e *inKafka) close(temporary bool) (err error) {
	if e.client != nil {
		if temporary && e.double == nil {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			_, err = e.admin.DeleteTopics(ctx, e.at.all()...)
			_, groupsErr := e.admin.DeleteGroups(ctx, e.at.group(), e.at.merging())
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
