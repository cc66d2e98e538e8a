package leases

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/counting"
	"github.com/weirflow/weir/internal/decoder"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/settle"
	"github.com/weirflow/weir/internal/storearg"
	"github.com/weirflow/weir/message"
)

// DefaultLease is how long a lease lasts.
const DefaultLease = 30 * time.Second

const (
	defaultMaxPoll = 100 * time.Millisecond
	minPoll        = 5 * time.Millisecond
	never          = 24 * time.Hour // a wait that the store ends
	maxRecorded    = 1000           // settlements that are recorded at once
)

var errSourceClosed = errors.New("weir: the source is closed")

// Source returns the messages of a queue, as a delivery.Source.
//
// The Visit of a received message is one more than the stored Visit. If the source takes
// a message again that is in flight here, because its lease had ended, the message joins
// the delivery in flight, and is not delivered a second time (law D2).
//
// A message that was rejected, or whose payload the codec cannot read, goes to the dead
// letters, with its bytes as received and the reason in its history.
//
// If the store fails to record settlements, they are tried again until the source is
// closed. If the store refuses to record the settlement of a message, that settlement is
// tried again, for 3 s. Then the message stays in its queue, and is not delivered again.
// When the source closes, the first refusal is enough.
//
// A message whose lease has ended before may have killed its process. It gets a head
// start: see [HeadStarts]. After five ended leases a message goes to the dead letters.
type Source[T any] struct {
	store       store.Store
	queue, dead string
	decoder     *decoder.Decoder[T]
	codec       codec.Codec[T]
	sourceSettings

	recorder *settle.Recorder
	// wake has capacity 1. Receive then takes again, since messages may be due. Listen,
	// HeadStarts, KeysInFlight, record and recordSame send to it.
	wake chan struct{}

	listening sync.WaitGroup
	woken     atomic.Bool // the store wakes the source, so it need not poll

	receiving chan struct{} // capacity 1: held by a Receive, and by Close at its end
	rounds    keyRounds     // owned by the Receive

	undecodable *counting.FailureLog                              // guarded by receiving
	onReject    func(meta message.Meta, err error) (rejects bool) // set before the first Receive; may be nil

	// takesOne makes the next take ask for one message. It is set if the last take has
	// found a suspect: all messages of a dead process are suspects, so further suspects
	// often follow. A message taken beside a suspect is released, and so loses its place.
	// Owned by the Receive.
	takesOne bool

	// releasing has capacity 1, and is a lock. The recorder holds it while it releases
	// messages in the store and removes them from handles. take holds it while it adds
	// messages to handles. It prevents this sequence:
	//
	//	the recorder releases a message in the store
	//	take leases the message again
	//	choose finds the old handle, and treats the message as in flight
	//	the recorder removes the handle, so the message waits for the end of its lease
	releasing chan struct{}

	mu      sync.Mutex
	handles map[string]*handle // by store.Lease.Entry
	settled []*handle          // of handles: settlements not recorded yet
	onPurge func()             // see OnPurge; may be nil

	purgeSearches      int // calls of LookForPurged begun
	leasesLost         int // see LeasesLost
	settlementsRefused int // see SettlementsRefused
}

type sourceSettings struct {
	clock     clock.Clock
	lease     time.Duration
	maxPoll   time.Duration
	logger    *slog.Logger
	byKey     store.ByKey                                                                  // nil without rounds of keys
	maxPerKey int                                                                          // most messages of a key in flight; 0 means no limit
	inFlight  *KeysInFlight                                                                // used if byKey is not nil
	inOrder   store.InOrder                                                                // nil without an order of keys
	putOff    func(ctx context.Context, queue string, taken []store.Leased) []store.Leased // see WithPutOff, or nil

	headStarts *HeadStarts
	owner      any // the source's ladder: see message.Delivery.Owner
}

// SourceOption changes a setting of [NewSource].
type SourceOption func(*sourceSettings)

