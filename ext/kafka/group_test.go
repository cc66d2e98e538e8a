package kafka

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
	"github.com/weirflow/weir/ext/kafka/clustertest"
	"github.com/weirflow/weir/internal/testing/suite"
	"github.com/weirflow/weir/partitions"
)

// session is how long the brokers wait for a worker that is frozen. A real one may be
// slow to answer to the others.
var session = func() time.Duration {
	if clustertest.Libs() != "" {
		return 3 * time.Second
	}
	return 600 * time.Millisecond
}()

// group returns a group. By default its sessions outlast any test.
func (c *cluster) group(opts ...kgo.Opt) *Group {
	return &Group{
		Client: append([]kgo.Opt{
			c.seed(), kgo.HeartbeatInterval(session / 10), kgo.SessionTimeout(2 * time.Minute), kgo.RebalanceTimeout(5 * time.Second),
		}, opts...),
		Name: "group", Topics: []string{"orders"}, Logger: silent,
	}
}

// handler notes the calls that a group makes for its partitions.
type handler struct {
	mu     sync.Mutex
	epochs map[string]uint64 // of its present partitions
	all    []uint64          // of all its assignments
	lost   int
	slow   string // the next assignment of this partition waits until its context ends
}

func (h *handler) Assigned(ctx context.Context, partition string, epoch uint64) error {
	h.mu.Lock()
	if h.slow == partition {
		h.slow = ""
		h.mu.Unlock()
		<-ctx.Done()
		return context.Cause(ctx)
	}
	defer h.mu.Unlock()
	if h.epochs[partition] != 0 {
		return errors.New("it is here already")
	}
	h.epochs[partition] = epoch
	h.all = append(h.all, epoch)
	return nil
}

func (h *handler) Revoked(_ context.Context, partition string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.epochs, partition)
	return nil
}

func (h *handler) Lost(partition string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.epochs, partition)
	h.lost++
}

func (h *handler) names() (names []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for name := range h.epochs {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (h *handler) epoch(partition string) uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.epochs[partition]
}

// join runs a member of a group until leave is called.
func join(t *testing.T, g *Group) (h *handler, leave func()) {
	t.Helper()
	h = &handler{epochs: map[string]uint64{}}
	return h, h.join(t, g)
}

func (h *handler) join(t *testing.T, g *Group) (leave func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- g.Run(ctx, h) }()
	leave = sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-ended)
		assert.Empty(t, h.names(), "all is revoked")
	})
	t.Cleanup(leave)
	return leave
}

// TestGroup shares out partitions. Epochs rise, also when the brokers have forgotten the
// group.
func TestGroup(t *testing.T) {
	c := newCluster(t, 4, "orders")
	c.produce("orders", 4, numbers(8)...)
	reads := newRequests(kmsg.Fetch, nil)
	a, leaveA := join(t, c.group(kgo.WithHooks(reads)))
	all := []string{"orders/0", "orders/1", "orders/2", "orders/3"}
	eventually(t, func() bool { return slices.Equal(all, a.names()) }, "a has all")
	before := a.epoch("orders/0")
	assert.InDelta(t, time.Now().UnixMilli(), before, 60_000)
	b, leaveB := join(t, c.group(kgo.WithHooks(reads)))
	eventually(t, func() bool { return len(a.names()) == 2 && len(b.names()) == 2 }, "b has its share")
	shared := slices.Sorted(slices.Values(append(a.names(), b.names()...)))
	assert.Equal(t, all, shared)
	leaveA()
	eventually(t, func() bool { return slices.Equal(all, b.names()) }, "b has all")
	last := b.epoch("orders/0")
	assert.Greater(t, last, before)
	leaveB()

	past := clock.NewMock() // it is 1970
	g := c.group()
	g.Clock = past
	d, leaveD := join(t, g)
	eventually(t, func() bool { return len(d.names()) == 4 }, "d has all")
	assert.Equal(t, last+1, d.epoch("orders/0"), "clocks do not matter while the group is known")
	leaveD()
	req := kmsg.NewPtrDeleteGroupsRequest()
	req.Groups = []string{"group"}
	resp, err := req.RequestWith(t.Context(), c.admin)
	require.NoError(t, err)
	require.Zero(t, resp.Groups[0].ErrorCode)
	past.Set(time.Now().Add(time.Minute))
	e, _ := join(t, g)
	eventually(t, func() bool { return len(e.names()) == 4 }, "e has all")
	assert.Greater(t, e.epoch("orders/0"), last+1)
	assert.Zero(t, reads.n.Load(), "a member reads nothing")
}

