package kafka

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/kafka/internal/offsets"
	"github.com/weirflow/weir/internal/failed"
)

const mergeBatch = 500 // entries of a transaction

// mergeGroup returns the group whose offsets record which entries were merged. It is also
// the transactional id of merges.
func mergeGroup(topic string) string { return "weir-merge-" + topic }

// Merge sends dead letters to a topic, to be processed as on a first visit, with their
// history. It adds 1 to Meta.Merges. Of the Spec it reads To, which is the topic, Filter,
// Max, Rate, MaxMerges, UnsafeToRepeat and LeaveLapsed. It runs in this process.
// progress, which may be nil, gets the counts so far. Merge returns its counts even with
// an error.
//
//	begin · entries into To · offsets of the group weir-merge-TOPIC · end
//
// Readers of committed records, such as workers, see each entry once, even if a merge is
// killed or two run at once: the later merge ends the other, which returns an error.
// Skipped counts pointers (store.Message.PointsTo).
//
// Merged entries at the beginning of a partition are then removed from the topic. Merged
// entries behind a kept entry are remembered by the group. Brokers forget them after
// offsets.retention.minutes without a merge (7 days by default); then those entries
// appear again, so merge or purge the rest before. The group remembers gaps among the
// last 20,000 records of a partition, and at least 750 gaps that are further apart; Merge
// returns an error before that runs full.
//
// Records with damaged headers, and records that are larger than the topic To takes, stay
// and cause an error at the end.
func (v *View) Merge(ctx context.Context, c jobs.Spec, progress func(jobs.Progress)) (jobs.Progress, error) {
	switch {
	case !v.merges:
		return jobs.Progress{}, v.error(fmt.Errorf("merge: the view shows messages that the group %q has not settled and will process", v.group))
	case c.To == "" || c.To == v.topic:
		return jobs.Progress{}, v.error(fmt.Errorf("merge: To %q must be another topic", c.To))
	case c.Max < 0 || c.MaxMerges < 0 || c.Rate < 0 || math.IsNaN(c.Rate):
		return jobs.Progress{}, v.error(fmt.Errorf("merge: Max %d, MaxMerges %d and Rate %v must not be negative", c.Max, c.MaxMerges, c.Rate))
	}
	m := &merge{Spec: c, progress: progress, clock: v.clock, view: v, id: mergeGroup(v.topic)}
	err := m.run(ctx)
	if ctx.Err() != nil && err != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		err = v.error(fmt.Errorf("merge: %w", err))
	}
	return m.done, err
}

type merge struct {
	jobs.Spec
	progress func(jobs.Progress)
	clock    clock.Clock
	view     *View
	id       string // of the group and of transactions
	client   *kgo.Client
	done     jobs.Progress

	damaged []string // names of records
	large   []string // of messages that To does not take
	batch   []*kgo.Record
	from    []mergedFrom
	tracks  map[*viewPart]*offsets.Progress
	begun   time.Time
}

type mergedFrom struct {
	part   *viewPart
	offset int64
}

var errTakenOver = errors.New("another merge of the topic has begun, and continues with the rest")

func (m *merge) run(ctx context.Context) (err error) {
	topics, err := m.view.admin.ListTopics(ctx, m.To)
	if err == nil {
		err = topics[m.To].Err
	}
	if err != nil {
		return fmt.Errorf("topic %q: %w", m.To, err)
	}
	opts := append(slices.Clone(m.view.opts), kgo.TransactionalID(m.id), kgo.RequiredAcks(kgo.AllISRAcks()))
	m.client, err = makeClient(opts...)
	if err != nil {
		return err
	}
	defer m.client.Close()
	// End other merges, and a transaction that a killed merge has left. Offsets that they
	// have committed are stable from here on.
	if _, _, err := m.client.ProducerID(ctx); err != nil {
		return err
	}
	if err := m.view.settled(kadm.RequireStable(ctx)); err != nil {
		return err
	}
	m.tracks = map[*viewPart]*offsets.Progress{}
	m.begun = m.clock.Now()
	for _, p := range m.view.parts {
		m.tracks[p] = p.progress()
		var more bool
		err := m.view.read(ctx, p, p.low, func(r *kgo.Record, in incarnation) (bool, error) {
			more, err = m.look(ctx, p, r, in)
			return more, err
		})
		err = errors.Join(err, m.flush(ctx))
		if err != nil {
			return err
		}
		if m.full() {
			break
		}
	}
	if err := m.tidy(ctx); err != nil {
		return err
	}
	if len(m.damaged) > 0 {
		err = fmt.Errorf("%d records have damaged headers, and stay: %s first", len(m.damaged), m.damaged[0])
	}
	if len(m.large) > 0 {
		err = errors.Join(err, fmt.Errorf("%d messages are larger than the client (kgo.ProducerBatchMaxBytes) or the topic %q (max.message.bytes) takes, "+
			"and stay: %s first", len(m.large), m.To, m.large[0]))
	}
	return err
}

func (m *merge) full() bool { return m.Max > 0 && m.done.Done+len(m.batch) >= m.Max }

