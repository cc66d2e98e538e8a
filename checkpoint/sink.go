package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"

	"github.com/reugn/go-streams"

	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/wiring"
	"github.com/weirflow/weir/message"
	"github.com/weirflow/weir/queue"
)

// Sink writes a stream to an [Output], exactly once: elements written since the last
// complete checkpoint are published when the next completes. If its input is closed
// without a final barrier, the rest is not published. A barrier that comes twice and an
// element behind the final barrier fail the run. The sink drops watermarks.
type Sink[T any] struct {
	linked
	coordinator     *Coordinator
	name            string
	in              chan any
	node            *wiring.Node      // written once before the sink runs
	seen            wiring.Barriers   // owned by the sink's goroutine
	acceptsMessages bool              // a message can be a T
	state           participant.State // to resume from, if resumes
	resumes         bool
	done            chan struct{} // closed when run returns
	ended           chan struct{} // closed when the final checkpoint was completed or aborted
	endOnce         sync.Once     // closes ended

	// using, of capacity 1, is held during calls of output and acquired before mu. A
	// Mutex that is held across a blocking call would stop a synctest bubble.
	using  chan struct{}
	output Output[T]
	unlock func() error // or nil; guarded by using

	mu       sync.Mutex // guards the fields below; not held in user code
	prepared kept       // the state of output at the last barrier
	// final is the final barrier, or the zero Barrier. Written by the sink's goroutine
	// under mu; reported when the input is closed.
	final participant.Barrier
	err   error // the first failure
}

var _ streams.Sink = (*Sink[any])(nil)

var errNoFinalBarrier = errors.New("the input ended without a final barrier")

// NewSink returns a sink that writes to output and takes part in the checkpoints of c
// under a name. If the pipeline resumes, Start of the coordinator undoes all output after
// the checkpoint ([Output.Restore]); otherwise it calls FreshStart of a [FreshStarter].
// NewSink panics if c or output is nil.
func NewSink[T any](c *Coordinator, name string, output Output[T]) *Sink[T] {
	guard.RefuseNil("checkpoint: NewSink", "coordinator", c)
	guard.RefuseNil("checkpoint: NewSink", "output", output)
	s := &Sink[T]{
		coordinator: c,
		name:        name,
		in:          make(chan any, buffer),
		node:        &wiring.Node{Kind: "sink", Label: name, In: reflect.TypeFor[T]()},
		done:        make(chan struct{}),
		ended:       make(chan struct{}),
		using:       make(chan struct{}, 1),
		output:      output,

		acceptsMessages: mayBeMessage[T](),
	}
	s.linked = wiring.LinkedBy(s.node)
	giveLogger(output, c.logger)
	s.state, s.resumes, _ = c.register(name, s)
	go s.run()
	return s
}

type starter interface {
	// lock locks the output for this sink, or fails if another sink or run has it.
	lock() error
	// check returns an error if begin would fail, or would destroy output of another run.
	check() error
	begin() error
}

// The optional methods of an [Output].
type (
	locker interface {
		Lock() (unlock func() error, err error)
	}
	checker      interface{ Check(state []byte) error }
	freshChecker interface{ CheckFresh() error }
)

func (s *Sink[T]) lock() error {
	o, ok := s.output.(locker)
	if !ok {
		return nil
	}
	s.using <- struct{}{}
	defer func() { <-s.using }()
	if s.coordinator.hasEnded() { // the lock might never be released
		return s.coordinator.endError()
	}
	return protect(func() (err error) { s.unlock, err = o.Lock(); return err })
}

// unlockOutput unlocks the output after the last call but Close. Called with using held.
func (s *Sink[T]) unlockOutput() error {
	unlock := s.unlock
	s.unlock = nil
	if unlock == nil {
		return nil
	}
	return protect(unlock)
}

func (s *Sink[T]) check() error {
	if o, ok := s.output.(checker); ok && s.resumes {
		return protect(func() error { return o.Check(s.state.Bytes()) })
	}
	if o, ok := s.output.(freshChecker); ok && !s.resumes {
		return protect(o.CheckFresh)
	}
	return nil
}

