package jsstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/jetstream/internal/parallel"
	"github.com/weirflow/weir/ext/jetstream/internal/pubs"
	"github.com/weirflow/weir/internal/nils"
)

const (
	maxBatch = 1000 // messages of a transaction: the server's bound

	// goneFor is how long the server keeps the mark of a message that was moved: until the indexes have seen it. It does no
	// harm later.
	goneFor = time.Minute

	// trust is how long the difference between the clocks of the server and of this machine is taken to be as it was.
	trust = 10 * time.Second
)

// StreamConfig returns what a store needs of its stream, for one server. What may be changed: Replicas, MaxBytes, MaxMsgs,
// Placement, Description, Metadata. The name has no dots, spaces and wildcards.
func StreamConfig(name string) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:               name,
		Description:        "queues of weir",
		Subjects:           []string{root + name + ".>"},
		Storage:            jetstream.FileStorage,
		Discard:            jetstream.DiscardNew, // law D5
		MaxMsgsPerSubject:  1,
		AllowAtomicPublish: true,
		AllowMsgTTL:        true,
	}
}

// Store keeps messages in a stream. It is a [store.Inspector]. Safe for concurrent use.
type Store struct {
	js     jetstream.JetStream
	stream jetstream.Stream
	name   string
	prefix string // of its subjects
	clock  clock.Clock
	logger *slog.Logger

	mu      sync.Mutex
	indexes map[string]*index // by queue
	opening map[string]chan struct{}
	ahead   time.Duration // of the server's clock
	looked  time.Time     // at the server's clock
	closed  bool
	using   sync.WaitGroup
}

var (
	_ store.Inspector = (*Store)(nil)
	_ store.Notifier  = (*Store)(nil)
)

// Open opens the store in a stream that was made with [StreamConfig]. It must be closed; the connection stays open.
func Open(ctx context.Context, js jetstream.JetStream, name string) (*Store, error) {
	nils.Refuse("jsstore: Open", "JetStream", js)
	stream, err := js.Stream(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("jsstore: stream %s: %w", name, err)
	}
	has, want := stream.CachedInfo().Config, StreamConfig(name)
	for _, bad := range []struct {
		is   bool
		what string
	}{
		{len(has.Subjects) != 1 || has.Subjects[0] != want.Subjects[0], "its subjects must be " + want.Subjects[0]},
		{has.MaxMsgsPerSubject != 1, "MaxMsgsPerSubject must be 1"},
		{has.Discard != want.Discard || has.MaxAge != 0 || has.Retention != want.Retention, "it must keep everything: limits retention, no age, discard new"},
		{!has.AllowAtomicPublish || !has.AllowMsgTTL, "it must allow atomic publishing and TTLs of messages"},
		{has.AllowDirect, "it must not allow direct reads, which may be behind"},
	} {
		if bad.is {
			return nil, fmt.Errorf("jsstore: stream %s does not fit: %s", name, bad.what)
		}
	}
	return &Store{
		js: js, stream: stream, name: name, prefix: root + name + ".", clock: clock.New(), logger: slog.Default(),
		indexes: map[string]*index{}, opening: map[string]chan struct{}{},
	}, nil
}

