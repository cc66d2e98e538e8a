package jetstream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
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
	"github.com/weirflow/weir/internal/counting"
	"github.com/weirflow/weir/internal/decoder"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/settle"
	"github.com/weirflow/weir/message"
)

const (
	defaultAckWait = 30 * time.Second // the server's default
	maxAckPending  = 1000             // of a consumer that a source makes

	maxFetch  = 128         // messages of a request
	fetchWait = time.Second // how long the server keeps a request for a first message
	flushWait = 5 * time.Second

	// restartSlack lengthens a delay: a restarted server stores whole seconds, so it may
	// end a delay up to a second early.
	restartSlack = time.Second
	// forever is ten years; longer times count as ten years.
	forever = 10 * 365 * 24 * time.Hour
)

var errSourceClosed = errors.New("jetstream: the source is closed")

// SourceConfig are the settings of a source. Stream, Consumer, DeadLetters and
// DeadLetterQueue are required.
type SourceConfig struct {
	// Stream is the name of the stream. It must exist, and the source does not change it.
	Stream string
	// Consumer is the durable consumer that all workers share. The source makes it if it
	// is missing, unless NoConsumer is set.
	Consumer string
	// AckWait is the AckWait of a consumer that the source makes: the time after which
	// others get the messages of a killed worker. The default is 30 s.
	AckWait time.Duration
	// NoConsumer makes a missing consumer an error. An administrator makes it, with the
	// explicit AckPolicy, and without MaxDeliver, BackOff, HeadersOnly and
	// DeliverSubject.
	NoConsumer bool
	// DeadLetters has the queue DeadLetterQueue for messages that are rejected or that
	// the codec cannot read, with their bytes and headers as received.
	DeadLetters     store.Engine
	DeadLetterQueue string

	Logger *slog.Logger // the default is slog.Default()
}

// NewSource returns a source of a stream that other programs write, through a durable
// consumer. It panics if a required setting is missing. The first Receive opens the
// consumer. An error that only a person can mend, such as a missing stream or a consumer
// that would drop messages, ends a run.
//
// A message's id is in weir's headers, or is made of the stream's name, the stream's
// creation time, and the sequence number. The header Nats-Subject of its Meta is the
// subject.
//
// The source extends the AckWait of messages in flight. The server keeps the delay of a
// nacked message, which counts in MaxAckPending meanwhile. Deliveries are not counted, so
// a message that kills its worker is redelivered without end.
func NewSource[T any](js jetstream.JetStream, c codec.Codec[T], config SourceConfig) delivery.Source[T] {
	guard.RefuseNil("jetstream: NewSource", "JetStream", js)
	guard.RefuseNil("jetstream: NewSource", "codec", c)
	guard.RefuseNil("jetstream: NewSource", "SourceConfig.DeadLetters", config.DeadLetters)
	if config.Stream == "" || config.Consumer == "" || config.DeadLetterQueue == "" || config.AckWait < 0 {
		panic(fmt.Sprintf("jetstream: NewSource: the stream %q, its consumer %q and the queue of dead letters %q must have names, and AckWait %v must not be negative",
			config.Stream, config.Consumer, config.DeadLetterQueue, config.AckWait))
	}
	config.AckWait = cmp.Or(config.AckWait, defaultAckWait)
	config.Logger = guard.Logger(config.Logger)
	s := &source[T]{
		config: config, js: js, codec: c, decoder: decoder.New("jetstream", c), clock: clock.New(),
		arrived: make(chan struct{}, 1), receiving: make(chan struct{}, 1), held: map[uint64]*delivered{},
	}
	s.unreadable = counting.NewFailureLog(config.Logger, s.clock, "jetstream: a message cannot be read and goes to the dead letters", "stream", config.Stream)
	s.fetching, s.endFetches = context.WithCancel(context.Background())
	return s
}