func (s *Sink[T]) begin() (err error) {
	s.using <- struct{}{}
	defer func() { release(s.using, err) }()
	if s.coordinator.hasEnded() { // the output may be closed
		return s.coordinator.endError()
	}
	return s.coordinator.once(context.Background(), "begun", s.restore)
}

func (s *Sink[T]) restore(ctx context.Context) error {
	if s.resumes {
		return s.output.Restore(ctx, s.state.Bytes())
	}
	if fresh, ok := s.output.(FreshStarter); ok {
		return fresh.FreshStart(ctx)
	}
	return nil
}

// In returns the input channel. The step before sends to it and closes it.
func (s *Sink[T]) In() chan<- any { return s.in }

// AwaitCompletion returns when the input is closed and, after a final barrier, its
// checkpoint has completed or failed.
func (s *Sink[T]) AwaitCompletion() { <-s.done }

// Err returns the first failure of the output or the stream, or nil. It is set when
// AwaitCompletion returns.
func (s *Sink[T]) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Pending does nothing.
func (s *Sink[T]) Pending(participant.Barrier) {}

// Completed publishes the elements of the checkpoint.
func (s *Sink[T]) Completed(id uint64) {
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.endCheckpoint(id)
	}()
	ctx, cancel := s.coordinator.bounded(context.Background(), "published")
	defer cancel()
	var err error
	select {
	case s.using <- struct{}{}:
		defer func() { release(s.using, err) }()
	case <-ctx.Done():
		s.fail(fmt.Errorf("commit of checkpoint %d: %w: a Write has not returned", id, context.Cause(ctx)))
		return
	}
	s.mu.Lock()
	state := s.prepared.take(id)
	failed := s.err != nil
	s.mu.Unlock()
	if state == nil || failed {
		return
	}
	err = s.coordinator.retry(ctx, "published", func(ctx context.Context) error { return s.output.Commit(ctx, state) })
	if err != nil {
		s.fail(fmt.Errorf("commit of checkpoint %d: %w", id, err))
	}
}

// endCheckpoint closes ended if id, completed or aborted, is the final checkpoint or a
// later one. Called with mu held.
func (s *Sink[T]) endCheckpoint(id uint64) {
	if s.final.ID != 0 && id >= s.final.ID {
		s.endOnce.Do(func() { close(s.ended) })
	}
}

// Aborted leaves the prepared elements to the next checkpoint.
func (s *Sink[T]) Aborted(id uint64, _ error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.prepared.take(id)
	s.endCheckpoint(id)
}

func (s *Sink[T]) run() {
	defer close(s.done)
	defer s.close()
	returned := false
	defer func() { // if Write panics, drain the input for the steps before (law A6)
		if !returned {
			s.fail(fmt.Errorf("write: %w", newPanicError(recover())))
			for range s.in {
			}
		}
	}()
	if s.coordinator.awaitStart() { // without a start, In may never be closed
		s.receive()
	}
	returned = true
}

// receive handles the input until it is closed and, after a final barrier, the final
// checkpoint has ended.
func (s *Sink[T]) receive() {
	for v := range s.in {
		switch v := v.(type) {
		case participant.Barrier:
			s.barrier(v)
		case queue.Watermark:
		case wiring.Failure:
			s.fail(v.Err)
		default:
			s.write(v)
		}
	}
	if !s.inputEnded() {
		return
	}
	select {
	case <-s.ended:
	case <-s.coordinator.life.Done():
		s.coordinator.awaitIdle() // the final checkpoint may still be committed
	}
}

// inputEnded reports the state at the final barrier, now that no element can follow. It
// returns false without a final barrier.
func (s *Sink[T]) inputEnded() bool {
	if s.final.ID == 0 {
		s.fail(errNoFinalBarrier)
		return false
	}
	s.mu.Lock()
	state, prepared := s.prepared.bytes, s.prepared.id == s.final.ID && s.err == nil
	s.mu.Unlock()
	if prepared {
		s.final.Report(s.name, participant.State{state}, nil)
	}
	return true
}

