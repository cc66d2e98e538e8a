package jsqueue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/jetstream/internal/headers"
	"github.com/weirflow/weir/internal/decoder"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/verdicts"
)

const (
	defaultAckWait = 30 * time.Second // the server's
	onePull        = 3 * time.Second  // how long the server keeps a request for messages
	firstPause     = 50 * time.Millisecond
	lastPause      = time.Second

	// maxDeliveries is after how many deliveries a message is given up that this worker has not given back: its workers die. The server
	// counts those that ended by a Nack, too, so there are more than a store counts of leases.
	maxDeliveries = 2 * verdicts.MaxLapses
	maxGivenBack  = 10_000
)

// errSourceClosed is returned by a source that was closed.
var errSourceClosed = errors.New("jsqueue: the source is closed")

// Source returns the messages of a durable pull consumer, as a [delivery.Source]. Any number of sources share a consumer.
//
// The id of a message is that in its headers, if a weir sink has published it; else it is made of the names of the stream and
// the sequence number. The header Nats-Subject of its Meta is the subject.
//
// A redelivery of a message that is in flight here joins that one (law D2). A connection that breaks and a server that restarts
// are waited for, and logged; a consumer that is gone is an error of Receive.
type Source[T any] struct {
	js       jetstream.JetStream
	consumer jetstream.Consumer
	name     string // of stream and consumer, for messages
	stream   string
	lease    time.Duration
	decoder  *decoder.Decoder[T]
	schema   []byte // of the codec
	sourceSettings

	recorder  *verdicts.Recorder
	burier    *verdicts.Recorder // puts what is rejected into the dead letters
	asker     asker              // used by the recorder, and when that has ended by Close
	arrived   chan struct{}      // room for one; to Receive: a pull has ended
	pulls     sync.WaitGroup
	receiving chan struct{} // room for one: a Receive

	mu       sync.Mutex
	held     map[uint64]*held // by sequence number of the stream
	settled  []*held          // of those, with a verdict for the server
	rejected []*held          // of those, to be put into the dead letters before
	taking   int              // requests whose messages may be on their way
	gone     map[uint64]bool  // was forgotten at the server meanwhile, so what comes of it is old
	delayed  map[uint64]*delayed
	buffer   []jetstream.Msg // came for a Receive that is under way
	waiting  bool            // there is one
	pulling  bool            // a request for one message is at the server
	pullErr  error           // why the last one failed

	givenBack map[uint64]struct{} // by this worker, which has outlived them; at most maxGivenBack
	suspects  []*held             // whose leases may have ended: each is returned alone
	suspect   *held               // the last one, while it has its head start; nil: none has
	until     time.Time           // of its head start
}

// held is a message that was received, and whose verdict the server has not confirmed. All but meta, raw and schema is guarded
// by Source.mu.
type held struct {
	seq     uint64
	msg     jetstream.Msg // the last delivery
	meta    delivery.Meta
	raw     []byte
	schema  []byte
	leased  time.Time // when its lease began, by the worker's clock
	settled bool
	verdict delivery.Verdict
	at      time.Time // of the verdict
	unsure  bool      // a verdict was sent, so the server may have it
	lapses  int       // how many of its leases may have ended
	parked  bool      // rejected, and its dead letter points to it: the server keeps it, and does not deliver it
}

// delayed is a message that waits at the server.
type delayed struct {
	due   time.Time
	msg   jetstream.Msg
	timer *clock.Timer // nil: not started
}

type sourceSettings struct {
	clock  clock.Clock
	logger *slog.Logger
	dead   store.Store
	queue  string
}

// SourceOption changes a setting of [NewSource].
type SourceOption func(*sourceSettings)

// WithDeadLetters sets the queue for messages that are rejected or that the codec cannot read: they are put there, and then
// acknowledged as done for good. Without it they are logged, and stay in the stream if that keeps messages that are
// acknowledged.
func WithDeadLetters(s store.Store, queue string) SourceOption {
	guard.RefuseNil("jsqueue: WithDeadLetters", "store", s)
	if queue == "" {
		panic("jsqueue: WithDeadLetters: the queue has no name")
	}
	return func(set *sourceSettings) { set.dead, set.queue = s, queue }
}

// WithClock sets the clock by which leases are extended and delays end; the default is the machine's.
func WithClock(c clock.Clock) SourceOption {
	guard.RefuseNil("jsqueue: WithClock", "clock", c)
	return func(s *sourceSettings) { s.clock = c }
}

// WithLogger sets the logger; the default is slog.Default(). Dead letters, verdicts that were not confirmed and a server that
// does not answer are logged at warn level.
func WithLogger(l *slog.Logger) SourceOption {
	guard.RefuseNil("jsqueue: WithLogger", "logger", l)
	return func(s *sourceSettings) { s.logger = l }
}

