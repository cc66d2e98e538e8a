package kafka

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/settle"
	"github.com/weirflow/weir/message"
)

const (
	firstRetry = 50 * time.Millisecond // after a message could not be put
	lastRetry  = 5 * time.Second
)

var errNothing = errors.New("all partitions of the commit belong to other workers")

func (s *source) commits(tick *clock.Ticker) {
	defer tick.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-tick.C:
		}
		s.pauseAndResume()
		if err := s.commit(s.ctx); err != nil && s.ctx.Err() == nil && !isRebalance(err) {
			s.failed("a commit has failed, which is tried again", err)
		}
	}
}

// puts puts dead letters until the source is closed, and retries when retry rings. A put
// may take long, and must not delay commits (law D4).
func (s *source) puts(retry *clock.Timer) {
	defer retry.Stop()
	wait := firstRetry
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-s.kick:
		case <-retry.C:
		}
		s.pauseAndResume()
		if err := s.putAll(s.ctx); err != nil && s.ctx.Err() == nil {
			s.failed("messages could not be put, which is tried again", err)
			retry.Reset(wait)
			wait = min(2*wait, lastRetry)
		} else {
			wait = firstRetry
		}
	}
}

// failed makes the next Receive return an error. A permanent error is not replaced.
func (s *source) failed(what string, err error) {
	s.logger.Warn("weir: "+what, "error", err)
	s.mu.Lock()
	if !guard.IsPermanent(s.failure) {
		s.failure = err
	}
	s.mu.Unlock()
	wake(s.given)
}

// isRebalance reports whether a commit was refused because the group is being rebalanced.
// The settlements are committed afterwards, or their messages are redelivered elsewhere.
func isRebalance(err error) bool {
	for _, e := range []error{kerr.RebalanceInProgress, kerr.IllegalGeneration, kerr.UnknownMemberID, kerr.StaleMemberEpoch, kerr.FencedMemberEpoch} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func (s *source) commit(ctx context.Context) error { return s.commitWith(ctx, s.client) }

// commitWith is commit for the client's callbacks.
func (s *source) commitWith(ctx context.Context, client *kgo.Client) error {
	var changed []partitionID
	s.mu.Lock()
	for id, p := range s.parts {
		if p.changed != p.committed && p.progress != nil {
			changed = append(changed, id)
		}
	}
	s.mu.Unlock()
	sent := map[*part]int{}
	err := commit(ctx, client, changed, func(id partitionID, c *kmsg.OffsetCommitRequestTopicPartition) bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		p := s.parts[id]
		if p == nil || p.progress == nil {
			return false
		}
		metadata := p.metadata(s.metadata)
		c.Offset = p.progress.Low()
		c.LeaderEpoch = p.epoch
		c.Metadata = &metadata
		sent[p] = p.changed
		return true
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	if errors.Is(err, kerr.OffsetMetadataTooLarge) { // offset.metadata.max.bytes of the brokers is lower
		s.metadata = max(minMetadata, s.metadata/2)
	}
	if err != nil {
		return err
	}
	for p, changed := range sent {
		p.committed = changed
	}
	return nil
}

// commit commits positions for a group. fill sets them directly before the request is
// sent, and leaves out partitions that were lost since (law P1). The request already has
// the group's generation, so brokers refuse positions of partitions that are lost later.
func commit(ctx context.Context, client *kgo.Client, partitions []partitionID, fill func(partitionID, *kmsg.OffsetCommitRequestTopicPartition) bool) error {
	positions := map[string]map[int32]kgo.EpochOffset{}
	for _, id := range partitions {
		if positions[id.topic] == nil {
			positions[id.topic] = map[int32]kgo.EpochOffset{}
		}
		positions[id.topic][id.partition] = kgo.EpochOffset{Epoch: -1}
	}
	if len(positions) == 0 {
		return nil
	}
	ctx = kgo.PreCommitFnContext(ctx, func(req *kmsg.OffsetCommitRequest) error {
		for i := range req.Topics {
			t := &req.Topics[i]
			var ours []kmsg.OffsetCommitRequestTopicPartition
			for _, c := range t.Partitions {
				if fill(partitionID{t.Topic, c.Partition}, &c) {
					ours = append(ours, c)
				}
			}
			t.Partitions = ours
		}
		req.Topics = slices.DeleteFunc(req.Topics, func(t kmsg.OffsetCommitRequestTopic) bool { return len(t.Partitions) == 0 })
		if len(req.Topics) == 0 {
			return errNothing
		}
		return nil
	})
	var failed error
	client.CommitOffsetsSync(ctx, positions, func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, resp *kmsg.OffsetCommitResponse, err error) {
		failed = err
		if err != nil {
			return
		}
		for _, t := range resp.Topics {
			for _, p := range t.Partitions {
				if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
					failed = errors.Join(failed, fmt.Errorf("kafka: commit of topic %q, partition %d: %w", t.Topic, p.Partition, lacking(err, "READ on the topic and on the group")))
				}
			}
		}
	})
	if errors.Is(failed, errNothing) {
		return nil
	}
	return failed
}

