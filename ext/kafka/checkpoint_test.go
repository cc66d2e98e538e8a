package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

func valueOf(r *kgo.Record) (string, error) { return string(r.Value), nil }

func (c *cluster) input(topic string, toEnd bool) (*input[string], error) {
	return openInput(context.Background(), InputConfig[string]{
		Client: []kgo.Opt{c.seed(), kgo.FetchMaxWait(20 * time.Millisecond)}, Topic: topic, Decode: valueOf, ToEnd: toEnd,
	})
}

func TestInput(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, "orders")
	producer := c.client(kgo.TransactionalID("t"), kgo.DefaultProduceTopic("orders"))
	for i := range 4 { // with markers and aborted records, also at the end
		require.NoError(t, producer.BeginTransaction())
		for j := range 2 {
			require.NoError(t, producer.ProduceSync(t.Context(), &kgo.Record{Value: fmt.Append(nil, i, "-", j)}).FirstErr())
		}
		require.NoError(t, producer.EndTransaction(t.Context(), kgo.TransactionEndTry(i%2 == 0)))
	}
	checkpointtest.RunInput(t, func(t *testing.T) checkpoint.Input[string] {
		in, err := c.input("orders", true)
		require.NoError(t, err)
		return in
	}, nil)
}

// TestInputSkipsNothing reads at a position whose records are gone.
func TestInputSkipsNothing(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, "orders")
	c.produce("orders", 1, numbers(10)...)
	in, err := c.input("orders", false)
	require.NoError(t, err)
	defer in.Close()
	position := in.Position()
	require.NoError(t, c.DeleteRecords("orders", 0, 5))
	require.NoError(t, in.Seek(position))
	_, err = in.Next()
	require.ErrorIs(t, err, kerr.OffsetOutOfRange)
	require.ErrorContains(t, err, `topic "orders", partition 0`)
}

// TestInputKeepsAnErrorOverABrokenOffWait lets a partition fail just when a wait for it
// ends. The client reports the failure only once.
func TestInputKeepsAnErrorOverABrokenOffWait(t *testing.T) {
	c := newCluster(t, 1, "orders")
	in, err := c.input("orders", false)
	require.NoError(t, err)
	defer in.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	in.arrived(ctx, kgo.NewErrFetch(ctx.Err()))
	require.NoError(t, in.failed)
	in.arrived(ctx, kgo.NewErrFetch(kerr.OffsetOutOfRange))
	require.Error(t, in.failed)
	_, err = in.Next()
	require.ErrorIs(t, err, kerr.OffsetOutOfRange)
}

func TestInputWaits(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, "orders")
	in, err := c.input("orders", false)
	require.NoError(t, err)
	defer in.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, in.Wait(ctx), context.DeadlineExceeded)
	c.produce("orders", 1, "a")
	require.NoError(t, in.Wait(t.Context()))
	v, err := in.Next()
	require.NoError(t, err)
	assert.Equal(t, "a", v)
}

// The lag belongs to the position, also before the first poll, behind a Seek, and at
// markers of transactions.
func TestInputLag(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, "orders")
	in, err := c.input("orders", false)
	require.NoError(t, err)
	require.Zero(t, in.Lag())
	require.NoError(t, in.Close())
	c.produce("orders", 1, numbers(10)...)
	in, err = c.input("orders", false)
	require.NoError(t, err)
	defer in.Close()
	require.EqualValues(t, 10, in.Lag())
	for i := range 10 {
		_, err := in.Next()
		require.NoError(t, err)
		require.EqualValues(t, 9-i, in.Lag())
	}
	position := in.Position()
	producer := c.client(kgo.TransactionalID("t"), kgo.DefaultProduceTopic("orders"))
	require.NoError(t, producer.BeginTransaction())
	require.NoError(t, producer.ProduceSync(t.Context(), &kgo.Record{Value: []byte("x")}).FirstErr())
	require.NoError(t, producer.EndTransaction(t.Context(), kgo.TryCommit))
	_, err = in.Next()
	require.NoError(t, err)
	require.LessOrEqual(t, in.Lag(), int64(1), "the marker")

	again, err := c.input("orders", false)
	require.NoError(t, err)
	defer again.Close()
	require.NoError(t, again.Seek(position))
	require.EqualValues(t, 2, again.Lag(), "the record and the marker")

	c.produce("orders", 1, numbers(5)...)
	require.EqualValues(t, 2, again.Lag(), "it has heard of the end just now")
	again.lag.mu.Lock()
	again.lag.known = time.Time{}
	again.lag.mu.Unlock()
	eventually(t, func() bool { return again.Lag() == 7 }, "nothing is fetched, and the end is asked for")
}

