package kafka

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

func (c *cluster) view(topic, group string, opts ...kgo.Opt) *View {
	c.t.Helper()
	v, err := OpenView(c.t.Context(), topic, group, append(opts, c.seed(), kgo.FetchMaxWait(50*time.Millisecond))...)
	require.NoError(c.t, err)
	c.t.Cleanup(v.Close)
	return v
}

// letter is the i-th dead letter.
func letter(i int) store.Message {
	at := message.Origin{Source: "orders", Partition: "0", Position: strconv.Itoa(i)}
	return store.Message{
		Cause: []store.Cause{store.Permanent, store.Exhausted}[i%2], Payload: fmt.Append(nil, i),
		Meta: message.Meta{
			ID: at.ID(), Origin: at, Key: strconv.Itoa(i % 7), Visit: 3, Attempts: 9, Provider: []string{"north", "south", "west"}[i%3], LastError: "down",
			Reasons: []string{"DOWN"},
		},
	}
}

func (c *cluster) letters(n int) {
	c.t.Helper()
	var ms []store.Message
	for i := range n {
		ms = append(ms, letter(i))
	}
	require.NoError(c.t, c.engine().Put(c.t.Context(), "dead", ms...))
}

var allOfIt = store.Page{Max: 100_000}

func payloads(list []store.Entry) []string {
	vs := make([]string, len(list))
	for i, e := range list {
		vs[i] = string(e.Payload)
	}
	return vs
}

// committedValues returns the values of a topic that readers of committed records see.
func (c *cluster) committedValues(topic string) []string {
	c.t.Helper()
	list, err := c.view(topic, "nobody").List(c.t.Context(), store.Filter{}, allOfIt)
	require.NoError(c.t, err)
	return payloads(list)
}

func TestView(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, "dead")
	c.letters(100)
	v := c.view("dead", "")
	list, err := v.List(t.Context(), store.Filter{}, allOfIt)
	require.NoError(t, err)
	assert.ElementsMatch(t, numbers(100), payloads(list))
	assert.True(t, slices.IsSortedFunc(list, func(a, b store.Entry) int { return int(a.Position - b.Position) }))
	i := slices.IndexFunc(list, func(e store.Entry) bool { return e.Meta.ID == "orders/0/7" })
	want := letter(7)
	assert.Equal(t, want, list[i].Message)
	assert.WithinDuration(t, time.Now(), list[i].Arrived, time.Minute)

	var pages []store.Entry
	for p := (store.Page{Max: 7}); ; p.After = pages[len(pages)-1].Position {
		page, err := v.List(t.Context(), store.Filter{}, p)
		require.NoError(t, err)
		if pages = append(pages, page...); len(page) < p.Max {
			break
		}
	}
	assert.Equal(t, list, pages)
	until, err := v.List(t.Context(), store.Filter{}, store.Page{Until: list[49].Position, Max: 1000})
	require.NoError(t, err)
	assert.Equal(t, list[:50], until)

	some, err := v.List(t.Context(), store.Filter{Cause: store.Permanent, Provider: "north"}, allOfIt)
	require.NoError(t, err)
	assert.Len(t, some, 17)
	n, err := v.Count(t.Context(), store.Filter{Cause: store.Exhausted})
	require.NoError(t, err)
	assert.Equal(t, 50, n.Messages)
	assert.Equal(t, map[store.Cause]int{store.Exhausted: 50}, n.Causes)
	assert.Equal(t, map[string]int{"DOWN": 50}, n.Reasons)
	assert.Equal(t, n.Oldest, n.Next)

	// Later entries are not in the view, and Purge leaves them.
	require.NoError(t, v.Put(t.Context(), letter(100)))
	n, err = v.Count(t.Context(), store.Filter{})
	require.NoError(t, err)
	assert.Equal(t, 100, n.Messages)
	require.NoError(t, v.Purge(t.Context()))
	assert.Equal(t, []string{"100"}, c.committedValues("dead"))

	_, err = OpenView(t.Context(), "nothing", "", c.seed())
	require.ErrorIs(t, err, kerr.UnknownTopicOrPartition)
	require.ErrorContains(t, err, `topic "nothing"`)
}