// WithLease sets how long the messages of a killed source stay with it; the default is 30
// s. Leases are extended three times as often. It panics if d ≤ 0.
func WithLease(d time.Duration) SourceOption {
	if d <= 0 {
		panic(fmt.Sprintf("weir: WithLease: %v is not positive", d))
	}
	return func(s *sourceSettings) { s.lease = d }
}

// WithMaxPoll sets the longest pause before Receive looks into an empty queue again: how
// late a message may be. The default is 100 ms. It begins with 5 ms and doubles. It
// panics if d ≤ 0.
func WithMaxPoll(d time.Duration) SourceOption {
	if d <= 0 {
		panic(fmt.Sprintf("weir: WithMaxPoll: %v is not positive", d))
	}
	return func(s *sourceSettings) { s.maxPoll = d }
}

// WithClock sets the clock for polls and extensions; the default is the machine's. The
// store decides which messages are due.
func WithClock(c clock.Clock) SourceOption {
	guard.RefuseNil("weir: WithClock", "clock", c)
	return func(s *sourceSettings) { s.clock = c }
}

// WithLogger sets the logger; the default is slog.Default(). Lost leases, dead letters
// and settlements that are tried again are logged at warn level, a message that cannot be
// settled at error level, and purges of messages in flight at info level.
func WithLogger(l *slog.Logger) SourceOption {
	guard.RefuseNil("weir: WithLogger", "logger", l)
	return func(s *sourceSettings) { s.logger = guard.Logger(l) }
}

// WithOwner sets the source's ladder. The default is nil.
func WithOwner(ladder any) SourceOption {
	return func(s *sourceSettings) { s.owner = ladder }
}

// NewSource returns a source of a queue, which must be closed. dead is the queue of its
// dead letters. It panics if an argument is nil or empty, or if the queues are the same.
func NewSource[T any](s store.Store, queue, dead string, c codec.Codec[T], opts ...SourceOption) *Source[T] {
	guard.RefuseNil("weir: NewSource", "store", s)
	guard.RefuseNil("weir: NewSource", "codec", c)
	if err := errors.Join(storearg.Queue(queue), storearg.Queue(dead)); err != nil {
		panic("weir: NewSource: " + err.Error())
	}
	if queue == dead {
		panic(fmt.Sprintf("weir: NewSource: the queue %q cannot be the queue of its own dead letters", queue))
	}
	set := sourceSettings{clock: clock.New(), lease: DefaultLease, maxPoll: defaultMaxPoll, logger: guard.Logger(nil)}
	for _, opt := range opts {
		opt(&set)
	}
	src := &Source[T]{
		store: s, queue: queue, dead: dead, decoder: decoder.New("store", c), codec: c, sourceSettings: set,
		wake: make(chan struct{}, 1), releasing: make(chan struct{}, 1), receiving: make(chan struct{}, 1), handles: map[string]*handle{},
	}
	if src.inFlight == nil {
		src.inFlight = NewKeysInFlight()
	}
	if src.headStarts == nil {
		src.headStarts = NewHeadStarts()
	}
	src.undecodable = counting.NewFailureLog(set.logger, set.clock, "weir: a message cannot be decoded and goes to the dead letters", "queue", queue)
	src.recorder = settle.Start(set.clock, set.lease, errSourceClosed, settle.Hooks{
		Extend: src.extend,
		Record: func(ctx context.Context) (time.Duration, error) { return src.record(ctx, false) },
		Failed: func(err error) {
			set.logger.Warn("weir: settlements of messages could not be recorded and are tried again", "queue", queue, "error", err)
		},
	})
	src.listening.Go(func() { // ends with Close, which waits for it
		Listen(src.recorder.Open, s, queue, set.clock, set.logger, func(misses bool) {
			src.woken.Store(!misses)
			settle.Wake(src.wake)
		})
	})
	return src
}

