package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weirflow/weir/ext/kafka/internal/offsets"
	"github.com/weirflow/weir/internal/settle"
)

// assigned begins with partitions. fetched brings their offsets.
func (s *source) assigned(_ context.Context, _ *kgo.Client, m map[string][]int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range ids(m) {
		s.parts[id] = &part{id: id, entries: map[int64]*entry{}, idle: make(chan struct{}, 1), epoch: -1}
	}
}

// fetched takes over previous owners' commits.
func (s *source) fetched(_ context.Context, _ *kgo.Client, resp *kmsg.OffsetFetchResponse) error {
	for _, g := range resp.Groups {
		for _, t := range g.Topics {
			for _, f := range t.Partitions {
				if f.ErrorCode == 0 && f.Offset >= 0 {
					s.restore(partitionID{t.Topic, f.Partition}, f)
				}
			}
		}
	}
	return nil
}

func (s *source) restore(id partitionID, f kmsg.OffsetFetchResponseGroupTopicPartition) {
	metadata := ""
	if f.Metadata != nil {
		metadata = *f.Metadata
	}
	done, delays, err := offsets.Decode(f.Offset, metadata)
	if err != nil && !errors.Is(err, offsets.ErrNotOurs) {
		s.logger.Warn("weir: the metadata of a commit is damaged: messages settled above its offset are delivered again",
			"topic", id.topic, "partition", id.partition, "offset", f.Offset, "error", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.parts[id]; p != nil && p.progress == nil {
		p.progress = offsets.New(f.Offset, done)
		p.delays = delays
		p.epoch = f.LeaderEpoch
	}
}

// arrived takes records. Partitions are not revoked meanwhile.
func (s *source) arrived(fetches kgo.Fetches) {
	var entries []*entry
	eachRecord(fetches, func(r *kgo.Record, in incarnation) {
		e := &entry{id: partitionID{r.Topic, r.Partition}, in: in, record: r}
		if !r.Attrs.IsControl() {
			m, err := metaOf(r, in)
			m.Visit++
			m.Put = originOfPut(&m, r, in)
			e.meta, e.damaged = &m, err
			e.timer.Value = e
		}
		entries = append(entries, e)
	})
	var failed error
	fetches.EachError(func(topic string, partition int32, err error) {
		switch {
		case s.ctx.Err() != nil:
		case isRebalance(err): // the client rejoins by itself
			s.logger.Warn("weir: the group has expelled this member, which rejoins", "error", err)
		default:
			failed = errors.Join(failed, fmt.Errorf("kafka: topic %q, partition %d: %w", topic, partition,
				lacking(err, "READ on the topic and on the group")))
		}
	})
	s.mu.Lock()
	var back []*entry
	var trimmed []removed
	if failed != nil {
		s.failure = failed
	}
	fetches.EachPartition(func(f kgo.FetchTopicPartition) {
		id := partitionID{f.Topic, f.Partition}
		if p := s.parts[id]; p != nil && p.progress != nil && len(f.Records) > 0 && p.progress.Next() < f.LogStartOffset {
			trimmed = append(trimmed, removed{id, p.progress.Next(), f.LogStartOffset})
		}
	})
	for _, e := range entries {
		p := s.parts[e.id]
		if p == nil {
			continue // the next owner gets it
		}
		if p.progress != nil && e.record.Offset < p.progress.Next() {
			back = append(back, e)
			s.restart(p, e.record.Offset)
		}
		s.arrive(p, e)
	}
	s.mu.Unlock()
	for _, g := range trimmed {
		s.logger.Warn("weir: records were removed from the log before they were read", "topic", g.id.topic, "partition", g.id.partition,
			"from", g.from, "before", g.before)
	}
	for _, e := range back {
		s.logger.Warn("weir: a partition is read again from an earlier offset", "record", e.name())
	}
	s.pauseAndResume() // before the next poll
}

// removed is a range of offsets that were removed from a partition unread.
type removed struct {
	id           partitionID
	from, before int64
}

// arrive notes a record. Called with mu held.
func (s *source) arrive(p *part, e *entry) {
	r := e.record
	if p.progress == nil {
		p.progress = offsets.New(r.Offset, nil)
	}
	p.epoch = r.LeaderEpoch
	if !p.progress.Arrive(r.Offset) {
		return
	}
	if r.Attrs.IsControl() { // end of a transaction
		p.progress.Settle(r.Offset)
		p.changed++
		return
	}
	if other := s.running[e.id][r.Offset]; other != nil && other.part == nil && other.in == e.in && same(other.record, r) { // law D2: the record joins the running one
		other.part = p
		p.entries[r.Offset] = other
		p.busy++
		return
	}
	e.part = p
	p.entries[r.Offset] = e
	p.held += e.size()
	now := s.clock.Now()
	if ms, ok := offsets.DueOf(p.delays, r.Offset); ok {
		e.due = time.UnixMilli(ms)
	}
	if e.meta.Due.After(e.due) {
		e.due = e.meta.Due
	}
	if e.due.After(now) {
		s.wait(e, e.due.Sub(now))
		return
	}
	s.ready = append(s.ready, e)
}

// restart forgets all behind an offset to which the consumer was set back, by a reset or
// because the log was cut. It is delivered again. Called with mu held.
func (s *source) restart(p *part, offset int64) {
	s.detach(p)
	p.progress = offsets.New(offset, nil)
	p.delays = nil
	p.entries = map[int64]*entry{}
	p.busy = 0
	p.held = 0
	p.changed++
}

func same(a, b *kgo.Record) bool {
	return a.Timestamp.Equal(b.Timestamp) && a.LeaderEpoch == b.LeaderEpoch
}

// revoked gives partitions up. It waits for messages in flight, up to the settle time,
// and commits; then the next owner gets them.
func (s *source) revoked(_ context.Context, client *kgo.Client, m map[string][]int32) {
	parts := s.leave(m)
	if len(parts) == 0 {
		return
	}
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	limit := s.clock.AfterFunc(s.settleTime, cancel)
	defer limit.Stop()
	for _, p := range parts {
		s.awaitIdle(ctx, p)
	}
	last, enough := context.WithTimeout(context.Background(), s.settleTime)
	defer enough()
	if err := s.commitWith(last, client); err != nil {
		s.logger.Warn("weir: settlements of partitions that are given up could not be committed: their messages are delivered again", "error", err)
	}
	s.forget(client, m)
}

// leave marks partitions: their messages are no longer returned.
func (s *source) leave(m map[string][]int32) (parts []*part) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range ids(m) {
		if p := s.parts[id]; p != nil {
			p.leaving = true
			parts = append(parts, p)
			for _, e := range p.entries {
				s.waiting.Cancel(&e.timer)
			}
		}
	}
	s.ready = slices.DeleteFunc(s.ready, func(e *entry) bool { return e.part.leaving })
	return parts
}

func (s *source) awaitIdle(ctx context.Context, p *part) {
	for !s.isIdle(p) {
		select {
		case <-p.idle:
		case <-ctx.Done():
			return
		}
	}
}

func (s *source) isIdle(p *part) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return p.busy == 0
}

