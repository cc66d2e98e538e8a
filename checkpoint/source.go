package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"reflect"
	"sync"

	"github.com/reugn/go-streams"
	"github.com/reugn/go-streams/flow"

	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/wiring"
)

// Source streams the elements of an [Input] and puts the barriers of checkpoints between
// them. Its state is the position of the input. A pipeline has a single source. It sends
// barriers while the input is idle if that is a [Waiter].
//
// When the input ends, the source asks for a final checkpoint ([Drain]). It sends the
// marker of the end of the input, then barriers until the final barrier, and closes Out.
// When the coordinator ends for another reason, Out closes without a final barrier, and
// the next run processes the elements in flight again.
type Source[T any] struct {
	linked
	coordinator *Coordinator
	name        string
	input       Input[T]
	out         chan any
	// Pending sends to barriers and marker, the source receives.
	barriers chan participant.Barrier // capacity 1: one checkpoint is under way
	marker   chan participant.Barrier // of the end of the input; capacity 1

	wait context.Context // of Waiter.Wait, or nil; owned by the source's goroutine

	taken wiring.Taken // set by Via
	node  *wiring.Node // written once before the source runs

	seeking <-chan struct{} // closed when a Seek that was given up returns, or nil

	mu        sync.Mutex         // guards position and interrupt
	position  kept               // the position at the last barrier
	interrupt context.CancelFunc // cancels wait; nil before the first Wait

	closed chan struct{} // closed when the input is closed
}

type linked = wiring.Linked

// kept is a state or position for when the checkpoint under way is complete.
type kept struct {
	id    uint64 // 0 if bytes is not set
	bytes []byte
}

// take returns the bytes of checkpoint id, or nil, and drops the bytes of checkpoints up
// to id.
func (k *kept) take(id uint64) (bytes []byte) {
	if k.id == id {
		bytes = k.bytes
	}
	if k.id <= id {
		*k = kept{}
	}
	return bytes
}

const buffer = 64

var _ streams.Source = (*Source[any])(nil)

// NewSource returns a source of input that takes part in the checkpoints of c under a
// name. The input resumes at the position of the checkpoint, or Start of the coordinator
// fails. The source reads the first element after Start. It panics if c or input is nil.
func NewSource[T any](c *Coordinator, name string, input Input[T]) *Source[T] {
	guard.RefuseNil("checkpoint: NewSource", "coordinator", c)
	guard.RefuseNil("checkpoint: NewSource", "input", input)
	s := &Source[T]{
		coordinator: c,
		name:        name,
		input:       input,
		out:         make(chan any, buffer),
		barriers:    make(chan participant.Barrier, 1),
		marker:      make(chan participant.Barrier, 1),
		closed:      make(chan struct{}),
		node:        &wiring.Node{Kind: "source", Label: name, Out: reflect.TypeFor[T]()},
	}
	s.linked = wiring.LinkedBy(s.node)
	_ = s.node.MarkCheckpointed() // cannot fail: no next step is linked yet
	if l, ok := input.(Lagger); ok {
		c.mu.Lock()
		c.lagger = l
		c.mu.Unlock()
	}
	if state, ok := c.Host().Register(name, s); ok {
		err := c.once(context.Background(), "sought", func(context.Context) error { return input.Seek(state.Bytes()) })
		if hangs, ok := errors.AsType[*hangError](err); ok {
			s.seeking = hangs.returned
		}
		if err != nil {
			c.Host().Refuse(name, err)
		}
	}
	go s.run()
	return s
}

func (*Source[T]) isSource() {}

// Out returns the channel of the elements. Functions of go-streams that branch or join
// streams may not read it, except flow.FanOut: the run fails.
func (s *Source[T]) Out() <-chan any {
	if err := wiring.Reader(); err != nil {
		s.coordinator.Host().Fail(s.name, err)
	}
	return s.out
}

// Via streams the elements to next and returns next, or a flow that represents it. It
// panics for a flow of go-streams that cannot pass barriers, for a step of weir that
// takes elements of another type, if a step behind next cannot pass barriers, and if
// called twice.
func (s *Source[T]) Via(next streams.Flow) streams.Flow {
	s.node.MustTake("checkpoint: Via", next)
	s.taken.Take("checkpoint: Via")
	s.node.Link("checkpoint: Via", next)
	flow.DoStream(s, next)
	return s.node.Next(next)
}

// overflower is a participant, such as an operator, that takes elements beyond its
// capacity so that a barrier can arrive.
type overflower interface {
	// Coming announces a barrier. The source sends at most one more element before it.
	Coming(b participant.Barrier)
	// Overflow returns nil if the source may send elements, or a channel that is closed
	// when it may.
	Overflow() <-chan struct{}
}