// TestGroupIsRebalancedDuringAnAssignment has another member join while a partition
// cannot be taken yet. Partitions that were taken stay.
func TestGroupIsRebalancedDuringAnAssignment(t *testing.T) {
	c := newCluster(t, 4, "orders")
	a := &handler{epochs: map[string]uint64{}, slow: "orders/2"}
	a.join(t, c.group())
	eventually(t, func() bool { return len(a.names()) == 3 }, "a waits for one")
	b, _ := join(t, c.group())
	eventually(t, func() bool { return len(a.names()) == 2 && len(b.names()) == 2 }, "both have their shares")
	a.mu.Lock()
	defer a.mu.Unlock()
	assert.Zero(t, a.lost)
}

// TestGroupThatThrowsAMemberOut checks law P1: the member has lost its partitions,
// commits no positions of them, and gets new epochs.
func TestGroupThatThrowsAMemberOut(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, "orders")
	g := c.group()
	id := partitionID{"orders", 0}
	require.ErrorContains(t, g.commit(t.Context(), id, 1, -1), "not running")
	a, leave := join(t, g)
	eventually(t, func() bool { return len(a.names()) == 2 }, "it has all")
	require.NoError(t, g.commit(t.Context(), id, 7, -1))
	assert.EqualValues(t, 7, c.committed("orders", 0).At)
	first := a.epoch("orders/0")
	hits := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Heartbeat}, Err: kerr.UnknownMemberID})
	joins := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.JoinGroup}, Err: kerr.UnknownServerError, Count: -1})
	eventually(t, func() bool { return hits.Hits() > 0 && len(a.names()) == 0 }, "it has lost all")
	a.mu.Lock()
	assert.Equal(t, 2, a.lost)
	a.mu.Unlock()
	require.ErrorContains(t, g.commit(t.Context(), id, 8, -1), "not here")
	assert.EqualValues(t, 7, c.committed("orders", 0).At)
	joins.Remove()
	eventually(t, func() bool { return len(a.names()) == 2 }, "it has all again")
	assert.Greater(t, a.epoch("orders/0"), first)
	assert.EqualValues(t, 7, c.committed("orders", 0).At, "an epoch leaves the position where it is")
	require.ErrorContains(t, g.Run(t.Context(), a), "is running already")
	leave()
	require.ErrorContains(t, g.commit(t.Context(), id, 9, -1), "not running")
}

// TestGroupGivesNothingWithoutAnEpoch has the commit of the epochs fail.
func TestGroupGivesNothingWithoutAnEpoch(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, "orders")
	f := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Err: kerr.UnknownServerError, Count: 2})
	a, _ := join(t, c.group())
	eventually(t, func() bool { return f.Hits() > 0 }, "it fails")
	eventually(t, func() bool { return len(a.names()) == 2 }, "it is tried again")
	assert.GreaterOrEqual(t, f.Hits(), 2)
	a.mu.Lock()
	defer a.mu.Unlock()
	assert.Len(t, a.all, 2)
}

func TestEpochAfter(t *testing.T) {
	now := time.UnixMilli(1000)
	for metadata, want := range map[string]uint64{
		"": 1000, "e1.999": 1000, "e1.1000": 1001, "e1.5000": 5001, "e1.x": 1000, "e1.99999999999999999999": 1000, "w1.AAAA": 1000, "member-1": 1000,
	} {
		assert.Equal(t, want, epochAfter(&metadata, now), metadata)
	}
	assert.EqualValues(t, 1000, epochAfter(nil, now))
	assert.EqualValues(t, 1, epochAfter(nil, time.UnixMilli(-1)))
}

