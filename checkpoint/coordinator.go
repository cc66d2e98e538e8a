package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/wait"
)

// Coordinator triggers the checkpoints of one pipeline, collects the states of its
// participants, stores them, and reports complete checkpoints.
//
//	coordinator, err := checkpoint.NewCoordinator(store, checkpoint.WithInterval(10*time.Second))
//	lines, err := files.OpenLines("keys.txt")
//	source := checkpoint.NewSource(coordinator, "keys", lines)
//	op := asyncop.OrderedWait(fn, timeout, capacity, asyncop.WithName("lookup"), asyncop.WithCheckpoints(coordinator))
//	sink := checkpoint.NewSink(coordinator, "rows", files.NewLineOutput("rows.txt"))
//	err = coordinator.Start() // all have registered
//	source.Via(op).To(sink)
//	err = coordinator.Wait()
//
// One checkpoint is under way at a time. It is safe for concurrent use.
type Coordinator struct {
	store    Store
	clock    clock.Clock
	interval time.Duration // 0 means on demand only
	timeout  time.Duration
	tolerate int      // failures in a row; negative means any number
	added    []string // see WithNewParticipants
	logger   *slog.Logger
	restored *Snapshot // the checkpoint to resume from, or nil; read-only

	busy    chan struct{}   // capacity 1: held during a checkpoint
	storing chan struct{}   // capacity 1: held until Save returns, even if given up
	started chan struct{}   // closed by Start
	life    context.Context // ends after the last checkpoint
	endLife context.CancelFunc

	// work is the context of loading, storing and publishing, which endWork cancels when
	// Close has waited for closePatience.
	work    context.Context
	endWork context.CancelCauseFunc

	mu           sync.Mutex // guards the fields below
	participants []member   // in the order of registration; fixed once starting
	broken       []error    // reasons for Start to fail
	starting     bool
	lastID       uint64 // newest checkpoint, complete or not
	complete     uint64 // newest stored checkpoint, or 0
	run          *run   // the checkpoint under way, or nil
	drain        *run   // the marker of the end of the input, or nil
	requested    bool   // a requested checkpoint has not begun
	serving      bool   // serveRequests runs
	err          error  // why checkpointing has ended; nil after a final checkpoint
	isEnded      bool
	finished     participant.Kind              // kind of the final checkpoint, or 0
	final        map[participant.Kind]struct{} // final checkpoints that participants asked for
	source       string                        // name of the Source, or ""
	lagger       Lagger                        // the input of the Source, or nil if it is not a Lagger
	completing   bool                          // all have reported the final checkpoint
	reported     map[string]struct{}           // participants that have reported in this run
	patience     *clock.Timer                  // calls warnNotStarted; nil until a participant registers
	stats        Stats
	activity     string // the call that Close may wait for
}

// NewCoordinator returns a coordinator that stores checkpoints in store and resumes from
// the newest valid checkpoint. It returns errors of the store: a pipeline never starts
// afresh because its state could not be read. The contexts of its calls of the store end
// after [WithTimeout], 10 minutes by default. It panics if store is nil.
func NewCoordinator(store Store, opts ...Option) (*Coordinator, error) {
	guard.RefuseNil("checkpoint: NewCoordinator", "store", store)
	c := &Coordinator{
		store:    store,
		clock:    clock.New(),
		timeout:  defaultTimeout,
		tolerate: -1,
		logger:   guard.Logger(nil),
		busy:     make(chan struct{}, 1),
		storing:  make(chan struct{}, 1),
		started:  make(chan struct{}),
		final:    make(map[participant.Kind]struct{}),
		reported: make(map[string]struct{}),
	}
	c.life, c.endLife = context.WithCancel(context.Background())
	c.work, c.endWork = context.WithCancelCause(context.Background())
	for i, opt := range opts {
		if opt == nil {
			panic(fmt.Sprintf("checkpoint: NewCoordinator: option %d is nil", i))
		}
		opt(c)
	}
	c.logger = guard.Logger(c.logger)
	giveLogger(store, c.logger)
	if err := c.once(context.Background(), "loaded", c.load); err != nil {
		return nil, err
	}
	return c, nil
}

