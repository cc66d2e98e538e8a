package ladder

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/delivery/internal/leases"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/failed"
	"github.com/weirflow/weir/internal/gate"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/settle"
	"github.com/weirflow/weir/message"
)

const (
	rateInterval = 50 * time.Millisecond // a layer with a rate is asked for the messages of one interval, at most
	maxBatch     = 100                   // most messages that are received from a layer at once
	// emptyFor is how long an input without messages is not asked while others have some.
	emptyFor = 20 * time.Millisecond
	// lookAgain is the time between two searches for the queues of other versions. On
	// JetStream a search reads from each queue of the engine.
	lookAgain = 5 * time.Minute
)

// Source is a delivery.Source, which this package must not import.
type Source[T any] interface {
	Receive(ctx context.Context, n int) ([]message.Message[T], error)
	Close(ctx context.Context) error
}

var errClosed = errors.New("ladder: the source is closed")

// source merges inputs. Its Receive asks all inputs at the same time, except inputs that
// are at a limit. When one input has returned messages, Receive ends the calls of the
// others. So no input delays another (law D4), and only messages that are asked for are
// taken.
type source[T any] struct {
	ladder  *Ladder[T]
	earlier *earlier // nil without Config.InOrder
	clock   clock.Clock
	closing sync.Once

	shared   []leases.SourceOption // of all inputs: messages in flight by key, and head starts
	closed   chan struct{}
	settled  chan struct{} // capacity 1; to Receive: a message of a layer was settled
	broken   chan error    // capacity 1; to Receive: a hand-over needs a person
	inFlight atomic.Int64  // unsettled messages, also buffered ones, of all inputs but the leading input

	// mu guards onPurge and inputs: addOtherQueues adds some, and Close closes all.
	mu      sync.Mutex
	inputs  []*input[T] // otherwise owned by Receive
	onPurge func()      // see OnPurge; may be nil

	onReject func(meta message.Meta, err error) (rejects bool) // see OnReject; set before the first Receive, may be nil

	// Owned by Receive.
	looked   time.Time // last search for the queues of other versions
	buffered []message.Message[T]
	ended    bool  // the leading input has ended
	failure  error // returned when buffered is empty
}

// input is one of the sources that a source merges. Receive, and the goroutine that asks
// it, own all fields but inFlight.
type input[T any] struct {
	kind   inputKind
	queue  string // of a returning input
	source Source[T]
	rate   float64   // messages a second; 0 means no limit
	limit  int       // messages in flight; 0 means no limit
	next   time.Time // not asked before

	wrapped []Source[T] // the sources that source wraps, outermost first; read-only

	inFlight atomic.Int64 // unsettled messages, counted unless the input is leading
}

type inputKind uint8

const (
	// leading has new messages: of first, or of the queue if there is no first. The
	// source ends after it.
	leading   inputKind = iota
	beside              // new messages of the queue, beside first
	returning           // messages from a layer, or of an earlier version's queue
)

// ofInput returns the source of an input as an I, or the first of its wrapped sources
// that is an I.
func ofInput[I, T any](in *input[T]) (found I, isFound bool) {
	found, isFound = in.source.(I)
	for _, s := range in.wrapped {
		if isFound {
			break
		}
		found, isFound = s.(I)
	}
	return found, isFound
}