// source is a [delivery.Source]. Receive starts a fetch unless a fetch is under way, and
// waits for its first messages. Later messages are for the next Receive. Only Close
// interrupts a fetch, because the server would redeliver its messages only after their
// AckWait.
type source[T any] struct {
	config  SourceConfig
	js      jetstream.JetStream
	codec   codec.Codec[T]
	decoder *decoder.Decoder[T]
	clock   clock.Clock
	arrived chan struct{} // capacity 1: a message has arrived, or the fetch has ended

	receiving  chan struct{}                                     // capacity 1: held by a Receive, and by Close at its end
	unreadable *counting.FailureLog                              // guarded by receiving
	onReject   func(meta message.Meta, err error) (rejects bool) // set before the first Receive; may be nil

	fetches    sync.WaitGroup
	fetching   context.Context // of the fetches; Close ends it
	endFetches context.CancelFunc

	mu       sync.Mutex // guards the fields below; not held while user code or the client runs
	consumer jetstream.Consumer
	recorder *settle.Recorder      // nil until the consumer is open
	lease    time.Duration         // AckWait of the consumer
	in       string                // incarnation of the stream
	keeps    bool                  // the stream keeps acknowledged messages
	isBusy   bool                  // a fetch is under way
	last     uint64                // number of the consumer's last delivery
	renewed  bool                  // the consumer was made anew, and perhaps the stream
	failure  error                 // of a fetch; the next Receive returns it
	ready    []*delivered          // for Receive
	held     map[uint64]*delivered // not settled for good, by sequence number
	settled  []*delivered          // whose settlements are not recorded
	closed   bool
}

type delivered struct {
	seq        uint64
	in         string              // incarnation of the stream
	msg        jetstream.Msg       // of the last delivery; guarded by source.mu
	leased     time.Time           // since then no other worker can have it; guarded by source.mu
	settlement *message.Settlement // nil until it is settled; then it does not change
}

// Receive implements [delivery.Source].
func (s *source[T]) Receive(ctx context.Context, n int) ([]message.Message[T], error) {
	if n < 1 {
		panic(fmt.Sprintf("jetstream: Receive: n is %d, must be at least 1", n))
	}
	s.receiving <- struct{}{}
	defer func() { <-s.receiving }()
	for first := true; ; first = false {
		s.unreadable.FlushDue()
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err := s.open(ctx); err != nil {
			return nil, err
		}
		taken, err := s.take(n, first)
		if err != nil {
			return nil, err
		}
		if ms := s.messages(taken); len(ms) > 0 {
			return ms, nil
		}
		if len(taken) > 0 {
			continue // they went to the dead letters
		}
		select {
		case <-s.arrived:
		case <-ctx.Done():
		case <-s.recorder.Open.Done():
		}
	}
}

// open opens the consumer. At the start it makes a missing one.
func (s *source[T]) open(ctx context.Context) error {
	s.mu.Lock()
	consumer := s.consumer
	began := s.recorder != nil
	closed := s.closed
	s.mu.Unlock()
	switch {
	case closed:
		return errSourceClosed
	case consumer != nil:
		return nil
	}
	stream, err := s.js.Stream(ctx, s.config.Stream)
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return s.failed(err)
	}
	info := stream.CachedInfo()
	consumer, err = stream.Consumer(ctx, s.config.Consumer)
	if errors.Is(err, jetstream.ErrConsumerNotFound) && !s.config.NoConsumer && !began {
		consumer, err = stream.CreateConsumer(ctx, jetstream.ConsumerConfig{
			Durable: s.config.Consumer, AckPolicy: jetstream.AckExplicitPolicy, AckWait: s.config.AckWait, MaxAckPending: maxAckPending,
		})
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return s.failed(err)
	}
	has := consumer.CachedInfo().Config
	if err := fitsSource(has); err != nil {
		return guard.MarkPermanent(s.named(err))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errSourceClosed
	}
	in := headers.Incarnation(info.Created)
	if s.in != in { // the messages here belong to a stream that was deleted
		s.held = map[uint64]*delivered{}
		s.ready = nil
		s.settled = nil
	}
	s.consumer = consumer
	s.in = in
	s.last = 0
	s.renewed = false
	s.keeps, s.lease = info.Config.Retention == jetstream.LimitsPolicy, cmp.Or(has.AckWait, s.config.AckWait)
	if s.recorder == nil {
		s.recorder = settle.Start(s.clock, s.lease, errSourceClosed, settle.Hooks{
			Extend: s.extend, Record: s.record, Failed: func(err error) {
				s.config.Logger.Warn("jetstream: settlements could not be recorded, which is tried again", slog.Any("error", err))
			},
		})
	}
	return nil
}

