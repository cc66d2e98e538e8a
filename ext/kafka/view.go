package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/kafka/internal/offsets"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/storearg"
	"github.com/weirflow/weir/internal/wait"
)

// View shows the messages in a topic of dead letters or a layer, as of the moment when it
// was opened. It reads the topic for each call, some hundred thousand records a second.
// It is not safe for concurrent use.
//
// A record's position is partition·2⁴⁴ + offset + 1, so only entries of a partition are
// in order of arrival. The time of arrival is the record's.
type View struct {
	topic  string
	group  string // whose settled entries are not shown
	merges bool   // group is the topic's merge group
	opts   []kgo.Opt
	client *kgo.Client
	admin  *kadm.Client
	clock  clock.Clock
	parts  []*viewPart // in the order of their numbers

	metadata int // characters that a merge's commit may have
}

type viewPart struct {
	id         int32
	start, end int64
	low        int64          // all offsets before are settled
	done       []offsets.Span // settled above it
}

const positionBits = 44

func positionOf(partition int32, offset int64) int64 {
	return int64(partition)<<positionBits | (offset + 1)
}

// OpenView opens a view of a topic, without the records that a group has settled: the
// workers' group for a layer or a source, or "" for dead letters, without merged entries.
// opts are options of the client. The view must be closed.
func OpenView(ctx context.Context, topic, group string, opts ...kgo.Opt) (*View, error) {
	if topic == "" {
		return nil, errors.New("kafka: OpenView: a topic without a name")
	}
	v := &View{topic: topic, group: group, merges: group == "", opts: opts, clock: clock.New(), metadata: maxMetadata}
	if v.merges {
		v.group = mergeGroup(topic)
	}
	var err error
	v.client, err = makeClient(opts...)
	if err != nil {
		return nil, fmt.Errorf("kafka: %w", err)
	}
	v.admin = kadm.NewClient(v.client)
	if err := v.look(ctx); err != nil {
		v.Close()
		return nil, v.error(err)
	}
	return v, nil
}

func (v *View) error(err error) error { return fmt.Errorf("kafka: topic %q: %w", v.topic, err) }

func (v *View) look(ctx context.Context) error {
	ends, err := v.admin.ListCommittedOffsets(ctx, v.topic)
	if err != nil {
		return err
	}
	starts, err := v.admin.ListStartOffsets(ctx, v.topic)
	if err != nil {
		return err
	}
	for id, end := range ends[v.topic] {
		start, ok := starts.Lookup(v.topic, id)
		switch {
		case end.Err != nil:
			return end.Err
		case !ok:
			return fmt.Errorf("partition %d is gone", id)
		case start.Err != nil:
			return start.Err
		case end.Offset >= 1<<positionBits || id >= 1<<(63-positionBits):
			return fmt.Errorf("partition %d, offset %d: too large for a position", id, end.Offset)
		}
		v.parts = append(v.parts, &viewPart{id: id, start: start.Offset, end: end.Offset})
	}
	if len(v.parts) == 0 {
		return kerr.UnknownTopicOrPartition
	}
	slices.SortFunc(v.parts, func(a, b *viewPart) int { return int(a.id - b.id) })
	return v.settled(ctx)
}

func (v *View) settled(ctx context.Context) error {
	known, err := committed(ctx, v.admin, v.group)
	if err != nil {
		return fmt.Errorf("group %q: %w", v.group, err)
	}
	for _, p := range v.parts {
		p.low, p.done = p.start, nil
		at, ok := known.Lookup(v.topic, p.id)
		if !ok || at.Err == nil && at.At < 0 {
			continue
		}
		if at.Err != nil {
			return fmt.Errorf("group %q: partition %d: %w", v.group, p.id, at.Err)
		}
		if at.At > p.end { // more was settled meanwhile, or the offset belongs to a deleted topic of this name, and this topic has no settled entries
			ends, err := v.admin.ListCommittedOffsets(ctx, v.topic)
			end, _ := ends.Lookup(v.topic, p.id)
			err = cmp.Or(err, end.Err)
			if err != nil {
				return err
			}
			if at.At <= end.Offset {
				p.low = p.end
			}
			continue
		}
		done, _, err := offsets.Decode(at.At, at.Metadata)
		if err != nil && !errors.Is(err, offsets.ErrNotOurs) {
			return fmt.Errorf("group %q: partition %d: metadata of offset %d: %w", v.group, p.id, at.At, err)
		}
		p.low, p.done = max(p.start, at.At), done
	}
	return nil
}

func (p *viewPart) progress() *offsets.Progress {
	done := slices.Clone(p.done)
	done = slices.DeleteFunc(done, func(s offsets.Span) bool { return s.To <= p.low })
	return offsets.New(p.low, done)
}

// read calls f for the records of a partition from an offset to the end, until f returns
// false. It skips compacted records and markers.
func (v *View) read(ctx context.Context, p *viewPart, from int64, f func(r *kgo.Record, in incarnation) (bool, error)) error {
	if from >= p.end {
		return nil
	}
	opts := append([]kgo.Opt{kgo.FetchIsolationLevel(kgo.ReadCommitted())}, v.opts...)
	opts = append(opts, kgo.KeepControlRecords(), // the last record may be a marker
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{v.topic: {p.id: kgo.NewOffset().At(from)}}))
	client, err := makeClient(opts...)
	if err != nil {
		return v.error(err)
	}
	defer client.Close()
	for {
		fetches := client.PollRecords(ctx, 1000)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		for _, e := range fetches.Errors() {
			return v.error(fmt.Errorf("partition %d: %w", p.id, e.Err))
		}
		for _, fetch := range fetches {
			for _, t := range fetch.Topics {
				for _, has := range t.Partitions {
					more, err := readSome(p, has.Records, incarnationOf(t), f)
					if err != nil || !more {
						return err
					}
				}
			}
		}
	}
}