func TestInputRefuses(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, "orders")
	_, err := openInput(t.Context(), InputConfig[string]{Client: []kgo.Opt{c.seed()}, Topic: "orders", Partition: 7, Decode: valueOf})
	require.ErrorContains(t, err, "partition 7")
	_, err = openInput(t.Context(), InputConfig[string]{})
	require.Error(t, err)
	in, err := openInput(t.Context(), InputConfig[string]{Client: []kgo.Opt{c.seed()}, Topic: "orders", Decode: func(*kgo.Record) (string, error) {
		return "x", errors.New("no order")
	}})
	require.NoError(t, err)
	defer in.Close()
	c.produce("orders", 1, "a")
	v, err := in.Next()
	require.ErrorContains(t, err, "offset 0")
	require.Empty(t, v)
}

func (c *cluster) output(opts ...kgo.Opt) (*output[string], error) {
	out, err := newOutput(OutputConfig[string]{
		Client: append(opts, c.seed()), TransactionalID: "invoices", Topic: "invoices",
		Encode: func(v string) (*kgo.Record, error) {
			return &kgo.Record{Key: []byte("k"), Value: []byte(v), Headers: []kgo.RecordHeader{{Key: "h", Value: []byte(v)}}}, nil
		},
	})
	if err == nil {
		c.t.Cleanup(func() { _ = out.Close() }) // also of transactions that a crash left
	}
	return out, err
}

// reader reads published records, and keeps the records that it has seen.
type reader struct {
	c   *cluster
	in  *input[string]
	all []string
}

func (c *cluster) reader() *reader {
	c.t.Helper()
	in, err := c.input("invoices", false)
	require.NoError(c.t, err)
	c.t.Cleanup(func() { _ = in.Close() })
	return &reader{c: c, in: in}
}

func (r *reader) published() ([]string, error) {
	if r.c.fake == nil {
		r.c.settled("invoices")
	}
	end, err := r.in.look(context.Background(), kadm.NewClient(r.in.client).ListCommittedOffsets)
	if err != nil {
		return nil, err
	}
	r.in.c.ToEnd, r.in.end = true, end
	for {
		v, err := r.in.Next()
		if err == io.EOF {
			return r.all, nil
		}
		if err != nil {
			return nil, err
		}
		r.all = append(r.all, v)
	}
}

// TestOutput runs the suite: with calls that fail at each step, with and without an
// effect.
func TestOutput(t *testing.T) {
	t.Parallel()
	checkpointtest.RunOutput(t, func(t *testing.T) checkpointtest.Outlet[string] {
		c := newCluster(t, 1, "invoices")
		c.inMemory()
		reader := c.reader()
		var fault *kfake.FaultHandle
		return checkpointtest.Outlet[string]{
			Open: func() (checkpoint.Output[string], error) { return c.output() },
			Fail: func(n int) {
				if fault != nil {
					fault.Remove()
					fault = nil
				}
				if n == 0 {
					return
				}
				err := kerr.UnknownServerError
				if n%2 == 0 {
					err = kerr.RequestTimedOut
				}
				var calls atomic.Int64
				fault = c.Fault(kfake.Fault{
					Keys: []kmsg.Key{kmsg.Produce, kmsg.AddOffsetsToTxn, kmsg.TxnOffsetCommit, kmsg.EndTxn, kmsg.OffsetFetch, kmsg.InitProducerID},
					Err:  err, When: func(kmsg.Request) bool { return calls.Add(1) == int64(1+n%7) },
				})
			},
			Visible: reader.published,
		}
	}, strconv.Itoa, nil)
}

// TestCommitThatIsAnAbort checks law C1: if the end of a transaction succeeds but aborts
// it, Commit fails, and publishes when it is repeated. franz-go ends a transaction in
// this way if it considers it empty.
func TestCommitThatIsAnAbort(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, "invoices")
	reader, out := c.reader(), must(c.output())
	var once sync.Once
	c.inMemory().ControlKey(int16(kmsg.EndTxn), func(req kmsg.Request) (kmsg.Response, error, bool) {
		once.Do(func() { req.(*kmsg.EndTxnRequest).Commit = false })
		return nil, nil, false
	})
	require.NoError(t, out.Write(t.Context(), "a"))
	state := must(out.Prepare(t.Context()))
	require.ErrorContains(t, out.Commit(t.Context(), state), "it was aborted instead of committed")
	require.Empty(t, must(reader.published()))
	require.NoError(t, out.Commit(t.Context(), state))
	require.Equal(t, []string{"a"}, must(reader.published()))
}

