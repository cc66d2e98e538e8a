package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
	"github.com/weirflow/weir/strategies"
)

// box is a PutFunc.
type box struct {
	mu   sync.Mutex
	ms   []store.Message
	fail error
}

func (b *box) put(_ context.Context, ms ...store.Message) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fail != nil {
		return b.fail
	}
	b.ms = append(b.ms, ms...)
	return nil
}

func (b *box) set(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fail = err
}

func (b *box) all() []store.Message {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]store.Message(nil), b.ms...)
}

func eventually(t testing.TB, ok func() bool, what string) {
	t.Helper()
	require.Eventually(t, ok, time.Minute, 5*time.Millisecond, what)
}

func TestMetaOfARecord(t *testing.T) {
	c := newCluster(t, 1, "orders")
	c.produce("orders", 1, "0", "1")
	ms := receive(t, c.source("orders"), 2)
	m := ms[1].Meta()
	assert.Regexp(t, `^orders:[\w-]{8}/0/1$`, m.ID)
	assert.Equal(t, m.ID, m.Put)
	assert.Equal(t, "key 1", m.Key)
	assert.Equal(t, message.Origin{Source: "orders", Partition: "0", Position: "1"}, m.Origin)
	assert.Equal(t, 1, m.Visit)
}

// Law W5: two records with one id are two messages, wherever they are handed over. A
// record that a worker has handed over keeps the origin of its put.
func TestSource_TwoRecordsUnderOneID(t *testing.T) {
	c := newCluster(t, 1, "orders")
	engine := memory.Open()
	receipts := delivery.NewQueue[string](engine, "receipts")
	first := message.New("address A", &message.Meta{ID: "17"}, nil)
	second := message.New("address B", &message.Meta{ID: "17"}, nil)
	again := message.New("address C", &message.Meta{ID: "17", Put: "shop//5"}, nil)
	require.NoError(t, c.sink("orders").PutAll(t.Context(), []message.Message[string]{first, second, again, again}))
	ms := receive(t, c.source("orders"), 4)
	assert.Equal(t, "shop//5", ms[3].Meta().Put)
	for range 2 { // the worker dies after the hand-over, and its successor repeats it
		require.NoError(t, receipts.PutAll(t.Context(), ms))
	}
	stored, err := engine.List(t.Context(), "receipts", store.Filter{}, allOfIt)
	require.NoError(t, err)
	assert.ElementsMatch(t, []string{`"address A"`, `"address B"`, `"address C"`}, payloads(stored))
}

// TestRecord_WithoutHeadersIsCheap checks that only the strings of its place, id and key
// are made.
func TestRecord_WithoutHeadersIsCheap(t *testing.T) {
	r := &kgo.Record{Topic: "orders", Partition: 12, Offset: 345678, Key: []byte("key")}
	assert.LessOrEqual(t, testing.AllocsPerRun(100, func() {
		if m, err := metaOf(r, ""); err != nil || m.ID != "orders/12/345678" {
			t.Error(m.ID, err)
		}
	}), 5.0)
}

// TestRecord_CheapToWrite checks that the headers of a record share their memory.
func TestRecord_CheapToWrite(t *testing.T) {
	meta := message.Meta{ID: "a", Key: "k", Origin: message.Origin{Source: "a", Partition: "1", Position: "2"}, Provider: "p", Headers: map[string]string{"h": "v"}}
	headers := testing.AllocsPerRun(100, func() {
		_, err := meta.ToHeaders()
		require.NoError(t, err)
	})
	all := testing.AllocsPerRun(100, func() {
		_, err := record("out", nil, meta)
		require.NoError(t, err)
	})
	assert.LessOrEqual(t, all-headers, 4.0, "record, key, headers, values")
}

// TestLowestUnsettledIsCommitted checks law D1.
func TestLowestUnsettledIsCommitted(t *testing.T) {
	c := newCluster(t, 1, "orders")
	c.produce("orders", 1, numbers(10)...)
	s := c.source("orders")
	ms := receive(t, s, 10)
	for _, i := range []int{0, 1, 3, 4, 9} {
		ms[i].Ack()
	}
	eventually(t, func() bool { return c.committed("orders", 0).At == 2 && c.committed("orders", 0).Metadata != "" }, "two are settled")
	for _, i := range []int{2, 5, 6, 7, 8} {
		ms[i].Ack()
	}
	eventually(t, func() bool { return c.committed("orders", 0).At == 10 }, "all are settled")
	assert.Empty(t, c.committed("orders", 0).Metadata)
}

