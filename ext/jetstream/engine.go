package jetstream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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
	maxBatch = 1000 // messages of a transaction: the server's limit

	// goneFor is how long the server keeps a removed message's mark, so that indexes see
	// it. An index that has not, after a broken connection, is rebuilt.
	goneFor = 2 * time.Minute

	// trust is how long a measured clock difference to the server is used.
	trust = 10 * time.Second
)

// Engine keeps messages in queues in a stream of JetStream. It is a [store.Keeper] and a
// [store.Waker]. Safe for concurrent use.
type Engine struct {
	js     jetstream.JetStream
	owned  bool // Open has made the connection
	stream jetstream.Stream
	name   string
	prefix string
	clock  clock.Clock
	logger *slog.Logger

	mu       sync.Mutex
	indexes  map[string]*index // by queue
	opening  map[string]chan struct{}
	named    map[string]time.Time    // published names of queues and when, at most nameAgain ago
	cleared  time.Time               // when old entries were last removed from named
	lookAt   uint64                  // where the search for the next name continues
	known    map[string]*recordNames // by kind of records
	ahead    time.Duration           // how far the server's clock is ahead
	looked   time.Time               // when the server's clock was read
	closed   bool
	using    sync.WaitGroup
	ending   sync.WaitGroup
	admitted admitted
	life     context.Context //nolint:containedctx // of what is under way: Close ends it
	end      context.CancelCauseFunc
}

var (
	_ store.Keeper = (*Engine)(nil)
	_ store.Waker  = (*Engine)(nil)
)

// closeWait is how long Close waits for running calls, and then for the indexes to end.
const closeWait = 2 * time.Second

// Close implements [store.Engine]. It closes a connection that [Open] has made. If
// servers do not answer, it takes about four seconds: running calls are cancelled after
// two.
func (s *Engine) Close() error {
	s.mu.Lock()
	first := !s.closed
	s.closed = true
	s.mu.Unlock()
	late := s.clock.AfterFunc(closeWait, func() { s.end(store.ErrClosed) })
	s.using.Wait()
	late.Stop()
	s.end(store.ErrClosed)
	if !first {
		return nil
	}
	s.closeIndexes()
	if s.owned {
		s.js.Conn().Close()
	}
	return nil
}

// closeIndexes ends all indexes. An index whose client waits for servers ends later.
func (s *Engine) closeIndexes() {
	ctx, cancel := context.WithTimeout(context.Background(), closeWait)
	for _, ix := range s.indexes {
		s.ending.Go(func() { ix.close(ctx, s) })
	}
	ended := make(chan struct{})
	go func() { // ends with the indexes
		s.ending.Wait()
		cancel()
		close(ended)
	}()
	select {
	case <-ended:
	case <-ctx.Done():
	}
}

// do calls f unless the engine is closed or ctx has ended. The context of f ends when
// Close stops waiting.
func (s *Engine) do(ctx context.Context, f func(ctx context.Context) error) error {
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
	ctx, cancel := context.WithCancelCause(pubs.NoDeadline(ctx))
	defer cancel(nil)
	defer context.AfterFunc(s.life, func() { cancel(store.ErrClosed) })()
	err := f(ctx)
	if err != nil && errors.Is(context.Cause(ctx), store.ErrClosed) && !errors.Is(err, store.ErrClosed) {
		return fmt.Errorf("%w: %w", store.ErrClosed, err)
	}
	if errors.Is(err, nats.ErrConnectionClosed) {
		return guard.MarkPermanent(err) // a closed connection does not reconnect
	}
	return err
}