// readSome calls f for records below the partition's end. It returns false if no further
// records are needed.
func readSome(p *viewPart, records []*kgo.Record, in incarnation, f func(r *kgo.Record, in incarnation) (bool, error)) (bool, error) {
	for _, r := range records {
		if r.Offset >= p.end {
			return false, nil
		}
		if !r.Attrs.IsControl() {
			more, err := f(r, in)
			if err != nil || !more {
				return false, err
			}
		}
		if r.Offset == p.end-1 {
			return false, nil
		}
	}
	return true, nil
}

// each calls visit for matching entries, until it returns false.
func (v *View) each(ctx context.Context, f *store.Filter, page store.Page, visit func(e *store.Entry) bool) error {
	for _, p := range v.parts {
		from, progress := p.low, p.progress()
		if page.After >= positionOf(p.id, 0) {
			from = max(from, page.After-positionOf(p.id, 0)+1)
		}
		more := true
		err := v.read(ctx, p, from, func(r *kgo.Record, in incarnation) (bool, error) {
			if progress.Settled(r.Offset) {
				return true, nil
			}
			e := entryOf(r, in)
			if page.Until != 0 && e.Position > page.Until {
				more = false
				return false, nil
			}
			if f.Match(&e) {
				more = visit(&e)
			}
			return more, nil
		})
		if err != nil || !more {
			return err
		}
	}
	return nil
}

func entryOf(r *kgo.Record, in incarnation) store.Entry {
	meta, err := metaOf(r, in)
	e := store.Entry{Position: positionOf(r.Partition, r.Offset), Arrived: r.Timestamp.UTC()}
	e.Meta, e.Payload = meta, r.Value
	for _, h := range r.Headers {
		if cause, ours := strings.CutPrefix(string(h.Value), causePrefix); ours && (h.Key == springClass || h.Key == connectClass) {
			e.Cause = store.Cause(cause)
		}
	}
	if err != nil {
		e.Cause, e.Meta.LastError = store.Undecodable, guard.Text(err)
	}
	return e
}

// causePrefix begins the class name in other programs' headers.
const causePrefix = "weir: "

// List returns matching entries in the order of their positions. To get the next page,
// set [store.Page.After] to the last entry's position. A record with damaged headers is
// undecodable.
func (v *View) List(ctx context.Context, f store.Filter, p store.Page) (list []store.Entry, err error) {
	if err := storearg.Page(v.topic, p); err != nil {
		return nil, err
	}
	size := 0
	err = v.each(ctx, &f, p, func(e *store.Entry) bool {
		list = append(list, *e)
		size += len(e.Payload)
		return len(list) < p.Max && size < storearg.MaxBytes
	})
	return list, err
}

// Count counts matching entries. Ages are by this machine's clock.
func (v *View) Count(ctx context.Context, f store.Filter) (c store.Counts, err error) {
	err = v.each(ctx, &f, store.Page{}, func(e *store.Entry) bool {
		next := e.Meta.Due
		if next.IsZero() {
			next = e.Arrived
		}
		c.Add(e.Cause, e.Meta.Reasons, 1, e.Arrived, next, e.Position)
		return true
	})
	c.SetAge(v.clock.Now())
	return c, err
}

// Put writes messages to the topic as dead letters. It does not detect duplicates.
func (v *View) Put(ctx context.Context, ms ...store.Message) error {
	if err := storearg.Put(v.topic, ms...); err != nil {
		return err
	}
	p, err := newProducer(v.opts)
	if err != nil {
		return err
	}
	defer p.close()
	return p.put(ctx, v.topic, ms)
}

// Purge removes all entries of the view from the topic, for all readers (DeleteRecords).
// A log can only be cut at its beginning, so Purge takes no filter.
func (v *View) Purge(ctx context.Context) error {
	cut := kadm.Offsets{}
	for _, p := range v.parts {
		cut.Add(kadm.Offset{Topic: v.topic, Partition: p.id, At: p.end, LeaderEpoch: -1})
	}
	return v.cutOff(ctx, cut)
}

func (v *View) cutOff(ctx context.Context, at kadm.Offsets) error {
	if len(at) == 0 {
		return nil
	}
	deleted, err := v.admin.DeleteRecords(ctx, at)
	if err == nil {
		err = deleted.Error()
	}
	if err != nil {
		return v.error(fmt.Errorf("removing records: %w", err))
	}
	return nil
}

// Close closes the client.
func (v *View) Close() { v.client.Close() }

// pause waits until n entries since begun are within a rate.
func pause(ctx context.Context, c clock.Clock, begun time.Time, n int, rate float64) error {
	if rate == 0 || n == 0 {
		return nil
	}
	return wait.For(ctx, c, max(0, time.Duration(float64(n)/rate*float64(time.Second))-c.Since(begun)))
}