// load finds the checkpoint to resume from, and the highest number in use.
func (c *Coordinator) load(ctx context.Context) error {
	entries, err := c.store.List(ctx)
	if err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	for _, e := range entries {
		c.lastID = max(c.lastID, e.ID) // damaged checkpoints count
	}
	restored, skipped, err := Latest(ctx, c.store)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, damage := range skipped {
		c.logger.Warn("checkpoint skipped: it is damaged", slog.Uint64("resumed from", restored.ID), slog.Any("error", damage))
	}
	c.restored, c.complete = restored, restored.ID
	return nil
}

// Restored returns the number of the restored checkpoint; ok is false for a fresh start.
func (c *Coordinator) Restored() (id uint64, ok bool) {
	if c.restored == nil {
		return 0, false
	}
	return c.restored.ID, true
}

// RestoredKind returns the kind of the restored checkpoint; ok is false for a fresh
// start. After a [Drain] only elements added since are left. After a [Suspend] the run
// was stopped in order to be resumed, after a [Periodic] checkpoint it was interrupted.
func (c *Coordinator) RestoredKind() (kind Kind, ok bool) {
	if c.restored == nil {
		return 0, false
	}
	return c.restored.Kind, true
}

// LastComplete returns the number of the checkpoint from which a restart would resume, or
// 0 for a fresh start.
func (c *Coordinator) LastComplete() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.complete
}

// startPatience is the time from the first registration to the first warning without
// Start. Each later warning doubles it.
const startPatience = time.Second

func (c *Coordinator) warnNotStarted(waited time.Duration) {
	c.mu.Lock()
	if c.starting || c.isEnded {
		c.mu.Unlock()
		return
	}
	names := make(map[string]struct{}, len(c.participants))
	for _, p := range c.participants {
		names[p.name] = struct{}{}
	}
	c.patience = c.clock.AfterFunc(waited, func() { c.warnNotStarted(2 * waited) })
	c.mu.Unlock()
	c.logger.Warn("checkpoint: participants wait for Start of the coordinator, which has not been called",
		slog.String("waiting", listed(names)), slog.Duration("waited", waited))
}

// breakStart makes Start fail, or ends the run after Start. Called with mu held.
func (c *Coordinator) breakStart(err error) {
	c.broken = append(c.broken, err)
	if c.starting {
		c.end(err)
	}
}

// Start lets the participants begin. Make the source, operators and sinks of the pipeline
// before. Start prepares the outputs last, each within [WithTimeout]; earlier failures
// leave them unchanged. It fails, and no participant begins,
//
//   - if the state of a participant is missing in the checkpoint, or cannot be decoded;
//   - if the checkpoint has the state of a participant that has not registered;
//   - if a name is missing or taken twice;
//   - if there are two Sources;
//   - if another sink of any run has the file of an output;
//   - if the position of an input does not exist, or an output cannot be restored.
func (c *Coordinator) Start() error {
	err := c.mayStart()
	if err != nil {
		return err
	}
	err = c.beginOutputs()
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err != nil:
		c.end(err)
		return err
	case c.isEnded: // while the outputs were prepared
		return fmt.Errorf("checkpoint: start: %w", c.endErrorLocked())
	}
	close(c.started)
	if c.interval > 0 {
		go c.tick(c.clock.Timer(c.interval))
	}
	return nil
}

// beginOutputs locks and checks all outputs before it prepares them.
func (c *Coordinator) beginOutputs() error {
	for _, step := range []func(starter) error{starter.lock, starter.check, starter.begin} {
		for _, p := range c.participants { // no lock: fixed since starting was set
			s, ok := p.Participant.(starter)
			if !ok {
				continue
			}
			c.setActivity("preparing the output of %q", p.name)
			if err := step(s); err != nil {
				id, _ := c.Restored()
				return stateError(p.name, id, err)
			}
		}
	}
	return nil
}

