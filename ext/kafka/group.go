package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/partitions"
)

// Group is a [partitions.Assigner]: Kafka's group protocol shares the partitions of
// topics, named "orders/3" ([Group.Partition]), between workers. The group's members do
// not read records: each pipeline has an input ([OpenInput]).
//
// The epoch of an assignment is one more than the previous epoch, which is in the
// metadata of the committed offset. It is at least the time in milliseconds, so it rises
// even if the brokers have forgotten the group (offsets.retention.minutes). A commit has
// the group's generation, so an expelled member does not get an epoch.
//
// The group must not have other members, such as workers of a queue.
type Group struct {
	Client []kgo.Opt // kgo.SeedBrokers, kgo.DialTLSConfig, kgo.SASL, kgo.SessionTimeout, kgo.Balancers and others
	Name   string    // of the group; required
	Topics []string  // at least one

	Logger *slog.Logger // receives errors of the group at warn level; the default is slog.Default()
	Clock  clock.Clock  // the default is the machine's

	member atomic.Pointer[member]
}

var _ partitions.Assigner = (*Group)(nil)

// Partition returns the topic and the number in the name of a partition.
func (*Group) Partition(name string) (topic string, partition int32, err error) {
	topic, number, _ := strings.Cut(name, "/")
	n, err := strconv.ParseInt(number, 10, 32)
	if err != nil || topic == "" || n < 0 {
		return "", 0, fmt.Errorf("kafka: %q is not the name of a partition: it must be a topic, a slash and a number", name)
	}
	return topic, int32(n), nil
}

type member struct {
	*Group
	handler partitions.Handler
	work    context.Context
	logger  *slog.Logger
	clock   clock.Clock

	mu     sync.Mutex // guards the fields below
	client *kgo.Client
	has    map[partitionID]*share
}

type share struct {
	epoch       uint64
	offset      int64
	leaderEpoch int32 // -1: not known
	given       bool  // to the handler
}

// Run implements [partitions.Assigner].
func (g *Group) Run(ctx context.Context, h partitions.Handler) error {
	switch {
	case g.Name == "":
		return errors.New("kafka: Group.Name is empty")
	case len(g.Topics) == 0:
		return errors.New("kafka: Group.Topics is empty")
	case slices.Contains(g.Topics, ""):
		return fmt.Errorf("kafka: Group.Topics has an empty name: %q", g.Topics)
	}
	m := &member{
		Group: g, handler: h, work: context.WithoutCancel(ctx), logger: guard.Logger(g.Logger), clock: g.Clock, has: map[partitionID]*share{},
	}
	if m.clock == nil {
		m.clock = clock.New()
	}
	if !g.member.CompareAndSwap(nil, m) {
		return fmt.Errorf("kafka: group %q: Run is running already", g.Name)
	}
	defer g.member.Store(nil)
	client, err := newClient(append(slices.Clone(g.Client),
		kgo.ConsumerGroup(g.Name), kgo.ConsumeTopics(g.Topics...), kgo.DisableAutoCommit(), kgo.OnPartitionsAssigned(m.assigned),
		kgo.OnOffsetsFetched(m.fetched), kgo.OnPartitionsRevoked(m.revoked), kgo.OnPartitionsLost(m.lost))...)
	if err != nil {
		return err
	}
	defer client.Close()
	var watching sync.WaitGroup
	look := m.clock.Ticker(lookEvery)
	ctx, enough := context.WithCancel(ctx)
	watching.Go(func() { watchTopics(ctx, client, look, m.logger, g.Topics) })
	defer watching.Wait()
	defer enough()
	var denied error
	for ctx.Err() == nil && denied == nil { // returns errors, not records
		client.PollFetches(ctx).EachError(func(_ string, _ int32, err error) {
			err = lacking(err, "READ on the topics and on the group")
			if guard.IsPermanent(err) {
				denied = fmt.Errorf("kafka: group %q: %w", g.Name, err)
			} else if ctx.Err() == nil {
				m.warn("the client continues after an error", err)
			}
		})
	}
	if err := client.LeaveGroupContext(m.work); err != nil { // after all partitions were revoked
		m.warn("it could not be left, and notices by the session timeout", err)
	}
	return denied
}