// putAll puts the waiting dead letters. After an error the rest stay, and the next call
// begins with another record, so that a failing record delays no other (law D4). If the
// brokers refuse even the pointer to a record, the error is permanent and ends the run.
func (s *source) putAll(ctx context.Context) error {
	for {
		e, m := s.nextPut()
		if e == nil {
			return nil
		}
		if err := bury(ctx, s.dead, e.record, m); err != nil {
			s.putLater(e)
			err = fmt.Errorf("kafka: record %s could not be put among the dead letters: %w", e.name(), err)
			if errors.Is(err, message.ErrRefused) {
				err = guard.MarkPermanent(fmt.Errorf("%w: the topic refuses even a pointer to the record: raise its max.message.bytes, "+
					"or end what refuses its records, such as compaction or a validation of schemas, and start the worker again", err))
			}
			return err
		}
		s.wasPut(e)
	}
}

func (s *source) nextPut() (*entry, store.Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.putting) == 0 {
		return nil, store.Message{}
	}
	e := s.putting[0]
	m := store.Message{Meta: *e.meta, Payload: e.record.Value}
	m.Cause = settle.RecordRejection(&m.Meta, e.settlement, s.clock.Now())
	return e, m
}

// bury puts the message of a record. A dead letter that does not fit has less history, or
// points to its record (law W2).
func bury(ctx context.Context, put putFunc, r *kgo.Record, m store.Message) error {
	where := fmt.Sprintf("topic %s, partition %d, offset %d", r.Topic, r.Partition, r.Offset)
	_, err := settle.Bury(m.Meta, where, func(meta message.Meta, whole bool) error {
		m := m
		m.Meta = meta
		if !whole {
			m.Payload = nil
		}
		return quietly(func() error { return put(ctx, m) })
	})
	return err
}

func (s *source) putLater(e *entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.part != nil { // else its partition was lost
		s.putting = append(slices.Delete(s.putting, 0, 1), e)
	}
}

func (s *source) wasPut(e *entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.part != nil { // the same
		s.putting = slices.Delete(s.putting, 0, 1)
		e.part.settle(e)
		e.part.release()
	}
}

func (s *source) pauseAndResume() {
	pause, resume := map[string][]int32{}, map[string][]int32{}
	s.mu.Lock()
	defer s.mu.Unlock() // the pause must come before its partition is forgotten
	for id, p := range s.parts {
		if p.progress == nil || p.leaving {
			continue
		}
		more := 2 * maxPoll
		held := maxHeld
		bytes := maxHeldBytes
		if p.paused {
			more = 2 * more
			held = held / 2
			bytes = bytes / 2 // it is not resumed for one message
		}
		full := p.progress.Full(s.metadata, more) || p.progress.Open()-len(s.running[id]) >= held || p.held >= bytes
		switch {
		case full && !p.paused:
			pause[id.topic] = append(pause[id.topic], id.partition)
		case !full && p.paused:
			resume[id.topic] = append(resume[id.topic], id.partition)
		}
		p.paused = full
	}
	if len(pause) > 0 {
		s.client.PauseFetchPartitions(pause)
	}
	if len(resume) > 0 {
		s.client.ResumeFetchPartitions(resume)
	}
}

func ids(m map[string][]int32) iter.Seq[partitionID] {
	return func(yield func(partitionID) bool) {
		for topic, partitions := range m {
			for _, p := range partitions {
				if !yield(partitionID{topic, p}) {
					return
				}
			}
		}
	}
}
