package kafka

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/varint"
)

// InputConfig configures an input. Topic and Decode are required.
type InputConfig[T any] struct {
	Client    []kgo.Opt // kgo.SeedBrokers, kgo.DialTLSConfig, kgo.SASL and others
	Topic     string
	Partition int32
	// Decode returns the element of a record. An error fails the pipeline at each
	// restart, unless DeadLetters is set.
	Decode func(r *kgo.Record) (T, error)
	// DeadLetters stores a record that Decode has refused, unchanged, as
	// [store.Undecodable]; then the input continues. A restart may store a record again,
	// with the same id. Calling Put of an engine stores it in a queue.
	DeadLetters func(ctx context.Context, ms ...store.Message) error
	// ToEnd ends the input after the records that the partition has when it is opened.
	// Otherwise the input never ends.
	ToEnd bool
	// Group, if not nil, commits the position of each complete checkpoint, so that tools
	// can show the group's lag. It must be the partition's assigner.
	Group *Group
}

type input[T any] struct {
	c      InputConfig[T]
	client *kgo.Client

	offset int64 // of the next record
	epoch  int32 // the leader's, of the last record; -1: not known
	polled []fetched
	value  *T    // of the first of polled
	behind int64 // the offset behind all polled records and markers of transactions
	end    int64 // for ToEnd

	lag lag

	reading bool // from the first poll on
	failed  error
}

var (
	_ checkpoint.Input[int] = (*input[int])(nil)
	_ checkpoint.Waiter     = (*input[int])(nil)
	_ checkpoint.Committer  = (*input[int])(nil)
	_ checkpoint.Lagger     = (*input[int])(nil)
)

// OpenInput returns an input that begins at the first record of a partition. It asks the
// brokers for the offset.
//
// Its position, an offset and the leader's epoch, is part of the checkpoint: the input
// does not need a group or read its offsets. Only committed records are read.
//
// If the records at a position are gone, by retention or because the log was cut, Next
// returns an error.
func OpenInput[T any](ctx context.Context, c InputConfig[T]) (checkpoint.Input[T], error) {
	in, err := openInput(ctx, c)
	if err != nil {
		return nil, err
	}
	return in, nil
}

func openInput[T any](ctx context.Context, c InputConfig[T]) (*input[T], error) {
	switch {
	case c.Topic == "":
		return nil, errors.New("kafka: OpenInput: Topic is empty")
	case c.Decode == nil:
		return nil, errors.New("kafka: OpenInput: Decode is nil")
	}
	opts := append([]kgo.Opt{kgo.FetchIsolationLevel(kgo.ReadCommitted())}, c.Client...)
	opts = append(opts, kgo.KeepControlRecords(), kgo.ConsumeResetOffset(kgo.NoResetOffset())) // markers move the position
	client, err := makeClient(opts...)
	if err != nil {
		return nil, fmt.Errorf("kafka: %w", err)
	}
	in := &input[T]{c: c, client: client, epoch: -1}
	admin := kadm.NewClient(client)
	in.offset, err = in.look(ctx, admin.ListStartOffsets)
	if err == nil {
		in.end, err = in.look(ctx, admin.ListCommittedOffsets)
		in.lag.know(in.end)
		in.measure()
	}
	if err != nil {
		client.Close()
		return nil, err
	}
	return in, nil
}

func (in *input[T]) look(ctx context.Context, list func(context.Context, ...string) (kadm.ListedOffsets, error)) (int64, error) {
	listed, err := list(ctx, in.c.Topic)
	if err != nil {
		return 0, in.error(err)
	}
	o, ok := listed.Lookup(in.c.Topic, in.c.Partition)
	switch {
	case !ok:
		return 0, in.error(errors.New("the partition does not exist"))
	case o.Err != nil:
		return 0, in.error(o.Err)
	}
	return o.Offset, nil
}

func (in *input[T]) error(err error) error {
	return fmt.Errorf("kafka: topic %q, partition %d: %w", in.c.Topic, in.c.Partition, err)
}

func (in *input[T]) Seek(position []byte) error {
	p, err := decodePosition(position)
	if err != nil {
		return err
	}
	in.offset, in.epoch = p.offset, p.leaderEpoch
	in.measure()
	return nil
}

// Lag implements [checkpoint.Lagger]. It counts offsets. While downstream takes no
// elements, Lag asks the brokers for the end, at most once in 15 s, and a later call
// returns the answer.
func (in *input[T]) Lag() int64 {
	return in.lag.now(func() {
		ctx, cancel := context.WithTimeout(context.Background(), lagWait)
		defer cancel()
		if end, err := in.look(ctx, kadm.NewClient(in.client).ListCommittedOffsets); err == nil {
			in.lag.know(end)
		}
	})
}