// TestTransactionsAndCompactionDoNotBlock reads what markers, aborted records and
// compaction have left.
func TestTransactionsAndCompactionDoNotBlock(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, "plain")
	require.NoError(t, c.CreateTopic("orders", 1, map[string]string{
		"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "segment.bytes": "1048576", "segment.ms": "100",
	}))
	producer := c.client(kgo.TransactionalID("t"), kgo.DefaultProduceTopic("orders"))
	for i := range 6 {
		require.NoError(t, producer.BeginTransaction())
		for j := range 3 {
			r := &kgo.Record{Key: []byte(strconv.Itoa(j)), Value: fmt.Append(nil, i, "-", j)}
			require.NoError(t, producer.ProduceSync(t.Context(), r).FirstErr())
		}
		require.NoError(t, producer.EndTransaction(t.Context(), kgo.TransactionEndTry(i%2 == 0)))
	}
	c.compact("orders")
	s := c.source("orders")
	var last int64
	n := 0
	final := "4-2" // the last committed value
	if c.fake == nil {
		final = lastSegment
	}
	for value := ""; value != final; n++ {
		m := receive(t, s, 1)[0]
		value = m.Value
		assert.NotContains(t, []string{"1", "3", "5"}, value[:1], "aborted")
		var err error
		last, err = strconv.ParseInt(m.Meta().Origin.Position, 10, 64)
		require.NoError(t, err)
		m.Ack()
	}
	nothing(t, s, 100*time.Millisecond)
	require.Greater(t, last, int64(n), "there are gaps")
	eventually(t, func() bool { return c.committed("orders", 0).At == c.end("orders", 0) }, "gaps are settled, the last one of an aborted transaction, too: no lag")
}

// TestRecordsThatAreRemoved has the retention of a topic be shorter than its workers are
// behind. They continue with the remaining records, and log the loss.
func TestRecordsThatAreRemoved(t *testing.T) {
	c := newCluster(t, 1, "orders")
	c.produce("orders", 1, numbers(10)...)
	s := c.source("orders")
	for _, m := range receive(t, s, 10)[:3] {
		m.Ack()
	}
	require.NoError(t, s.Close(t.Context()))
	require.NoError(t, c.DeleteRecords("orders", 0, 7))
	l := &logs{}
	s = c.source("orders", withLogger(l.logger()))
	ms := receive(t, s, 3)
	assert.Equal(t, []string{"7", "8", "9"}, values(ms))
	assert.Contains(t, l.String(), "removed from the log before they were read")
	assert.Contains(t, l.String(), "topic=orders partition=0 from=3 before=7")
	for _, m := range ms {
		m.Ack()
	}
	eventually(t, func() bool { return c.committed("orders", 0).At == 10 }, "the gap is settled")
	require.NoError(t, c.DeleteRecords("orders", 0, 10)) // the removal of records that were read is not logged
	c.produce("orders", 1, "10")
	receive(t, s, 1)
	assert.Equal(t, 1, strings.Count(l.String(), "removed from the log"))
}

func TestSource_Dropped(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, "orders")
	c.produce("orders", 2, numbers(20)...)
	a := c.source("orders", dropped())
	ms := receive(t, a, 20)
	for _, m := range ms[:5] {
		m.Ack()
	}
	eventually(t, func() bool { return c.committed("orders", 0).Offset.At+c.committed("orders", 1).At >= 3 }, "committed")
	require.NoError(t, a.commit(t.Context()))
	drop(a)
	b := c.source("orders")
	again := receive(t, b, 15)
	assert.ElementsMatch(t, values(ms[5:]), values(again))
	for _, m := range ms {
		m.Nack(0) // it has no effect
	}
	nothing(t, b, 200*time.Millisecond)
}