// index returns the index of a queue, once it has the message with the number last. If
// all is true it must have all messages; otherwise late ones may be missing.
func (s *Engine) index(ctx context.Context, queue string, last uint64, all bool) (*index, error) {
	for tries := 0; ; tries++ {
		s.mu.Lock()
		ix, opening := s.indexes[queue], s.opening[queue]
		mine := ix == nil && opening == nil
		var unused map[string]*index
		if mine {
			opening = make(chan struct{})
			s.opening[queue] = opening
			unused = s.unused()
		} else if ix != nil {
			ix.used = s.clock.Now()
		}
		s.mu.Unlock()
		for queue, ix := range unused {
			s.forget(queue, ix)
		}
		switch {
		case ix != nil:
			ix.published(last)
			err := ix.sync(ctx, s, all)
			if ix.failed() {
				s.forget(queue, ix) // the next call opens it again
			}
			if errors.Is(err, errGap) && tries < maxTries {
				continue
			}
			return ix, err
		case mine:
			ix, err := s.openIndex(ctx, queue)
			s.mu.Lock()
			if err == nil {
				ix.used = s.clock.Now()
				s.indexes[queue] = ix
			}
			delete(s.opening, queue)
			close(opening)
			s.mu.Unlock()
			if err != nil {
				return nil, fmt.Errorf("jetstream: reading the queue %q: %w", queue, err)
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

// keepIndex is how long an unused index is kept. It is removed when another is opened
// (law W3). A waiting Wake opens its own again.
const keepIndex = 10 * time.Minute

// unused returns the indexes to remove. Called with mu held.
func (s *Engine) unused() map[string]*index {
	all := map[string]*index{}
	for queue, ix := range s.indexes {
		if s.clock.Since(ix.used) >= keepIndex {
			all[queue] = ix
		}
	}
	return all
}

// forget ends an index. It does not wait for the end: the client may be replacing its
// consumer.
func (s *Engine) forget(queue string, ix *index) {
	s.mu.Lock()
	mine := s.indexes[queue] == ix
	if mine {
		delete(s.indexes, queue)
	}
	s.mu.Unlock()
	if mine {
		s.ending.Go(func() { ix.close(s.life, s) })
	}
}

// latest returns the index of a queue with all changes so far, or nil if no index is open
// and the queue is empty.
func (s *Engine) latest(ctx context.Context, queue string) (*index, error) {
	last, err := s.lastSeq(ctx, s.queueSubject(queue)+"*")
	if err != nil || last == 0 && s.opened(queue) == nil {
		return nil, err
	}
	return s.index(ctx, queue, last, true)
}

func (s *Engine) opened(queue string) *index {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.indexes[queue]
}

func (s *Engine) now(ctx context.Context) (uint64, error) {
	info, err := s.stream.Info(ctx)
	if err != nil {
		return 0, fmt.Errorf("jetstream: stream %s: %w", s.name, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.looked = s.clock.Now()
	s.ahead = info.TimeStamp.Sub(s.looked)
	return uint64(info.TimeStamp.UnixNano()), nil
}

// surelyLater reports whether a time has certainly not come by the server's clock,
// without asking the server.
func (s *Engine) surelyLater(at uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.Now()
	return now.Sub(s.looked) < trust && now.Add(s.ahead+time.Second).UnixNano() < int64(at)
}

// read returns the last message on a subject, or nil if it is missing or not weir's.
func (s *Engine) read(ctx context.Context, subject string) (*record, error) {
	r, err := s.readAny(ctx, subject)
	return r, s.ignoreOther(err)
}

// readAny is like read, but returns an error for another program's message.
func (s *Engine) readAny(ctx context.Context, subject string) (*record, error) {
	return recordOf(s.last(ctx, subject))
}

func (s *Engine) readSeq(ctx context.Context, seq uint64) (*record, error) {
	m, err := s.stream.GetMsg(ctx, seq)
	return recordOf(s.found(ctx, m, err))
}

// lastSeq returns the sequence number of the last message on subjects, of any program, or
// 0 if there is none.
func (s *Engine) lastSeq(ctx context.Context, subjects string) (uint64, error) {
	m, err := s.last(ctx, subjects)
	if m == nil {
		return 0, err
	}
	return m.Sequence, nil
}

// last returns the last message on subjects from the leader, or nil if there is none.
func (s *Engine) last(ctx context.Context, subjects string) (*jetstream.RawStreamMsg, error) {
	m, err := s.stream.GetLastMsgForSubject(ctx, subjects)
	return s.found(ctx, m, err)
}

// found maps the error of a missing message to nil.
func (s *Engine) found(ctx context.Context, m *jetstream.RawStreamMsg, err error) (*jetstream.RawStreamMsg, error) {
	switch {
	case err == nil:
		return m, nil
	case errors.Is(err, jetstream.ErrMsgNotFound):
		return nil, nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	}
	return nil, fmt.Errorf("jetstream: stream %s: %w", s.name, err)
}

// ignoreOther logs an error about another program's message, and returns any other error.
func (s *Engine) ignoreOther(err error) error {
	if other, ok := errors.AsType[*otherError](err); ok {
		logOther(s.logger, other)
		return nil
	}
	return err
}

// logOther logs another program's message, which blocks no queue (law D4).
func logOther(logger *slog.Logger, err error) {
	logger.Warn("weir: ignored a message that another program published to the stream of the engine", "error", err)
}

func recordOf(m *jetstream.RawStreamMsg, err error) (*record, error) {
	if m == nil {
		return nil, err
	}
	return newRecord(m.Subject, m.Sequence, m.Time, m.Header, m.Data)
}

var errChanged = errors.New("jetstream: the message has changed")

// message returns a state as a message to publish directly behind another.
func (s *Engine) message(subject string, st state, why string, body []byte, behind uint64) *nats.Msg {
	m := &nats.Msg{Subject: subject, Data: body, Header: nats.Header{
		headerState:                         {st.String()},
		jetstream.ExpectedLastSubjSeqHeader: {fmt.Sprintf("%020d", behind)}, // of fixed length: see headerState
		jetstream.ExpectedStreamHeader:      {s.name},
	}}
	switch {
	case st.kind == removed:
		m.Header.Set(jetstream.MsgTTLHeader, goneFor.String())
	case why != "":
		m.Header[headerWhy] = []string{why}
	}
	return m
}

func (s *Engine) publish(ctx context.Context, subject string, st state, why string, body []byte, behind uint64) (uint64, error) {
	ack, err := s.js.PublishMsg(ctx, s.message(subject, st, why, body, behind))
	if err != nil {
		return 0, s.published(ctx, err)
	}
	return ack.Sequence, nil
}

// Error numbers of the server that the client does not name.
const (
	errCodeBatchMissing   = 10176
	errCodeTooManyBatches = 10210
)

// published returns the store's error for a failed publication.
func (s *Engine) published(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if pubs.Moved(err) {
		return errChanged
	}
	return fmt.Errorf("jetstream: stream %s: %w", s.name, pubs.Refused(err))
}

// Wake implements [store.Waker]. It may miss events: it does not know when delays and
// leases end.
func (s *Engine) Wake(ctx context.Context, queue string, wake func(misses bool)) error {
	for {
		var changed chan struct{}
		err := s.do(ctx, func(ctx context.Context) error {
			ix, err := s.index(ctx, queue, 0, false)
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
			wake(true)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
