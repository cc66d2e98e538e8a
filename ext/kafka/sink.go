package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/internal/failed"
	"github.com/weirflow/weir/internal/guard"
)

// Sink writes the values of messages to a topic, as a [delivery.Sink]. They keep id, key, origin, provider, deadline and headers; their
// visits begin anew. The key of a message is the key of its record, so messages of a key go to one partition, in order. A value that the
// codec cannot encode, or that is larger than the client (kgo.ProducerBatchMaxBytes, about 1 MB by default) or the topic
// (max.message.bytes) takes, is rejected; if its message has no acknowledgement, PutAll returns the error.
//
// A record that was written is in all replicas in sync (acks=all). The producer is idempotent, so the retries of the client double nothing.
// A message that is put again, after a crash or an error, is written again, with the same id. Safe for concurrent use.
type Sink[T any] struct {
	producer *producer
	topic    string
	codec    codec.Codec[T]
}

var _ delivery.Sink[int] = (*Sink[int])(nil)

// NewSink returns a sink into a topic. The options are those of its client: kgo.SeedBrokers, kgo.DialTLSConfig, kgo.SASL and others. It
// panics if the topic is empty or the codec nil; the error is that of the options, of which kgo.DisableIdempotentWrite is refused, or says
// that the brokers refuse the authentication. The sink must be closed.
func NewSink[T any](topic string, c codec.Codec[T], opts ...kgo.Opt) (*Sink[T], error) {
	guard.RefuseNil("kafka: NewSink", "codec", c)
	if topic == "" {
		panic("kafka: NewSink: a topic without a name")
	}
	p, err := newProducer(opts)
	if err != nil {
		return nil, err
	}
	return &Sink[T]{p, topic, c}, nil
}

// PutAll implements [delivery.Sink]. It returns when all records are written, or with the cause of ctx when that ends: a record may be
// written all the same.
func (s *Sink[T]) PutAll(ctx context.Context, messages []delivery.Message[T]) error {
	records := make([]*kgo.Record, 0, len(messages))
	written := make([]delivery.Message[T], 0, len(messages))
	payloads := make([][]byte, len(messages))
	errs := quietlyEach(len(messages), func(i int) (err error) {
		payloads[i], err = s.codec.Append(nil, messages[i].Value)
		return err
	})
	for i, m := range messages {
		r, err := s.record(payloads[i], m.Meta(), errs[i])
		if err != nil {
			if !m.Pending() { // no source would see a rejection, and the value would be lost (law D1)
				return fmt.Errorf("kafka: topic %q: message %q: %w", s.topic, m.Meta().ID, err)
			}
			m.Reject(err)
			continue
		}
		records = append(records, r)
		written = append(written, m)
	}
	causes, err := s.producer.produce(ctx, records)
	if err == nil {
		return nil
	}
	if causes == nil {
		return err
	}
	err = nil
	for i, m := range written {
		switch {
		case causes[i] == nil: // law D1
			m.Ack()
		case errors.Is(causes[i], delivery.ErrRefused) && m.Pending(): // law W2
			m.Reject(causes[i])
		default:
			err = cmp.Or(err, causes[i])
		}
	}
	return err
}

func (s *Sink[T]) record(payload []byte, meta delivery.Meta, err error) (*kgo.Record, error) {
	if err != nil {
		return nil, fmt.Errorf("%w: the codec: %w", delivery.ErrRefused, err)
	}
	return record(s.topic, payload, failed.Onward(meta))
}

// Close closes the client.
func (s *Sink[T]) Close() { s.producer.close() }
