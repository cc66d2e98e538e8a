package kafka

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

// sink returns a queue to put into.
func (c *cluster) sink(topic string, opts ...kgo.Opt) *delivery.Queue[string] {
	c.t.Helper()
	return queueOn(c.engine(WithClientOptions(opts...)), topic)
}

func TestSinkKeepsWhatIsKnown(t *testing.T) {
	c := newCluster(t, 1, "orders", "invoices")
	meta := &message.Meta{
		ID: "orders/0/17", Key: "key\x00\xff", Origin: message.Origin{Source: "orders", Partition: "0", Position: "17"},
		Provider: "acquirer-2", Visit: 3, Attempts: 7, LastError: "503", Due: time.Now().Add(time.Hour),
		Deadline: time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC), Headers: map[string]string{"trace": "\x00\x01\xff"},
	}
	var settlements []message.Settlement
	m := message.New("an invoice", meta, func(v message.Settlement) { settlements = append(settlements, v) })
	require.NoError(t, c.sink("invoices").PutAll(t.Context(), []message.Message[string]{m}))
	assert.Empty(t, settlements, "the caller acknowledges")
	got := receive(t, c.source("invoices"), 1)[0]
	assert.Equal(t, "an invoice", got.Value)
	assert.Regexp(t, `^invoices:[\w-]{8}/0/0$`, got.Meta().Put)
	assert.Equal(t, message.Meta{
		ID: meta.ID, Put: got.Meta().Put, Key: meta.Key, Origin: meta.Origin, Provider: meta.Provider, Deadline: meta.Deadline, Headers: meta.Headers, Visit: 1,
	}, got.Meta())
}

// TestSinkAcknowledgesWhatIsSafe checks law D1: after a Put that fails, the messages that
// were written are acknowledged.
func TestSinkAcknowledgesWhatIsSafe(t *testing.T) {
	c := newCluster(t, 2, "invoices")
	s := c.sink("invoices", kgo.RecordPartitioner(kgo.BasicConsistentPartitioner(func(string) func(*kgo.Record, int) int {
		return func(r *kgo.Record, _ int) int { return int(r.Key[0] - '0') }
	})))
	c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Partitions: []int32{1}, Err: kerr.TopicAuthorizationFailed, Count: -1})
	var ms []message.Message[string]
	settlements := map[string]message.Kind{}
	for _, key := range []string{"0", "1"} {
		ms = append(ms, message.New("v", &message.Meta{Key: key, ID: key}, func(v message.Settlement) { settlements[key] = v.Kind }))
	}
	require.ErrorIs(t, s.PutAll(t.Context(), ms), kerr.TopicAuthorizationFailed)
	assert.Equal(t, map[string]message.Kind{"0": message.Done}, settlements)
}

// Law W2: a message that is too large is rejected by itself: the others of its batch are
// written.
func TestSinkRejectsWhatIsTooLarge(t *testing.T) {
	c := newCluster(t, 1)
	require.NoError(t, c.CreateTopic("invoices", 1, map[string]string{"max.message.bytes": "2000"}))
	s := c.sink("invoices", kgo.ProducerBatchCompression(kgo.NoCompression()))
	settlements := map[string]message.Settlement{}
	var ms []message.Message[string]
	for id, size := range map[string]int{"a": 900, "b": 900, "c": 900, "topic": 5000, "client": 2 << 20} {
		ms = append(ms, message.New(strings.Repeat("x", size), &message.Meta{ID: id}, func(v message.Settlement) { settlements[id] = v }))
	}
	require.NoError(t, s.PutAll(t.Context(), ms))
	for _, id := range []string{"topic", "client"} {
		assert.Equal(t, message.Rejected, settlements[id].Kind)
		assert.ErrorIs(t, settlements[id].Err, message.ErrRefused)
		assert.ErrorIs(t, settlements[id].Err, kerr.MessageTooLarge)
	}
	ids := map[string]bool{}
	for _, m := range receive(t, c.source("invoices"), 3) {
		ids[m.Meta().ID] = true
	}
	assert.Equal(t, map[string]bool{"a": true, "b": true, "c": true}, ids)
	large := message.New(strings.Repeat("x", 5000), &message.Meta{ID: "d"}, nil)
	require.ErrorIs(t, s.PutAll(t.Context(), []message.Message[string]{large}), message.ErrRefused, "no one would see a rejection")
}

// Regression (law D1): records of a batch that was too large for the topic are written
// one by one, and then Put returns nil. It returned a PutError without an error in it,
// which panicked when it was printed.
func TestPutOfABatchThatWasTooLarge(t *testing.T) {
	c := newCluster(t, 1)
	require.NoError(t, c.CreateTopic("invoices", 1, map[string]string{"max.message.bytes": "2000"}))
	e := c.engine(WithClientOptions(kgo.ProducerBatchCompression(kgo.NoCompression())))
	var ms []store.Message
	for _, id := range numbers(3) {
		ms = append(ms, store.Message{Meta: message.Meta{ID: id}, Payload: bytes.Repeat([]byte("x"), 900)})
	}
	require.NoError(t, e.Put(t.Context(), "invoices", ms...))
	require.EqualValues(t, 3, c.length("invoices", 1))
}

func TestSinkEndsWithItsContext(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, "invoices")
	s := c.sink("invoices")
	require.NoError(t, s.PutAll(t.Context(), []message.Message[string]{message.New("v", &message.Meta{ID: "1"}, func(message.Settlement) {})}))
	c.inMemory().Close()
	cause := errors.New("enough")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 100*time.Millisecond, cause)
	defer cancel()
	m := message.New("v", &message.Meta{ID: "2"}, func(v message.Settlement) { t.Error(v) })
	start := time.Now()
	require.ErrorIs(t, s.PutAll(ctx, []message.Message[string]{m}), cause)
	assert.Less(t, time.Since(start), time.Minute)
}

func TestSinkRefusesToDouble(t *testing.T) {
	_, err := Open(t.Context(), "127.0.0.1:1", WithClientOptions(kgo.DisableIdempotentWrite()))
	require.ErrorContains(t, err, "DisableIdempotentWrite")
}

// TestPutDoesNotLinger checks that a Put does not wait until the client's linger is over.
func TestPutDoesNotLinger(t *testing.T) {
	c := newCluster(t, 2, "invoices")
	e := c.engine(WithClientOptions(kgo.ProducerLinger(time.Minute))) // the client allows no more
	s, client := queueOn(e, "invoices"), e.producer.client
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Second)
	defer cancel()
	put := func() error {
		return s.PutAll(ctx, []message.Message[string]{message.New("v", &message.Meta{ID: "1", Key: "a"}, nil)})
	}
	first := make(chan error, 1)
	go func() { first <- put() }() // it looks for the partitions of the topic
	eventually(t, func() bool { return client.BufferedProduceRecords() > 0 }, "a record is on its way")
	require.NoError(t, client.Flush(ctx))
	require.NoError(t, <-first)
	require.NoError(t, put())
}

// TestCommitDoesNotLinger checks the same of the transaction of a checkpoint.
func TestCommitDoesNotLinger(t *testing.T) {
	c := newCluster(t, 1, "invoices")
	out, err := c.output(kgo.ProducerLinger(time.Minute))
	require.NoError(t, err)
	require.NoError(t, out.Write(t.Context(), "a"))
	state, err := out.Prepare(t.Context())
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Second)
	defer cancel()
	require.NoError(t, out.Commit(ctx, state))
}