// Markers of transactions and aborted records at the end of a partition do not block a
// view.
func TestView_Transactions(t *testing.T) {
	c := newCluster(t, 1, "dead")
	p := c.client(kgo.TransactionalID("t"), kgo.DefaultProduceTopic("dead"))
	for _, end := range []kgo.TransactionEndTry{kgo.TryCommit, kgo.TryAbort} {
		require.NoError(t, p.BeginTransaction())
		require.NoError(t, p.ProduceSync(t.Context(), kgo.StringRecord(fmt.Sprint(end))).FirstErr())
		require.NoError(t, p.EndTransaction(t.Context(), end))
	}
	assert.Equal(t, []string{fmt.Sprint(kgo.TryCommit)}, c.committedValues("dead"))
}

// A view of a layer shows what its workers have not settled.
func TestView_Layer(t *testing.T) {
	c := newCluster(t, 1, "orders")
	c.produce("orders", 1, numbers(10)...)
	s := c.source("orders")
	ms := receive(t, s, 10)
	for _, i := range []int{0, 1, 4, 9} {
		ms[i].Ack()
	}
	eventually(t, func() bool { return c.committed("orders", 0).At == 2 && c.committed("orders", 0).Metadata != "" }, "two are settled")
	require.NoError(t, s.Close(t.Context()))
	v := c.view("orders", "group")
	list, err := v.List(t.Context(), store.Filter{}, allOfIt)
	require.NoError(t, err)
	assert.Equal(t, []string{"2", "3", "5", "6", "7", "8"}, payloads(list))
	_, err = v.Merge(t.Context(), jobs.Spec{To: "other"}, nil)
	require.ErrorContains(t, err, `the group "group"`)
}

func TestMergeOfATopic(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, "dead", "orders")
	c.letters(90)
	loop, unknown, lapsed := letter(90), letter(91), letter(92)
	loop.Meta.Merges, unknown.Meta.UnsafeToRepeat, lapsed.Cause = 5, true, store.Lapsed
	require.NoError(t, c.engine().Put(t.Context(), "dead", loop, unknown, lapsed))
	bad := &kgo.Record{Topic: "dead", Headers: []kgo.RecordHeader{{Key: "Weir-Id", Value: []byte("x")}, {Key: "Weir-Visit", Value: []byte("many")}}}
	require.NoError(t, c.admin.ProduceSync(t.Context(), bad).FirstErr())

	merged, err := c.view("dead", "").Merge(t.Context(), jobs.Spec{To: "orders", Filter: store.Filter{Provider: "south"}, Max: 10}, nil)
	require.NoError(t, err)
	assert.Equal(t, jobs.Progress{Done: 10}, merged)
	merged, err = c.view("dead", "").Merge(t.Context(), jobs.Spec{To: "orders", Filter: store.Filter{Provider: "south"}}, nil)
	require.NoError(t, err)
	assert.Equal(t, 20, merged.Done, "ten are merged")
	list, err := c.view("dead", "").List(t.Context(), store.Filter{Provider: "south"}, allOfIt)
	require.NoError(t, err)
	assert.Equal(t, []string{"91"}, payloads(list))

	s := c.source("orders")
	back := map[string]message.Meta{}
	for _, m := range receive(t, s, 30) {
		back[m.Value] = m.Meta()
	}
	assert.Len(t, back, 30)
	assert.Regexp(t, `^orders:[\w-]{8}/\d/\d+$`, back["7"].Put)
	assert.Equal(t, message.Meta{
		ID: "orders/0/7", Put: back["7"].Put, Origin: letter(7).Meta.Origin, Key: "0", Visit: 1, Merges: 1, Provider: "south", LastError: "down", Reasons: []string{"DOWN"},
	}, back["7"])

	merged, err = c.view("dead", "").Merge(t.Context(), jobs.Spec{To: "orders", LeaveLapsed: true}, nil)
	require.ErrorContains(t, err, "1 records have damaged headers, and stay: dead/")
	assert.Equal(t, jobs.Progress{Done: 60, Looping: 1, Unsafe: 1, Lapsed: 1}, merged)
	assert.ElementsMatch(t, numbers(90), c.committedValues("orders"))
	list, err = c.view("dead", "").List(t.Context(), store.Filter{}, allOfIt)
	require.NoError(t, err)
	assert.ElementsMatch(t, []string{"90", "91", "92", ""}, payloads(list))

	// Entries that were merged at the beginning are removed for good, even if the group
	// is forgotten.
	for p := range int32(3) {
		assert.Positive(t, c.start("dead", p), "partition %d", p)
	}
	merged, err = c.view("dead", "").Merge(t.Context(), jobs.Spec{To: "orders", UnsafeToRepeat: true, MaxMerges: 6}, nil)
	require.Error(t, err)
	assert.Equal(t, jobs.Progress{Done: 3}, merged)
	assert.Len(t, c.committedValues("orders"), 93)
}