// Source returns a source of the messages of the queue and its layers. If first is not
// nil, it has the messages of first as well: see delivery.Queue.Source. wrapped are the
// sources that first wraps, outermost first: they may have abilities that first lacks.
func (l *Ladder[T]) Source(first Source[T], wrapped ...Source[T]) Source[T] {
	s := &source[T]{
		ladder: l, clock: l.c.Clock, closed: make(chan struct{}), settled: make(chan struct{}, 1), broken: make(chan error, 1),
		shared: []leases.SourceOption{
			leases.WithKeysInFlight(leases.NewKeysInFlight()), leases.WithHeadStarts(leases.NewHeadStarts()),
		},
	}
	if l.c.InOrder {
		inOrder, _ := l.c.Store.(store.InOrder) // New has checked the type
		s.earlier = newEarlier(inOrder, l.c.Clock, l.c.Logger)
		s.shared = append(s.shared, leases.WithOrder(s.earlier), leases.WithPutOff(s.earlier.putOff))
	}
	main := l.main(s.shared)
	if first == nil {
		s.inputs = []*input[T]{{kind: leading, source: main}}
	} else {
		leads := &input[T]{kind: leading, source: first, wrapped: wrapped}
		s.inputs = []*input[T]{leads, {kind: beside, source: main}}
		l.adopt(leads)
	}
	l.open.Store(s, nil)
	_, hasLeases := l.c.Store.(store.Store)
	if !hasLeases {
		return s // its source has the layers
	}
	if l.c.InOrder {
		return s // Config.Others finds the messages of other versions' layers
	}
	for _, layer := range l.c.Layers {
		s.add(layer.Queue, layer.Rate, layer.MaxConcurrent)
	}
	return s
}

// adopt makes this ladder treat the messages of another ladder as its own, if the leading
// input is a source of that ladder.
func (l *Ladder[T]) adopt(leads *input[T]) {
	other, isOfLadder := ofInput[*source[T]](leads)
	if isOfLadder {
		l.adopted.Store(any(other.ladder), nil)
	}
}

// main returns a source of the messages of the queue. On a [store.Consumer] it also has
// the messages of the layers.
func (l *Ladder[T]) main(shared []leases.SourceOption) Source[T] {
	s, hasLeases := l.c.Store.(store.Store)
	if hasLeases {
		return leases.NewSource(s, l.c.Main, l.c.DeadLetters, l.c.Codec, l.sourceOptions(shared)...)
	}
	return newConsumed(l)
}

// sourceOptions returns the options of the queues' sources. shared are the same for all
// inputs of a source.
func (l *Ladder[T]) sourceOptions(shared []leases.SourceOption) []leases.SourceOption {
	return slices.Concat(l.c.Options, shared, []leases.SourceOption{leases.WithOwner(l)})
}

func (s *source[T]) add(queue string, rate float64, limit int) {
	c := s.ladder.c
	from, _ := c.Store.(store.Store)
	in := leases.NewSource(from, queue, c.DeadLetters, c.Codec, s.ladder.sourceOptions(s.shared)...)
	in.OnPurge(s.onPurge)
	in.OnReject(s.onReject)
	s.inputs = append(s.inputs, &input[T]{kind: returning, queue: queue, source: in, rate: rate, limit: limit})
}

// OnPurge implements [settle.PurgeFinder], for all inputs.
func (s *source[T]) OnPurge(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.onPurge = f
	for _, in := range s.inputs {
		if finds, ok := ofInput[settle.PurgeFinder](in); ok {
			finds.OnPurge(f)
		}
	}
}

// OnReject implements [settle.Rejecter], for all inputs.
func (s *source[T]) OnReject(f func(meta message.Meta, err error) (rejects bool)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.onReject = f
	for _, in := range s.inputs {
		if rejecter, ok := ofInput[settle.Rejecter](in); ok {
			rejecter.OnReject(f)
		}
	}
}

// LookForPurged implements [settle.PurgeFinder], for all inputs.
func (s *source[T]) LookForPurged(ctx context.Context, key string) {
	s.mu.Lock()
	inputs := slices.Clone(s.inputs)
	s.mu.Unlock()
	for _, in := range inputs {
		if finds, ok := ofInput[settle.PurgeFinder](in); ok {
			finds.LookForPurged(ctx, key)
		}
	}
}

// RestrictKeys implements [settle.KeyLimiter], for all inputs.
func (s *source[T]) RestrictKeys(f func() (list []gate.Restriction, next time.Duration)) bool {
	return s.eachLimiter(func(in settle.KeyLimiter) bool { return in.RestrictKeys(f) })
}

// HoldKeys implements [settle.KeyLimiter], for all inputs.
func (s *source[T]) HoldKeys(keys map[string]bool) bool {
	return s.eachLimiter(func(in settle.KeyLimiter) bool { return in.HoldKeys(keys) })
}