// TestOutputOverBrokenConnections runs the suite with connections that break: before a
// request is sent, or before it is answered.
func TestOutputOverBrokenConnections(t *testing.T) {
	t.Parallel()
	checkpointtest.RunOutput(t, func(t *testing.T) checkpointtest.Outlet[string] {
		c := newCluster(t, 1, "invoices")
		reader := c.reader()
		var b breaker
		return checkpointtest.Outlet[string]{
			Open: func() (checkpoint.Output[string], error) {
				return c.output(b.dialer(), kgo.RetryBackoffFn(func(int) time.Duration { return 10 * time.Millisecond }))
			},
			Fail:    b.set,
			Visible: reader.published,
		}
	}, strconv.Itoa, nil)
}

// Law W2: an element that the client does not take fails its Write. One that only the
// topic does not take is named by Commit, and records that are small are published,
// whatever a batch of them takes.
func TestOutputOfWhatIsTooLarge(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	require.NoError(t, c.CreateTopic("invoices", 1, map[string]string{"max.message.bytes": "3000"}))
	out := must(c.output(kgo.ProducerBatchCompression(kgo.NoCompression())))
	err := out.Write(t.Context(), strings.Repeat("x", 600_000)) // it is the value and a header
	require.ErrorIs(t, err, kerr.MessageTooLarge)
	require.ErrorContains(t, err, `the record with key "k" has 12001`)
	require.ErrorContains(t, err, "the client takes 1000012")
	var want []string
	for range 20 {
		want = append(want, strings.Repeat("x", 400))
		require.NoError(t, out.Write(t.Context(), want[0]))
	}
	require.NoError(t, out.Commit(t.Context(), must(out.Prepare(t.Context()))))
	reader := c.reader()
	require.Equal(t, want, must(reader.published()))

	require.NoError(t, out.Write(t.Context(), strings.Repeat("x", 2000)))
	state := must(out.Prepare(t.Context()))
	err = out.Commit(t.Context(), state)
	require.ErrorIs(t, err, kerr.MessageTooLarge)
	require.ErrorContains(t, err, `the record with key "k" and 4009 bytes`)
	require.ErrorContains(t, must(c.output(kgo.ProducerBatchCompression(kgo.NoCompression()))).Restore(t.Context(), state), `the record with key "k"`)
}

// TestOutputIsFenced checks law P1: an output no longer publishes after another one has
// taken over.
func TestOutputIsFenced(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, "invoices")
	commit := func(out *output[string], values ...string) ([]byte, error) {
		for _, v := range values {
			require.NoError(t, out.Write(t.Context(), v))
		}
		state, err := out.Prepare(t.Context())
		require.NoError(t, err)
		return state, out.Commit(t.Context(), state)
	}
	old, err := c.output()
	require.NoError(t, err)
	state, err := commit(old, "a", "b")
	require.NoError(t, err)
	next, err := c.output()
	require.NoError(t, err)
	require.NoError(t, next.Restore(t.Context(), state))
	for range 2 {
		_, err = commit(old, "stale")
		require.ErrorIs(t, err, checkpoint.ErrFenced)
	}
	_, err = commit(next, "c", "d")
	require.NoError(t, err)
	_, err = commit(old, "stale again") // its next ordinal exists, by accident
	require.ErrorIs(t, err, checkpoint.ErrFenced)
	all, err := c.reader().published()
	require.NoError(t, err)
	assert.Equal(t, []string{"a", "b", "c", "d"}, all)

	third, err := c.output() // the checkpoint of c and d is lost
	require.NoError(t, err)
	require.ErrorContains(t, third.Restore(t.Context(), state), "a later checkpoint was lost")
}