// Law W2: a message that the target does not take stays, is named at the end, and stops
// no other.
func TestMergeOfWhatIsTooLarge(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, "dead")
	require.NoError(t, c.CreateTopic("orders", 1, map[string]string{"max.message.bytes": "2000"}))
	for i := range 30 {
		m := letter(i)
		if m.Payload = bytes.Repeat([]byte("x"), 300); i%13 == 5 {
			m.Payload = bytes.Repeat([]byte("x"), 5000)
		}
		require.NoError(t, c.engine().Put(t.Context(), "dead", m))
	}
	for _, want := range []int{28, 0} {
		merged, err := c.view("dead", "", kgo.ProducerBatchCompression(kgo.NoCompression())).Merge(t.Context(), jobs.Spec{To: "orders"}, nil)
		require.ErrorContains(t, err, `2 messages are larger than`)
		require.ErrorContains(t, err, `"orders" (max.message.bytes) takes, and stay: message "orders/0/`)
		require.Regexp(t, `at \S+, with 5\d\d\d bytes, first`, err.Error())
		require.Equal(t, jobs.Progress{Done: want}, merged)
		require.Len(t, c.committedValues("orders"), 28)
		list, err := c.view("dead", "").List(t.Context(), store.Filter{}, allOfIt)
		require.NoError(t, err)
		require.Len(t, list, 2)
	}
}

// A merge that is killed at any of its steps is called again, and each letter returns
// once.
func TestKilledMergesOfATopic(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, "dead", "orders")
	c.letters(100)
	total := 0
	for kill := 0; ; kill++ {
		ctx, die := context.WithCancel(t.Context())
		ends := newRequests(kmsg.EndTxn, func(n int64) {
			if n > int64(kill%3) {
				die()
			}
		})
		merged, err := c.view("dead", "", kgo.WithHooks(ends)).Merge(ctx, jobs.Spec{To: "orders", Rate: 1000, Max: 30}, nil)
		die()
		if err == nil && merged.Done == 0 {
			break
		}
		total += merged.Done
		require.Less(t, kill, 40, "it does not end")
	}
	assert.ElementsMatch(t, numbers(100), c.committedValues("orders"))
	assert.LessOrEqual(t, total, 100)
	assert.Empty(t, c.committedValues("dead"))
}

// Of two concurrent merges the later continues, and does not repeat entries that the
// other has sent.
func TestMerge_TwoOfATopic(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, "dead", "orders")
	c.letters(20)
	later := c.view("dead", "")
	began := make(chan struct{})
	goOn := make(chan struct{})
	first := make(chan error, 1)
	var done jobs.Progress
	go func() {
		v, err := OpenView(context.Background(), "dead", "", c.seed())
		if err == nil {
			defer v.Close()
			done, err = v.Merge(context.Background(), jobs.Spec{To: "orders", Rate: 5}, func(m jobs.Progress) {
				if m.Done == 5 {
					close(began)
					<-goOn
				}
			})
		}
		first <- err
	}()
	<-began
	second, err := later.Merge(t.Context(), jobs.Spec{To: "orders"}, nil)
	require.NoError(t, err)
	assert.Equal(t, 15, second.Done)
	close(goOn)
	require.ErrorIs(t, <-first, errTakenOver)
	assert.Equal(t, 5, done.Done)
	assert.ElementsMatch(t, numbers(20), c.committedValues("orders"))
}