// measure notes the position. At most markers of transactions follow the last record.
func (in *input[T]) measure() {
	at := in.offset
	if len(in.polled) == 0 {
		at = max(at, in.behind)
	}
	in.lag.move(at)
}

// inputPosition is the next record's position. The leader epoch is -1 if it is unknown.
type inputPosition struct {
	offset      int64
	leaderEpoch int32
}

func decodePosition(encoded []byte) (inputPosition, error) {
	r := varint.Reader{Rest: encoded}
	o, e := r.Uvarint(), r.Uvarint()
	if r.Err == nil && (len(r.Rest) > 0 || o > 1<<62 || e > 1<<31) {
		r.Fail(errors.New("it is out of range"))
	}
	if r.Err != nil {
		return inputPosition{}, fmt.Errorf("kafka: position %x: %w", encoded, r.Err)
	}
	return inputPosition{offset: int64(o), leaderEpoch: int32(int64(e) - 1)}, nil
}

func (in *input[T]) Position() []byte {
	return binary.AppendUvarint(binary.AppendUvarint(nil, uint64(in.offset)), uint64(int64(in.epoch)+1))
}

func (in *input[T]) Commit(ctx context.Context, position []byte) error {
	if in.c.Group == nil {
		return nil
	}
	p, err := decodePosition(position)
	if err != nil {
		return err
	}
	return in.c.Group.commit(ctx, partitionID{in.c.Topic, in.c.Partition}, p.offset, p.leaderEpoch)
}

// Wait implements [checkpoint.Waiter]. The position includes records among the dead
// letters.
func (in *input[T]) Wait(ctx context.Context) error {
	for in.value == nil {
		switch {
		case len(in.polled) > 0:
			if err := in.decode(ctx); err != nil {
				return err
			}
		case in.failed != nil || in.over():
			return nil //nolint:nilerr // Next returns it
		default:
			if err := in.poll(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// decode decodes the first record, or puts it into the dead letters.
func (in *input[T]) decode(ctx context.Context) error {
	r := in.polled[0]
	var v T
	err := quietly(func() (err error) {
		v, err = in.c.Decode(r.Record)
		return err
	})
	if err == nil {
		in.value = &v
		return nil
	}
	err = fmt.Errorf("the record at offset %d cannot be read: %w", r.Offset, err)
	if in.c.DeadLetters == nil {
		return in.error(err)
	}
	meta, _ := metaOf(r.Record, r.in) // damaged headers are left out
	meta.LastError = guard.Text(err)
	if put := bury(ctx, in.c.DeadLetters, r.Record, store.Message{Meta: meta, Payload: r.Value, Cause: store.Undecodable}); put != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return in.error(errors.Join(err, fmt.Errorf("and it could not be put into the dead letters: %w", put)))
	}
	in.pass(r.Record) // law D1: it is stored
	return nil
}

type fetched struct {
	*kgo.Record
	in incarnation
}

func (in *input[T]) pass(r *kgo.Record) {
	in.polled, in.value = in.polled[1:], nil
	in.offset, in.epoch = r.Offset+1, r.LeaderEpoch
	in.measure()
}

func (in *input[T]) over() bool {
	return in.c.ToEnd && len(in.polled) == 0 && max(in.offset, in.behind) >= in.end
}

func (in *input[T]) poll(ctx context.Context) error {
	if !in.reading {
		in.reading = true
		at := kgo.NewOffset().At(in.offset).WithEpoch(in.epoch)
		in.client.AddConsumePartitions(map[string]map[int32]kgo.Offset{in.c.Topic: {in.c.Partition: at}})
	}
	in.arrived(ctx, in.client.PollRecords(ctx, 1000))
	if len(in.polled) == 0 && in.failed == nil {
		return ctx.Err()
	}
	return nil
}

func (in *input[T]) arrived(ctx context.Context, fetches kgo.Fetches) {
	eachRecord(fetches, func(r *kgo.Record, topic incarnation) {
		in.behind = r.Offset + 1
		if !r.Attrs.IsControl() {
			in.polled = append(in.polled, fetched{r, topic})
		}
	})
	fetches.EachPartition(func(p kgo.FetchTopicPartition) { in.lag.know(p.LastStableOffset) })
	in.measure()
	fetches.EachError(func(_ string, _ int32, err error) {
		if in.failed == nil && !errors.Is(err, ctx.Err()) { // the client reports a failed partition only once
			in.failed = in.error(err)
		}
	})
}

func (in *input[T]) Next() (v T, err error) {
	if err := in.Wait(context.Background()); err != nil {
		return v, err
	}
	switch {
	case in.value != nil:
	case in.failed != nil:
		return v, in.failed
	default:
		return v, io.EOF
	}
	v = *in.value
	in.pass(in.polled[0].Record)
	return v, nil
}

func (in *input[T]) Close() error {
	in.client.Close()
	in.lag.close()
	return nil
}
