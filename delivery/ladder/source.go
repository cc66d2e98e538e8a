package ladder

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/panics"
)

const (
	slice    = 50 * time.Millisecond // a layer's rate is kept in slices of it
	maxBatch = 100                   // messages of a layer at once
	// An input that had nothing is left alone for so long while others have something.
	emptyFor = 20 * time.Millisecond
)

var errClosed = errors.New("ladder: the source is closed")

// Source returns a source of the messages of first, which may be nil, and of those that come back from the layers. It owns
// first: its Close closes it.
//
// When first has come to its end (io.EOF), Source ends as soon as nothing of the layers is in flight. What waits in them stays
// for the next run.
//
// With [Config.Blocked] a ladder has one source at a time: Source panics before the one before it is closed.
func (l *Ladder[T]) Source(first delivery.Source[T]) delivery.Source[T] {
	s := &source[T]{ladder: l, store: l.c.Store, first: first, clock: l.c.Clock, closed: make(chan struct{}), settled: make(chan struct{}, 1)}
	if first != nil {
		s.inputs = append(s.inputs, &input[T]{source: first, first: true})
	}
	if l.c.Blocked != "" {
		s.keys = newKeys[T](l.c)
		s.keys.wake = []func(){func() { wake(s.settled) }}
		if !l.keys.CompareAndSwap(nil, s.keys) {
			panic("ladder: Source: the ladder has a source that is not closed, and with Blocked the order of a key holds for one source")
		}
		s.store = &keyedStore[T]{l.c.Store.(store.Inspector), s.keys} // New has looked
		s.inputs = append(s.inputs, &input[T]{source: store.NewSource(s.store, l.c.Blocked, l.c.DeadLetters, l.c.Codec, l.c.Options...)})
	}
	for _, layer := range l.c.Layers {
		s.inputs = append(s.inputs, &input[T]{
			source: store.NewSource(s.store, layer.Queue, l.c.DeadLetters, l.c.Codec, l.c.Options...),
			rate:   layer.Rate, limit: layer.MaxConcurrent,
		})
	}
	return s
}

// source merges inputs. A Receive asks all that may give something, at the same time, and ends those that still wait when one
// has given: so no input holds up another (law D4), and nothing is taken that is not asked for.
type source[T any] struct {
	ladder  *Ladder[T]
	store   store.Store
	first   delivery.Source[T] // nil: there is none
	keys    *keys[T]           // nil: messages of a key overtake each other
	clock   clock.Clock
	closing sync.Once
	closed  chan struct{}
	settled chan struct{} // room for one; to Receive: a message of a layer was settled
	flying  atomic.Int64  // messages of layers that are not settled, those in rest included

	// Owned by Receive.
	inputs []*input[T]
	rest   []delivery.Message[T]
	ended  bool  // the first input has
	found  bool  // what an earlier process has left of keys is known
	failed error // to be returned after what there is to deliver
}

// input is a source among others. All but flying is owned by Receive, and by the goroutine that asks for it.
type input[T any] struct {
	source delivery.Source[T]
	first  bool
	rate   float64
	limit  int
	next   time.Time // not to be asked before

	flying atomic.Int64 // messages that are not settled
}

// Receive implements [delivery.Source].
func (s *source[T]) Receive(ctx context.Context, n int) ([]delivery.Message[T], error) {
	if n < 1 {
		panic(fmt.Sprintf("ladder: Receive: n is %d, must be at least 1", n))
	}
	for {
		if err := s.fill(ctx, n); err != nil {
			return nil, err
		}
		n := min(n, len(s.rest))
		ms := s.rest[:n:n]
		s.rest = s.rest[n:]
		if ms = s.buryForgotten(ctx, ms); len(ms) > 0 {
			return ms, nil
		}
	}
}

// fill returns when there is something to be delivered.
func (s *source[T]) fill(ctx context.Context, n int) error {
	for len(s.rest) == 0 {
		select {
		case <-s.closed:
			return errClosed
		case <-ctx.Done():
			return context.Cause(ctx)
		default:
		}
		if err := s.failed; err != nil {
			s.failed = nil
			return err
		}
		s.failed = s.tend(ctx)
		switch {
		case len(s.rest) > 0, s.keys != nil && !s.found: // what waits is not known then
		case s.ended && s.flying.Load() == 0 && (s.keys == nil || s.keys.isIdle()):
			return io.EOF
		default: // also after a failure: it holds up no other messages (law D4)
			s.failed = errors.Join(s.failed, s.ask(ctx, n))
		}
	}
	return nil
}

// tend goes on with the keys.
func (s *source[T]) tend(ctx context.Context) error {
	k := s.keys
	if k == nil {
		return nil
	}
	inspector := s.ladder.c.Store.(store.Inspector) // New has looked
	if !s.found {
		if err := k.restore(ctx, inspector, s.ladder.c.Layers, s.first); err != nil {
			return err
		}
		s.found = true
	}
	if err := errors.Join(k.store(ctx, s.ladder), k.check(ctx, inspector)); err != nil {
		return err
	}
	s.rest = append(s.rest, k.takeReady()...)
	return nil
}

// answer is what an input has given.
type answer[T any] struct {
	input    *input[T]
	messages []delivery.Message[T]
	err      error
}

