package kafka

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/internal/varint"
)

// OutputConfig configures an output. TransactionalID, Topic and Encode are required.
type OutputConfig[T any] struct {
	Client []kgo.Opt // kgo.SeedBrokers, kgo.DialTLSConfig, kgo.SASL, kgo.TransactionTimeout and others
	// TransactionalID is the unique name of the output, the same in each run. It is also
	// the group whose offset for partition 0 of the topic is the number of published
	// records.
	TransactionalID string
	Topic           string
	// Encode returns the record of an element: key, value and headers. Topic sets its
	// topic, and its key chooses the partition.
	Encode func(v T) (*kgo.Record, error)
}

type output[T any] struct {
	c      OutputConfig[T]
	client *kgo.Client
	admin  *kadm.Client

	started bool
	fenced  error
	base    int64    // number of published records before pending
	pending [][]byte // encoded; written and not known to be published
	tried   int64    // the highest ordinal that this run may have published
	seen    bool     // the brokers had an ordinal that agreed with base in this run
	limit   int      // of the bytes of a record
	alone   bool     // a batch was too large for the topic: records are sent one by one
}

var _ checkpoint.Output[int] = (*output[int])(nil)

// NewOutput returns an output that writes to a topic exactly once, for consumers that
// read only committed records (read_committed). It connects when it is first used.
//
// A run cannot commit a Kafka transaction that another run prepared. So the state of a
// checkpoint has the unpublished records and their ordinal: the number of records before
// them. Commit publishes them in a transaction with the new ordinal, as an offset of a
// group. After a crash the ordinal shows which records were published.
//
//	checkpoint   Prepare: ordinal 40, records 41 to 45
//	Commit       begin · records 41 to 45 · ordinal 45 · end      it is known: 40 or 45
//	Restore      end what an earlier run has begun · ordinal 45? done : publish
//
// A run that begins with the same transactional id ends the previous run: the broker
// refuses its transactions, and Commit returns [checkpoint.ErrFenced]. Without a
// checkpoint an output appends to the topic.
//
// The elements between two checkpoints are in memory and in the state. Brokers forget the
// ordinal after offsets.retention.minutes (7 days by default) without a publication. A
// run that knows how many records are published continues, but Restore then refuses a
// state with records, since they may be published.
//
// Write returns an error for an element that is larger than the client takes
// (kgo.ProducerBatchMaxBytes, about 1 MB by default). The topic must take as much
// (max.message.bytes): until it does, Commit and Restore fail, and name the record.
func NewOutput[T any](c OutputConfig[T]) (checkpoint.Output[T], error) {
	o, err := newOutput(c)
	if err != nil {
		return nil, err
	}
	return o, nil
}

func newOutput[T any](c OutputConfig[T]) (*output[T], error) {
	switch {
	case c.TransactionalID == "":
		return nil, errors.New("kafka: NewOutput: TransactionalID is empty")
	case c.Topic == "":
		return nil, errors.New("kafka: NewOutput: Topic is empty")
	case c.Encode == nil:
		return nil, errors.New("kafka: NewOutput: Encode is nil")
	}
	client, err := newClient(append(append([]kgo.Opt(nil), c.Client...), kgo.TransactionalID(c.TransactionalID),
		kgo.RequiredAcks(kgo.AllISRAcks()), kgo.ProducerLinger(0))...) // Commit has all records at once
	if err != nil {
		return nil, err
	}
	limit, _ := client.OptValue(kgo.ProducerBatchMaxBytes).(int32)
	return &output[T]{c: c, client: client, admin: kadm.NewClient(client), limit: int(limit)}, nil
}

func (o *output[T]) error(what string, err error) error {
	return fmt.Errorf("kafka: output %q: %s: %w", o.c.TransactionalID, what, err)
}

func (o *output[T]) begin(ctx context.Context) error {
	if _, _, err := o.client.ProducerID(ctx); err != nil {
		return o.error("no producer id", err)
	}
	o.started = true
	return nil
}

