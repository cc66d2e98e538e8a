package jetstream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/jetstream/internal/parallel"
	"github.com/weirflow/weir/internal/storearg"
	"github.com/weirflow/weir/message"
)

const headerVersion = "Weir-Version"

type stored struct {
	store.Record
	seq uint64 // 0 if it never existed
}

func (s *Engine) recordSubject(kind, name string) string {
	return s.prefix + recordToken + token(kind) + "." + token(name)
}

// readRecord reads a record; its version is 0 if it is missing.
func (s *Engine) readRecord(ctx context.Context, kind, name string) (r stored, err error) {
	r.Kind, r.Name = kind, name
	m, err := s.last(ctx, s.recordSubject(kind, name))
	if m == nil {
		return r, err
	}
	r.seq = m.Sequence
	r.Version, err = strconv.ParseInt(m.Header.Get(headerVersion), 10, 64)
	if err != nil {
		return r, &otherError{fmt.Errorf("jetstream: stream %s: message %d is not record %q of %q: %w", s.name, m.Sequence, name, kind, err)}
	}
	r.Value = string(m.Data)
	return r, nil
}

// Records implements [store.Keeper].
func (s *Engine) Records(ctx context.Context, kind, after string, limit int) (list []store.Record, err error) {
	err = s.do(ctx, func(ctx context.Context) error {
		list, err = s.records(ctx, kind, after, limit)
		return err
	})
	return list, err
}

func (s *Engine) records(ctx context.Context, kind, after string, limit int) (list []store.Record, _ error) {
	names, err := s.namesOf(ctx, kind)
	if err != nil {
		return nil, err
	}
	i, found := slices.BinarySearch(names, after)
	if found {
		i++
	}
	for names = names[i:]; len(names) > 0 && len(list) < limit; { // some may be gone
		n := min(len(names), limit-len(list))
		all := make([]stored, n)
		errs := make([]error, n)
		parallel.Do(n, func(i int) {
			all[i], errs[i] = s.readRecord(ctx, kind, names[i])
			errs[i] = s.ignoreOther(errs[i])
		})
		if err := errors.Join(errs...); err != nil {
			return nil, err
		}
		for _, r := range all {
			if r.Version > 0 {
				list = append(list, r.Record)
			}
		}
		names = names[n:]
	}
	return list, nil
}

// Update implements [store.Keeper]. The edits and records of f are one transaction of at
// most 1,000 messages: an edit that moves a message takes two, other edits and each
// record one. A larger Update returns an error that matches [message.ErrRefused]. Reads
// of f see the state at the time of the read, without f's own changes.
func (s *Engine) Update(ctx context.Context, f func(context.Context, store.Tx) error) error {
	return s.do(ctx, func(ctx context.Context) error {
		for try := range maxTries {
			now, err := s.now(ctx)
			if err != nil {
				return err
			}
			// The first try trusts the indexes and the names of records. If they were
			// behind, or others were faster, later ones ask the server for each message,
			// and for the names.
			if try > 0 {
				s.forgetRecordNames()
			}
			t := &tx{s: s, now: now, sure: try > 0, at: map[string]int{}, indexes: map[string]*index{}}
			if err := f(ctx, t); err != nil {
				return err
			}
			if err := t.commit(ctx); !errors.Is(err, errChanged) {
				return err
			}
		}
		return fmt.Errorf("jetstream: stream %s: gave up after %d conflicting updates", s.name, maxTries)
	})
}

// tx is a [store.Tx]: it collects the messages to publish.
type tx struct {
	s       *Engine
	now     uint64
	sure    bool
	ms      []*nats.Msg
	queues  []string       // of ms; empty for a record
	at      map[string]int // index in ms, by subject
	indexes map[string]*index
}

func (t *tx) Now() time.Time { return instant(t.now) }

func (*tx) Announce() {}

// Watch implements [store.Keeper]: callers poll announced changes once a second.
func (*Engine) Watch(context.Context, func()) error { return errors.ErrUnsupported }

func (t *tx) Records(ctx context.Context, kind, after string, limit int) ([]store.Record, error) {
	return t.s.records(ctx, kind, after, limit)
}

// add adds a message, or replaces the earlier one on its subject.
func (t *tx) add(queue string, m *nats.Msg) {
	if i, ok := t.at[m.Subject]; ok {
		t.ms[i], t.queues[i] = m, queue
		return
	}
	t.at[m.Subject] = len(t.ms)
	t.ms, t.queues = append(t.ms, m), append(t.queues, queue)
}

func (t *tx) commit(ctx context.Context) error {
	if len(t.ms) > maxBatch {
		return fmt.Errorf("jetstream: %w: a transaction of %d messages: the server takes %d", message.ErrRefused, len(t.ms), maxBatch)
	}
	seq, err := t.s.publishAll(ctx, t.ms)
	if err != nil {
		return err
	}
	for i, queue := range t.queues {
		if ix := t.indexes[queue]; ix != nil {
			ix.published(seq - uint64(len(t.ms)-1-i))
		}
	}
	return nil
}