// TestStaleOutputWhoseOrdinalIsTaken checks law P1 if the broker is not asked: the new
// owner has published as much as the old one is about to, or more.
func TestStaleOutputWhoseOrdinalIsTaken(t *testing.T) {
	for n := 1; n < 4; n++ {
		c := newCluster(t, 1, "invoices")
		outs := make([]*output[string], 2)
		for i := range outs {
			out, err := c.output()
			require.NoError(t, err)
			require.NoError(t, out.Restore(t.Context(), appendState(nil, 0, nil)))
			_, err = out.Prepare(t.Context())
			require.NoError(t, err)
			outs[i] = out
		}
		first := kadm.Offsets{}
		first.Add(kadm.Offset{Topic: "invoices", At: 0, LeaderEpoch: -1})
		require.NoError(t, kadm.NewClient(c.admin).CommitAllOffsets(t.Context(), "invoices", first))
		commit := func(out *output[string], n int) error {
			for i := range n {
				require.NoError(t, out.Write(t.Context(), strconv.Itoa(i)))
			}
			state, err := out.Prepare(t.Context())
			require.NoError(t, err)
			return out.Commit(t.Context(), state)
		}
		require.NoError(t, commit(outs[1], n))
		require.ErrorIs(t, commit(outs[0], 2), checkpoint.ErrFenced)
	}
}

// TestOutputEndsWithItsContext loses the answer to a Produce. The next Commit publishes
// the elements once.
func TestOutputEndsWithItsContext(t *testing.T) {
	c := newCluster(t, 1, "invoices")
	var f freezer
	defer f.thaw(false)
	out, err := c.output(f.dialer())
	require.NoError(t, err)
	require.NoError(t, out.Write(t.Context(), "a"))
	state, err := out.Prepare(t.Context())
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var once sync.Once
	c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Observe: true, When: func(kmsg.Request) bool {
		once.Do(func() { // When may be called again for the same request
			f.freeze()
			cancel()
		})
		return true
	}})
	require.ErrorIs(t, out.Commit(ctx, state), context.Canceled)
	f.thaw(false)
	require.NoError(t, out.Commit(t.Context(), state))
	all, err := c.reader().published()
	require.NoError(t, err)
	assert.Equal(t, []string{"a"}, all)
}

// hold begins a transaction that commits an offset for partition 0 of a topic and a
// group. The committed offset is unknown until end aborts the transaction.
func (c *cluster) hold(group, topic string) (end func()) {
	c.t.Helper()
	const name = "a transaction"
	ctx := c.t.Context()
	client := c.client(kgo.TransactionalID(name), kgo.DefaultProduceTopic(topic))
	require.NoError(c.t, client.BeginTransaction())
	require.NoError(c.t, client.ProduceSync(ctx, kgo.StringRecord("aborted")).FirstErr())
	id, epoch, err := client.ProducerID(ctx)
	require.NoError(c.t, err)
	add := kmsg.NewPtrAddOffsetsToTxnRequest()
	add.TransactionalID, add.Group, add.ProducerID, add.ProducerEpoch = name, group, id, epoch
	added, err := add.RequestWith(ctx, client)
	require.NoError(c.t, err)
	require.Zero(c.t, added.ErrorCode)
	topics, err := kadm.NewClient(client).ListTopics(ctx, topic)
	require.NoError(c.t, err)
	commit := kmsg.NewPtrTxnOffsetCommitRequest()
	commit.TransactionalID, commit.Group, commit.ProducerID, commit.ProducerEpoch, commit.Generation = name, group, id, epoch, -1
	t := kmsg.NewTxnOffsetCommitRequestTopic()
	t.Topic, t.TopicID = topic, topics[topic].ID
	p := kmsg.NewTxnOffsetCommitRequestTopicPartition()
	p.Offset, p.Metadata = 77, new(string)
	t.Partitions = append(t.Partitions, p)
	commit.Topics = append(commit.Topics, t)
	committed, err := commit.RequestWith(ctx, client)
	require.NoError(c.t, err)
	require.Zero(c.t, committed.Topics[0].Partitions[0].ErrorCode)
	return func() { require.NoError(c.t, client.EndTransaction(ctx, kgo.TryAbort)) }
}