// lost drops partitions that this member no longer owns, without a commit (law P1). It
// uses the client's argument, like the other callbacks: source.client is not set yet when
// the first join fails.
func (s *source) lost(_ context.Context, client *kgo.Client, m map[string][]int32) {
	s.leave(m)
	s.forget(client, m)
}

// forget drops partitions. It remembers their running messages, which must not run twice
// here.
func (s *source) forget(client *kgo.Client, m map[string][]int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range ids(m) {
		if p := s.parts[id]; p != nil {
			for _, e := range p.entries {
				if e.state == running && !s.closed {
					s.leasesLost++
				}
			}
			s.detach(p)
			delete(s.parts, id)
		}
	}
	client.ResumeFetchPartitions(m) // a pause outlives an assignment
}

var _ settle.LeaseCounter = (*source)(nil)

// LeasesLost implements [settle.LeaseCounter]: it returns how many messages were
// unsettled when their partitions were lost or revoked.
func (s *source) LeasesLost() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leasesLost
}

// detach separates the entries from p. Called with mu held.
func (s *source) detach(p *part) {
	for _, e := range p.entries {
		s.waiting.Cancel(&e.timer)
		e.part = nil
	}
	s.ready = slices.DeleteFunc(s.ready, func(e *entry) bool { return e.part == nil })
	s.putting = slices.DeleteFunc(s.putting, func(e *entry) bool { return e.part == nil })
}