// ask asks the inputs that may be asked, until one has something, or another one may be asked.
func (s *source[T]) ask(ctx context.Context, n int) error {
	asking, enough := context.WithCancel(ctx)
	defer enough()
	answers := make(chan answer[T], len(s.inputs))
	asked := 0
	now := s.clock.Now()
	var wait time.Duration // until another input may be asked; 0: none will by itself
	for _, in := range s.inputs {
		room := min(n, in.room())
		if in.first && (s.ended || s.keys != nil && s.keys.isFull()) || room == 0 {
			continue // settled wakes it
		}
		if d := in.next.Sub(now); d > 0 {
			if wait == 0 || d < wait {
				wait = d
			}
			continue
		}
		asked++
		go func() { // ends with asking
			ms, err := receive(asking, in.source, room)
			if err == nil || asking.Err() == nil {
				enough()
			}
			answers <- answer[T]{in, ms, err}
		}()
	}
	tending := overdue // to look for messages that are gone
	if s.failed != nil {
		tending = time.Second // to try again
	}
	if s.keys != nil && (wait == 0 || wait > tending) {
		wait = tending
	}
	watched := make(chan struct{})
	go func() { // ends with asking
		defer close(watched)
		s.watch(asking, wait)
		enough()
	}()
	var failed error
	for range asked {
		failed = errors.Join(failed, s.answered(asking, <-answers))
	}
	if asked == 0 {
		<-asking.Done()
	}
	enough()
	<-watched
	return failed
}

// receive receives from a source, which may be the user's (law A6).
func receive[T any](ctx context.Context, s delivery.Source[T], n int) (ms []delivery.Message[T], err error) {
	err = guard.Call(func() (err error) {
		ms, err = s.Receive(ctx, n)
		return err
	}, func(recovered any) error { return panics.New("ladder", recovered) })
	return ms, err
}

// watch returns when the inputs should be asked anew.
func (s *source[T]) watch(asking context.Context, wait time.Duration) {
	var due <-chan time.Time
	if wait > 0 {
		timer := s.clock.Timer(wait)
		defer timer.Stop()
		due = timer.C
	}
	select {
	case <-due:
	case <-s.settled:
	case <-s.closed:
	case <-asking.Done():
	}
}

// answered notes what an input has given.
func (s *source[T]) answered(asking context.Context, a answer[T]) error {
	in := a.input
	switch {
	case a.err == io.EOF && in.first: //nolint:errorlint // wrapped, it is a connection that was cut
		s.ended = true
		return nil
	case a.err != nil && asking.Err() != nil && errors.Is(a.err, context.Cause(asking)):
		in.next = s.clock.Now().Add(emptyFor)
		return nil
	case a.err != nil:
		return a.err
	}
	if in.first {
		for _, m := range a.messages {
			if s.keys != nil {
				var now bool
				if m, now = s.keys.arrive(m); !now {
					continue
				}
			}
			s.rest = append(s.rest, m)
		}
		return nil
	}
	if in.rate > 0 {
		in.next = s.clock.Now().Add(time.Duration(float64(len(a.messages)) / in.rate * float64(time.Second)))
	}
	for _, m := range a.messages {
		s.rest = append(s.rest, s.counted(in, m))
	}
	return nil
}

// buryForgotten returns messages without those that waited for too long: the called side may not remember their calls in doubt
// any more, so they are not called again (law X1). They become dead letters.
func (s *source[T]) buryForgotten(ctx context.Context, ms []delivery.Message[T]) []delivery.Message[T] {
	return slices.DeleteFunc(ms, func(m delivery.Message[T]) bool {
		meta := m.Meta()
		if !meta.OutcomeUnknown || meta.Remembered.After(s.clock.Now()) {
			return false
		}
		if err := s.ladder.bury(ctx, m.Value, meta); err != nil {
			s.failed = errors.Join(s.failed, err)
			m.Nack(time.Second)
			return true
		}
		m.Ack() // law D1
		return true
	})
}

// room returns how many messages an input may give now.
func (in *input[T]) room() int {
	n := maxBatch
	if in.limit > 0 {
		n = min(n, in.limit-int(in.flying.Load()))
	}
	if in.rate > 0 {
		n = min(n, max(1, int(min(in.rate*slice.Seconds(), maxBatch))))
	}
	return n
}

// counted notes a message of a layer until it is settled.
func (s *source[T]) counted(in *input[T], m delivery.Message[T]) delivery.Message[T] {
	in.flying.Add(1)
	s.flying.Add(1)
	meta := m.Meta()
	return delivery.New(m.Value, &meta, func(v delivery.Verdict) {
		m.Settle(v)
		in.flying.Add(-1)
		s.flying.Add(-1)
		wake(s.settled)
	})
}

// Close implements [delivery.Source].
func (s *source[T]) Close(ctx context.Context) error {
	s.closing.Do(func() { close(s.closed) })
	errs := make([]error, len(s.inputs))
	for i, in := range s.inputs { // each gives back what it gave
		errs[i] = in.source.Close(ctx)
	}
	if s.keys != nil {
		s.ladder.keys.CompareAndSwap(s.keys, nil)
	}
	return errors.Join(errs...)
}

// wake sends to a channel with room for one.
func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