func (o *output[T]) fresh(ctx context.Context) error {
	if o.started {
		return nil
	}
	if err := o.begin(ctx); err != nil {
		return err
	}
	n, known, err := o.ordinal(ctx)
	if err == nil && !known {
		// No transaction is or was open. From now on, a missing ordinal was forgotten.
		first := kadm.Offsets{}
		first.Add(kadm.Offset{Topic: o.c.Topic, Partition: 0, At: 0, LeaderEpoch: -1})
		err = o.admin.CommitAllOffsets(ctx, o.c.TransactionalID, first)
	}
	if err != nil {
		o.started = false
		return o.error("ordinal", err)
	}
	o.base = n
	o.tried = n
	o.seen = true
	return nil
}

// ordinal returns how many records are published. It waits for transactions that are
// ending.
func (o *output[T]) ordinal(ctx context.Context) (n int64, known bool, err error) {
	offsets, err := committed(kadm.RequireStable(ctx), o.admin, o.c.TransactionalID)
	if err != nil {
		return 0, false, err
	}
	at, ok := offsets.Lookup(o.c.Topic, 0)
	if !ok || at.Err == nil && at.At < 0 {
		return 0, false, nil
	}
	return at.At, true, at.Err
}

func (o *output[T]) Restore(ctx context.Context, state []byte) error {
	s, err := decodeState(state)
	if err != nil {
		return o.error("state", err)
	}
	if err := o.begin(ctx); err != nil {
		return err
	}
	target := s.end()
	n, known, err := o.ordinal(ctx)
	switch {
	case err != nil:
		return o.error("ordinal", err)
	case known && n > target:
		return o.error("restore", fmt.Errorf("%d records are published, the checkpoint knows %d: a later checkpoint was lost", n, target))
	}
	o.tried, o.seen = target, known && n >= s.base
	if err := o.publish(ctx, s); err != nil {
		return err
	}
	o.base, o.pending = target, nil
	return nil
}

func (o *output[T]) Write(ctx context.Context, v T) error {
	if err := o.fresh(ctx); err != nil {
		return err
	}
	var r *kgo.Record
	err := quietly(func() (err error) {
		r, err = o.c.Encode(v)
		return err
	})
	if err == nil && r == nil {
		err = errors.New("the function Encode did not return a record")
	}
	if err != nil {
		return o.error("an element cannot be encoded", err)
	}
	b := appendRecord(nil, r)
	if n := len(b) + batchRoom + 8*len(r.Headers); n > o.limit {
		return o.error("an element is too large", fmt.Errorf("the record with key %.100q has %d bytes with its batch, the client takes %d "+
			"(kgo.ProducerBatchMaxBytes): %w", r.Key, n, o.limit, kerr.MessageTooLarge))
	}
	o.pending = append(o.pending, b)
	return nil
}

func (o *output[T]) Prepare(ctx context.Context) ([]byte, error) {
	if err := o.fresh(ctx); err != nil {
		return nil, err
	}
	return appendState(nil, o.base, o.pending), nil
}

func (o *output[T]) Commit(ctx context.Context, state []byte) error {
	s, err := decodeState(state)
	if err != nil {
		return o.error("state", err)
	}
	if err := o.publish(ctx, s); err != nil {
		return err
	}
	if n := s.end() - o.base; n > 0 {
		o.pending, o.base = o.pending[n:], o.base+n
	}
	return nil
}

// publish publishes the unpublished records of a state. Only the ordinal shows that a
// transaction was committed: see commitTransaction.
func (o *output[T]) publish(ctx context.Context, s outputState) error {
	if o.fenced != nil || len(s.records) == 0 {
		return o.fenced
	}
	target := s.end()
	n, err := o.published(ctx, s.base, target)
	if err != nil || n >= target {
		return err
	}
	err = o.transact(ctx, s.records[n-s.base:], target)
	if refused(err) && !o.alone {
		o.alone = true // for good: the topic takes less than a batch
		return o.publish(ctx, s)
	}
	if err != nil {
		return err
	}
	n, err = o.published(ctx, s.base, target)
	if err == nil && n < target {
		err = o.error("transaction", errors.New("it was aborted instead of committed"))
	}
	return err
}