// drop ends a source without a commit and without leaving the group: the brokers see the
// same of a process that is killed.
func drop(s *testSource) {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel(errClosed)
	s.ended.Wait()
	s.mu.Lock()
	clear(s.parts) // so that it makes no commits
	s.mu.Unlock()
	left, cancel := context.WithCancel(context.Background())
	cancel()
	_ = s.client.LeaveGroupContext(left)
	s.client.CloseAllowingRebalance()
	s.closing.Do(func() { close(s.left) })
}

// TestSource_Frozen checks law P1: a source that was frozen for longer than
// its session does not commit when it continues, not even a commit that it had begun.
func TestSource_Frozen(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, "orders")
	c.produce("orders", 1, numbers(10)...)
	var f freezer
	a := c.source("orders", withClient(f.dialer(), kgo.SessionTimeout(session)), withCommitInterval(time.Hour))
	ms := receive(t, a, 10)
	f.freeze()
	for _, m := range ms[4:] {
		m.Ack()
	}
	committing := make(chan error, 1)
	go func() { committing <- a.commit(t.Context()) }()
	b := c.source("orders")
	again := receive(t, b, 10)
	assert.Equal(t, values(ms), values(again))
	for _, m := range again[:3] {
		m.Ack()
	}
	eventually(t, func() bool { return c.committed("orders", 0).At == 3 }, "the new owner commits")
	f.thaw(false)
	err := <-committing
	require.True(t, isRebalance(err), "%v", err)
	eventually(t, func() bool { return owned(a) == 0 }, "the old owner notices")
	for _, m := range ms[:4] {
		m.Ack()
	}
	require.NoError(t, a.commit(t.Context()))
	committed := c.committed("orders", 0)
	assert.EqualValues(t, 3, committed.At)
	assert.Empty(t, committed.Metadata)
}

// TestPushesBack checks law D4: a partition whose metadata is nearly full is not fetched,
// another one is.
func TestPushesBack(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, "orders")
	c.produce("orders", 2, numbers(4000)...)
	s := c.source("orders", withMetadataLimit(1250))
	paused := func() bool { return slices.Equal(s.client.PauseFetchPartitions(nil)["orders"], []int32{0}) }
	var blocker *message.Message[string]
	open := map[string][]message.Message[string]{}
	take := func(ms []message.Message[string]) {
		for _, m := range ms {
			if p := m.Meta().Origin.Partition; p == "0" {
				if blocker == nil {
					blocker = &m
				}
				open[p] = append(open[p], m)
			} else {
				open[p] = append(open[p], m)
				m.Ack()
			}
		}
	}
	for len(open["1"]) < 2000 || !paused() {
		take(receive(t, s, 1))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	for {
		ms, err := s.Receive(ctx, 50)
		if err != nil {
			break
		}
		take(ms)
	}
	require.NotNil(t, blocker)
	assert.Len(t, open["1"], 2000, "the other partition goes on")
	assert.Less(t, len(open["0"]), 1000)
	for i := 1; i < len(open["0"]); i += 2 { // the most spans that there can be
		open["0"][i].Ack()
	}
	require.NoError(t, s.commit(t.Context()))
	o := c.committed("orders", 0)
	assert.Zero(t, o.At)
	assert.LessOrEqual(t, len(o.Metadata), 1250)
	for _, m := range open["0"] {
		m.Ack()
	}
	for rest := 2000 - len(open["0"]); rest > 0; {
		ms := receive(t, s, 1)
		ms[0].Ack()
		rest--
	}
	eventually(t, func() bool { return c.committed("orders", 0).At == 2000 }, "it goes on")
}

// TestSource_WaitingMessagesAreBounded checks that messages that wait for their time do
// not fill the memory (law D5).
func TestSource_WaitingMessagesAreBounded(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, "orders")
	c.produce("orders", 1, numbers(3*maxHeld)...)
	s := c.source("orders")
	for range maxHeld / maxPoll {
		for _, m := range receive(t, s, maxPoll) {
			m.Nack(time.Hour)
		}
	}
	eventually(t, func() bool { return len(s.client.PauseFetchPartitions(nil)["orders"]) == 1 }, "it is paused")
	s.mu.Lock()
	defer s.mu.Unlock()
	assert.LessOrEqual(t, len(s.parts[partitionID{"orders", 0}].entries), maxHeld+maxPoll)
}