func TestPartition(t *testing.T) {
	topic, n, err := (&Group{}).Partition(partitionID{"a.b-c", 31}.String())
	require.NoError(t, err)
	assert.Equal(t, "a.b-c", topic)
	assert.EqualValues(t, 31, n)
	for _, name := range []string{"", "orders", "orders/", "/1", "orders/-1", "orders/1/2", "orders/99999999999"} {
		_, _, err := (&Group{}).Partition(name)
		require.ErrorContains(t, err, strconv.Quote(name))
	}
}

func TestGroupRefuses(t *testing.T) {
	for _, g := range []*Group{{Topics: []string{"t"}}, {Name: "g"}, {Name: "g", Topics: []string{""}}} {
		require.ErrorContains(t, g.Run(t.Context(), nil), "kafka: Group.")
	}
	g := &Group{Name: "g", Topics: []string{"t"}, Client: []kgo.Opt{kgo.SessionTimeout(-1)}}
	require.ErrorContains(t, g.Run(t.Context(), nil), "kafka: ")
	require.ErrorContains(t, g.commit(t.Context(), partitionID{}, 0, 0), "not running")
}

// job is a job over the partitions of "orders", whose records are numbers, into the topic
// "invoices".
type job struct {
	t      *testing.T
	c      *cluster
	pause  time.Duration // of each call
	client []kgo.Opt
	mu     sync.Mutex
	stores map[string]*checkpointtest.MemoryStore
	epochs map[string]uint64
}

func newJob(t *testing.T, parts int32, pause time.Duration) *job {
	t.Helper()
	return newJobOn(t, newCluster(t, parts, "orders"), pause)
}

func newJobOn(t *testing.T, c *cluster, pause time.Duration) *job {
	t.Helper()
	require.NoError(t, c.CreateTopic("invoices", 1, nil))
	return &job{t: t, c: c, pause: pause, stores: map[string]*checkpointtest.MemoryStore{}, epochs: map[string]uint64{}}
}

// jobWorker is a worker of a job, which can be frozen.
type jobWorker struct {
	*job
	freezer
	group *Group
	stop  context.CancelFunc
	ended chan error
}

// Open implements partitions.Stores. It simulates a store on another machine, which a
// frozen worker does not reach.
func (w *jobWorker) Open(_ context.Context, partition string, epoch uint64) (checkpoint.Store, error) {
	if err := w.wait(); err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if epoch < w.epochs[partition] {
		return nil, checkpoint.ErrFenced
	}
	assert.Greater(w.t, epoch, uint64(0))
	store := checkpointtest.NewMemoryStore()
	if before := w.stores[partition]; before != nil {
		store = before.Reopen()
	}
	w.stores[partition], w.epochs[partition] = store, epoch
	return farStore{store, w}, nil
}

type farStore struct {
	*checkpointtest.MemoryStore
	w *jobWorker
}

func (s farStore) Save(ctx context.Context, snapshot *checkpoint.Snapshot) error {
	if err := s.w.wait(); err != nil {
		return err
	}
	return s.MemoryStore.Save(ctx, snapshot)
}

func (j *job) start() *jobWorker {
	w := &jobWorker{job: j, ended: make(chan error, 1)}
	w.group = j.c.group(append(j.client, w.dialer(), kgo.SessionTimeout(session))...)
	var ctx context.Context
	ctx, w.stop = context.WithCancel(context.Background())
	go func() {
		w.ended <- partitions.Run(ctx, partitions.Config{
			Assigner: w.group, Stores: w, Pipeline: w.pipeline, Logger: silent, SuspendTimeout: 3 * time.Second,
			Checkpoints: []checkpoint.Option{checkpoint.WithInterval(30 * time.Millisecond), checkpoint.WithLogger(silent)},
		})
	}()
	return w
}