// published ends the transaction of an earlier attempt, and returns how many records are
// published, base or more.
func (o *output[T]) published(ctx context.Context, base, target int64) (int64, error) {
	// End a transaction that is open, or whose end is unknown, from an earlier attempt.
	err := o.client.AbortBufferedRecords(ctx)
	if err == nil {
		err = o.client.EndTransaction(ctx, kgo.TryAbort)
	}
	if err != nil {
		return 0, o.failed("abort", err)
	}
	n, known, err := o.ordinal(ctx)
	switch {
	case err != nil:
		return 0, o.error("ordinal", err)
	case !known && o.seen && o.tried == base: // this run has published no records since; a later run would have ended it
		return base, nil
	case !known:
		return 0, o.error("ordinal", fmt.Errorf("it is forgotten: whether the records %d to %d are published cannot be known", base+1, target))
	case n > o.tried:
		return 0, o.lost(fmt.Errorf("%d records are published, %d of them by this run or before it", n, o.tried))
	case n < base:
		return 0, o.error("ordinal", fmt.Errorf("%d records are published, the checkpoint knows %d: is it another topic or id?", n, base))
	}
	return n, nil
}

// transact publishes records in one transaction with their ordinal.
func (o *output[T]) transact(ctx context.Context, records [][]byte, ordinal int64) error {
	if err := o.client.BeginTransaction(); err != nil {
		return o.failed("begin", err)
	}
	err := o.fill(ctx, records, ordinal)
	if err == nil {
		o.tried = max(o.tried, ordinal)
		err = commitTransaction(ctx, o.client)
	}
	if err != nil {
		return o.failed("transaction", err)
	}
	return nil
}

// commitTransaction commits a transaction whose records are all acknowledged. The client
// sends the first records of a topic before it notes their partitions, and silently
// aborts a transaction without noted partitions. AbortBufferedRecords has nothing to
// abort here, but waits for the client to note them.
func commitTransaction(ctx context.Context, client *kgo.Client) error {
	if err := client.AbortBufferedRecords(ctx); err != nil {
		return err
	}
	return client.EndTransaction(ctx, kgo.TryCommit)
}

func position(partition int32, offset int64, metadata string) kmsg.TxnOffsetCommitRequestTopicPartition {
	p := kmsg.NewTxnOffsetCommitRequestTopicPartition()
	p.Partition = partition
	p.Offset = offset
	p.LeaderEpoch = -1
	p.Metadata = &metadata
	return p
}

// addOffsets adds offsets of a topic to the client's transaction. group must be the
// transactional id.
func addOffsets(ctx context.Context, client *kgo.Client, group, topic string, at ...kmsg.TxnOffsetCommitRequestTopicPartition) error {
	topics, err := kadm.NewClient(client).ListTopics(ctx, topic)
	if err != nil {
		return err
	}
	id, epoch, err := client.ProducerID(ctx)
	if err != nil {
		return err
	}
	add := kmsg.NewPtrAddOffsetsToTxnRequest()
	add.TransactionalID = group
	add.Group = group
	add.ProducerID = id
	add.ProducerEpoch = epoch
	added, err := add.RequestWith(ctx, client)
	if err == nil {
		err = kerr.ErrorForCode(added.ErrorCode)
	}
	if err != nil {
		return fmt.Errorf("group %q: %w", group, err)
	}
	commit := kmsg.NewPtrTxnOffsetCommitRequest()
	commit.TransactionalID = group
	commit.Group = group
	commit.ProducerID = id
	commit.ProducerEpoch = epoch
	commit.Generation = -1
	t := kmsg.NewTxnOffsetCommitRequestTopic()
	t.Topic = topic
	t.TopicID = topics[topic].ID
	t.Partitions = at
	commit.Topics = append(commit.Topics, t)
	committed, err := commit.RequestWith(ctx, client)
	if err != nil {
		return err
	}
	for _, t := range committed.Topics {
		for _, p := range t.Partitions {
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
				return fmt.Errorf("group %q: partition %d: %w", group, p.Partition, err)
			}
		}
	}
	return nil
}

// fill adds records and the ordinal to a transaction.
func (o *output[T]) fill(ctx context.Context, records [][]byte, ordinal int64) error {
	rs := make([]*kgo.Record, len(records))
	for i, b := range records {
		r, err := decodeRecord(b)
		if err != nil {
			return err
		}
		r.Topic = o.c.Topic
		rs[i] = r
	}
	if o.alone {
		for i, r := range rs {
			if err := o.client.ProduceSync(ctx, r).FirstErr(); err != nil {
				return fmt.Errorf("the record with key %.100q and %d bytes: %w", r.Key, len(records[i]), err)
			}
		}
		rs = nil
	}
	produced := make(chan error, len(rs))
	for _, r := range rs {
		o.client.Produce(ctx, r, func(_ *kgo.Record, err error) { produced <- err })
	}
	for range rs {
		select {
		case err := <-produced:
			if err != nil {
				return err
			}
		case <-ctx.Done(): // the client still waits for the answer, which the next attempt's abort needs
			return context.Cause(ctx)
		}
	}
	return addOffsets(ctx, o.client, o.c.TransactionalID, o.c.Topic, position(0, ordinal, ""))
}