// fitsSource returns the error for a consumer that would drop messages, or deliver them
// differently.
func fitsSource(c jetstream.ConsumerConfig) error {
	switch {
	case c.AckPolicy != jetstream.AckExplicitPolicy:
		return fmt.Errorf("its AckPolicy is %v, must be explicit", c.AckPolicy)
	case c.MaxDeliver > 0:
		return fmt.Errorf("its MaxDeliver is %d, must be unlimited: the server would drop messages that are not done (law D5)", c.MaxDeliver)
	case len(c.BackOff) > 0:
		return errors.New("its BackOff must be empty, because it replaces AckWait")
	case c.HeadersOnly:
		return errors.New("HeadersOnly must be false, because messages need their payload")
	case c.DeliverSubject != "":
		return errors.New("DeliverSubject must be empty: it must be a pull consumer")
	}
	return nil
}

func (s *source[T]) named(err error) error {
	return fmt.Errorf("jetstream: consumer %s/%s: %w", s.config.Stream, s.config.Consumer, err)
}

// failed returns the error of a request, as permanent if a retry does not mend it.
func (s *source[T]) failed(err error) error {
	err = s.named(err)
	for _, removed := range []error{nats.ErrConnectionClosed, jetstream.ErrStreamNotFound, jetstream.ErrConsumerNotFound, jetstream.ErrConsumerDeleted} {
		if errors.Is(err, removed) {
			return guard.MarkPermanent(err)
		}
	}
	return err
}

// take returns messages that have arrived, or starts a fetch. A Receive's first fetch
// asks for present messages; the next ones wait for a message.
func (s *source[T]) take(n int, first bool) ([]*delivered, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := cmp.Or(s.failure, s.recorder.Failure())
	s.failure = nil
	switch {
	case s.closed:
		return nil, errSourceClosed
	case err != nil:
		return nil, err
	}
	if len(s.ready) > 0 {
		taken := s.ready[:min(n, len(s.ready))]
		s.ready = s.ready[len(taken):]
		return taken, nil
	}
	if !s.isBusy {
		s.isBusy = true
		consumer := s.consumer
		s.fetches.Go(func() { s.fetch(consumer, n, first) }) // ends with its request, of fetchWait at most, or with Close
	}
	return nil, nil
}

// request is the context of a fetch that waits for a message. The client asks the server
// to keep the request for nine tenths of the time until the deadline. The last answer may
// arrive late, so Done has a second more.
type request struct {
	context.Context // ends with Close

	deadline time.Time
}

func (r request) Deadline() (time.Time, bool) { return r.deadline, true }