func (w *jobWorker) pipeline(ctx context.Context, p partitions.Partition) error {
	topic, partition, err := (&Group{}).Partition(p.Name)
	if err != nil {
		return err
	}
	client := []kgo.Opt{w.c.seed(), w.dialer(), kgo.FetchMaxWait(50 * time.Millisecond)}
	output, err := newOutput(OutputConfig[string]{
		Client: client, Topic: "invoices", TransactionalID: "invoices/" + p.Name,
		Encode: func(v string) (*kgo.Record, error) { return kgo.StringRecord(v), nil },
	})
	if err != nil {
		return err
	}
	input, err := openInput(ctx, InputConfig[string]{Client: client, Topic: topic, Partition: partition, Decode: valueOf, Group: w.group})
	if err != nil {
		return errors.Join(err, output.Close())
	}
	call := asyncop.Blocking(func(ctx context.Context, v string) (string, error) {
		select {
		case <-time.After(w.pause):
		case <-ctx.Done():
			return "", ctx.Err()
		}
		return p.Name + " " + v, w.wait()
	})
	source := checkpoint.NewSource(p.Coordinator, "orders", checkpoint.Input[string](input))
	op := asyncop.OrderedWait(call, time.Minute, 4, asyncop.WithName("invoice"), asyncop.WithCheckpoints(p.Coordinator),
		asyncop.WithContext(ctx), asyncop.WithLogger(silent))
	sink := checkpoint.NewSink(p.Coordinator, "invoices", checkpoint.Output[string](output))
	if err := p.Coordinator.Start(); err != nil {
		return err
	}
	source.Via(op).To(sink)
	return p.Coordinator.Wait()
}

// leave suspends the pipelines of a worker.
func (w *jobWorker) leave() error {
	w.stop()
	return <-w.ended
}

// check compares published records with the orders: each once, in the order of its
// partition.
func (j *job) check(parts int32) {
	j.t.Helper()
	all, err := j.c.reader().published()
	require.NoError(j.t, err)
	got := map[string][]string{}
	for _, line := range all {
		name, v, _ := strings.Cut(line, " ")
		got[name] = append(got[name], v)
	}
	for p := range parts {
		var want []string
		for n := range j.c.end("orders", p) {
			want = append(want, strconv.FormatInt(n, 10))
		}
		name := partitionID{"orders", p}.String()
		assert.Equal(j.t, want, got[name], name)
	}
}

// order adds records to all partitions. Their values are their offsets.
func (j *job) order(parts int32, each int) {
	j.t.Helper()
	var values []string
	for n := range each {
		for p := range parts {
			values = append(values, strconv.FormatInt(j.c.end("orders", p)+int64(n), 10))
		}
	}
	require.NoError(j.t, j.c.write("orders", int(parts), values...))
}

// TestGroup_FrozenWorker checks law P1: a worker that was frozen for longer than
// its session, in the middle of its calls, checkpoints and transactions, neither
// publishes nor commits when it continues.
func TestGroup_FrozenWorker(t *testing.T) { // its sessions are short: not beside others
	j := newJob(t, 1, 2*time.Millisecond)
	j.order(1, 200)
	reader := j.c.reader()
	published := func() int {
		all, err := reader.published()
		assert.NoError(t, err)
		return len(all)
	}
	a := j.start()
	eventually(t, func() bool { return published() > 20 }, "the first worker publishes")
	a.freeze()
	j.order(1, 20) // because the first worker may have done all orders
	b := j.start()
	eventually(t, func() bool { return published() == 220 && j.c.behind(1) == 0 }, "the second one goes on")
	a.thaw(false)
	id := partitionID{"orders", 0}
	eventually(t, func() bool {
		m := a.group.member.Load()
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.has[id] == nil
	}, "the first worker notices")
	j.order(1, 20)
	eventually(t, func() bool { return published() == 240 && j.c.behind(1) == 0 }, "the second one still has the partition")
	if err := a.leave(); err != nil {
		require.ErrorIs(t, err, checkpoint.ErrFenced)
	}
	require.NoError(t, b.leave())
	j.check(1)
}

// TestGroupRebalances runs a pipeline for each partition. Workers join, leave, are
// dropped for good (their clients are cut off, in this process), and are frozen for
// longer than their sessions. Each record is published once, in order (laws C1, P1), and
// the group's committed offsets follow. WEIR_LONG=1 runs 50 rebalances.
func TestGroupRebalances(t *testing.T) { // its sessions are short: not beside others
	rebalances := 6
	if suite.Long() {
		rebalances = 50
	}
	newJob(t, groupParts, time.Millisecond).run(rebalances, func(int) {})
}