// NewSource returns a source of the messages of a consumer, which was created with js. The error says which setting of the
// consumer does not fit. The source must be closed; the connection stays open. It panics if an argument is nil.
func NewSource[T any](ctx context.Context, js jetstream.JetStream, consumer jetstream.Consumer, c codec.Codec[T], opts ...SourceOption) (*Source[T], error) {
	guard.RefuseNil("jsqueue: NewSource", "JetStream", js)
	guard.RefuseNil("jsqueue: NewSource", "consumer", consumer)
	guard.RefuseNil("jsqueue: NewSource", "codec", c)
	set := sourceSettings{clock: clock.New(), logger: slog.Default()}
	for i, opt := range opts {
		if opt == nil {
			panic(fmt.Sprintf("jsqueue: NewSource: option %d is nil", i))
		}
		opt(&set)
	}
	info, err := consumer.Info(ctx)
	if err != nil {
		return nil, fmt.Errorf("jsqueue: %w", err)
	}
	name := info.Stream + "/" + info.Name
	cfg := info.Config
	switch {
	case cfg.AckPolicy != jetstream.AckExplicitPolicy:
		return nil, fmt.Errorf("jsqueue: consumer %s: its AckPolicy is %v, must be explicit", name, cfg.AckPolicy)
	case cfg.MaxDeliver > 0:
		return nil, fmt.Errorf("jsqueue: consumer %s: its MaxDeliver is %d: the server would drop messages that are not done (law D5)", name, cfg.MaxDeliver)
	case len(cfg.BackOff) > 0:
		return nil, fmt.Errorf("jsqueue: consumer %s: it has a BackOff, which takes the place of AckWait", name)
	}
	lease := cfg.AckWait
	if lease <= 0 {
		lease = defaultAckWait
	}
	s := &Source[T]{
		js: js, consumer: consumer, name: name, stream: info.Stream, lease: lease, decoder: decoder.New("jsqueue", c), schema: codec.SchemaOf(c), sourceSettings: set,
		arrived: make(chan struct{}, 1), receiving: make(chan struct{}, 1), held: map[uint64]*held{}, delayed: map[uint64]*delayed{}, gone: map[uint64]bool{}, givenBack: map[uint64]struct{}{},
	}
	s.recorder = verdicts.Start(set.clock, lease, errSourceClosed, verdicts.Hooks{
		Extend: s.extend, Record: s.recordAll, Failed: func(err error) {
			set.logger.Warn("weir: verdicts on messages were not confirmed and are sent again", "consumer", name, "error", err)
		},
	})
	s.burier = verdicts.Start(set.clock, 0, errSourceClosed, verdicts.Hooks{Record: s.buryAll, Failed: func(err error) {
		set.logger.Warn("weir: messages could not be put into the dead letters, which is tried again", "consumer", name, "error", err)
	}})
	return s, nil
}