func (s *Sink[T]) write(v any) {
	if s.final.ID != 0 {
		s.fail(wiring.ErrAfterFinal) // law C2
		return
	}
	s.using <- struct{}{}
	defer func() { <-s.using }()
	if s.Err() != nil || s.coordinator.hasEnded() {
		return // the run is aborted, and another run may own the output
	}
	t, err := s.element(v)
	if err != nil {
		s.fail(err)
		return
	}
	if err := s.output.Write(s.coordinator.life, t); err != nil {
		s.fail(fmt.Errorf("write: %w", err))
	}
}

func mayBeMessage[T any]() bool {
	var zero T
	_, isMessage := message.FromElement(zero)
	return isMessage || reflect.TypeFor[T]().Kind() == reflect.Interface
}

// element returns the value to write: the element, or the value of a message unless T is
// that type of message. It fails for a message that waits for an acknowledgement.
func (s *Sink[T]) element(v any) (t T, err error) {
	t, ok := v.(T)
	if ok && !s.acceptsMessages {
		return t, nil
	}
	m, isMessage := message.FromElement(v)
	switch {
	case isMessage && m.Pending():
		m.Release()
		return t, wiring.ErrAcknowledged
	case isMessage && reflect.TypeOf(v) != reflect.TypeFor[T]():
		t, ok = m.Value.(T)
		v = m.Value
	}
	if !ok && (v != nil || reflect.TypeFor[T]().Kind() != reflect.Interface) {
		return t, fmt.Errorf("got an element of type %T, want %v", v, reflect.TypeFor[T]())
	}
	return t, nil
}

// barrier prepares the output and reports its state. At a final barrier inputEnded
// reports it.
func (s *Sink[T]) barrier(b participant.Barrier) {
	if err := s.seen.Add(b.ID, b.Kind == participant.EndOfInput); err != nil { // law C2
		s.fail(err)
		return
	}
	if b.Kind == participant.EndOfInput {
		b.Report(s.name, nil, nil)
		return
	}
	state, err := s.prepare(b)
	if err != nil {
		b.Report(s.name, nil, err)
		return
	}
	if !b.Kind.Final() { // an element of a slower branch may follow (law C2)
		b.Report(s.name, participant.State{state}, nil)
	}
}

// prepare prepares the output and returns its state at barrier b, which Completed
// commits.
func (s *Sink[T]) prepare(b participant.Barrier) ([]byte, error) {
	s.using <- struct{}{}
	defer func() { <-s.using }()
	if b.Kind.Final() {
		s.mu.Lock()
		s.final = b
		s.mu.Unlock()
	}
	if err := s.Err(); err != nil {
		return nil, err
	}
	if s.coordinator.hasEnded() { // elements were discarded (law C3)
		return nil, s.coordinator.endError()
	}
	var state []byte
	err := protect(func() (err error) {
		state, err = s.output.Prepare(s.coordinator.life)
		return err
	})
	if err != nil {
		s.fail(fmt.Errorf("prepare for checkpoint %d: %w", b.ID, err))
		return nil, s.Err()
	}
	state = append([]byte{}, state...) // the output may reuse the memory
	s.mu.Lock()
	defer s.mu.Unlock()
	s.prepared = kept{b.ID, state}
	return state, nil
}

// inUse implements resourceUser. await unlocks the output for another run, which may
// begin before the sink's input is closed.
func (s *Sink[T]) inUse() (activity string, await func()) {
	return fmt.Sprintf("writing to the output of %q", s.name), func() {
		s.using <- struct{}{}
		defer func() { <-s.using }()
		if err := s.unlockOutput(); err != nil {
			s.fail(fmt.Errorf("unlock: %w", err))
		}
	}
}

func (s *Sink[T]) close() {
	s.using <- struct{}{}
	defer func() { <-s.using }()
	if err := errors.Join(protect(s.output.Close), s.unlockOutput()); err != nil {
		s.fail(fmt.Errorf("close: %w", err))
	}
}

// fail records the first failure and fails the run, so that a restart repeats the
// unwritten elements.
func (s *Sink[T]) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = fmt.Errorf("checkpoint: sink %q: %w", s.name, err)
		s.coordinator.Host().Fail(s.name, err) // before the final checkpoint can end the run cleanly
	}
}