// TestSource_WaitingBytesAreBounded checks that large messages that wait do not fill the
// memory, and that the source continues when they are done.
func TestSource_WaitingBytesAreBounded(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, "orders")
	large := strings.Repeat("x", 450_000) // also the key
	const all = 40
	for range all {
		c.produce("orders", 1, large)
	}
	s := c.source("orders")
	ms := map[string]message.Message[string]{}
	id := partitionID{"orders", 0}
	for len(ms)*2*len(large) < maxHeldBytes {
		for _, m := range receiveSome(t, s, maxPoll) {
			m.Nack(5 * time.Second)
			ms[m.Meta().ID] = m
		}
	}
	eventually(t, func() bool { return len(s.client.PauseFetchPartitions(nil)["orders"]) == 1 }, "it is paused")
	s.mu.Lock()
	assert.Less(t, len(s.parts[id].entries), all)
	s.mu.Unlock()
	for len(ms) < all || c.committed("orders", 0).At < all {
		for _, m := range receiveSome(t, s, maxPoll) {
			m.Ack()
			ms[m.Meta().ID] = m
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	assert.Zero(t, s.parts[id].held)
}

// receiveSome returns messages that arrive within a second.
func receiveSome(t *testing.T, s *testSource, n int) []message.Message[string] {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	ms, err := s.Receive(ctx, n)
	if !errors.Is(err, context.DeadlineExceeded) {
		require.NoError(t, err)
	}
	return ms
}

// TestSource_ResumedPartition checks that a partition that was full continues soon,
// even if another partition has no new records.
func TestSource_ResumedPartition(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, "orders")
	c.produce("orders", 1, numbers(300)...)
	s, err := newTestSource("group", []string{"orders"}, withClient(c.seed()), withLogger(silent), withMetadataLimit(minMetadata),
		withCommitInterval(time.Hour))
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close(context.Background())) }()
	ms := receive(t, s, maxPoll)
	eventually(t, func() bool { return len(s.client.PauseFetchPartitions(nil)["orders"]) == 1 }, "it is paused")
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond) // a fetch of the other partition begins
	defer cancel()
	_, err = s.Receive(ctx, 1)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	for _, m := range ms {
		m.Ack()
	}
	receive(t, s, 1) // after the fetch of the other partition
	require.Equal(t, fetchWait, s.client.OptValue(kgo.FetchMaxWait))
}

// TestRejectedIsSettledBehindItsDeadLetter checks law D1.
func TestRejectedIsSettledBehindItsDeadLetter(t *testing.T) {
	c := newCluster(t, 1, "orders")
	c.produce("orders", 1, "0", "1")
	b := box{fail: errors.New("no room")}
	s := c.source("orders", withDeadLetters(b.put))
	ms := receive(t, s, 2)
	ms[0].Reject(errors.New("wrong address"))
	_, err := s.Receive(t.Context(), 1)
	require.ErrorIs(t, err, b.fail)
	ms[1].Ack()
	require.NoError(t, s.commit(t.Context()))
	assert.LessOrEqual(t, c.committed("orders", 0).At, int64(0))
	b.set(nil)
	eventually(t, func() bool { return c.committed("orders", 0).At == 2 }, "settled when it is durable")
	m := b.all()[0]
	assert.Equal(t, store.Permanent, m.Cause)
	assert.Equal(t, "wrong address", m.Meta.LastError)
	assert.Equal(t, 1, m.Meta.Visit)
}