// mayStart returns an error if the participants do not fit each other or the checkpoint.
func (c *Coordinator) mayStart() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.starting {
		return errors.New("checkpoint: the coordinator was started before")
	}
	if c.isEnded {
		return fmt.Errorf("checkpoint: start: %w", c.endErrorLocked())
	}
	c.starting = true
	c.endPatience()
	if c.restored != nil {
		for _, name := range c.restored.Names() {
			if !slices.ContainsFunc(c.participants, func(p member) bool { return p.name == name }) {
				c.broken = append(c.broken, stateError(name, c.restored.ID,
					errors.New("no participant of this name has registered: was it renamed or removed? Its state would be lost")))
			}
		}
	}
	if err := errors.Join(c.broken...); err != nil {
		c.end(err)
		return err
	}
	return nil
}

// Ended returns a channel that is closed when checkpointing has ended: after a final
// checkpoint, a failure, or Close.
func (c *Coordinator) Ended() <-chan struct{} { return c.life.Done() }

// Err returns why checkpointing has ended: nil before the end and after a complete final
// checkpoint.
func (c *Coordinator) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Wait waits for the end and returns Err.
func (c *Coordinator) Wait() error {
	<-c.Ended()
	return c.Err()
}

// awaitStart waits for Start, and returns false if the run ends before.
func (c *Coordinator) awaitStart() bool {
	select {
	case <-c.started:
		return true
	case <-c.life.Done():
	}
	select {
	case <-c.started: // the run started and has ended since
		return true
	default:
		return false
	}
}

// Trigger takes a checkpoint now, or after the checkpoint under way, and returns its
// number when it is complete. It waits for Start. When ctx ends first, the checkpoint is
// aborted. The error is context.Cause(ctx), the reason why the checkpoint was aborted or
// the run has ended, or the error of Close. Trigger gives up on a store that has not
// returned five seconds after its context has ended. Until the store returns, each
// further checkpoint fails.
func (c *Coordinator) Trigger(ctx context.Context) (id uint64, err error) {
	return c.take(ctx, participant.Periodic)
}

// Close ends checkpointing at once, without a final checkpoint, and closes the store. The
// contexts of [Output.Write] and [Output.Prepare] end. A checkpoint that is being stored
// or published has five seconds to complete; if it is final, the stream has ended with
// it. When Close returns nil, each [Input] is closed and each [Sink] has stopped writing,
// so another run may begin, even in this process.
//
// If a store, an input or an output does not return, Close gives up after ten seconds, or
// five seconds after it has begun to close the store, and returns an error that names it.
// The store is closed as soon as that call returns, so a directory stays locked until
// then.
func (c *Coordinator) Close() error {
	c.mu.Lock()
	if !c.completing {
		c.end(ErrClosed)
	}
	c.mu.Unlock()
	quiet := make(chan struct{})
	go func() {
		defer close(quiet)
		c.quiesce()
	}()
	patience := c.clock.Timer(closePatience)
	defer patience.Stop()
	select {
	case <-quiet:
		c.endWork(ErrClosed)
		return c.closeStore()
	case <-patience.C:
	}
	c.endWork(ErrClosed)
	patience.Reset(closePatience)
	select {
	case <-quiet:
		return c.closeStore()
	case <-patience.C:
	}
	go func() { // keep the store from other runs until this run has left it
		<-quiet
		_ = c.closeStore()
	}()
	c.mu.Lock()
	defer c.mu.Unlock()
	return fmt.Errorf("checkpoint: close: still %s after %v, although its context has ended: the store stays open until it returns",
		c.activity, 2*closePatience)
}

func (c *Coordinator) closeStore() error {
	closed := make(chan error, 1)
	go func() { closed <- protect(c.store.Close) }()
	patience := c.clock.Timer(closePatience)
	defer patience.Stop()
	select {
	case err := <-closed:
		return err
	case <-patience.C:
		return fmt.Errorf("checkpoint: close: the store has not closed after %v", closePatience)
	}
}

// closePatience is how long Close waits before it ends the contexts, and again after
// that.
const closePatience = 5 * time.Second

type resourceUser interface {
	// inUse describes the use, for messages. await returns when the input or output is no
	// longer in use, after the end of the run.
	inUse() (activity string, await func())
}

