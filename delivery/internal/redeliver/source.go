// Package redeliver is for sources that keep their messages in this process: a nacked
// message waits for its delay in memory.
package redeliver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/message"
	"github.com/weirflow/weir/timers"
)

// Source makes messages of the values of a channel. Receive is called by one goroutine at
// a time; what settles, and Close, by any.
type Source[T any] struct {
	Hooks[T]

	in    <-chan T // owned by Receive; nil after its end
	clock clock.Clock
	start time.Time
	wake  chan struct{} // capacity 1: something was settled
	ended chan struct{} // closed by Close

	mu     sync.Mutex // guards what follows; not held while user code runs
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

// Hooks are what the owner of a source does.
type Hooks[T any] struct {
	// Meta returns the history of a value, or nil.
	Meta func(v T) *message.Meta
	// Wait returns how long a value must not be delivered that was just read. Nil: it
	// never waits.
	Wait func(v T) time.Duration
	// Settled is called for each settlement, before the message may be delivered again.
	// It must not block.
	Settled func(v T, settlement message.Settlement)
}

// New returns a source of the values of in.
func New[T any](in <-chan T, c clock.Clock, h Hooks[T]) *Source[T] {
	return &Source[T]{
		in: in, Hooks: h, clock: c, start: c.Now(),
		wake: make(chan struct{}, 1), ended: make(chan struct{}),
	}
}

// now is the time since the start, on the monotonic clock.
func (s *Source[T]) now() time.Duration { return s.clock.Now().Sub(s.start) }

// Receive implements delivery.Source. What was nacked and is due goes first.
func (s *Source[T]) Receive(ctx context.Context, n int) ([]message.Message[T], error) {
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

// due returns what waited and is due.
func (s *Source[T]) due(n int) (entries []*entry[T], err error) {
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

// When something comes that waits.
const (
	idle    time.Duration = -1 // never: all is settled
	unknown time.Duration = 0  // some message is not settled
)

// next returns how long the first that waits has to wait: more than 0, idle or unknown.
func (s *Source[T]) next() time.Duration {
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

func (s *Source[T]) isDue() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, ok := s.again.Next()
	return ok && at <= s.now()
}

// read takes what is in the channel.
func (s *Source[T]) read(entries []*entry[T], n int) []*entry[T] {
	for len(entries) < n {
		select {
		case v, ok := <-s.in:
			if !ok {
				s.in = nil
				return entries
			}
			if e := s.entry(v); !s.mustWait(e) {
				entries = append(entries, e)
			}
		default:
			return entries
		}
	}
	return entries
}

// await waits until there is something to do. It may have read something.
func (s *Source[T]) await(ctx context.Context, next time.Duration) []*entry[T] {
	var timer <-chan time.Time
	if next > 0 {
		t := s.clock.Timer(next)
		defer t.Stop()
		timer = t.C
		if s.isDue() { // a mock clock may have been moved in between
			return nil
		}
	}
	select {
	case v, ok := <-s.in:
		if !ok {
			s.in = nil
			return nil
		}
		if e := s.entry(v); !s.mustWait(e) {
			return []*entry[T]{e}
		}
	case <-timer:
	case <-s.wake:
	case <-s.ended:
	case <-ctx.Done():
	}
	return nil
}

func (s *Source[T]) entry(v T) *entry[T] {
	e := &entry[T]{value: v, meta: &firstVisit}
	if m := s.Meta(v); m != nil {
		meta := *m // the caller's
		meta.Visit++
		e.meta = &meta
	}
	e.timer.Value = e
	return e
}

// firstVisit is what is known of a message of which nothing is known. Shared, never
// changed.
var firstVisit = message.Meta{Visit: 1}

// mustWait lets an entry wait that was just read, if it has to.
func (s *Source[T]) mustWait(e *entry[T]) bool {
	if s.Wait == nil {
		return false
	}
	d := s.Wait(e.value)
	if d <= 0 {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.arm(e, d)
	return true
}

// arm lets an entry wait. Called with mu held.
func (s *Source[T]) arm(e *entry[T], d time.Duration) {
	now := s.now()
	s.again.Arm(&e.timer, now+min(d, math.MaxInt64-now))
}

// deliver makes messages. A source that was closed in between gives them out all the
// same: they were taken from the channel.
func (s *Source[T]) deliver(entries []*entry[T]) []message.Message[T] {
	s.mu.Lock()
	s.out += len(entries)
	s.mu.Unlock()
	ms := make([]message.Message[T], len(entries))
	for i, e := range entries {
		ms[i] = message.New(e.value, e.meta, func(v message.Settlement) { s.settle(e, v) })
	}
	return ms
}

func (s *Source[T]) settle(e *entry[T], v message.Settlement) {
	if s.isClosed() {
		return
	}
	s.Settled(e.value, v)
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

func (s *Source[T]) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// Close ends the source. It returns how many messages are not done.
func (s *Source[T]) Close() (undone int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.closed = true
		close(s.ended)
	}
	return s.out + s.again.Len()
}