// Close implements [store.Store].
func (s *Store) Close() error {
	s.mu.Lock()
	first := !s.closed
	s.closed = true
	s.mu.Unlock()
	s.using.Wait()
	if !first {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	for _, ix := range s.indexes {
		ix.close(ctx, s)
	}
	return nil
}

// do calls f unless the store is closed or ctx has ended.
func (s *Store) do(ctx context.Context, f func() error) error {
	s.mu.Lock()
	closed := s.closed
	if !closed {
		s.using.Add(1)
	}
	s.mu.Unlock()
	if closed {
		return store.ErrClosed
	}
	defer s.using.Done()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return f()
}

// index returns the index of a queue.
func (s *Store) index(ctx context.Context, queue string) (*index, error) {
	for {
		s.mu.Lock()
		ix, opening := s.indexes[queue], s.opening[queue]
		mine := ix == nil && opening == nil
		if mine {
			opening = make(chan struct{})
			s.opening[queue] = opening
		}
		s.mu.Unlock()
		switch {
		case ix != nil:
			err := ix.sync(ctx, s)
			if ix.failed() {
				s.forget(ctx, queue, ix) // the next call opens it again
			}
			return ix, err
		case mine:
			ix, err := s.openIndex(ctx, queue)
			s.mu.Lock()
			if err == nil {
				s.indexes[queue] = ix
			}
			delete(s.opening, queue)
			close(opening)
			s.mu.Unlock()
			if err != nil {
				return nil, fmt.Errorf("jsstore: reading the queue %q: %w", queue, err)
			}
		default:
			select {
			case <-opening:
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}
	}
}

// forget ends an index that gets nothing any more.
func (s *Store) forget(ctx context.Context, queue string, ix *index) {
	s.mu.Lock()
	mine := s.indexes[queue] == ix
	if mine {
		delete(s.indexes, queue)
	}
	s.mu.Unlock()
	if mine {
		ix.close(ctx, s)
	}
}

// opened returns the index of a queue if there is one.
func (s *Store) opened(queue string) *index {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.indexes[queue]
}

// now returns the server's time.
func (s *Store) now(ctx context.Context) (uint64, error) {
	info, err := s.stream.Info(ctx)
	if err != nil {
		return 0, fmt.Errorf("jsstore: stream %s: %w", s.name, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.looked = s.clock.Now()
	s.ahead = info.TimeStamp.Sub(s.looked)
	return uint64(info.TimeStamp.UnixNano()), nil
}

// surelyLater says that a time has not come by the server's clock, without a look at it.
func (s *Store) surelyLater(at uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.Now()
	return now.Sub(s.looked) < trust && now.Add(s.ahead+time.Second).UnixNano() < int64(at)
}

// read returns what the server has on a subject; nil: nothing.
func (s *Store) read(ctx context.Context, subject string) (*record, error) {
	m, err := s.stream.GetLastMsgForSubject(ctx, subject)
	return s.got(m, err)
}

// readSeq returns a message by its sequence number; nil: it is gone.
func (s *Store) readSeq(ctx context.Context, seq uint64) (*record, error) {
	m, err := s.stream.GetMsg(ctx, seq)
	return s.got(m, err)
}

func (s *Store) got(m *jetstream.RawStreamMsg, err error) (*record, error) {
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("jsstore: stream %s: %w", s.name, err)
	}
	return newRecord(m.Subject, m.Sequence, m.Time, m.Header, m.Data)
}

// errChanged says that a message has changed since it was read.
var errChanged = errors.New("jsstore: the message has changed")

func (s *Store) message(subject string, st state, body []byte, behind uint64) *nats.Msg {
	m := &nats.Msg{Subject: subject, Data: body, Header: nats.Header{
		headerState:                         {st.String()},
		jetstream.ExpectedLastSubjSeqHeader: {fmt.Sprintf("%020d", behind)}, // of one length: see headerState
		jetstream.ExpectedStreamHeader:      {s.name},
	}}
	if st.kind == gone {
		m.Header.Set(jetstream.MsgTTLHeader, goneFor.String())
	}
	return m
}

// publish publishes a state directly behind another one, or returns errChanged.
func (s *Store) publish(ctx context.Context, subject string, st state, body []byte, behind uint64) (uint64, error) {
	ack, err := s.js.PublishMsg(ctx, s.message(subject, st, body, behind))
	if err != nil {
		return 0, s.published(ctx, err)
	}
	return ack.Sequence, nil
}

// The server's numbers of errors that the client has no names for.
const (
	errCodeResources      = 10023
	errCodeMemoryFull     = 10028
	errCodeStorageFull    = 10047
	errCodeStoreFailed    = 10077
	errCodeAccountLimits  = 10002
	errCodeBatchMissing   = 10176
	errCodeTooManyBatches = 10210
)

// published returns the error of a publication in the terms of stores.
func (s *Store) published(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if pubs.Moved(err) {
		return errChanged
	}
	if api, ok := errors.AsType[*jetstream.APIError](err); ok {
		switch c := api.ErrorCode; {
		case c == errCodeResources || c == errCodeMemoryFull || c == errCodeStorageFull || c == errCodeAccountLimits,
			c == errCodeStoreFailed && (strings.Contains(api.Description, "maximum") || strings.Contains(api.Description, "no space")):
			return fmt.Errorf("%w: stream %s: %w", store.ErrFull, s.name, err)
		}
	}
	return fmt.Errorf("jsstore: stream %s: %w", s.name, err)
}

// Put implements [store.Store].
func (s *Store) Put(ctx context.Context, queue string, ms ...store.Message) error {
	return s.do(ctx, func() error {
		if err := checkQueue(store.CheckPut(queue, ms...), queue); err != nil {
			return err
		}
		puts := make([]put, 0, len(ms))
		seen := make(map[string]bool, len(ms))
		for i := range ms {
			p, err := s.newPut(queue, &ms[i])
			if err != nil {
				return err
			}
			if !seen[p.subject] {
				puts = append(puts, p)
			}
			seen[p.subject] = true
		}
		// The server has them one after the other: none shall be due before another one of this call, by its delay.
		slices.SortStableFunc(puts, func(a, b put) int { return cmp.Compare(a.span, b.span) })
		for len(puts) > 0 {
			n := min(len(puts), maxBatch)
			if err := s.transact(ctx, puts[:n], nil); err != nil {
				return err
			}
			puts = puts[n:]
		}
		return nil
	})
}

func checkQueue(err error, queue string) error {
	if err == nil && len(queue) > maxQueue {
		return fmt.Errorf("jsstore: the name of the queue has %d bytes, at most %d are allowed: %.64q…", len(queue), maxQueue, queue)
	}
	return err
}

// put is a message to be put.
type put struct {
	queue   string
	subject string
	span    time.Duration
	body    []byte
	behind  uint64 // the mark that the subject has, or 0
	there   bool   // it is in the queue
}

func (s *Store) newPut(queue string, m *store.Message) (put, error) {
	b, err := body(m)
	if err != nil {
		return put{}, err
	}
	return put{queue: queue, subject: s.queueSubject(queue) + identity(m), span: m.Delay, body: b}, nil
}

// look finds out whether a message is in its queue.
func (s *Store) look(ctx context.Context, p *put) error {
	r, err := s.read(ctx, p.subject)
	if err != nil {
		return err
	}
	p.behind, p.there = 0, false
	if r != nil {
		p.behind, p.there = r.seq, r.kind != gone
	}
	return nil
}

// maxTries bounds how often something is tried whose messages change each time.
const maxTries = 100

// transact puts messages that are not there, and marks records as gone, in one transaction. It returns errChanged if a record
// has changed.
func (s *Store) transact(ctx context.Context, puts []put, moved []*record) error {
	for range maxTries {
		var ms []*nats.Msg
		var queues []string // of ms
		replaced := map[string]bool{}
		for i := range puts {
			p := &puts[i]
			if p.there {
				continue
			}
			ms = append(ms, s.message(p.subject, state{kind: waiting, span: uint64(p.span)}, p.body, p.behind))
			queues = append(queues, p.queue)
			replaced[p.subject] = true
		}
		for _, r := range moved {
			if !replaced[r.subject] {
				ms = append(ms, s.message(r.subject, r.then(gone, 0), nil, r.seq))
			}
		}
		seq, err := s.publishAll(ctx, ms)
		if err == nil {
			for i, queue := range queues { // a transaction is in one piece
				if ix := s.opened(queue); ix != nil {
					ix.published(seq - uint64(len(ms)-1-i))
				}
			}
			return nil
		}
		if !errors.Is(err, errChanged) {
			return err
		}
		errs := make([]error, len(puts)+len(moved))
		parallel.Do(len(errs), func(i int) {
			if i < len(puts) {
				errs[i] = s.look(ctx, &puts[i])
				return
			}
			r, err := s.read(ctx, moved[i-len(puts)].subject)
			if errs[i] = err; err == nil && (r == nil || r.seq != moved[i-len(puts)].seq) {
				errs[i] = errChanged
			}
		})
		for i, err := range errs {
			if err != nil {
				return err
			}
			if i < len(puts) && ownPut(puts[i], moved) {
				puts[i].there = false
			}
		}
	}
	return fmt.Errorf("jsstore: stream %s: others change the same messages all the time", s.name)
}

// ownPut says that a message takes the place of one that is moved.
func ownPut(p put, moved []*record) bool {
	for _, r := range moved {
		if r.subject == p.subject {
			return p.behind == r.seq
		}
	}
	return false
}

// publishAll publishes messages in one transaction, and returns the sequence number of the last one.
func (s *Store) publishAll(ctx context.Context, ms []*nats.Msg) (uint64, error) {
	switch len(ms) {
	case 0:
		return 0, nil
	case 1:
		ack, err := s.js.PublishMsg(ctx, ms[0])
		if err != nil {
			return 0, s.published(ctx, err)
		}
		return ack.Sequence, nil
	}
	for try := 0; ; try++ {
		seq, err := s.batch(ctx, ms)
		api, _ := errors.AsType[*jetstream.APIError](err)
		// A server takes a bounded number of transactions at once, and loses them when it restarts.
		if again := api != nil && (api.ErrorCode == errCodeBatchMissing || api.ErrorCode == errCodeTooManyBatches); !again || try == maxTries {
			if err != nil {
				err = s.published(ctx, err)
			}
			return seq, err
		}
		timer := s.clock.Timer(time.Duration(try) * time.Millisecond)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return 0, context.Cause(ctx)
		}
	}
}

// Take implements [store.Store].
func (s *Store) Take(ctx context.Context, queue string, limit int, lease time.Duration) (taken []store.Leased, err error) {
	err = s.do(ctx, func() error {
		if err := checkQueue(store.CheckTake(queue, limit, lease), queue); err != nil {
			return err
		}
		ix, err := s.index(ctx, queue)
		if err != nil {
			return err
		}
		for len(taken) < limit {
			next, ok := ix.next()
			if !ok || s.surelyLater(next) {
				return nil
			}
			now, err := s.now(ctx)
			if err != nil {
				return err
			}
			items := ix.due(now, min(limit-len(taken), maxBatch))
			if len(items) == 0 {
				return nil
			}
			got := make([]*store.Leased, len(items))
			errs := make([]error, len(items))
			parallel.Do(len(items), func(i int) { got[i], errs[i] = s.takeOne(ctx, ix, queue, items[i], now, lease) })
			for _, l := range got {
				if l != nil {
					taken = append(taken, *l)
				}
			}
			if err := errors.Join(errs...); err != nil {
				return err
			}
		}
		return nil
	})
	if len(taken) > 0 {
		err = nil // the next call returns it
	}
	return taken, err
}

// takeOne takes a message, if it is as the index says and due (law D3).
func (s *Store) takeOne(ctx context.Context, ix *index, queue string, it item, now uint64, lease time.Duration) (*store.Leased, error) {
	r, err := s.readSeq(ctx, it.seq)
	if err != nil {
		return nil, err
	}
	if r == nil {
		subject := s.queueSubject(queue) + it.identity
		if r, err = s.read(ctx, subject); err != nil {
			return nil, err
		}
		ix.refresh(it.identity, it.seq, r)
		return nil, nil
	}
	return s.lease(ctx, ix, queue, r, now, lease)
}

// lease takes a message that was read, unless it is not due or has changed. ix may be nil.
func (s *Store) lease(ctx context.Context, ix *index, queue string, r *record, now uint64, lease time.Duration) (*store.Leased, error) {
	if ix != nil && r.ready() > now {
		ix.refresh(identityOf(r.subject), r.seq, r)
		return nil, nil
	}
	m, err := r.message()
	if err != nil {
		return nil, err
	}
	next := r.then(leased, lease)
	next.fence++
	seq, err := s.publish(ctx, r.subject, next, r.body, r.seq)
	if errors.Is(err, errChanged) {
		if ix == nil {
			return nil, nil
		}
		newer, err := s.read(ctx, r.subject)
		if err == nil {
			ix.refresh(identityOf(r.subject), r.seq, newer)
		}
		return nil, err
	}
	if err != nil {
		return nil, err
	}
	if ix != nil {
		// The server has it later than now: so the index is early, and looks again.
		ix.refresh(identityOf(r.subject), r.seq, &record{subject: r.subject, seq: seq, at: now, state: next})
		ix.published(seq)
	}
	return &store.Leased{
		Message:  m,
		Lease:    store.Lease{Queue: queue, Entry: entry{identityOf(r.subject), r.position}.String(), Fence: next.fence},
		Position: store.Position(r.position),
	}, nil
}

// settle calls f with what each lease is of, until that has not changed meanwhile.
func (s *Store) settle(ctx context.Context, leases []store.Lease, f func(l store.Lease, e entry, r *record) error) error {
	lost := make([]bool, len(leases))
	errs := make([]error, len(leases))
	parallel.Do(len(leases), func(i int) {
		l := leases[i]
		e, err := parseEntry(l.Entry)
		if err != nil || len(l.Queue) > maxQueue {
			lost[i] = true
			return
		}
		for range maxTries {
			var r *record
			if r, err = s.read(ctx, s.queueSubject(l.Queue)+e.identity); err != nil {
				break
			}
			if !r.holds(e, l.Fence) {
				lost[i] = true
				return
			}
			if err = f(l, e, r); !errors.Is(err, errChanged) {
				break
			}
		}
		errs[i] = err
	})
	var gone []store.Lease
	for i, is := range lost {
		if is {
			gone = append(gone, leases[i])
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return store.Lost(gone)
}

// change publishes another state of a message that was taken.
func (s *Store) change(ctx context.Context, l store.Lease, r *record, st state) error {
	seq, err := s.publish(ctx, r.subject, st, r.body, r.seq)
	if err != nil {
		return err
	}
	if ix := s.opened(l.Queue); ix != nil {
		ix.published(seq)
	}
	return nil
}

// Extend implements [store.Store].
func (s *Store) Extend(ctx context.Context, d time.Duration, leases ...store.Lease) error {
	return s.do(ctx, func() error {
		if err := store.CheckExtend(d); err != nil {
			return err
		}
		return s.settle(ctx, leases, func(l store.Lease, _ entry, r *record) error { return s.change(ctx, l, r, r.then(leased, d)) })
	})
}

// Release implements [store.Store].
func (s *Store) Release(ctx context.Context, delay time.Duration, leases ...store.Lease) error {
	return s.do(ctx, func() error {
		if err := store.CheckRelease(delay); err != nil {
			return err
		}
		return s.settle(ctx, leases, func(l store.Lease, _ entry, r *record) error { return s.change(ctx, l, r, r.then(waiting, delay)) })
	})
}

// Done implements [store.Store]. A sequence number is that of one state, so to remove by it is to remove what was taken, or
// nothing.
func (s *Store) Done(ctx context.Context, leases ...store.Lease) error {
	return s.do(ctx, func() error {
		done := make([]bool, len(leases))
		parallel.Do(len(leases), func(i int) {
			if e, err := parseEntry(leases[i].Entry); err == nil {
				if ix := s.opened(leases[i].Queue); ix != nil {
					if seq, ok := ix.held(e, leases[i].Fence); ok {
						done[i] = s.remove(ctx, leases[i].Queue, e.identity, seq) == nil
					}
				}
			}
		})
		var rest []store.Lease
		for i, is := range done {
			if !is {
				rest = append(rest, leases[i])
			}
		}
		return s.settle(ctx, rest, func(l store.Lease, e entry, r *record) error { return s.remove(ctx, l.Queue, e.identity, r.seq) })
	})
}

// remove removes a state, or returns errChanged if it is not there.
func (s *Store) remove(ctx context.Context, queue, identity string, seq uint64) error {
	err := s.stream.DeleteMsg(ctx, seq)
	switch {
	case err == nil:
		if ix := s.opened(queue); ix != nil {
			ix.refresh(identity, seq, nil)
		}
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	if _, ok := errors.AsType[*jetstream.APIError](err); ok || errors.Is(err, jetstream.ErrMsgDeleteUnsuccessful) {
		r, readErr := s.readSeq(ctx, seq)
		if readErr == nil && r == nil {
			return errChanged
		}
		err = errors.Join(err, readErr)
	}
	return fmt.Errorf("jsstore: stream %s: removing message %d: %w", s.name, seq, err)
}

// Notify implements [store.Notifier].
func (s *Store) Notify(ctx context.Context, queue string, wake func()) error {
	for {
		var changed chan struct{}
		err := s.do(ctx, func() error {
			ix, err := s.index(ctx, queue)
			if err != nil {
				return err
			}
			ix.mu.Lock()
			defer ix.mu.Unlock()
			changed = ix.changed
			return ix.err
		})
		if err != nil {
			return err
		}
		select {
		case <-changed:
			wake()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