// quiesce waits, after the end of the run, until store, inputs and outputs are unused.
func (c *Coordinator) quiesce() {
	c.awaitIdle()
	c.storing <- struct{}{}
	<-c.storing
	c.mu.Lock()
	participants := slices.Clone(c.participants)
	c.mu.Unlock()
	for _, p := range participants {
		if u, ok := p.Participant.(resourceUser); ok {
			activity, await := u.inUse()
			c.setActivity("%s", activity)
			await()
		}
	}
}

func (c *Coordinator) setActivity(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.activity = fmt.Sprintf(format, args...)
}

func (c *Coordinator) hasEnded() bool { return c.life.Err() != nil }

// awaitIdle waits until no checkpoint is under way.
func (c *Coordinator) awaitIdle() {
	c.busy <- struct{}{}
	<-c.busy
}

func (c *Coordinator) take(ctx context.Context, kind participant.Kind) (uint64, error) {
	if err := c.acquireBusy(ctx); err != nil {
		return 0, err
	}
	defer func() { <-c.busy }()
	r, err := c.begin(kind)
	if err != nil {
		return 0, err
	}
	defer c.clearUnderWay()
	id := r.barrier.ID
	err = c.await(ctx, r)
	if err == nil && kind.Final() {
		err = c.beginCompletion()
	}
	if err == nil {
		err = c.save(ctx, r)
	}
	if err != nil {
		err = guard.Wrap(fmt.Sprintf("checkpoint %d", id), err)
		row := c.failed(ctx, err)
		c.logger.Warn("checkpoint aborted", slog.Uint64("checkpoint", id), slog.Any("error", err), slog.Int("failures in a row", row))
		for _, p := range c.participants {
			c.notify(p, func() { p.Aborted(id, err) })
		}
		if r.request {
			c.requestAgain()
		}
	} else {
		c.logger.Debug("checkpoint complete", slog.Uint64("checkpoint", id), slog.String("kind", kind.String()))
		for _, p := range c.participants {
			c.setActivity("publishing checkpoint %d at %q", id, p.name)
			c.notify(p, func() { p.Completed(id) })
		}
	}
	if kind.Final() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if err == nil && !c.isEnded {
			c.finished = kind
		}
		c.end(err)
		if err == nil {
			err = c.err // a participant failed on Completed
		}
	}
	return id, err
}

func (c *Coordinator) tick(timer *clock.Timer) {
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-c.life.Done():
			return
		}
		_, _ = c.Trigger(context.Background()) // take logs its errors
		timer.Reset(c.interval)
	}
}

// requestLocked requests a checkpoint. Called with mu held.
func (c *Coordinator) requestLocked() {
	c.requested = true
	if !c.serving && !c.isEnded {
		c.serving = true
		go c.serveRequests()
	}
}

func (c *Coordinator) requestAgain() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requestLocked()
}

// serveRequests takes the requested checkpoints. take requests a failed checkpoint again,
// and serveRequests repeats it after a wait.
func (c *Coordinator) serveRequests() {
	for backoff := firstBackoff; c.mustServe(); backoff = min(2*backoff, maxBackoff) {
		if _, err := c.Trigger(context.Background()); err == nil {
			backoff = firstBackoff / 2
			continue
		}
		_ = wait.For(c.life, c.clock, backoff) // mustServe checks for the end of life
	}
}

// mustServe reports whether a checkpoint is requested. If not, serveRequests must return:
// the next request starts it again.
func (c *Coordinator) mustServe() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.serving = c.requested && !c.isEnded
	return c.serving
}

// end ends checkpointing with err, unless it has ended. Called with mu held.
func (c *Coordinator) end(err error) {
	if !c.isEnded {
		c.isEnded, c.err = true, err
		c.endPatience()
		c.endLife()
	}
}

func (c *Coordinator) endPatience() {
	if c.patience != nil {
		c.patience.Stop()
	}
}

func (c *Coordinator) endError() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.endErrorLocked()
}

func (c *Coordinator) endErrorLocked() error {
	if c.err != nil {
		return c.err
	}
	return ErrEnded
}