func (m *member) warn(what string, err error) {
	m.logger.Warn("kafka: group: "+what, slog.String("group", m.Name), slog.Any("error", err))
}

// assigned is called for partitions before fetched.
func (m *member) assigned(_ context.Context, client *kgo.Client, parts map[string][]int32) {
	client.PauseFetchPartitions(parts)
}

// fetched begins with partitions. The client repeats the call if its context ended, so
// partitions that are here already are skipped.
func (m *member) fetched(ctx context.Context, client *kgo.Client, resp *kmsg.OffsetFetchResponse) error {
	var news []partitionID
	now := m.clock.Now()
	m.mu.Lock()
	m.client = client
	for _, g := range resp.Groups {
		for _, t := range g.Topics {
			for _, f := range t.Partitions {
				id := partitionID{t.Topic, f.Partition}
				if p := m.has[id]; f.ErrorCode != 0 || p != nil && p.given {
					continue
				}
				m.has[id] = &share{epoch: epochAfter(f.Metadata, now), offset: max(0, f.Offset), leaderEpoch: f.LeaderEpoch}
				news = append(news, id)
			}
		}
	}
	m.mu.Unlock()
	if err := commit(ctx, client, news, m.position); err != nil {
		return err
	}
	errs := make([]error, len(news))
	var all sync.WaitGroup
	for i, id := range news {
		all.Go(func() { errs[i] = m.give(ctx, id) })
	}
	all.Wait()
	return errors.Join(errs...) // the client joins the group again
}

func (m *member) give(ctx context.Context, id partitionID) error {
	m.mu.Lock()
	p := m.has[id]
	m.mu.Unlock()
	if p == nil { // lost meanwhile
		return nil
	}
	if err := m.handler.Assigned(ctx, id.String(), p.epoch); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	p.given = true
	return nil
}

func (m *member) revoked(_ context.Context, _ *kgo.Client, parts map[string][]int32) {
	var all sync.WaitGroup
	for id := range ids(parts) {
		all.Go(func() {
			if err := m.handler.Revoked(m.work, id.String()); err != nil {
				m.warn("revoking", err) // its store is fenced by the next owner
			}
			m.forget(id)
		})
	}
	all.Wait()
}

func (m *member) lost(_ context.Context, _ *kgo.Client, parts map[string][]int32) {
	for id := range ids(parts) {
		m.forget(id)
		m.handler.Lost(id.String())
	}
}

func (m *member) forget(id partitionID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.has, id)
}

// position fills in the position to commit. It returns false if the partition is no
// longer here (law P1).
func (m *member) position(id partitionID, c *kmsg.OffsetCommitRequestTopicPartition) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.has[id]
	if p == nil {
		return false
	}
	metadata := epochPrefix + strconv.FormatUint(p.epoch, 10)
	c.Offset = p.offset
	c.LeaderEpoch = p.leaderEpoch
	c.Metadata = &metadata
	return true
}

func (g *Group) commit(ctx context.Context, id partitionID, offset int64, leaderEpoch int32) error {
	m := g.member.Load()
	if m == nil {
		return fmt.Errorf("kafka: group %q: Run is not running", g.Name)
	}
	m.mu.Lock()
	p, client := m.has[id], m.client
	if p != nil {
		p.offset, p.leaderEpoch = offset, leaderEpoch
	}
	m.mu.Unlock()
	if p == nil {
		return fmt.Errorf("kafka: group %q: the partition %s is not here", g.Name, id)
	}
	return commit(ctx, client, []partitionID{id}, m.position)
}

// epochPrefix marks metadata with an epoch, and its version.
const epochPrefix = "e1."

// epochAfter returns an epoch above the epoch in metadata, and at least the time in
// milliseconds.
func epochAfter(metadata *string, now time.Time) uint64 {
	var before uint64
	if metadata != nil {
		if text, ours := strings.CutPrefix(*metadata, epochPrefix); ours {
			if n, err := strconv.ParseUint(text, 10, 63); err == nil {
				before = n
			}
		}
	}
	return max(before+1, uint64(max(0, now.UnixMilli())))
}