// TestOutputWaitsForItsOrdinal has a transaction end late. Brokers confirm the end of a
// transaction before they have notified its groups.
func TestOutputWaitsForItsOrdinal(t *testing.T) {
	c := newCluster(t, 1, "invoices")
	fetches := newRequests(kmsg.OffsetFetch, nil)
	out, err := c.output(kgo.WithHooks(fetches))
	require.NoError(t, err)
	require.NoError(t, out.Write(t.Context(), "a"))
	end := c.hold("invoices", "invoices")
	state, err := out.Prepare(t.Context())
	require.NoError(t, err)
	before := fetches.n.Load()
	done := make(chan error, 1)
	go func() { done <- out.Commit(t.Context(), state) }()
	eventually(t, func() bool { return len(done) > 0 || fetches.n.Load() > before+1 }, "it asks again")
	end()
	require.NoError(t, <-done)
	for i := range 20 { // one right after the other
		require.NoError(t, out.Write(t.Context(), strconv.Itoa(i)))
		state, err := out.Prepare(t.Context())
		require.NoError(t, err)
		require.NoError(t, out.Commit(t.Context(), state))
	}
}

// TestOutputWaitsForItsCoordinator has no broker lead the group for a while, as when that
// broker was killed.
func TestOutputWaitsForItsCoordinator(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, "invoices")
	f := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.FindCoordinator}, Err: kerr.CoordinatorNotAvailable, Count: 5, When: func(req kmsg.Request) bool {
		return req.(*kmsg.FindCoordinatorRequest).CoordinatorType == 0 // of a group
	}})
	out, err := c.output()
	require.NoError(t, err)
	require.NoError(t, out.Restore(t.Context(), appendState(nil, 0, nil)))
	assert.Equal(t, 5, f.Hits())
}

// TestOutputWhoseOrdinalIsForgotten restores after the offsets' retention.
func TestOutputWhoseOrdinalIsForgotten(t *testing.T) {
	c := newCluster(t, 1, "invoices")
	out, err := c.output()
	require.NoError(t, err)
	require.NoError(t, out.Write(t.Context(), "a"))
	state, err := out.Prepare(t.Context())
	require.NoError(t, err)
	require.NoError(t, out.Commit(t.Context(), state))
	empty, err := out.Prepare(t.Context())
	require.NoError(t, err)
	c.forget("invoices")
	again, err := c.output()
	require.NoError(t, err)
	require.ErrorContains(t, again.Restore(t.Context(), state), "forgotten")
	require.NoError(t, again.Restore(t.Context(), empty), "nothing is in doubt")
}

// forget lets the brokers forget a group, as they do after the offsets' retention.
func (c *cluster) forget(group string) {
	c.t.Helper()
	deleted, err := kadm.NewClient(c.admin).DeleteGroup(c.t.Context(), group)
	require.NoError(c.t, cmp.Or(err, deleted.Err))
}

// TestOutputThatPublishesNothingForLong is a regression test for law C1: after the
// offsets' retention, a run that knows itself how many records are published was refused
// for ever. It continues. A run that cannot know is still refused.
func TestOutputThatPublishesNothingForLong(t *testing.T) {
	c := newCluster(t, 1, "invoices")
	commit := func(out *output[string], v string) error {
		require.NoError(t, out.Write(t.Context(), v))
		state, err := out.Prepare(t.Context())
		require.NoError(t, err)
		return out.Commit(t.Context(), state)
	}
	out, reader := must(c.output()), c.reader()
	require.NoError(t, commit(out, "a"))
	c.forget("invoices")
	require.NoError(t, commit(out, "b"))
	require.NoError(t, commit(out, "c"))
	require.Equal(t, []string{"a", "b", "c"}, must(reader.published()))

	c.forget("invoices")
	c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.AddOffsetsToTxn}})
	require.NoError(t, out.Write(t.Context(), "d"))
	state := must(out.Prepare(t.Context()))
	require.Error(t, out.Commit(t.Context(), state))
	require.NoError(t, out.Commit(t.Context(), state), "it was not committed")

	require.NoError(t, out.Write(t.Context(), "e"))
	state = must(out.Prepare(t.Context()))
	c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.EndTxn}})
	require.Error(t, out.Commit(t.Context(), state))
	c.forget("invoices")
	require.ErrorContains(t, out.Commit(t.Context(), state), "forgotten", "it may be committed")

	next := must(c.output())
	require.NoError(t, next.Restore(t.Context(), appendState(nil, 4, nil)))
	require.ErrorContains(t, commit(next, "f"), "forgotten", "it has not seen the ordinal")
}