// eachLimiter calls f for the inputs that can leave out keys, and returns true if all
// inputs can. The inputs of the ladder's queues share their limits.
func (s *source[T]) eachLimiter(f func(settle.KeyLimiter) bool) bool {
	s.mu.Lock()
	inputs := slices.Clone(s.inputs)
	s.mu.Unlock()
	all := true
	for _, in := range inputs {
		limiter, ok := ofInput[settle.KeyLimiter](in)
		if !ok {
			all = false
			continue
		}
		canLeaveOut := f(limiter)
		all = all && canLeaveOut
	}
	return all
}

// addOtherQueues adds the queues of other versions, which it looks for every five
// minutes.
func (s *source[T]) addOtherQueues(ctx context.Context) error {
	now := s.clock.Now()
	if s.ladder.c.Others == nil || !s.looked.IsZero() && now.Sub(s.looked) < lookAgain {
		return nil
	}
	names, err := s.ladder.c.Others(ctx)
	if err == nil && s.earlier != nil {
		err = s.earlier.note(ctx, names)
	}
	if ctx.Err() != nil {
		return nil // asked again later
	}
	if err != nil {
		return fmt.Errorf("weir: layers of queue %q: %w", s.ladder.c.Main, err)
	}
	names = slices.DeleteFunc(names, func(name string) bool { return slices.Contains(s.returningQueues(), name) })
	s.looked = now
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range names {
		if !s.isClosed() {
			s.add(name, 0, 0)
		}
	}
	return nil
}

// returningQueues returns the queues of the returning inputs. Receive calls it.
func (s *source[T]) returningQueues() (names []string) {
	for _, in := range s.inputs {
		if in.kind == returning {
			names = append(names, in.queue)
		}
	}
	return names
}

func (s *source[T]) isClosed() bool {
	select {
	case <-s.closed:
		return true
	default:
		return false
	}
}

// Receive implements delivery.Source.
func (s *source[T]) Receive(ctx context.Context, n int) ([]message.Message[T], error) {
	if n < 1 {
		panic(fmt.Sprintf("ladder: Receive: n is %d, must be at least 1", n))
	}
	for {
		if err := s.fill(ctx, n); err != nil {
			return nil, err
		}
		most := min(n, len(s.buffered))
		ms := s.buffered[:most:most]
		s.buffered = s.buffered[most:]
		ms = s.removeLate(ctx, ms)
		if len(ms) > 0 {
			return ms, nil
		}
	}
}