// Receive implements delivery.Source.
func (s *Source[T]) Receive(ctx context.Context, n int) ([]message.Message[T], error) {
	if n < 1 {
		panic(fmt.Sprintf("weir: Receive: n is %d, must be at least 1", n))
	}
	select {
	case s.receiving <- struct{}{}:
		defer func() { <-s.receiving }()
	case <-s.recorder.Open.Done(): // Close may hold receiving for long
		return nil, errSourceClosed
	}
	poll := minPoll
	for {
		if s.recorder.Open.Err() != nil {
			return nil, errSourceClosed
		}
		if err := s.recorder.Failure(); err != nil {
			return nil, err
		}
		s.undecodable.FlushDue()
		left := s.headStarts.watch(s.clock.Now(), s.wake)
		if left > 0 {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			s.wait(ctx, left)
			continue
		}
		// Even if ctx has ended, Receive returns due messages. It only does not wait for
		// more.
		ms, hasFound, err := s.take(n)
		if s.recorder.Open.Err() != nil {
			return nil, errSourceClosed // Close releases what was taken
		}
		if err != nil {
			return nil, fmt.Errorf("weir: queue %q: %w", s.queue, err)
		}
		if len(ms) > 0 {
			return ms, nil
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if hasFound { // further messages may be due
			continue
		}
		wait := poll
		if s.woken.Load() {
			wait = never
		}
		if s.rounds.next > 0 { // a left-out key may be taken then
			wait = min(wait, s.rounds.next)
		}
		if left, ok := s.undecodable.Due(); ok {
			wait = min(wait, max(left, minPoll))
		}
		if s.wait(ctx, wait) {
			poll = minPoll
		} else {
			poll = min(2*poll, s.maxPoll)
		}
	}
}

// wait waits until Receive is woken, and then returns true. It returns false after the
// time d, or when ctx or the source ends.
func (s *Source[T]) wait(ctx context.Context, d time.Duration) bool {
	timer := s.clock.Timer(d)
	defer timer.Stop()
	select {
	case <-s.wake:
		return true
	case <-timer.C:
	case <-ctx.Done():
	case <-s.recorder.Open.Done():
	}
	return false
}

// take takes messages, and returns the messages to deliver. hasFound is true if it has
// taken messages, even if it delivers none of them.
//
// The context of Receive does not end take: an interrupted Take may have leased messages,
// which would wait for the end of their leases. Close waits for take.
func (s *Source[T]) take(n int) (ms []message.Message[T], hasFound bool, err error) {
	if s.takesOne {
		n = 1
	}
	asked := s.clock.Now()
	searchesBefore := s.purgeSearchesBegun()
	taken, err := s.takeNext(s.recorder.Calls, n)
	if err != nil || len(taken) == 0 {
		return nil, false, err
	}
	if s.putOff != nil {
		taken = s.putOff(s.recorder.Calls, s.queue, taken)
	}
	if len(taken) == 0 {
		return nil, true, nil // Receive takes again, unless it is to end
	}
	s.releasing <- struct{}{}
	defer func() { <-s.releasing }()
	until := asked.Add(s.lease)
	taken, back := s.choose(taken, until)
	if len(back) > 0 {
		if err := s.store.Release(s.recorder.Calls, 0, back...); err != nil && !storearg.IsLost(err) {
			s.logger.Warn("weir: messages could not be released, and are redelivered when their leases end", "queue", s.queue, "error", err)
		}
	}
	for i := range taken {
		m, isDelivered := s.deliver(&taken[i], until)
		if isDelivered {
			ms = append(ms, m)
		}
	}
	if s.purgeSearchesBegun() != searchesBefore { // that search lacked these messages
		s.lookInFlight(s.recorder.Calls, "")
	}
	return ms, true, nil
}

func (s *Source[T]) takeNext(ctx context.Context, n int) ([]store.Leased, error) {
	switch {
	case s.inOrder != nil:
		return s.inOrder.TakeInOrder(ctx, s.queue, n, s.lease)
	case s.byKey != nil:
		return s.takeByKey(ctx, n)
	}
	return s.store.Take(ctx, s.queue, n, s.lease)
}

// deliver makes a message of a stored message, whose lease lasts until the time until. It
// rejects a message that cannot be processed.
func (s *Source[T]) deliver(l *store.Leased, until time.Time) (m message.Message[T], isDelivered bool) {
	if l.External && l.Schema == nil {
		l.Schema = codec.SchemaOf(s.codec)
	}
	h := &handle{source: s, position: l.Position, lease: l.Lease, leaseEnd: until, message: l.Message}
	h.message.Meta.Visit++
	h.leaseVisit = h.message.Meta.Visit
	h.message.Meta.Put = storearg.OriginOfPut(s.queue, &l.Meta, l.Position, l.Lease.Entry) // law W5
	h.provider.Store(&h.message.Meta.Provider)
	s.addHandle(h)
	if l.Lapses >= settle.MaxLapses {
		err := settle.LapsedError(l.Lapses)
		if s.reject(h, err) {
			s.logger.Warn("weir: a message goes to the dead letters", "queue", s.queue, "id", l.Meta.ID, "error", err)
		}
		return m, false
	}
	value, err := s.decode(l)
	if err != nil {
		if s.reject(h, err) {
			s.undecodable.Add(err, "id", l.Meta.ID)
		}
		return m, false
	}
	meta := h.message.Meta
	m = message.New(value, &meta, func(v message.Settlement) { s.settle(h, v) })
	return message.Attach(m, h), true
}

var _ settle.Rejecter = (*Source[any])(nil)

// OnReject implements [settle.Rejecter].
func (s *Source[T]) OnReject(f func(meta message.Meta, err error) (rejects bool)) { s.onReject = f }

// reject rejects a message that cannot be processed. It returns false if the message was
// released instead, because the receiver has stopped.
func (s *Source[T]) reject(h *handle, err error) bool {
	rejects := s.onReject == nil || s.onReject(h.message.Meta, err)
	if !rejects {
		s.settle(h, message.Settlement{Kind: message.Released})
		return false
	}
	s.settle(h, message.Settlement{Kind: message.Rejected, Err: err})
	return true
}

func (s *Source[T]) decode(l *store.Leased) (value T, err error) {
	if l.Damage != nil {
		return value, decoder.Unreadable(l.Damage)
	}
	return s.decoder.Decode(l.Schema, l.Payload)
}

// Same reports whether a received payload has the value of an encoded message.
func Same[T any](d *decoder.Decoder[T], c codec.Codec[T], schema, payload, encoded []byte) bool {
	value, err := d.Decode(schema, payload)
	if err != nil {
		return false
	}
	same, err := Encode(c, value, message.Meta{})
	return err == nil && bytes.Equal(same.Payload, encoded)
}

// choose divides the taken messages. It returns the messages for deliver, and the leases
// to release:
//
//	in flight here already       joins that delivery, and is not delivered again (law D2)
//	its key is at its limit      is released; the next take leaves out the key
//	too many leases have ended   passes to deliver, which rejects it
//	suspect                      see giveHeadStart
//	any other                    is delivered, unless a suspect begins a head start
func (s *Source[T]) choose(taken []store.Leased, until time.Time) (chosen []store.Leased, back []store.Lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var suspects, others []store.Leased
	for _, l := range taken {
		inFlight := s.handles[l.Lease.Entry]
		if inFlight != nil {
			s.join(inFlight, &l, until)
			continue
		}
		isAdmitted := s.admit(l.Meta.Key)
		switch {
		case !isAdmitted:
			back = append(back, l.Lease)
		case l.Lapses >= settle.MaxLapses:
			chosen = append(chosen, l)
		case l.Lapses > 0:
			suspects = append(suspects, l)
		default:
			others = append(others, l)
		}
	}
	s.takesOne = len(suspects) > 0
	delivered := others
	var released []store.Leased
	if len(suspects) > 0 {
		delivered, released = s.giveHeadStart(suspects, others)
	}
	for _, l := range released {
		s.leave(l.Meta.Key)
		back = append(back, l.Lease)
	}
	return append(chosen, delivered...), back
}

// giveHeadStart begins the head start of the first suspect, which is delivered alone. But
// if another source has begun a head start since Receive looked, the suspects are
// released, and only the others are delivered.
func (s *Source[T]) giveHeadStart(suspects, others []store.Leased) (delivered, released []store.Leased) {
	first := &suspects[0]
	begins := s.headStarts.begin(suspectOf(first.Lease, s.queue), s.clock.Now(), settle.HeadStart(first.Lapses))
	if !begins {
		return others, suspects
	}
	return suspects[:1], slices.Concat(suspects[1:], others)
}

// join gives a message in flight the lease with which the source has taken it again. For
// example, with an order of keys:
//
//	this worker calls a message in visit 1, and its lease ends
//	another worker takes the message; its call fails, and it replaces the message
//	this worker takes the message again for visit 2, while its call of visit 1 runs
//
// Now the lease is for visit 2. The outcome of the running call counts for visit 2, since
// its settlement ends this lease. There are two exceptions. The outcome does not count if
// the store has found before that visit 1 is over (hasNextLease). A failure does not
// replace the message a second time (replacesAgain).
//
// The other worker may also have released the message, with or without an order of keys:
// then the new lease is for visit 1 again.
//
// The message is not admitted again, since KeysInFlight counts it already. Called with mu
// held.
func (s *Source[T]) join(h *handle, again *store.Leased, until time.Time) {
	s.lose(h)
	h.lease = again.Lease
	h.leaseVisit = again.Meta.Visit + 1
	h.leaseEnd = until
	h.isLeaseLost = false // the new lease may be lost as well, and is then counted
	h.hasNextLease = h.isVisitOver.Load()
	h.othersDoubt = message.Meta{}
	hasNewDoubt := again.Meta.UnsafeToRepeat && !h.message.Meta.UnsafeToRepeat
	if hasNewDoubt {
		h.othersDoubt = again.Meta
	}
	provider := again.Meta.Provider // another worker may have chosen it
	h.provider.Store(&provider)
}

func (s *Source[T]) addHandle(h *handle) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handles[h.lease.Entry] = h
}