func (s *source[T]) fetch(consumer jetstream.Consumer, n int, present bool) {
	var batch jetstream.MessageBatch
	var err error
	since := s.clock.Now() // no AckWait begins before
	if present {
		batch, err = consumer.FetchNoWait(min(n, maxFetch))
	} else {
		wait := min(fetchWait, s.lease/4)
		batch, err = consumer.Fetch(1, jetstream.FetchContext(request{s.fetching, since.Add(wait)}))
	}
	if err == nil {
		for m := range batch.Messages() {
			s.arrive(m, since)
		}
		err = batch.Error()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.isBusy = false
	if err != nil && !s.closed {
		s.failure = s.failed(err)
	}
	if err != nil || s.renewed {
		s.consumer = nil // the next Receive opens it again
	}
	settle.Wake(s.arrived)
}

// arrive notes a delivery. A redelivery of a message that is here joins it (law D2).
func (s *source[T]) arrive(m jetstream.Msg, since time.Time) {
	at, err := m.Metadata()
	if err != nil {
		s.config.Logger.Warn("jetstream: a message without metadata was ignored", slog.Any("error", err))
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.renewed = s.renewed || at.Sequence.Consumer <= s.last
	if s.renewed {
		_ = m.Nak() // it is redelivered when the source has looked at the stream again
		return
	}
	s.last = at.Sequence.Consumer
	seq := at.Sequence.Stream
	if h := s.held[seq]; h != nil {
		h.msg, h.leased = m, since
		return
	}
	h := &delivered{seq: seq, in: s.in, msg: m, leased: since}
	s.held[seq], s.ready = h, append(s.ready, h)
	settle.Wake(s.arrived)
}

// messages decodes messages. Unreadable ones go to the dead letters.
func (s *source[T]) messages(taken []*delivered) []message.Message[T] {
	ms := make([]message.Message[T], 0, len(taken))
	for _, h := range taken {
		got := s.received(h)
		var value T
		if got.damage == nil {
			if got.schema == nil { // another program has published it
				got.schema = codec.SchemaOf(s.codec)
			}
			value, got.damage = s.decoder.Decode(got.schema, got.msg.Data())
		}
		if got.damage != nil {
			s.reject(h, &got.meta, decoder.Unreadable(got.damage))
			continue
		}
		ms = append(ms, message.New(value, &got.meta, func(v message.Settlement) { s.settle(h, v) }))
	}
	return ms
}

var _ settle.Rejecter = (*source[any])(nil)

// OnReject implements [settle.Rejecter].
func (s *source[T]) OnReject(f func(meta message.Meta, err error) (rejects bool)) { s.onReject = f }

// reject rejects a message that cannot be read, or releases it if the receiver has
// stopped.
func (s *source[T]) reject(h *delivered, meta *message.Meta, err error) {
	rejects := s.onReject == nil || s.onReject(*meta, err)
	if !rejects {
		s.settle(h, message.Settlement{Kind: message.Released})
		return
	}
	s.unreadable.Add(err, "id", meta.ID)
	s.settle(h, message.Settlement{Kind: message.Rejected, Err: err})
}

type received struct {
	msg    jetstream.Msg
	meta   message.Meta
	schema []byte
	damage error // of its headers
}

func (s *source[T]) received(h *delivered) received {
	r := received{msg: s.lastDelivery(h)}
	r.meta, r.schema, r.damage = headers.Read(r.msg.Headers(), r.msg.Subject(), headers.Place{Stream: s.config.Stream, Incarnation: h.in, Seq: h.seq})
	r.meta.Visit++
	return r
}

func (s *source[T]) lastDelivery(h *delivered) jetstream.Msg {
	s.mu.Lock()
	defer s.mu.Unlock()
	return h.msg
}

// settle takes the settlement of a message, from any goroutine.
func (s *source[T]) settle(h *delivered, v message.Settlement) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.held[h.seq] != h || h.settlement != nil {
		return
	}
	h.settlement = &v
	s.settled = append(s.settled, h)
	s.recorder.Kick()
}

// extend extends the AckWait of messages that are not done, unless it may have ended:
// another worker may have them, and may have set a delay (laws D3, P1). It does not send
// on a broken connection, because the client would send it later.
func (s *source[T]) extend(ctx context.Context) {
	now := s.clock.Now()
	s.mu.Lock()
	var hs []*delivered
	var msgs []jetstream.Msg
	for _, h := range s.held {
		if s.isLeased(h, now) {
			hs, msgs = append(hs, h), append(msgs, h.msg)
		}
	}
	s.mu.Unlock()
	if len(hs) == 0 || !s.js.Conn().IsConnected() {
		return
	}
	var err error
	for _, m := range msgs {
		err = cmp.Or(err, ignoreAnswered(m.InProgress()))
	}
	err = cmp.Or(err, s.flush(ctx))
	if err != nil {
		s.config.Logger.Warn("jetstream: the AckWait of messages could not be extended", slog.Any("error", err))
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range hs {
		h.leased = now
	}
}

// isLeased reports that no other worker can have a message. Called with mu held.
func (s *source[T]) isLeased(h *delivered, now time.Time) bool { return now.Sub(h.leased) < s.lease }

// record answers deliveries, and waits until the server has the answers. Rejected
// messages are last, because their dead letters may take long.
func (s *source[T]) record(ctx context.Context) (next time.Duration, err error) {
	s.mu.Lock()
	settled := s.settled
	s.settled = nil
	s.mu.Unlock()
	var answers, rejected []*delivered
	for _, h := range settled {
		if h.settlement.Kind == message.Rejected {
			rejected = append(rejected, h)
		} else {
			answers = append(answers, h)
		}
	}
	left, err := s.recordAll(ctx, answers, s.answer)
	buried, failed := s.recordAll(ctx, rejected, s.bury)
	left = append(left, buried...)
	s.mu.Lock()
	defer s.mu.Unlock()
	more := len(s.settled) > 0
	s.settled = append(s.settled, left...) // last, so that a failing message does not delay others (law D4)
	if more {
		return 0, cmp.Or(err, failed)
	}
	return settle.Idle, cmp.Or(err, failed)
}

func (s *source[T]) recordAll(ctx context.Context, hs []*delivered, record func(context.Context, *delivered) error) (left []*delivered, err error) {
	var done []*delivered
	for _, h := range hs {
		failed := record(ctx, h)
		if failed == nil {
			done = append(done, h)
			continue
		}
		left, err = append(left, h), cmp.Or(err, s.named(failed))
	}
	if len(done) == 0 {
		return left, err
	}
	lost := s.flush(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if lost != nil { // a Nack is not sent again: another worker may have the message
		left = slices.DeleteFunc(slices.Clone(hs), func(h *delivered) bool { return s.held[h.seq] != h })
		return left, s.named(lost)
	}
	for _, h := range done {
		if s.held[h.seq] == h {
			delete(s.held, h.seq)
		}
	}
	return left, err
}

// flush waits until the server has all answers.
func (s *source[T]) flush(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, flushWait)
	defer cancel()
	return s.js.Conn().FlushWithContext(ctx)
}

// answer answers the delivery of a message that was not rejected. An acknowledgement
// counts even if another worker has the message. A Nack would change that worker's delay,
// so it is not sent then (laws D3, P1).
func (s *source[T]) answer(_ context.Context, h *delivered) error {
	s.mu.Lock()
	msg := h.msg
	v := h.settlement
	ours := s.isLeased(h, s.clock.Now())
	if v.Kind.IsRedelivered() {
		delete(s.held, h.seq) // it may be redelivered before the server confirms the Nack
	}
	s.mu.Unlock()
	switch {
	case v.Kind.IsSafe():
		return ignoreAnswered(msg.Ack())
	case !ours:
		return nil
	}
	err := nats.ErrDisconnected
	switch {
	case !s.js.Conn().IsConnected():
	case v.Delay <= 0:
		err = ignoreAnswered(msg.Nak())
	default:
		err = ignoreAnswered(msg.NakWithDelay(min(v.Delay, forever) + restartSlack))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil && s.held[h.seq] == nil {
		s.held[h.seq] = h
	}
	return err
}

// ignoreAnswered ignores the client's error for a delivery that was answered before the
// connection broke.
func ignoreAnswered(err error) error {
	if errors.Is(err, jetstream.ErrMsgAlreadyAckd) {
		return nil
	}
	return err
}

// bury puts a rejected message into the dead letters, and then acknowledges it. A message
// that does not fit stays in its stream, and its dead letter names its place (law W2).
func (s *source[T]) bury(ctx context.Context, h *delivered) error {
	got := s.received(h)
	m := store.Message{Meta: got.meta, Schema: got.schema, Payload: got.msg.Data()}
	m.Cause = settle.RecordRejection(&m.Meta, *h.settlement, s.clock.Now())
	where := fmt.Sprintf("stream %s, message %d", s.config.Stream, h.seq)
	whole, err := settle.Bury(m.Meta, where, func(meta message.Meta, whole bool) error {
		dead := m
		dead.Meta = meta
		if !whole {
			dead.Payload, dead.Schema = nil, nil
		}
		return s.config.DeadLetters.Put(ctx, s.config.DeadLetterQueue, dead)
	})
	switch {
	case err != nil:
		return fmt.Errorf("message %d: dead letters %q: %w", h.seq, s.config.DeadLetterQueue, err)
	case whole || s.keeps:
		return ignoreAnswered(got.msg.Ack())
	}
	return ignoreAnswered(got.msg.NakWithDelay(forever)) // an acknowledgement would remove it
}

// Close implements [delivery.Source].
func (s *source[T]) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	recorder := s.recorder
	s.mu.Unlock()
	s.endFetches()
	settle.Wake(s.arrived)
	if recorder == nil {
		return nil
	}
	return recorder.Close(ctx, s.end)
}

func (s *source[T]) end(ctx context.Context) error {
	s.fetches.Wait() // Close has ended a fetch that waits
	select {
	case s.receiving <- struct{}{}:
		s.unreadable.Flush()
		<-s.receiving
	case <-ctx.Done(): // a Receive is still running
	}
	_, err := s.record(ctx)
	now := s.clock.Now()
	s.mu.Lock()
	var rest []jetstream.Msg
	for _, h := range s.held {
		if h.settlement == nil && s.isLeased(h, now) {
			rest = append(rest, h.msg)
		}
	}
	s.held = map[uint64]*delivered{}
	s.ready = nil
	s.settled = nil
	s.mu.Unlock()
	if !s.js.Conn().IsConnected() {
		return err
	}
	for _, m := range rest {
		err = cmp.Or(err, ignoreAnswered(m.Nak()))
	}
	// The server must know that the fetch has ended. Otherwise it would deliver messages
	// to it, and redeliver them only after their AckWait.
	return cmp.Or(err, s.flush(ctx))
}