// Law W2: a message of nearly a megabyte that fails does not fit into a layer or the dead
// letters with its history. It is stored with less of it, or as a pointer to its record,
// and does not block the position.
func TestSource_DeadLetterThatDoesNotFit(t *testing.T) {
	c := newCluster(t, 1, "orders", "group-retry-1", "group-dead", "again")
	client := c.client(kgo.ProducerBatchMaxBytes(4<<20), kgo.ProducerBatchCompression(kgo.NoCompression()))
	short, full := strings.Repeat("s", 998_000), strings.Repeat("f", 1_000_500)
	for _, value := range []string{short, full, "small"} {
		r := &kgo.Record{Topic: "orders", Value: []byte(value), Headers: []kgo.RecordHeader{header("Traceparent", []byte("00-1"))}}
		require.NoError(t, client.ProduceSync(t.Context(), r).FirstErr())
	}
	e := c.engine(WithTopics("group", "orders"), WithClientOptions(kgo.ProducerBatchCompression(kgo.NoCompression())))
	retries := delivery.NewQueue[string](e, "group", delivery.WithCodec(text()), delivery.WithLayers(delivery.Layer{Delay: time.Hour}))
	s := retries.Source(nil)
	defer s.Close(context.Background())
	down := errors.New(strings.Repeat("down ", 800))
	for i, m := range receive(t, s, 3) {
		ctx := message.NewContext(t.Context(), m)
		err := retries.TakeFailure(ctx, asyncop.Failure[string]{Element: m.Value, Err: down, NoRetryReason: strategies.Refused})
		if i == 2 {
			require.NoError(t, err)
			m.Ack()
			continue
		}
		require.ErrorIs(t, err, message.ErrRefused)
		m.Reject(errors.Join(down, err)) // as the operator does
	}
	eventually(t, func() bool { return c.committed("orders", 0).At == 3 }, "all are settled")
	letters, err := c.view("group-dead", "").List(t.Context(), store.Filter{}, allOfIt)
	require.NoError(t, err)
	require.Len(t, letters, 2)
	assert.Equal(t, short, string(letters[0].Payload), "its bytes as received")
	assert.Empty(t, letters[1].Payload)
	assert.Contains(t, letters[1].Meta.LastError, "stays in topic orders, partition 0, offset 1")
	assert.Equal(t, "topic orders, partition 0, offset 1", letters[1].PointsTo())
	for i, e := range letters {
		assert.Equal(t, store.Refused, e.Cause)
		assert.Regexp(t, `^orders:[\w-]{8}/0/`+strconv.Itoa(i)+"$", e.Meta.ID)
	}
	assert.EqualValues(t, 1, c.length("group-retry-1", 1), "the small one waits in its layer")
	merged, err := c.view("group-dead", "").Merge(t.Context(), jobs.Spec{To: "again", Filter: store.Filter{IDs: []string{letters[1].Meta.ID}}}, nil)
	require.NoError(t, err)
	assert.Equal(t, jobs.Progress{Skipped: 1}, merged, "a pointer has no bytes to send back")
}

// TestDueHeader checks law D3.
func TestDueHeader(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, "orders")
	clk := clock.NewMock()
	headers, err := message.Meta{Visit: 1, Due: clk.Now().Add(time.Hour)}.ToHeaders()
	require.NoError(t, err)
	r := &kgo.Record{Topic: "orders", Value: []byte("later")}
	for name, v := range headers {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: name, Value: []byte(v)})
	}
	require.NoError(t, c.admin.ProduceSync(t.Context(), r).FirstErr())
	c.produce("orders", 1, "now")
	s := c.source("orders", withClock(clk), withCommitInterval(time.Hour))
	assert.Equal(t, []string{"now"}, values(receive(t, s, 1)))
	clk.Add(time.Hour - time.Millisecond)
	nothing(t, s, 50*time.Millisecond)
	came := make(chan []message.Message[string], 1)
	go func() {
		ms, _ := s.Receive(t.Context(), 1)
		came <- ms
	}()
	eventually(t, func() bool {
		clk.Add(time.Millisecond) // once is enough, unless Receive looks at the clock just then
		return len(came) > 0
	}, "it is due")
	ms := <-came
	assert.Equal(t, []string{"later"}, values(ms))
	assert.Equal(t, 2, ms[0].Meta().Visit)
}