// settle takes the settlement of a message, from any goroutine.
func (s *Source[T]) settle(h *handle, v message.Settlement) {
	s.mu.Lock()
	if h.isVisitOver.Load() {
		// The outcome must not be stored. Usually the lease is lost, so Release does not
		// change the store. But if hasNextLease is true, Release lets the next visit
		// begin.
		v = message.Settlement{Kind: message.Released}
	}
	isClosed := s.handles[h.lease.Entry] != h // Close has released it
	if isClosed {
		s.leave(h.message.Meta.Key)
	} else {
		h.settlement = &v
		s.settled = append(s.settled, h)
	}
	ended := suspectOf(h.lease, s.queue)
	s.mu.Unlock()
	s.recorder.Kick()
	s.headStarts.end(ended)
}

// Close implements delivery.Source.
func (s *Source[T]) Close(ctx context.Context) error {
	return s.recorder.Close(ctx, func(ctx context.Context) error {
		s.listening.Wait()
		select {
		case s.receiving <- struct{}{}: // a running take has noted its messages
			defer func() { <-s.receiving }()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		s.undecodable.Flush()
		return s.releaseRest(ctx)
	})
}

func (s *Source[T]) releaseRest(ctx context.Context) error {
	for more := true; more; {
		next, err := s.record(ctx, true)
		if err != nil {
			return err
		}
		more = next != settle.Idle
	}
	s.mu.Lock()
	var leases []store.Lease
	for _, h := range s.handles {
		if h.settlement == nil {
			leases = append(leases, h.lease)
		}
	}
	s.mu.Unlock()
	if len(leases) == 0 { // an unavailable store does not matter then
		return nil
	}
	if err := s.store.Release(ctx, 0, leases...); err != nil && !storearg.IsLost(err) {
		return err
	}
	s.mu.Lock()
	clear(s.handles)
	for _, h := range s.settled { // settled while the store released them
		s.leave(h.message.Meta.Key)
	}
	s.settled = nil
	s.mu.Unlock()
	return nil
}