// TestGroupOfTheServer is TestGroupRebalances where the brokers share the partitions out
// (KIP-848).
func TestGroupOfTheServer(t *testing.T) {
	c := newCluster(t, groupParts, "orders")
	if c.fake != nil {
		t.Skip("skipped: the sessions of kfake are long")
	}
	j := newJobOn(t, c, time.Millisecond)
	j.client = balancers[serverSide]
	j.run(6, func(int) {})
}

// TestStaticMembers has a member with its own name return: it gets its former partitions,
// with a higher epoch.
func TestStaticMembers(t *testing.T) {
	c := newCluster(t, 2, "orders")
	_, leaveOther := join(t, c.group(kgo.InstanceID("other"), kgo.SessionTimeout(5*time.Second)))
	defer leaveOther()
	var before []string
	epoch := uint64(0)
	for i := range 3 {
		a, leave := join(t, c.group(kgo.InstanceID("a"), kgo.SessionTimeout(5*time.Second)))
		eventually(t, func() bool { return len(a.names()) == 1 }, "it has one")
		if i > 0 {
			assert.Equal(t, before, a.names())
		}
		before = a.names()
		assert.Greater(t, a.epoch(before[0]), epoch)
		epoch = a.epoch(before[0])
		leave()
	}
}

// TestSource_StaticMember has a source with its own name close and return while another
// source has the rest: only unsettled messages are redelivered.
func TestSource_StaticMember(t *testing.T) {
	c := newCluster(t, 2, "orders")
	named := func(name string) sourceOption {
		return withClient(kgo.InstanceID(name), kgo.SessionTimeout(5*time.Second))
	}
	a, b := c.source("orders", named("a")), c.source("orders", named("b"))
	eventually(t, func() bool { return owned(a) == 1 && owned(b) == 1 }, "each has one")
	c.produce("orders", 2, numbers(20)...)
	ms := receive(t, a, 10)
	for _, m := range receive(t, b, 10) {
		m.Ack()
	}
	for _, m := range ms[3:] {
		m.Ack()
	}
	require.NoError(t, a.Close(t.Context()))
	a = c.source("orders", named("a"))
	again := receive(t, a, 3)
	assert.ElementsMatch(t, values(ms[:3]), values(again))
	assert.Equal(t, 1, owned(b))
	nothing(t, b, 200*time.Millisecond)
}

const groupParts = 6

func (j *job) run(rebalances int, meanwhile func(i int)) {
	const parts, each = groupParts, 60
	t := j.t
	random := rand.New(rand.NewPCG(9, 10))
	workers, gone := []*jobWorker{j.start()}, []*jobWorker(nil)
	remove := func() *jobWorker {
		i := random.IntN(len(workers))
		w := workers[i]
		workers = slices.Delete(workers, i, i+1)
		return w
	}
	for i := range rebalances {
		j.order(parts, each)
		time.Sleep(time.Duration(random.IntN(300)) * time.Millisecond)
		switch kind := i % 6; {
		case len(workers) < 2 || kind == 0 || kind == 3:
			workers = append(workers, j.start())
		case kind == 1: // it is frozen, and continues later
			w := workers[random.IntN(len(workers))]
			w.freeze()
			time.Sleep(session * 3 / 2)
			w.thaw(false)
		case kind == 2 || kind == 5: // it is dropped
			w := remove()
			w.freeze()
			gone = append(gone, w)
			time.AfterFunc(2*session, func() {
				w.thaw(true)
				w.stop()
			})
		default:
			if err := remove().leave(); err != nil {
				require.ErrorIs(t, err, checkpoint.ErrFenced)
			}
		}
		meanwhile(i)
	}
	reader := j.c.reader()
	eventually(t, func() bool {
		all, err := reader.published()
		return err == nil && int64(len(all)) == j.c.length("orders", parts)
	}, "all is published")
	eventually(t, func() bool { return j.c.behind(parts) == 0 }, "all is committed")
	for _, w := range append(workers, gone...) {
		if err := w.leave(); err != nil { // dropped and fenced workers return errors
			t.Log(err)
		}
	}
	j.check(parts)
}

// A partition may be lost before its handler is called.
func TestGroup_PartitionIsLostAtOnce(t *testing.T) {
	m := &member{has: map[partitionID]*share{}} // its handler is nil: it would panic
	require.NoError(t, m.give(t.Context(), partitionID{"orders", 0}))
}
