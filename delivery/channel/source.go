package channel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/message"
	"github.com/weirflow/weir/timers"
)

// NewSource returns a source of the values of c. A nacked message waits in memory, and is
// redelivered before the values in c. The source ends when c is closed and all messages
// are acknowledged or rejected. Rejected messages are logged as errors. Values taken from
// the channel cannot be released: the error of Close reports how many messages are not
// done.
//
// meta returns the metadata of a value, such as its id; it may be nil, and may return
// nil. Receive adds 1 to its Visit, so the first visit is 1, as with any other source. It
// panics if c is nil.
func NewSource[T any](c <-chan T, meta func(v T) *message.Meta) delivery.Source[T] {
	guard.RefuseNil("channel: NewSource", "channel", c)
	return newSource(c, meta, clock.New())
}

func newSource[T any](c <-chan T, meta func(v T) *message.Meta, timer clock.Clock) *source[T] {
	if meta == nil {
		meta = func(T) *message.Meta { return nil }
	}
	return &source[T]{
		in: c, meta: meta, clock: timer, start: timer.Now(),
		wake: make(chan struct{}, 1), ended: make(chan struct{}),
	}
}

// source makes messages of the values of a channel. One goroutine at a time calls
// Receive; settlements and Close come from any goroutine.
type source[T any] struct {
	meta  func(v T) *message.Meta // history of a value; may be nil
	in    <-chan T                // owned by Receive; nil after its end
	clock clock.Clock
	start time.Time
	wake  chan struct{} // capacity 1: a message was settled
	ended chan struct{} // closed by Close

	mu     sync.Mutex // guards the fields below; not held while user code runs
	out    int        // messages that are not settled
	again  timers.Heap[*entry[T]]
	closed bool
}

type entry[T any] struct {
	value T
	meta  *message.Meta
	timer timers.Timer[*entry[T]]
}

var errClosed = errors.New("delivery: the source is closed")

// now is the time since the start, on the monotonic clock.
func (s *source[T]) now() time.Duration { return s.clock.Now().Sub(s.start) }

// Receive implements [delivery.Source]. Nacked messages that are due go first.
func (s *source[T]) Receive(ctx context.Context, n int) ([]message.Message[T], error) {
	if n < 1 {
		panic(fmt.Sprintf("delivery: Receive: n is %d, want 1 or more", n))
	}
	for {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		entries, err := s.due(n)
		if err != nil {
			return nil, err
		}
		if len(entries) < n {
			entries = s.read(entries, n)
		}
		if len(entries) == 0 {
			next := s.next()
			if s.in == nil && next == idle {
				return nil, io.EOF
			}
			entries = s.await(ctx, next)
		}
		if len(entries) > 0 {
			return s.deliver(entries), nil
		}
	}
}

func (s *source[T]) due(n int) (entries []*entry[T], err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errClosed
	}
	now := s.now()
	for len(entries) < n {
		at, ok := s.again.Next()
		if !ok || at > now { // law D3
			break
		}
		entries = append(entries, s.again.Pop().Value)
	}
	return entries, nil
}

// Results of next if no entry waits for its delay.
const (
	idle    time.Duration = -1 // all messages are settled
	unknown time.Duration = 0  // a message is not settled
)

// next returns how long the first waiting entry has to wait: more than 0, idle or
// unknown.
func (s *source[T]) next() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch at, waits := s.again.Next(); {
	case waits:
		return max(1, at-s.now())
	case s.out == 0:
		return idle
	}
	return unknown
}

func (s *source[T]) isDue() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, ok := s.again.Next()
	return ok && at <= s.now()
}

// read adds values without waiting, up to n in all.
func (s *source[T]) read(entries []*entry[T], n int) []*entry[T] {
	for len(entries) < n {
		select {
		case v, ok := <-s.in:
			if !ok {
				s.in = nil
				return entries
			}
			entries = append(entries, s.entry(v))
		default:
			return entries
		}
	}
	return entries
}

// await waits until a value comes, an entry is due, a message is settled, or the source
// or ctx ends. It returns the entry of the value, if any.
func (s *source[T]) await(ctx context.Context, next time.Duration) []*entry[T] {
	var timer <-chan time.Time
	if next > 0 {
		t := s.clock.Timer(next)
		defer t.Stop()
		timer = t.C
		if s.isDue() { // a mock clock may have moved in between
			return nil
		}
	}
	select {
	case v, ok := <-s.in:
		if !ok {
			s.in = nil
			return nil
		}
		return []*entry[T]{s.entry(v)}
	case <-timer:
	case <-s.wake:
	case <-s.ended:
	case <-ctx.Done():
	}
	return nil
}

func (s *source[T]) entry(v T) *entry[T] {
	e := &entry[T]{value: v, meta: &firstVisit}
	if m := s.meta(v); m != nil {
		meta := *m // the caller's
		meta.Visit++
		e.meta = &meta
	}
	e.timer.Value = e
	return e
}

// firstVisit is the shared, constant Meta of a message without a history.
var firstVisit = message.Meta{Visit: 1}

// arm makes an entry wait for d. Called with mu held.
func (s *source[T]) arm(e *entry[T], d time.Duration) {
	now := s.now()
	s.again.Arm(&e.timer, now+min(d, math.MaxInt64-now))
}

// deliver makes messages, even if the source was closed: they were taken from the
// channel.
func (s *source[T]) deliver(entries []*entry[T]) []message.Message[T] {
	s.mu.Lock()
	s.out += len(entries)
	s.mu.Unlock()
	ms := make([]message.Message[T], len(entries))
	for i, e := range entries {
		ms[i] = message.New(e.value, e.meta, func(v message.Settlement) { s.settle(e, v) })
	}
	return ms
}

func (s *source[T]) settle(e *entry[T], v message.Settlement) {
	if s.isClosed() {
		return
	}
	if v.Kind == message.Rejected {
		id := ""
		if m := s.meta(e.value); m != nil {
			id = m.ID
		}
		guard.Logger(nil).Error("channel: a message was rejected", slog.String("id", id), slog.Any("error", v.Err))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.out--
	if v.Kind.IsRedelivered() {
		s.arm(e, v.Delay)
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *source[T]) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// Close implements [delivery.Source].
func (s *source[T]) Close(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.closed = true
		close(s.ended)
	}
	undone := s.out + s.again.Len()
	if undone > 0 {
		return fmt.Errorf("channel: the source was closed with messages that are not done, and are lost: %d", undone)
	}
	return nil
}