// TestRevoked checks that messages settled within the time are committed before the next
// owner gets the partition.
func TestRevoked(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, "orders")
	c.produce("orders", 2, numbers(20)...)
	a := c.source("orders", withSettleTime(10*time.Second))
	ms := receive(t, a, 20)
	var settled atomic.Bool
	b := c.source("orders")
	got := make(chan []message.Message[string])
	go func() {
		ms, err := b.Receive(t.Context(), 1)
		if err != nil {
			ms = nil
		}
		assert.True(t, settled.Load(), "not before the old owner has let go")
		got <- ms
	}()
	eventually(t, func() bool { return leaving(a) > 0 }, "a rebalance")
	settled.Store(true)
	for _, m := range ms {
		m.Ack()
	}
	c.produce("orders", 2, "a", "b", "c", "d")
	first := <-got
	for _, m := range first {
		m.Ack()
	}
	all := append(values(first), drain(t, 4-len(first), a, b)...)
	assert.ElementsMatch(t, []string{"a", "b", "c", "d"}, all)
	for _, s := range []*testSource{a, b} {
		nothing(t, s, 200*time.Millisecond)
	}
}

func leaving(s *testSource) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.parts {
		if p.leaving {
			n++
		}
	}
	return n
}

// drain acknowledges messages until it has n of them, and returns their values.
func drain(t testing.TB, n int, sources ...*testSource) (all []string) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, s := range sources {
		wg.Go(func() {
			for {
				ms, err := s.Receive(ctx, 10)
				if err != nil {
					return
				}
				mu.Lock()
				for _, m := range ms {
					all = append(all, m.Value)
					m.Ack()
				}
				if len(all) >= n {
					cancel()
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return all
}

// TestLostPartition checks laws P1 and D2: for a lost partition, positions are not
// committed, and messages that still run here do not run a second time when it returns.
func TestLostPartition(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, "orders")
	c.produce("orders", 1, "0", "1", "2")
	s := c.source("orders", withSettleTime(50*time.Millisecond))
	ms := receive(t, s, 3)
	h := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Heartbeat}, Err: kerr.UnknownMemberID})
	joins := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.JoinGroup}, Err: kerr.CoordinatorLoadInProgress, Count: -1}) // until it has been seen
	eventually(t, func() bool { return h.Hits() > 0 }, "it was thrown out")
	eventually(t, func() bool { return owned(s) == 0 }, "it has lost the partition")
	ms[0].Ack() // too late: another worker may have it
	joins.Remove()
	eventually(t, func() bool { return owned(s) == 1 }, "it has it again")
	again := receive(t, s, 1)
	assert.Equal(t, []string{"0"}, values(again), "1 and 2 still run")
	nothing(t, s, 200*time.Millisecond)
	ms[1].Nack(0)
	assert.Equal(t, []string{"1"}, values(receive(t, s, 1)), "its settlement counts")
	ms[2].Ack()
	again[0].Ack()
	eventually(t, func() bool { return c.committed("orders", 0).At == 1 }, "that is all")
}

// owned returns how many partitions have their offsets.
func owned(s *testSource) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.parts)
}

func TestFailingCommitIsReportedAndTriedAgain(t *testing.T) {
	c := newCluster(t, 1, "orders")
	c.produce("orders", 1, "0")
	s := c.source("orders")
	ms := receive(t, s, 1)
	c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Err: kerr.OffsetMetadataTooLarge})
	ms[0].Ack()
	_, err := s.Receive(t.Context(), 1)
	require.ErrorIs(t, err, kerr.OffsetMetadataTooLarge)
	eventually(t, func() bool { return c.committed("orders", 0).At == 1 }, "tried again")
}

func TestMetadataOfOthersIsLeftAlone(t *testing.T) {
	c := newCluster(t, 1, "orders")
	c.produce("orders", 1, numbers(4)...)
	for _, metadata := range []string{"member-1", "w2.####"} {
		positions := kadm.Offsets{}
		positions.Add(kadm.Offset{Topic: "orders", Partition: 0, At: 2, LeaderEpoch: -1, Metadata: metadata})
		require.NoError(t, kadm.NewClient(c.admin).CommitAllOffsets(t.Context(), "group", positions))
		s := c.source("orders")
		assert.Equal(t, []string{"2", "3"}, values(receive(t, s, 2)))
		require.NoError(t, s.Close(t.Context()))
	}
}
