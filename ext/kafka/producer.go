package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/wait"
	"github.com/weirflow/weir/message"
)

// putWait is how long a record waits for a partition without a leader or enough replicas
// in sync, unless the client's options set another time. Brokers notice a dead broker
// sooner (broker.session.timeout.ms, 9 s).
const putWait = 15 * time.Second

// producer writes records. When produce returns, all replicas in sync have them.
type producer struct {
	client *kgo.Client
	opts   []kgo.Opt // of client
	clock  clock.Clock
}

func newProducer(opts []kgo.Opt) (*producer, error) {
	opts = append(append([]kgo.Opt{kgo.RecordDeliveryTimeout(putWait)}, opts...), kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.AllowIdempotentProduceCancellation()) // otherwise waits for dead brokers outlive their context; duplicates have the same id
	client, err := newClient(opts...)
	if err != nil {
		return nil, err
	}
	if off, _ := client.OptValue(kgo.DisableIdempotentWrite).(bool); off {
		client.Close()
		return nil, errors.New("kafka: kgo.DisableIdempotentWrite: a retry inside the client would duplicate records and change their order")
	}
	return &producer{client, opts, clock.New()}, nil
}

// produce returns an error for each record that may not be safe, or nil if all are safe.
// Records do not wait for the client's linger, since the caller has no more. The error of
// a record that can never be written matches [message.ErrRefused].
func (p *producer) produce(ctx context.Context, records []*kgo.Record) ([]error, error) {
	results := p.client.ProduceSync(ctx, records...)
	if results.FirstErr() == nil {
		return nil, nil
	}
	failed := make(map[*kgo.Record]error, len(records))
	for _, r := range results {
		failed[r.Record] = r.Err
	}
	if err := p.alone(ctx, records, failed); err != nil {
		return nil, err
	}
	errs := make([]error, len(records))
	for i, r := range records {
		cause := failed[r]
		if cause == nil {
			continue
		}
		if ctx.Err() != nil && !errors.Is(cause, message.ErrRefused) {
			cause = context.Cause(ctx)
		}
		errs[i] = fmt.Errorf("kafka: record for topic %q: %w", r.Topic, lacking(cause, "WRITE on the topic"))
	}
	if err := cmp.Or(errs...); err != nil {
		return errs, err
	}
	return nil, nil // alone has written the refused records
}

// alone writes the records of a batch that was too large one by one. Records that are
// refused again are too large themselves. It uses its own client, since others produce
// with the producer's.
func (p *producer) alone(ctx context.Context, records []*kgo.Record, failed map[*kgo.Record]error) (err error) {
	var single *kgo.Client
	for _, r := range records {
		if !refused(failed[r]) {
			continue
		}
		if single == nil {
			single, err = makeClient(p.opts...)
			if err != nil {
				return fmt.Errorf("kafka: %w", err)
			}
			defer single.Close()
		}
		again := &kgo.Record{Topic: r.Topic, Key: r.Key, Value: r.Value, Headers: r.Headers}
		if err := single.ProduceSync(ctx, again).FirstErr(); refused(err) {
			failed[r] = fmt.Errorf("%w: %w", message.ErrRefused, err)
		} else {
			failed[r] = err
		}
	}
	return nil
}

// refused reports whether a record or its batch was refused for its content.
func refused(err error) bool {
	return errors.Is(err, kerr.MessageTooLarge) || errors.Is(err, kerr.RecordListTooLarge) || errors.Is(err, kerr.InvalidRecord)
}

// put writes messages with their whole history. Delays count from now by this host's
// clock.
func (p *producer) put(ctx context.Context, topic string, ms []store.Message) error {
	records := make([]*kgo.Record, len(ms))
	for i, m := range ms {
		meta := m.Meta
		if m.Delay > 0 {
			meta.Due = p.clock.Now().Add(m.Delay)
		}
		r, err := record(topic, m.Payload, meta)
		if err != nil {
			return fmt.Errorf("kafka: message for topic %q: %w", topic, err)
		}
		if m.Cause != "" {
			r.Headers = append(r.Headers, springHeaders(&m)...)
		}
		records[i] = r
	}
	errs, err := p.produce(ctx, records)
	if errs != nil {
		return &store.PutError{Errs: errs}
	}
	return err
}

// coordinatorTries is how often an unavailable coordinator is asked: for half a minute,
// as the client does for other requests.
const coordinatorTries = 35

// committed returns what a group has committed. With kadm.RequireStable it waits for the
// group's transactions: brokers answer before a transaction has ended everywhere, and
// report an error and no offset until then. It also waits for the coordinator, which the
// client does for all other requests.
func committed(ctx context.Context, admin *kadm.Client, group string) (kadm.OffsetResponses, error) {
	pause := time.Millisecond
	for try := 1; ; try++ {
		all, err := admin.FetchOffsets(ctx, group)
		unstable := false
		all.Each(func(o kadm.OffsetResponse) { unstable = unstable || errors.Is(o.Err, kerr.UnstableOffsetCommit) })
		switch {
		case errors.Is(err, kerr.GroupIDNotFound):
			return nil, nil
		case err != nil && (!kerr.IsRetriable(err) || try == coordinatorTries), err == nil && !unstable:
			return all, err
		}
		if err := wait.For(ctx, clock.New(), pause); err != nil {
			return nil, err
		}
		pause = min(2*pause, time.Second)
	}
}

func (p *producer) close() { p.client.Close() }