// failed returns the error of a step. The next attempt ends the transaction.
func (o *output[T]) failed(step string, err error) error {
	if errors.Is(err, kerr.ProducerFenced) || errors.Is(err, kerr.InvalidProducerEpoch) {
		return o.lost(err)
	}
	return o.error(step, err)
}

// lost notes that another run has taken over for good (law P1).
func (o *output[T]) lost(err error) error {
	o.fenced = o.error("another run has the same transactional id, or the transaction has taken longer than its timeout", fmt.Errorf("%w: %w", checkpoint.ErrFenced, err))
	return o.fenced
}

func (o *output[T]) Close() error {
	o.client.Close()
	return nil
}

// batchRoom is the most that a batch and a record's lengths take, without headers.
const batchRoom = 128

const stateVersion = 1

type outputState struct {
	base    int64 // the number of records published before these
	records [][]byte
}

// end returns the number of published records after the state is published.
func (s outputState) end() int64 { return s.base + int64(len(s.records)) }

func appendState(b []byte, base int64, records [][]byte) []byte {
	b = append(b, stateVersion)
	b = binary.AppendUvarint(b, uint64(base))
	b = binary.AppendUvarint(b, uint64(len(records)))
	for _, r := range records {
		b = binary.AppendUvarint(b, uint64(len(r)))
		b = append(b, r...)
	}
	return b
}

func decodeState(state []byte) (outputState, error) {
	var s outputState
	r := varint.Reader{Rest: state}
	if v := r.Byte(); r.Err == nil && v != stateVersion {
		return s, fmt.Errorf("version %d is not known: was it written by a later version?", v)
	}
	first, n := r.Uvarint(), r.Uvarint()
	if first > math.MaxInt64/2 || n > uint64(len(r.Rest)) {
		r.Fail(errRange)
	}
	for range n {
		b := r.Bytes()
		if r.Err != nil {
			break
		}
		if _, err := decodeRecord(b); err != nil {
			return s, err
		}
		s.records = append(s.records, b)
	}
	if r.Err == nil && len(r.Rest) > 0 {
		r.Fail(errRange)
	}
	s.base = int64(first)
	return s, r.Err
}

var errRange = errors.New("a length or number is out of range")

// appendRecord writes key, value and headers. A length is stored plus one; 0 means nil.
func appendRecord(b []byte, r *kgo.Record) []byte {
	b = appendNilable(appendNilable(b, r.Key), r.Value)
	b = binary.AppendUvarint(b, uint64(len(r.Headers)))
	for _, h := range r.Headers {
		b = appendNilable(appendNilable(b, []byte(h.Key)), h.Value)
	}
	return b
}

func appendNilable(b, v []byte) []byte {
	if v == nil {
		return append(b, 0)
	}
	b = binary.AppendUvarint(b, uint64(len(v))+1)
	return append(b, v...)
}

func decodeRecord(b []byte) (*kgo.Record, error) {
	r := varint.Reader{Rest: b}
	nilable := func() []byte {
		n := r.Uvarint()
		if n == 0 || r.Err != nil {
			return nil
		}
		if n-1 > uint64(len(r.Rest)) {
			r.Fail(errRange)
			return nil
		}
		return append([]byte{}, r.Take(n-1)...)
	}
	record := &kgo.Record{Key: nilable(), Value: nilable()}
	n := r.Uvarint()
	if n > uint64(len(r.Rest)) {
		r.Fail(errRange)
	}
	for range n {
		if r.Err != nil {
			break
		}
		record.Headers = append(record.Headers, kgo.RecordHeader{Key: string(nilable()), Value: nilable()})
	}
	if r.Err == nil && len(r.Rest) > 0 {
		r.Fail(errRange)
	}
	return record, r.Err
}