// Receive implements [delivery.Source].
func (s *Source[T]) Receive(ctx context.Context, n int) ([]delivery.Message[T], error) {
	if n < 1 {
		panic(fmt.Sprintf("jsqueue: Receive: n is %d, must be at least 1", n))
	}
	select {
	case s.receiving <- struct{}{}:
		defer func() { <-s.receiving }()
	case <-s.recorder.Open.Done(): // Close may have it for long
		return nil, errSourceClosed
	}
	if err := s.begin(); err != nil {
		return nil, err
	}
	defer s.end()
	pause := firstPause
	for {
		ms, err := s.fetch(n)
		switch {
		case s.recorder.Open.Err() != nil:
			return nil, errSourceClosed // Close gives back what was taken
		case err == nil && len(ms) > 0:
			return ms, nil
		case err != nil:
			if err := s.fatal(ctx, err); err != nil {
				return nil, err
			}
			if pause == firstPause {
				s.logger.Warn("weir: JetStream does not answer", "consumer", s.name, "error", err)
			}
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err == nil {
			pause = firstPause
			s.pull()
			s.await(ctx)
			continue
		}
		timer := s.clock.Timer(pause)
		select {
		case <-timer.C:
			pause = min(2*pause, lastPause)
		case <-ctx.Done():
		case <-s.recorder.Open.Done():
		}
		timer.Stop()
	}
}

// await returns when there may be something to take.
func (s *Source[T]) await(ctx context.Context) {
	s.mu.Lock()
	var due <-chan time.Time
	if len(s.suspects) > 0 {
		timer := s.clock.Timer(max(0, s.until.Sub(s.clock.Now())))
		defer timer.Stop()
		due = timer.C
	}
	s.mu.Unlock()
	select {
	case <-s.arrived:
	case <-due:
	case <-ctx.Done():
	case <-s.recorder.Open.Done():
	}
}

// begin says that a Receive waits for messages, or why it cannot.
func (s *Source[T]) begin() error {
	if s.recorder.Open.Err() != nil {
		return errSourceClosed
	}
	if err := cmp.Or(s.recorder.Failure(), s.burier.Failure()); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = true
	return nil
}

// end gives back what came for a Receive that returns without it.
func (s *Source[T]) end() {
	s.mu.Lock()
	s.waiting = false
	unwanted := s.buffer
	s.buffer = nil
	s.mu.Unlock()
	for _, m := range unwanted {
		s.refuse(m)
	}
}

// refuse gives a delivery back that nobody waits for, or it would come again after its lease.
func (s *Source[T]) refuse(m jetstream.Msg) {
	if at, err := m.Metadata(); err == nil {
		s.mu.Lock()
		s.noteGivenBack(at.Sequence.Stream)
		s.mu.Unlock()
	}
	_ = m.Nak()
}

// noteGivenBack notes that this worker gives a message back: it has not killed its process. Called with mu held.
func (s *Source[T]) noteGivenBack(seq uint64) {
	if len(s.givenBack) == maxGivenBack {
		clear(s.givenBack)
	}
	s.givenBack[seq] = struct{}{}
}

// fatal returns the error for a consumer that will not come back, else nil.
func (s *Source[T]) fatal(ctx context.Context, err error) error {
	if errors.Is(err, nats.ErrConnectionClosed) || errors.Is(err, jetstream.ErrConsumerDeleted) {
		return fmt.Errorf("jsqueue: consumer %s: %w", s.name, err)
	}
	if errors.Is(err, nats.ErrNoResponders) { // also of a server that is not ready
		if _, gone := s.consumer.Info(ctx); errors.Is(gone, jetstream.ErrConsumerNotFound) || errors.Is(gone, jetstream.ErrStreamNotFound) {
			return fmt.Errorf("jsqueue: consumer %s: %w", s.name, gone)
		}
	}
	return nil
}

// fetch returns what came already and what the server has now, up to n messages. It is not broken off by the context of
// Receive: what is on its way then would have to wait for the end of its lease.
func (s *Source[T]) fetch(n int) ([]delivery.Message[T], error) {
	if m, ok := s.alone(); ok {
		return []delivery.Message[T]{m}, nil
	}
	s.mu.Lock()
	got := s.buffer[:min(n, len(s.buffer))]
	s.buffer = s.buffer[len(got):]
	err := s.pullErr
	s.pullErr = nil
	s.taking++
	s.mu.Unlock()
	defer s.took()
	ms := make([]delivery.Message[T], 0, n)
	for _, m := range got {
		ms = s.take(ms, m)
	}
	if len(ms) == n || err != nil {
		return ms, err
	}
	batch, err := s.consumer.FetchNoWait(n - len(ms))
	if err == nil {
		for m := range batch.Messages() {
			ms = s.take(ms, m)
		}
		err = batch.Error()
	}
	if len(ms) > 0 {
		return ms, nil
	}
	if m, ok := s.alone(); ok {
		return []delivery.Message[T]{m}, nil
	}
	return nil, err
}

// alone returns a message that may have killed its process, unless another one has its head start: that with the fewest deliveries, since
// the one that kills has the most.
func (s *Source[T]) alone() (m delivery.Message[T], ok bool) {
	for {
		s.mu.Lock()
		if s.suspect != nil && s.clock.Now().Before(s.until) || len(s.suspects) == 0 {
			s.mu.Unlock()
			return m, false
		}
		rand.Shuffle(len(s.suspects), func(i, j int) { s.suspects[i], s.suspects[j] = s.suspects[j], s.suspects[i] })
		h := slices.MinFunc(s.suspects, func(a, b *held) int { return cmp.Compare(a.lapses, b.lapses) })
		s.suspects = slices.DeleteFunc(s.suspects, func(other *held) bool { return other == h })
		s.suspect, s.until = h, s.clock.Now().Add(verdicts.HeadStart(1))
		s.mu.Unlock()
		if h.lapses >= maxDeliveries && s.dead != nil {
			s.settle(h, delivery.Verdict{Kind: delivery.Rejected, Err: verdicts.LapsedError(h.lapses)})
			continue
		}
		if m, ok = s.message(h); ok {
			return m, true
		}
	}
}

// took notes that all messages of a request are here.
func (s *Source[T]) took() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taking--; s.taking == 0 && len(s.buffer) == 0 {
		clear(s.gone)
	}
}

