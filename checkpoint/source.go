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
// them. Its state is the position of the input. A pipeline has a single source.
//
// Barriers are sent at once while the input is idle, if it is a [Waiter].
//
// When the input ends, the source asks for a final checkpoint ([Drain]). It sends the
// marker of the end of the input, then barriers until the final barrier, and closes Out.
// When the coordinator ends for another reason, the run is aborted: Out closes without a
// final barrier. Operators do not take that for the end of the input: the next run
// processes their elements in flight again.
type Source[T any] struct {
	linked
	coordinator *Coordinator
	name        string
	input       Input[T]
	out         chan any
	barriers    chan participant.Barrier // the coordinator sends, the source receives; capacity 1: one checkpoint is under way
	marker      chan participant.Barrier // the same, of the end of the input; capacity 1: there is one

	wait context.Context // the present one; owned by the source's goroutine

	taken wiring.Taken // by Via
	node  *wiring.Node // written once before the source runs

	seeking <-chan struct{} // closed when a Seek has returned that was given up; nil: there is none

	mu        sync.Mutex         // guards what follows
	position  kept               // at the last barrier
	interrupt context.CancelFunc // ends the wait of the input; nil: it does not wait

	closed chan struct{} // closed when the input has been
}

type linked = wiring.Linked // other steps of weir find the node of a source or a sink

// kept is what a checkpoint that is under way needs when it is complete. There is one at
// a time, and barriers of earlier ones, which were aborted, come before its own.
type kept struct {
	id    uint64 // 0: nothing is kept
	bytes []byte
}

// take returns what is kept for a checkpoint, or nil. It keeps nothing for that and
// earlier ones.
func (k *kept) take(id uint64) (bytes []byte) {
	if k.id == id {
		bytes = k.bytes
	}
	if k.id <= id {
		*k = kept{}
	}
	return bytes
}

// buffer is the capacity of the channel of a Source or a Sink.
const buffer = 64

var _ streams.Source = (*Source[any])(nil)

// NewSource returns a source of input that takes part in the checkpoints of c under a
// name. If the pipeline resumes, the input resumes at the position of the checkpoint;
// Start of the coordinator fails if it cannot. The first element is read after the start.
// It panics if c or input is nil.
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
	_ = s.node.MarkCheckpointed() // there is no next step yet
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

// isSource marks the participant with which the stream begins.
func (*Source[T]) isSource() {}

// Out returns the channel of the elements. No function of go-streams that branches or
// joins streams may read it, except flow.FanOut: the run fails.
func (s *Source[T]) Out() <-chan any {
	if err := wiring.Reader(); err != nil {
		s.coordinator.Host().Fail(s.name, err)
	}
	return s.out
}

// Via streams the elements to next and returns next, or a flow that stands for it. It
// panics for a flow of go-streams that cannot pass barriers, for an operator or a flow of
// weir that takes elements of another type, if a step behind next cannot pass barriers,
// and if it was called before.
func (s *Source[T]) Via(next streams.Flow) streams.Flow {
	s.node.MustTake("checkpoint: Via", next)
	s.taken.Take("checkpoint: Via")
	s.node.Link("checkpoint: Via", next)
	flow.DoStream(s, next)
	return s.node.Next(next)
}

// overflower is a participant that takes elements for which it has no room, so that a
// barrier behind them can come. An operator is one.
type overflower interface {
	// Coming promises that the source sends one element at most before the barrier. So
	// what comes before it is bounded by what the stream holds.
	Coming(b participant.Barrier)
	// Overflow returns nil, or, while there are so many that no more should follow, a
	// channel that is closed after that.
	Overflow() <-chan struct{}
}

// Pending implements [participant.Participant].
func (s *Source[T]) Pending(b participant.Barrier) {
	for _, p := range s.coordinator.participants { // fixed: the coordinator was started
		if o, ok := p.Participant.(overflower); ok {
			o.Coming(b)
		}
	}
	if b.Kind == participant.EndOfInput {
		s.marker <- b
	} else {
		select {
		case <-s.barriers: // of a checkpoint that was aborted before the source came to it
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

// Completed implements [participant.Participant].
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

// Aborted implements [participant.Participant].
func (s *Source[T]) Aborted(id uint64, _ error) { s.forget(id) }

func (s *Source[T]) forget(id uint64) (position []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.position.take(id)
}

// inUse implements user: the input is, until it has been closed.
func (s *Source[T]) inUse() (what string, until func()) {
	return fmt.Sprintf("reading the input of %q", s.name), func() { <-s.closed }
}

func (s *Source[T]) run() {
	defer func() {
		defer close(s.closed)
		<-s.coordinator.life.Done()
		if s.seeking != nil {
			<-s.seeking // calls come one at a time
		}
		s.coordinator.awaitIdle()                      // the position of the final checkpoint is committed before the input is closed
		if err := protect(s.input.Close); err != nil { // too late to fail the run
			s.coordinator.logger.Warn("checkpoint: close of an input", slog.String("source", s.name), slog.Any("error", err))
		}
	}()
	defer close(s.out)
	returned := false
	defer func() { // if Next or Wait does not return (law A6)
		if !returned {
			s.fail(newPanicError(recover()))
		}
	}()
	if s.coordinator.awaitStart() {
		s.read()
	}
	returned = true
}

// read streams the input until its end, or that of the run.
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
			wait = s.currentWait() // before looking for a barrier: one that comes after that ends the wait
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
		if o := overflow(overflowers); o != nil { // each checkpoint would add what the stream holds
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
		case io.EOF: //nolint:errorlint // wrapped, it is that of something else: a connection, an archive
			s.coordinator.Host().RequestFinal(participant.Drain)
			s.serve()
			return
		default:
			s.fail(err)
			return
		}
	}
}

// overflow returns the channel of a participant that must catch up first, or nil.
func overflow(all []overflower) <-chan struct{} {
	for _, o := range all {
		if c := o.Overflow(); c != nil {
			return c
		}
	}
	return nil
}

// currentWait returns a context that ends when a barrier or the end of the run has come.
// It is a new one only after that.
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

// end sends the marker of the end of the input, and barriers until the final one.
func (s *Source[T]) end(marker participant.Barrier) {
	if !s.emit(marker) {
		return
	}
	marker.Report(s.name, nil, nil)
	s.serve()
}

// serve sends what is announced until the final barrier.
func (s *Source[T]) serve() {
	for !s.serveNext(nil) {
	}
}

// serveNext sends what is announced next, unless until is closed before, and reports
// whether the stream is over.
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

// send puts the barrier into the stream and reports the position: in this order, for with
// a final report the run is over.
func (s *Source[T]) send(b participant.Barrier) bool {
	var position []byte
	if err := protect(func() error { position = s.input.Position(); return nil }); err != nil {
		s.fail(err)
		return false
	}
	position = append([]byte{}, position...) // the input may use its memory again
	s.mu.Lock()
	s.position = kept{b.ID, position}
	s.mu.Unlock()
	if !s.emit(b) {
		return false
	}
	b.Report(s.name, participant.State{position}, nil)
	return true
}

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
