package jsstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/jetstream/internal/pubs"
	"github.com/weirflow/weir/internal/guard"
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
	guard.RefuseNil("jsstore: Open", "JetStream", js)
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

// surelyLater reports that a time has certainly not come by the server's clock, without a request to the server.
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

// lastSeq returns the sequence number of the last message on subjects, whosever it is; 0: there is none.
func (s *Store) lastSeq(ctx context.Context, subjects string) (uint64, error) {
	m, err := s.stream.GetLastMsgForSubject(ctx, subjects)
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("jsstore: stream %s: %w", s.name, err)
	}
	return m.Sequence, nil
}

// logOther says that there is a message that no store has published. It belongs to no queue, and stops none (law D4).
func logOther(logger *slog.Logger, err error) {
	logger.Warn("weir: another one publishes to the stream of a store", "error", err)
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
	return fmt.Errorf("jsstore: stream %s: %w", s.name, pubs.Refused(err))
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