// A merge with an older view repeats no entry after another merge has merged more than
// that view has.
func TestMerge_BehindALaterMerge(t *testing.T) {
	c := newCluster(t, 1, "dead", "orders")
	c.letters(20)
	older := c.view("dead", "")
	require.NoError(t, older.Put(t.Context(), letter(20)))
	var second jobs.Progress
	var err error
	first, failed := c.view("dead", "").Merge(t.Context(), jobs.Spec{To: "orders"}, func(jobs.Progress) { // before the merge removes the entries
		second, err = older.Merge(t.Context(), jobs.Spec{To: "orders"}, nil)
	})
	require.NoError(t, failed)
	require.NoError(t, err)
	assert.Equal(t, 21, first.Done)
	assert.Zero(t, second.Done)
	assert.ElementsMatch(t, numbers(21), c.committedValues("orders"))
}

// A view that is opened while a merge is under way does not show again what was merged
// before.
func TestView_DuringAMerge(t *testing.T) {
	c := newCluster(t, 1, "dead", "orders")
	c.letters(30)
	merged, err := c.view("dead", "").Merge(t.Context(), jobs.Spec{To: "orders", Filter: store.Filter{Provider: "south"}}, nil)
	require.NoError(t, err)
	assert.Equal(t, 10, merged.Done)
	end := c.hold(mergeGroup("dead"), "dead")
	defer end()
	n, err := c.view("dead", "").Count(t.Context(), store.Filter{})
	require.NoError(t, err)
	assert.Equal(t, 20, n.Messages)
}

// A merge ends with an error before it forgets sent entries.
func TestMerge_TooManyGaps(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, "dead", "orders")
	var ms []store.Message
	for i := range 2000 {
		ms = append(ms, letter(i))
	}
	require.NoError(t, c.engine().Put(t.Context(), "dead", ms...))
	south := jobs.Spec{To: "orders", Filter: store.Filter{Cause: store.Exhausted}}
	view := func() *View {
		v := c.view("dead", "")
		v.metadata = 256
		return v
	}
	merged, err := view().Merge(t.Context(), south, nil)
	require.ErrorContains(t, err, "cannot remember more gaps")
	assert.Greater(t, merged.Done, 400)
	again, err := view().Merge(t.Context(), south, nil)
	require.ErrorContains(t, err, "cannot remember more gaps")
	assert.Zero(t, again.Done)
	assert.Len(t, c.committedValues("orders"), merged.Done)
	all, err := view().Merge(t.Context(), jobs.Spec{To: "orders"}, nil)
	require.NoError(t, err)
	assert.Equal(t, 2000, merged.Done+all.Done)
	assert.ElementsMatch(t, numbers(2000), c.committedValues("orders"))
}

// A topic was deleted and created again: the group's offset, from the longer log of the
// former topic, hides no entries.
func TestView_TopicThatWasMadeAgain(t *testing.T) {
	c := newCluster(t, 1, "dead")
	c.letters(5)
	before := kadm.Offsets{}
	before.Add(kadm.Offset{Topic: "dead", Partition: 0, At: 100, LeaderEpoch: -1})
	require.NoError(t, kadm.NewClient(c.admin).CommitAllOffsets(t.Context(), mergeGroup("dead"), before))
	n, err := c.view("dead", "").Count(t.Context(), store.Filter{})
	require.NoError(t, err)
	assert.Equal(t, 5, n.Messages)
}

func TestMergeRefuses(t *testing.T) {
	c := newCluster(t, 1, "dead")
	v := c.view("dead", "")
	for _, bad := range []jobs.Spec{
		{},
		{To: "dead"},
		{To: "x", Max: -1},
		{To: "x", Rate: -1},
		{To: "x", MaxMerges: -1},
	} {
		_, err := v.Merge(t.Context(), bad, nil)
		require.Error(t, err)
	}
	_, err := v.Merge(t.Context(), jobs.Spec{To: "nothing"}, nil)
	require.ErrorContains(t, err, `topic "nothing"`)
	_, err = v.List(t.Context(), store.Filter{}, store.Page{})
	require.Error(t, err)
	_, err = OpenView(t.Context(), "", "")
	require.Error(t, err)
}