// TestStaleOutputWhoseOrdinalIsForgotten checks law P1: after the offsets' retention, a
// run that was taken over does not publish, and its successor continues.
func TestStaleOutputWhoseOrdinalIsForgotten(t *testing.T) {
	c := newCluster(t, 1, "invoices")
	old, next, reader := must(c.output()), must(c.output()), c.reader()
	commit := func(out *output[string], v string) error {
		require.NoError(t, out.Write(t.Context(), v))
		return out.Commit(t.Context(), must(out.Prepare(t.Context())))
	}
	require.NoError(t, commit(old, "a"))
	require.NoError(t, next.Restore(t.Context(), must(old.Prepare(t.Context()))))
	c.forget("invoices")
	require.ErrorIs(t, commit(old, "stale"), checkpoint.ErrFenced)
	require.NoError(t, commit(next, "b"))
	require.Equal(t, []string{"a", "b"}, must(reader.published()))
}

func FuzzState(f *testing.F) {
	r := appendRecord(nil, &kgo.Record{Key: []byte("k"), Value: nil, Headers: []kgo.RecordHeader{{Key: "h"}}})
	f.Add(appendState(nil, 7, [][]byte{r, r}))
	f.Fuzz(func(t *testing.T, state []byte) {
		s, err := decodeState(state)
		if err == nil && string(appendState(nil, s.base, s.records)) != string(state) {
			t.Fatalf("%x became %x", state, appendState(nil, s.base, s.records))
		}
	})
}

// Law W2: a record that cannot be read goes to the dead letters as it is, and stops no
// other.
func TestInputWithARecordThatCannotBeRead(t *testing.T) {
	c := newCluster(t, 1, "orders")
	c.produce("orders", 1, "1", "bad 2", "3", "bad 4")
	var dead box
	config := InputConfig[string]{Client: []kgo.Opt{c.seed()}, Topic: "orders", ToEnd: true, Decode: func(r *kgo.Record) (string, error) {
		if strings.HasPrefix(string(r.Value), "bad") {
			panic("what is this?")
		}
		return string(r.Value), nil
	}}
	open := func() *input[string] {
		in, err := openInput(t.Context(), config)
		require.NoError(t, err)
		t.Cleanup(func() { _ = in.Close() })
		return in
	}
	in := open()
	_, err := in.Next()
	require.NoError(t, err)
	for range 2 {
		_, err = in.Next()
		require.ErrorContains(t, err, "the record at offset 1 cannot be read")
	}
	config.DeadLetters = dead.put
	dead.set(errors.New("full"))
	position := in.Position()
	in = open()
	require.NoError(t, in.Seek(position))
	_, err = in.Next()
	require.ErrorContains(t, err, "full", "law D1")
	dead.set(nil)
	v, err := in.Next()
	require.NoError(t, err)
	require.Equal(t, "3", v)
	_, err = in.Next()
	require.Equal(t, io.EOF, err)
	letters := dead.all()
	require.Len(t, letters, 2)
	require.Equal(t, "bad 2", string(letters[0].Payload))
	require.Equal(t, store.Undecodable, letters[0].Cause)
	require.Regexp(t, `^orders:[\w-]{8}/0/1$`, letters[0].Meta.ID)
	require.Contains(t, letters[0].Meta.LastError, "what is this?")
	position = in.Position()
	in = open()
	require.NoError(t, in.Seek(position))
	_, err = in.Next()
	require.Equal(t, io.EOF, err, "the position is behind both")
	require.Len(t, dead.all(), 2)
}

// Law W2: a record that can neither be read nor kept with the dead letters stays in its
// topic, and its dead letter reports that.
func TestInputWithARecordThatCannotBeReadNorKept(t *testing.T) {
	c := newCluster(t, 1, "orders")
	c.produce("orders", 1, "bad", "2")
	var dead box
	in, err := OpenInput(t.Context(), InputConfig[string]{Client: []kgo.Opt{c.seed()}, Topic: "orders", ToEnd: true, Decode: func(r *kgo.Record) (string, error) {
		if string(r.Value) == "bad" {
			return "", errors.New("what is this?")
		}
		return string(r.Value), nil
	}, DeadLetters: func(ctx context.Context, ms ...store.Message) error {
		if len(ms[0].Payload) > 0 {
			return message.ErrRefused
		}
		return dead.put(ctx, ms...)
	}})
	require.NoError(t, err)
	defer in.Close()
	v, err := in.Next()
	require.NoError(t, err)
	require.Equal(t, "2", v)
	letters := dead.all()
	require.Len(t, letters, 1)
	require.Contains(t, letters[0].Meta.LastError, "stays in topic orders, partition 0, offset 0")
}
