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
// participants, stores them, and reports to the participants when a checkpoint is
// complete.
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
// A single checkpoint is under way at a time. A checkpoint that fails, or takes longer
// than [WithTimeout] allows, is aborted, and the pipeline continues. A restart resumes
// from the last complete checkpoint. [Coordinator.Stats] counts them, and
// [WithTolerableFailures] ends a run whose checkpoints keep failing.
//
// It is safe for concurrent use.
type Coordinator struct {
	store    Store
	clock    clock.Clock
	interval time.Duration // 0: on demand only
	timeout  time.Duration
	tolerate int      // failures in a row; negative: any number
	added    []string // participants that need no state to resume: see WithNewParticipants
	logger   *slog.Logger
	restored *Snapshot // what the pipeline resumes from, or nil; read-only

	busy    chan struct{}           // capacity 1: held while a checkpoint is under way
	storing chan struct{}           // capacity 1: held while the store saves, also if that was given up
	started chan struct{}           // closed by Start
	life    context.Context         // ends when there will be no more checkpoints
	endLife context.CancelFunc      // of life
	work    context.Context         // of what completes a checkpoint; ends when Close has waited long enough
	endWork context.CancelCauseFunc // of work

	mu           sync.Mutex
	participants []member                      // in the order of registration; fixed once started
	broken       []error                       // what Start has to report
	starting     bool                          // Start was called
	lastID       uint64                        // the newest checkpoint, whatever became of it
	complete     uint64                        // the newest one that is stored; 0: none
	run          *run                          // the checkpoint under way, or nil
	drain        *run                          // the marker of the end of the input, once it is announced
	requested    bool                          // a participant has asked for a checkpoint that has not begun
	serving      bool                          // a goroutine takes what is requested
	err          error                         // why there will be no more checkpoints; nil after a final one
	isEnded      bool                          // life has ended
	finished     participant.Kind              // of the final checkpoint that has ended it, or 0
	final        map[participant.Kind]struct{} // final checkpoints asked for
	source       string                        // the first Source that has registered; "": none
	lagger       Lagger                        // its input; nil: it does not know its lag
	completing   bool                          // all have reported the final one: it will end life
	reported     map[string]struct{}           // who has reported anything in this run
	patience     *clock.Timer                  // until the next warning that Start was not called; nil: none has registered
	stats        Stats
	doing        string // what Close waits for
}

// NewCoordinator returns a coordinator that stores checkpoints in store and resumes from
// the newest valid checkpoint, if any. An error of the store is returned: a pipeline
// never starts afresh because its state could not be read. It panics if store is nil.
//
// It waits for the store up to the time of [WithTimeout], 10 minutes by default, when the
// contexts of its calls of the store end.
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

// load finds what the pipeline resumes from, and the numbers that are taken.
func (c *Coordinator) load(ctx context.Context) error {
	entries, err := c.store.List(ctx)
	if err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	for _, e := range entries {
		c.lastID = max(c.lastID, e.ID) // damaged ones included
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

// Restored returns the number of the checkpoint that the pipeline resumes from; ok is
// false for a fresh start.
func (c *Coordinator) Restored() (id uint64, ok bool) {
	if c.restored == nil {
		return 0, false
	}
	return c.restored.ID, true
}

// RestoredKind returns the kind of the checkpoint that the pipeline resumes from; ok is
// false for a fresh start. After a [Drain] the input was finished: only elements added
// since are left. After a [Suspend] the run was stopped to be resumed. After a [Periodic]
// checkpoint the run was interrupted.
func (c *Coordinator) RestoredKind() (kind Kind, ok bool) {
	if c.restored == nil {
		return 0, false
	}
	return c.restored.Kind, true
}

// LastComplete returns the number of the newest complete checkpoint, from which a restart
// would resume, or 0 if there is none. Until a checkpoint of this run is complete, that
// is the restored checkpoint.
func (c *Coordinator) LastComplete() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.complete
}

// startPatience is how long participants wait for Start before the first warning: it may
// have been forgotten. Each later warning comes after twice the time of the one before.
const startPatience = time.Second

// warnNotStarted names the participants that wait for Start, unless it was called or will
// not be.
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

// breakStart makes Start fail, or ends what has started already. Called with mu held.
func (c *Coordinator) breakStart(err error) {
	c.broken = append(c.broken, err)
	if c.starting {
		c.end(err)
	}
}

// Start lets the participants begin. The source, the operators and the sink of the
// pipeline are made before. If Start fails, none of them begins. It prepares the outputs
// last, and waits up to the time of [WithTimeout] for each: if it fails before that, the
// outputs are unchanged. It fails
//
//   - if the state of a participant is missing in the checkpoint, or cannot be decoded;
//   - if the checkpoint has the state of a participant that has not registered;
//   - if a name is missing or taken twice;
//   - if there are two Sources;
//   - if another sink has the file of an output, of this run or another one;
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
	case c.isEnded: // meanwhile
		return fmt.Errorf("checkpoint: start: %w", c.endErrorLocked())
	}
	close(c.started)
	if c.interval > 0 {
		go c.tick(c.clock.Timer(c.interval))
	}
	return nil
}

// beginOutputs brings the outputs to the state that the run begins with. All are locked,
// and asked, before one is changed.
func (c *Coordinator) beginOutputs() error {
	for _, step := range []func(starter) error{starter.lock, starter.check, starter.begin} {
		for _, p := range c.participants { // fixed, since starting is set
			s, ok := p.Participant.(starter)
			if !ok {
				continue
			}
			c.does("preparing the output of %q", p.name)
			if err := step(s); err != nil {
				id, _ := c.Restored()
				return stateError(p.name, id, err)
			}
		}
	}
	return nil
}