// Pending passes a barrier to the source's goroutine.
func (s *Source[T]) Pending(b participant.Barrier) {
	for _, p := range s.coordinator.participants { // no lock: fixed after the start
		if o, ok := p.Participant.(overflower); ok {
			o.Coming(b)
		}
	}
	if b.Kind == participant.EndOfInput {
		s.marker <- b
	} else {
		select {
		case <-s.barriers: // drop the barrier of an aborted checkpoint
		default:
		}
		s.barriers <- b
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.interrupt != nil {
		s.interrupt()
	}
}

// Completed commits the position of the input.
func (s *Source[T]) Completed(id uint64) {
	position := s.forget(id)
	committer, ok := s.input.(Committer)
	if !ok || position == nil {
		return
	}
	err := s.coordinator.once(context.Background(), "committed", func(ctx context.Context) error {
		return committer.Commit(ctx, position)
	})
	var broken *guard.PanicError
	switch {
	case errors.As(err, &broken):
		s.fail(fmt.Errorf("commit of checkpoint %d: %w", id, err))
	case err != nil:
		s.coordinator.logger.Warn("checkpoint: commit of a position", slog.String("source", s.name), slog.Any("error", err))
	}
}

// Aborted drops the position of the checkpoint.
func (s *Source[T]) Aborted(id uint64, _ error) { s.forget(id) }

func (s *Source[T]) forget(id uint64) (position []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.position.take(id)
}

// inUse implements resourceUser.
func (s *Source[T]) inUse() (activity string, await func()) {
	return fmt.Sprintf("reading the input of %q", s.name), func() { <-s.closed }
}

func (s *Source[T]) run() {
	defer func() {
		defer close(s.closed)
		<-s.coordinator.life.Done()
		if s.seeking != nil {
			<-s.seeking // never call Close during Seek
		}
		s.coordinator.awaitIdle()                      // the final position is committed first
		if err := protect(s.input.Close); err != nil { // too late to fail the run
			s.coordinator.logger.Warn("checkpoint: close of an input", slog.String("source", s.name), slog.Any("error", err))
		}
	}()
	defer close(s.out)
	returned := false
	defer func() { // if Next or Wait panics (law A6)
		if !returned {
			s.fail(newPanicError(recover()))
		}
	}()
	if s.coordinator.awaitStart() {
		s.read()
	}
	returned = true
}

func (s *Source[T]) read() {
	waiter, waits := s.input.(Waiter)
	var overflowers []overflower
	for _, p := range s.coordinator.participants {
		if o, ok := p.Participant.(overflower); ok {
			overflowers = append(overflowers, o)
		}
	}
	for {
		var wait context.Context
		if waits {
			wait = s.currentWait() // before the check for barriers, so that later ones cancel it
		}
		select {
		case b := <-s.barriers:
			if !s.send(b) || b.Kind.Final() {
				return
			}
		case b := <-s.marker:
			s.end(b)
			return
		case <-s.coordinator.life.Done():
			return
		default:
		}
		if o := overflow(overflowers); o != nil { // otherwise each checkpoint adds to the overflow
			if s.serveNext(o) {
				return
			}
			continue
		}
		if waits {
			if err := waiter.Wait(wait); err != nil {
				if wait.Err() == nil || !errors.Is(err, wait.Err()) {
					s.fail(err)
					return
				}
				continue
			}
		}
		v, err := s.input.Next()
		switch err {
		case nil:
			if !s.emit(v) {
				return
			}
		case io.EOF: //nolint:errorlint // a wrapped io.EOF is a failure, such as a connection that was cut
			s.coordinator.Host().RequestFinal(participant.Drain)
			s.serve()
			return
		default:
			s.fail(err)
			return
		}
	}
}

// overflow returns the channel of a participant that must catch up before the source
// continues, or nil.
func overflow(all []overflower) <-chan struct{} {
	for _, o := range all {
		if c := o.Overflow(); c != nil {
			return c
		}
	}
	return nil
}

// currentWait returns a context that ends at the next announced barrier or the end of the
// run.
func (s *Source[T]) currentWait() context.Context {
	if s.wait == nil || s.wait.Err() != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.wait, s.interrupt = context.WithCancel(s.coordinator.life)
	}
	return s.wait
}

func (s *Source[T]) fail(err error) {
	s.coordinator.Host().Fail(s.name, fmt.Errorf("input: %w", err))
}

// end sends the marker of the end of the input, then barriers until the final barrier.
func (s *Source[T]) end(marker participant.Barrier) {
	if !s.emit(marker) {
		return
	}
	marker.Report(s.name, nil, nil)
	s.serve()
}

func (s *Source[T]) serve() {
	for !s.serveNext(nil) {
	}
}

// serveNext sends the next announced barrier or marker, unless until is closed first, and
// reports whether the stream has ended.
func (s *Source[T]) serveNext(until <-chan struct{}) (ended bool) {
	select {
	case b := <-s.barriers:
		return !s.send(b) || b.Kind.Final()
	case b := <-s.marker:
		s.end(b)
		return true
	case <-s.coordinator.life.Done():
		return true
	case <-until:
		return false
	}
}

// send puts the barrier into the stream, then reports the position, because a final
// report would end the run. It returns false if the run has ended.
func (s *Source[T]) send(b participant.Barrier) bool {
	var position []byte
	if err := protect(func() error { position = s.input.Position(); return nil }); err != nil {
		s.fail(err)
		return false
	}
	position = append([]byte{}, position...) // the input may reuse the memory
	s.mu.Lock()
	s.position = kept{b.ID, position}
	s.mu.Unlock()
	if !s.emit(b) {
		return false
	}
	b.Report(s.name, participant.State{position}, nil)
	return true
}

// emit sends v downstream. It returns false if the run has ended.
func (s *Source[T]) emit(v any) bool {
	select {
	case s.out <- v:
		return true
	default:
	}
	select {
	case s.out <- v:
		return true
	case <-s.coordinator.life.Done():
		return false
	}
}