// fill waits until buffered has messages. It returns an error if the source has ended or
// was closed, after a failure, or if ctx ends.
func (s *source[T]) fill(ctx context.Context, n int) error {
	for len(s.buffered) == 0 {
		if s.isClosed() {
			return errClosed
		}
		if err := s.failure; err != nil {
			s.failure = nil
			return err
		}
		select {
		case err := <-s.broken:
			return err
		default:
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		s.failure = s.addOtherQueues(ctx)
		if s.ended && s.inFlight.Load() == 0 {
			return io.EOF
		}
		// With an order of keys, messages of an earlier version go first, so their queues
		// must be known. If they are not, s.failure is the reason, or ctx has ended.
		mustKnowEarlier := s.earlier != nil && s.ladder.c.Others != nil
		if mustKnowEarlier && s.looked.IsZero() {
			continue
		}
		// The inputs are asked even after a failure, which does not delay other messages
		// (law D4).
		s.failure = errors.Join(s.failure, s.ask(ctx, n))
	}
	return nil
}

type answer[T any] struct {
	input    *input[T]
	messages []message.Message[T]
	err      error
}

// ask asks the inputs that may be asked now, and other inputs as soon as they may be
// asked. It waits until one has answered, or fill has something else to do. Then it ends
// the calls of the others, and adds the messages of all answers to buffered.
func (s *source[T]) ask(ctx context.Context, n int) error {
	asking, enough := context.WithCancel(ctx)
	defer enough()
	answers := make(chan answer[T], len(s.inputs))
	asked := map[*input[T]]bool{}
	timer := s.clock.Timer(time.Hour)
	defer timer.Stop()
	endAt := s.wakeAt()
	var failure error
wait:
	for {
		next := s.start(asking, n, asked, answers, enough)
		if !endAt.IsZero() {
			left := endAt.Sub(s.clock.Now())
			if left <= 0 {
				break wait
			}
			if next == 0 || left < next {
				next = left
			}
		}
		var due <-chan time.Time // never ready if there is no such time
		if next > 0 {
			timer.Reset(next)
			due = timer.C
		}
		select {
		case a := <-answers:
			delete(asked, a.input)
			failure = s.answered(asking, a)
			break wait
		case <-due: // another input may be asked, or endAt has come
		case <-s.settled: // an input may be below its limit again
			if s.ended { // the source may have ended
				break wait
			}
		case failure = <-s.broken:
			break wait
		case <-s.closed:
			break wait
		case <-ctx.Done():
			break wait
		}
	}
	enough()
	for range asked {
		failure = errors.Join(failure, s.answered(asking, <-answers))
	}
	return failure
}

// wakeAt returns when ask must return even if no input answers, or zero: then fill
// searches for queues of other versions, or returns a failure.
func (s *source[T]) wakeAt() (at time.Time) {
	now := s.clock.Now()
	if s.ladder.c.Others != nil {
		at = now.Add(lookAgain)
	}
	if s.failure != nil {
		at = now.Add(time.Second)
	}
	return at
}

// start asks the inputs that may be asked, except the inputs in asked. It returns how
// long it takes until another input may be asked, or 0 if that does not depend on time.
func (s *source[T]) start(asking context.Context, n int, asked map[*input[T]]bool, answers chan<- answer[T], enough func()) (wait time.Duration) {
	now := s.clock.Now()
	for _, in := range s.inputs {
		most := min(n, in.room())
		hasEnded := in.kind == leading && s.ended
		if asked[in] || hasEnded {
			continue
		}
		if most == 0 { // at its limit: a settlement wakes ask
			continue
		}
		left := in.next.Sub(now)
		if left > 0 {
			if wait == 0 || left < wait {
				wait = left
			}
			continue
		}
		asked[in] = true
		go func() { // ends with asking
			ms, err := receive(asking, in.source, most)
			if !wasInterrupted(asking, err) {
				enough()
			}
			answers <- answer[T]{in, ms, err}
		}()
	}
	return wait
}

// receive receives from a source, which may be the user's (law A6).
func receive[T any](ctx context.Context, s Source[T], n int) (ms []message.Message[T], err error) {
	err = guard.Call(func() (err error) {
		ms, err = s.Receive(ctx, n)
		return err
	}, broken)
	return ms, err
}

func wasInterrupted(asking context.Context, err error) bool {
	return err != nil && asking.Err() != nil && errors.Is(err, context.Cause(asking))
}

// answered adds the messages of an answer to buffered, and returns its error.
func (s *source[T]) answered(asking context.Context, a answer[T]) error {
	in := a.input
	switch {
	case a.err == io.EOF && in.kind == leading: //nolint:errorlint // wrapped, it is a connection that was cut
		s.ended = true
		return nil
	case wasInterrupted(asking, a.err): // it has no messages
		in.next = s.clock.Now().Add(emptyFor)
		return nil
	case a.err != nil:
		return a.err
	}
	if in.rate > 0 {
		in.next = s.clock.Now().Add(time.Duration(float64(len(a.messages)) / in.rate * float64(time.Second)))
	}
	for _, m := range a.messages {
		if in.kind != leading {
			m = s.watchInFlight(in, m)
		}
		s.buffered = append(s.buffered, m)
	}
	return nil
}

// removeLate returns the messages of ms that are not late, and changes ms. Late messages
// become dead letters, and are not called again (law X1).
func (s *source[T]) removeLate(ctx context.Context, ms []message.Message[T]) []message.Message[T] {
	now := s.clock.Now()
	kept := ms[:0]
	for _, m := range ms {
		meta := m.Meta()
		cause, why := causeOfLate(&meta, now)
		if cause == "" {
			kept = append(kept, m)
		} else {
			s.giveUpLate(ctx, m, cause, why)
		}
	}
	clear(ms[len(kept):])
	return kept
}

// causeOfLate returns the cause of the dead letter of a message that is late, or "". A
// message is late if its deadline has passed, or if the server may no longer remember its
// call in doubt.
func causeOfLate(meta *message.Meta, now time.Time) (cause store.Cause, why string) {
	switch {
	case meta.UnsafeToRepeat && !meta.Remembered.After(now):
		return store.UnsafeToRepeat, "the server may have forgotten its call in doubt"
	case failed.IsPast(meta.Deadline, now):
		return store.Expired, "its deadline has passed"
	}
	return "", ""
}

// giveUpLate makes a dead letter of a late message.
func (s *source[T]) giveUpLate(ctx context.Context, m message.Message[T], cause store.Cause, why string) {
	err := s.ladder.putDead(ctx, m, cause, why)
	switch {
	case err == nil:
		m.Ack() // law D1
	case errors.Is(err, message.ErrRefused):
		m.Reject(&settle.LateError{Cause: cause, Err: err}) // its source tries a shorter history, and then a pointer (law W2)
	default:
		s.failure = errors.Join(s.failure, err)
		m.Nack(time.Second)
	}
}

// room returns how many messages may be received from the input at once.
func (in *input[T]) room() int {
	if in.kind == leading {
		return math.MaxInt
	}
	n := maxBatch
	if in.limit > 0 {
		n = min(n, in.limit-int(in.inFlight.Load()))
	}
	if in.rate > 0 {
		n = min(n, max(1, int(min(in.rate*rateInterval.Seconds(), maxBatch))))
	}
	return n
}

// watchInFlight counts a message as in flight until it is settled.
func (s *source[T]) watchInFlight(in *input[T], m message.Message[T]) message.Message[T] {
	in.inFlight.Add(1)
	s.inFlight.Add(1)
	return message.Watch(m, func(v message.Settlement) {
		m.Settle(v)
		in.inFlight.Add(-1)
		s.inFlight.Add(-1)
		settle.Wake(s.settled)
	})
}

var (
	_ settle.LeaseCounter   = (*source[any])(nil)
	_ settle.RefusalCounter = (*source[any])(nil)
	_ settle.PurgeFinder    = (*source[any])(nil)
	_ settle.Rejecter       = (*source[any])(nil)
	_ settle.KeyLimiter     = (*source[any])(nil)
	_ settle.Buffer         = (*source[any])(nil)
)

// ReleaseBuffered implements [settle.Buffer], for all inputs.
func (s *source[T]) ReleaseBuffered() {
	for _, m := range s.buffered {
		m.Release()
	}
	s.buffered = nil
	for _, in := range s.inputs {
		buffer, ok := ofInput[settle.Buffer](in)
		if ok {
			buffer.ReleaseBuffered()
		}
	}
}

// LeasesLost implements [settle.LeaseCounter], as the sum of the inputs.
func (s *source[T]) LeasesLost() (n int) {
	s.mu.Lock()
	inputs := slices.Clone(s.inputs)
	s.mu.Unlock()
	for _, in := range inputs {
		if counter, ok := ofInput[settle.LeaseCounter](in); ok {
			n += counter.LeasesLost()
		}
	}
	return n
}

// SettlementsRefused implements [settle.RefusalCounter], as the sum of the inputs.
func (s *source[T]) SettlementsRefused() (n int) {
	s.mu.Lock()
	inputs := slices.Clone(s.inputs)
	s.mu.Unlock()
	for _, in := range inputs {
		if counter, ok := ofInput[settle.RefusalCounter](in); ok {
			n += counter.SettlementsRefused()
		}
	}
	return n
}

// Close implements delivery.Source.
func (s *source[T]) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closing.Do(func() { close(s.closed) })
	inputs := slices.Clone(s.inputs)
	s.mu.Unlock()
	errs := make([]error, len(inputs))
	var all sync.WaitGroup
	for i, in := range inputs { // at the same time: one may need all the time of ctx
		all.Go(func() { errs[i] = guard.Call(func() error { return in.source.Close(ctx) }, broken) })
	}
	all.Wait()
	s.ladder.open.Delete(s)
	return errors.Join(errs...)
}