// mayStart returns an error if the participants do not fit together, or do not fit the
// checkpoint.
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

// awaitStart waits for the start; false: there will be none.
func (c *Coordinator) awaitStart() bool {
	select {
	case <-c.started:
		return true
	case <-c.life.Done():
	}
	select {
	case <-c.started: // it has ended since
		return true
	default:
		return false
	}
}

// Trigger takes a checkpoint now, after a checkpoint that is under way, and returns its
// number when it is complete. Before Start it waits for that. When ctx ends first, the
// checkpoint is aborted. The error is context.Cause(ctx), the reason why the checkpoint
// was aborted or the run has ended, or the error of Close. If the store does not return
// although its context has ended, Trigger gives up five seconds later; no checkpoint is
// stored until the store has returned, and each that fails is logged and counted.
func (c *Coordinator) Trigger(ctx context.Context) (id uint64, err error) {
	return c.take(ctx, participant.Periodic)
}

// Close ends checkpointing at once, without a final checkpoint, and closes the store. The
// contexts of [Output.Write] and [Output.Prepare] end. A checkpoint that is being stored
// or published may complete first, and if it is final, the stream has ended with it;
// after five seconds its context ends. When Close returns nil, each [Input] is closed and
// each [Sink] has stopped writing, so another run may begin, even in this process.
//
// If a store, an input or an output does not return although its context has ended, Close
// gives up after ten seconds, or five seconds after it has begun to close the store, and
// returns an error that names it. The store is closed as soon as that call returns, so a
// directory stays locked until then.
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
	go func() { // no other run gets the store before this one has left it alone
		<-quiet
		_ = c.closeStore()
	}()
	c.mu.Lock()
	defer c.mu.Unlock()
	return fmt.Errorf("checkpoint: close: still %s after %v, although its context has ended: the store stays open until it returns",
		c.doing, 2*closePatience)
}

// closeStore closes the store, or gives up.
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

// closePatience is how long Close waits for stores, inputs and outputs before it ends
// their contexts, and once more after that.
const closePatience = 5 * time.Second

// user is a participant that uses what is not the run's own.
type user interface {
	// inUse returns what it does with that, and how to wait, after the end, until it does
	// so no more.
	inUse() (what string, until func())
}

// quiesce waits until, after the end, neither the store, nor an input, nor an output is
// being used.
func (c *Coordinator) quiesce() {
	c.awaitIdle()
	c.storing <- struct{}{}
	<-c.storing
	c.mu.Lock()
	participants := slices.Clone(c.participants)
	c.mu.Unlock()
	for _, p := range participants {
		if u, ok := p.Participant.(user); ok {
			what, until := u.inUse()
			c.does("%s", what)
			until()
		}
	}
}

// does notes what Close may have to wait for.
func (c *Coordinator) does(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.doing = fmt.Sprintf(format, args...)
}

// hasEnded reports whether there will be no more checkpoints.
func (c *Coordinator) hasEnded() bool { return c.life.Err() != nil }

// awaitIdle waits until no checkpoint is under way. After the end, none will be: the
// participants have heard the last.
func (c *Coordinator) awaitIdle() {
	c.busy <- struct{}{}
	<-c.busy
}

// take takes one checkpoint.
func (c *Coordinator) take(ctx context.Context, kind participant.Kind) (uint64, error) {
	if err := c.hold(ctx); err != nil {
		return 0, err
	}
	defer func() { <-c.busy }()
	r, err := c.begin(kind)
	if err != nil {
		return 0, err
	}
	defer c.noneUnderWay()
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
			c.tell(p, func() { p.Aborted(id, err) })
		}
		if r.request {
			c.requestAgain()
		}
	} else {
		c.logger.Debug("checkpoint complete", slog.Uint64("checkpoint", id), slog.String("kind", kind.String()))
		for _, p := range c.participants {
			c.does("publishing checkpoint %d at %q", id, p.name)
			c.tell(p, func() { p.Completed(id) })
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

// tick triggers the periodic checkpoints.
func (c *Coordinator) tick(timer *clock.Timer) {
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-c.life.Done():
			return
		}
		_, _ = c.Trigger(context.Background()) // logged; the next one may do better
		timer.Reset(c.interval)
	}
}

// requestLocked has a checkpoint taken that begins after this moment. Called with mu
// held.
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

// serveRequests takes checkpoints as long as some are requested. Those that fail are
// requested again: the next try comes after a back-off.
func (c *Coordinator) serveRequests() {
	for backoff := firstBackoff; c.mustServe(); backoff = min(2*backoff, maxBackoff) {
		if _, err := c.Trigger(context.Background()); err == nil {
			backoff = firstBackoff / 2
			continue
		}
		_ = wait.For(c.life, c.clock, backoff) // mustServe looks at the end
	}
}

// mustServe reports whether a checkpoint is requested. If not, the goroutine that asks
// ends.
func (c *Coordinator) mustServe() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.serving = c.requested && !c.isEnded
	return c.serving
}

// end makes err the reason why there will be no more checkpoints, unless there is one.
// Called with mu held.
func (c *Coordinator) end(err error) {
	if !c.isEnded {
		c.isEnded, c.err = true, err
		c.endPatience()
		c.endLife()
	}
}

// endPatience ends the warnings that Start was not called. Called with mu held.
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