func (t *tx) Write(ctx context.Context, r store.Record) error {
	if err := storearg.Record(r); err != nil {
		return err
	}
	subject := t.s.recordSubject(r.Kind, r.Name)
	if len(subject) > maxSubject {
		return fmt.Errorf("jetstream: record %q of %q: the names are too long", r.Name, r.Kind)
	}
	was, err := t.s.readRecord(ctx, r.Kind, r.Name)
	if err != nil {
		return err
	}
	version := was.Version
	if i, ok := t.at[subject]; ok {
		version, _ = strconv.ParseInt(t.ms[i].Header.Get(headerVersion), 10, 64) // written below
	}
	if version != r.Version {
		return store.ErrChanged
	}
	m := &nats.Msg{Subject: subject, Data: []byte(r.Value), Header: nats.Header{
		headerVersion:                       {strconv.FormatInt(version+1, 10)},
		jetstream.ExpectedLastSubjSeqHeader: {strconv.FormatUint(was.seq, 10)},
		jetstream.ExpectedStreamHeader:      {t.s.name},
	}}
	if r.Value == "" {
		m.Header.Set(headerVersion, "0")
		m.Header.Set(jetstream.MsgTTLHeader, goneFor.String())
	}
	t.add("", m)
	return nil
}

// index returns a queue's index, as of some time in the transaction.
func (t *tx) index(ctx context.Context, queue string) (*index, error) {
	if ix, ok := t.indexes[queue]; ok {
		return ix, nil
	}
	ix, err := t.s.latest(ctx, queue)
	if err == nil {
		t.indexes[queue] = ix
	}
	return ix, err
}

func (t *tx) Edit(ctx context.Context, edits ...store.Edit) ([]bool, error) {
	if err := storearg.Edits(edits...); err != nil {
		return nil, err
	}
	items := make([]item, len(edits))
	puts := make([]put, len(edits))
	for i := range edits {
		e := &edits[i]
		if err := errors.Join(checkQueue(nil, e.Queue), checkQueue(nil, e.To)); err != nil {
			return nil, err
		}
		ix, err := t.index(ctx, e.Queue)
		if err != nil {
			return nil, err
		}
		if ix != nil {
			items[i], _ = ix.at(uint64(e.Entry.Position))
		}
		if e.Do != store.Merge {
			continue
		}
		puts[i], err = t.put(ctx, e)
		if err != nil {
			return nil, err
		}
	}
	records := make([]*record, len(edits))
	errs := make([]error, len(edits))
	parallel.Do(len(edits), func(i int) { records[i], errs[i] = t.look(ctx, &edits[i], items[i], &puts[i]) })
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	done := make([]bool, len(edits))
	for i := range edits {
		done[i] = t.edit(&edits[i], records[i], &puts[i])
	}
	return done, nil
}

// put returns the message that a Merge puts.
func (t *tx) put(ctx context.Context, e *store.Edit) (put, error) {
	if err := t.s.nameQueue(ctx, e.To); err != nil {
		return put{}, err
	}
	ix, err := t.index(ctx, e.To)
	if err != nil {
		return put{}, err
	}
	p, err := t.s.newPut(e.To, &e.Entry.Message)
	if err == nil && ix != nil {
		it, there := ix.has(identityOf(p.subject))
		p.there, p.behind = there, it.seq
	}
	return p, err
}

// look returns an edit's message, without its body unless that is needed, or nil if it is
// gone.
func (t *tx) look(ctx context.Context, e *store.Edit, it item, p *put) (r *record, err error) {
	if it.identity == "" {
		return nil, nil
	}
	subject := t.s.queueSubject(e.Queue) + it.identity
	r = &record{subject: subject, seq: it.seq, at: t.now, state: state{kind: it.kind, position: it.position, fence: it.fence, span: it.ready - min(it.ready, t.now)}}
	if t.sure || e.Do == store.Hold || e.Do == store.Release || e.Do == store.Due {
		r, err = t.s.read(ctx, subject)
		if err != nil || r == nil || r.kind == removed || r.position != it.position {
			return nil, err
		}
	}
	if t.sure && e.Do == store.Merge {
		err = t.s.look(ctx, p)
	}
	return r, err
}

// edit adds an edit's publications, unless its message has changed since it was shown.
func (t *tx) edit(e *store.Edit, r *record, p *put) bool {
	if r == nil || e.Do != store.Purge && (r.fence != e.Entry.Fence || r.kind == leased && r.ready() > t.now) {
		return false
	}
	s := t.s
	if _, twice := t.at[r.subject]; twice {
		return false
	}
	switch e.Do {
	case store.Purge:
		t.add(e.Queue, s.message(r.subject, r.then(removed, 0), "", nil, r.seq))
	case store.Hold, store.Release:
		next := r.then(held, 0)
		if e.Do == store.Release {
			next = r.then(waiting, time.Duration(r.due-min(r.due, t.now)))
		}
		if (r.kind == held) == (e.Do == store.Hold) {
			return false
		}
		t.add(e.Queue, s.message(r.subject, next, r.why, r.body, r.seq))
	case store.Due:
		if r.kind != waiting || r.ready() <= t.now {
			return false
		}
		t.add(e.Queue, s.message(r.subject, r.then(waiting, 0), r.why, r.body, r.seq))
	case store.Merge:
		if _, twice := t.at[p.subject]; twice || p.there && p.subject != r.subject {
			return false
		}
		if p.subject == r.subject {
			p.behind = r.seq // it replaces its own message
		} else {
			t.add(e.Queue, s.message(r.subject, r.then(removed, 0), "", nil, r.seq))
		}
		t.add(e.To, s.message(p.subject, state{kind: waiting, span: uint64(p.span)}, p.why, p.body, p.behind))
	}
	return true
}