// pull asks the server for one message, if no such request is under way. A Receive that is cancelled leaves it there: a message
// that comes when no Receive waits any more is given back.
func (s *Source[T]) pull() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pulling || s.recorder.Open.Err() != nil {
		return
	}
	s.pulling = true
	s.taking++
	s.pulls.Go(func() { // ends with the request, or with Close
		defer s.took()
		ctx, cancel := context.WithTimeout(s.recorder.Open, onePull)
		defer cancel()
		batch, err := s.consumer.Fetch(1, jetstream.FetchContext(ctx))
		if err == nil {
			for m := range batch.Messages() {
				s.arrive(m)
			}
			err = batch.Error()
		}
		s.mu.Lock()
		s.pulling = false
		if err != nil && !errors.Is(err, context.DeadlineExceeded) && s.recorder.Open.Err() == nil {
			s.pullErr = err
		}
		s.mu.Unlock()
		verdicts.Wake(s.arrived)
	})
}

func (s *Source[T]) arrive(m jetstream.Msg) {
	s.mu.Lock()
	wanted := s.waiting && s.recorder.Open.Err() == nil
	if wanted {
		s.buffer = append(s.buffer, m)
	}
	s.mu.Unlock()
	if !wanted {
		s.refuse(m)
	}
}

// take appends the message of a delivery to others.
func (s *Source[T]) take(ms []delivery.Message[T], d jetstream.Msg) []delivery.Message[T] {
	at, err := d.Metadata()
	if err != nil {
		s.logger.Warn("weir: a message without metadata came from a consumer", "consumer", s.name, "error", err)
		return ms
	}
	h := &held{seq: at.Sequence.Stream, msg: d, raw: d.Data(), leased: s.clock.Now()}
	h.meta, h.schema, err = headers.Read(d, at)
	h.meta.Visit++
	if !s.hold(h) {
		return ms
	}
	if err != nil {
		s.settle(h, delivery.Verdict{Kind: delivery.Rejected, Err: decoder.Unreadable(err)})
		return ms
	}
	s.mu.Lock()
	_, survived := s.givenBack[h.seq]
	h.lapses = int(min(at.NumDelivered, math.MaxInt32)) - 1
	suspect := h.lapses > 0 && !survived
	if suspect {
		s.suspects = append(s.suspects, h)
	}
	s.mu.Unlock()
	if suspect {
		return ms
	}
	if m, ok := s.message(h); ok {
		ms = append(ms, m)
	}
	return ms
}

// message decodes a message. One that cannot be read is rejected.
func (s *Source[T]) message(h *held) (m delivery.Message[T], ok bool) {
	schema := h.schema
	if schema == nil { // of another program
		schema = s.schema
	}
	value, err := s.decoder.Decode(schema, h.raw)
	if err != nil {
		s.settle(h, delivery.Verdict{Kind: delivery.Rejected, Err: err})
		return m, false
	}
	return delivery.New(value, &h.meta, func(v delivery.Verdict) { s.settle(h, v) }), true
}

// hold notes a message. It returns false for one that is in flight here, which goes on with the new delivery, or was until just now
// (law D2), and for one that came before its delay is over (law D3).
func (s *Source[T]) hold(h *held) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if other := s.held[h.seq]; other != nil {
		other.msg, other.leased, other.unsure = h.msg, h.leased, false
		return false
	}
	if s.gone[h.seq] {
		return false
	}
	if d := s.delayed[h.seq]; d != nil {
		if rest := d.due.Sub(s.clock.Now()); rest > 0 {
			d.msg = h.msg
			_ = h.msg.NakWithDelay(rest + restartSlack)
			return false
		}
		d.stop()
		delete(s.delayed, h.seq)
	}
	s.held[h.seq] = h
	return true
}

// settle takes the verdict on a message, from any goroutine.
func (s *Source[T]) settle(h *held, v delivery.Verdict) {
	next := s.recorder
	s.mu.Lock()
	if s.held[h.seq] == h { // or the source was closed
		h.settled, h.verdict, h.at = true, v, s.clock.Now()
		if v.Kind == delivery.Rejected {
			s.rejected = append(s.rejected, h)
			next = s.burier
		} else {
			s.settled = append(s.settled, h)
		}
	}
	alone := s.suspect == h
	if alone {
		s.suspect = nil
	}
	s.mu.Unlock()
	next.Kick()
	if alone {
		verdicts.Wake(s.arrived)
	}
}

// Close implements [delivery.Source].
func (s *Source[T]) Close(ctx context.Context) error {
	err := s.recorder.Close(ctx, func(ctx context.Context) error {
		s.pulls.Wait()
		select {
		case s.receiving <- struct{}{}: // a Receive that was taking has noted what it took
			defer func() { <-s.receiving }()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		return s.giveBack(ctx)
	})
	if err != nil { // else giveBack has
		_ = s.burier.Close(ctx, func(context.Context) error { return nil })
	}
	return err
}