// look decides whether a record is merged.
func (m *merge) look(ctx context.Context, p *viewPart, r *kgo.Record, in incarnation) (more bool, err error) {
	track := m.tracks[p]
	if !track.Arrive(r.Offset) {
		return true, nil
	}
	e := entryOf(r, in)
	if !m.Filter.Match(&e) {
		return true, nil
	}
	switch {
	case e.Cause == store.Undecodable && isDamaged(r):
		m.damaged = append(m.damaged, fmt.Sprintf("%s/%d/%d", r.Topic, r.Partition, r.Offset))
		return true, nil
	case !m.SendsBack(&e, m.clock.Now(), &m.done):
		return true, nil
	case !track.Room(m.view.metadata, r.Offset):
		return false, fmt.Errorf("partition %d: the group cannot remember more gaps before offset %d: merge or purge the messages there first", p.id, r.Offset)
	}
	failed.ResetForMerge(&e.Meta, m.clock.Now())
	e.Meta.Due = time.Time{}
	back, err := record(m.To, e.Payload, e.Meta)
	if err != nil {
		return false, fmt.Errorf("record %s/%d/%d: %w", r.Topic, r.Partition, r.Offset, err)
	}
	m.batch = append(m.batch, back)
	track.Settle(r.Offset)
	m.from = append(m.from, mergedFrom{p, r.Offset})
	if m.full() {
		return false, nil
	}
	if len(m.batch) < mergeBatch && (m.Rate == 0 || float64(len(m.batch)) < m.Rate) {
		return true, nil
	}
	return true, m.flush(ctx)
}

func isDamaged(r *kgo.Record) bool {
	_, err := metaOf(r, "")
	return err != nil
}

// flush sends the batch and commits its offsets, in one transaction.
func (m *merge) flush(ctx context.Context) error {
	if len(m.batch) == 0 {
		return nil
	}
	err := m.send(ctx, false)
	for refused(err) && len(m.batch) > 0 {
		err = m.send(ctx, true)
	}
	if refused(err) {
		err = nil // all are too large
	}
	n := len(m.batch)
	if err != nil {
		if errors.Is(err, kerr.ProducerFenced) || errors.Is(err, kerr.InvalidProducerEpoch) || errors.Is(err, kerr.InvalidProducerIDMapping) {
			err = fmt.Errorf("%w: %w", errTakenOver, err)
		}
		m.batch, m.from = nil, nil
		return err // the next merge ends the transaction, or the broker does
	}
	m.done.Done += n
	m.batch, m.from = nil, nil
	if m.progress != nil {
		m.progress(m.done)
	}
	err = pause(ctx, m.clock, m.begun, n, m.Rate)
	m.begun = m.clock.Now()
	return err
}

// send sends the batch in one transaction. If the broker refuses the batch as too large,
// no record was sent, and the caller sends each record alone. Then a refused record
// leaves the batch.
func (m *merge) send(ctx context.Context, alone bool) error {
	if err := m.client.BeginTransaction(); err != nil {
		return err
	}
	var err error
	if alone {
		for i := 0; i < len(m.batch) && err == nil; i++ {
			err = m.client.ProduceSync(ctx, m.batch[i]).FirstErr()
			if refused(err) {
				m.leave(i)
			}
		}
	} else {
		err = m.client.ProduceSync(ctx, m.batch...).FirstErr()
	}
	if refused(err) {
		abort := m.client.AbortBufferedRecords(ctx)
		if abort == nil {
			abort = m.client.EndTransaction(ctx, kgo.TryAbort)
		}
		if abort != nil {
			return abort
		}
		for i, r := range m.batch { // a record belongs to the transaction that it was produced in
			m.batch[i] = &kgo.Record{Topic: r.Topic, Key: r.Key, Value: r.Value, Headers: r.Headers}
		}
		return err
	}
	if err == nil {
		err = m.commit(ctx)
	}
	if err == nil {
		err = commitTransaction(ctx, m.client)
	}
	return err
}

// leave keeps a record of the batch where it is (law W2).
func (m *merge) leave(i int) {
	r, from := m.batch[i], m.from[i]
	id := ""
	for _, h := range r.Headers {
		if h.Key == "Weir-Id" {
			id = string(h.Value)
		}
	}
	m.large = append(m.large, fmt.Sprintf("message %q at %s/%d/%d, with %d bytes,", id, m.view.topic, from.part.id, from.offset, len(appendRecord(nil, r))))
	m.tracks[from.part].Unsettle(from.offset)
	m.batch, m.from = slices.Delete(m.batch, i, i+1), slices.Delete(m.from, i, i+1)
}

func (m *merge) commit(ctx context.Context) error {
	parts := map[*viewPart]bool{}
	for _, from := range m.from {
		parts[from.part] = true
	}
	var at []kmsg.TxnOffsetCommitRequestTopicPartition
	for part := range parts {
		track := m.tracks[part]
		at = append(at, position(part.id, track.Low(), track.Encode(nil, m.view.metadata)))
	}
	return addOffsets(ctx, m.client, m.id, m.view.topic, at...)
}

// tidy removes merged entries at the beginning of partitions: brokers do not remember
// groups for ever.
func (m *merge) tidy(ctx context.Context) error {
	cut := kadm.Offsets{}
	for _, p := range m.view.parts {
		low := p.low
		if track := m.tracks[p]; track != nil {
			low = min(track.Low(), p.end)
		}
		if low > p.start {
			cut.Add(kadm.Offset{Topic: m.view.topic, Partition: p.id, At: low, LeaderEpoch: -1})
		}
	}
	return m.view.cutOff(ctx, cut)
}
