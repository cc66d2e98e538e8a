package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/internal/lazyerr"
	"github.com/weirflow/weir/internal/nils"
)

// Coordinator triggers the checkpoints of one pipeline, collects the states of its participants, stores them, and reports
// to the participants when a checkpoint is complete.
//
//	coordinator, err := checkpoint.NewCoordinator(store, checkpoint.WithInterval(10*time.Second))
//	lines, err := checkpoint.OpenLines("keys.txt")
//	source := checkpoint.NewSource(coordinator, "keys", lines)
//	op := asyncop.OrderedWait(fn, timeout, capacity, asyncop.WithName("lookup"), asyncop.WithCheckpoints(coordinator))
//	sink := checkpoint.NewSink(coordinator, "rows", checkpoint.NewLineOutput("rows.txt"))
//	err = coordinator.Start() // all have registered
//	source.Via(op).To(sink)
//	err = coordinator.Wait()
//
// One checkpoint is under way at a time. One that fails, or takes longer than [WithTimeout] allows, is aborted, and the
// pipeline goes on. A restart resumes from the last complete one. [Coordinator.Stats] counts them, and [WithTolerableFailures]
// ends a run whose checkpoints keep failing.
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

	busy    chan struct{}           // one place: held while a checkpoint is under way
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
	completing   bool                          // all have reported the final one: it will end life
	reported     map[string]struct{}           // who has reported anything in this run
	patience     *clock.Timer                  // until the next warning that Start was not called; nil: none has registered
	stats        Stats
	doing        string // what Close waits for
}

// member is a participant with its name.
type member struct {
	name string
	participant.Participant
}

// run is a checkpoint under way, or the marker of the end of the input.
type run struct {
	barrier participant.Barrier
	waiting map[string]struct{} // participants that have not reported
	states  map[string]participant.State
	request bool          // a participant has asked for it
	err     error         // why it cannot complete
	settled chan struct{} // closed when all have reported, or err is set
}

// defaultTimeout is how long each step of a checkpoint may take: see [WithTimeout].
const defaultTimeout = 10 * time.Minute

// Option changes a setting of a [Coordinator]. Options panic if their argument makes no sense, also on nil.
type Option func(*Coordinator)

// WithInterval triggers a checkpoint after each interval, counted from the end of the one before. By default, and with
// 0, checkpoints are taken on demand only. It panics if d < 0.
func WithInterval(d time.Duration) Option {
	if d < 0 {
		panic(fmt.Sprintf("checkpoint: WithInterval: negative interval: %v", d))
	}
	return func(c *Coordinator) { c.interval = d }
}

// WithTimeout bounds the time of each step of a checkpoint; the default is 10 minutes. The steps are: from the trigger until
// all have reported; storing it ([Store.Save]); publishing it at each sink ([Output.Commit]). It also bounds what comes before
// the first checkpoint: loading what the store has, and [Output.Restore] or FreshStart of each output. The context of a step
// that takes longer ends. A Save of a final checkpoint and a Commit that fail are tried again until d is over.
//
// The draining before a [Drain] checkpoint is not bounded; each time d is over, a warning names the participants that are
// not done. It panics if d <= 0.
//
// A warning names the participants that have not reported a checkpoint after ten seconds, and again each time the wait has
// doubled. While the stream is drained, only those are named that have never reported: they may not be part of the pipeline.
func WithTimeout(d time.Duration) Option {
	if d <= 0 {
		panic(fmt.Sprintf("checkpoint: WithTimeout: must be positive, got %v", d))
	}
	return func(c *Coordinator) { c.timeout = d }
}

// WithTolerableFailures ends the run with an error when more than n checkpoints in a row have failed. [Stats.Failed] says which
// count. By default any number is tolerated, and each failure is logged as a warning: weir does not restart a pipeline that has
// ended, and a restart repeats the calls since the last complete checkpoint. The option is named after Flink's
// tolerableCheckpointFailureNumber, whose default is 0, since Flink restarts its jobs. It panics if n < 0.
func WithTolerableFailures(n int) Option {
	if n < 0 {
		panic(fmt.Sprintf("checkpoint: WithTolerableFailures: negative number: %d", n))
	}
	return func(c *Coordinator) { c.tolerate = n }
}

// WithNewParticipants names operators and sinks that were added to the pipeline since the checkpoint that it resumes from. They
// begin as in a fresh start. Without it Start fails for a participant that has no state in the checkpoint, since it may have
// been renamed. A name that has a state gets it, so the option may stay when newer checkpoints know the participant.
//
// A source cannot be added: its input would begin anew. What the checkpoint has a state of cannot be removed, since the
// elements in that state would be lost. It panics if a name is empty.
func WithNewParticipants(names ...string) Option {
	for i, name := range names {
		if name == "" {
			panic(fmt.Sprintf("checkpoint: WithNewParticipants: name %d is empty", i))
		}
	}
	return func(c *Coordinator) { c.added = append(c.added, names...) }
}

// WithClock sets the clock of intervals, timeouts, retries and [Stats]; the default is the real one.
func WithClock(clk clock.Clock) Option {
	nils.Refuse("checkpoint: WithClock", "clock", clk)
	return func(c *Coordinator) { c.clock = clk }
}

// WithLogger sets the logger of the coordinator, and of the [DirStore] and the [FileOutput] that it works with; the default is
// slog.Default(). Aborted checkpoints are logged at warn, complete ones at debug level.
func WithLogger(l *slog.Logger) Option {
	if l == nil {
		panic("checkpoint: WithLogger: nil logger")
	}
	return func(c *Coordinator) { c.logger = l }
}

// NewCoordinator returns a coordinator that stores checkpoints in store and resumes from its newest valid one, if it has
// any. An error of the store is returned: a pipeline never starts afresh because its state could not be read. It panics
// if store is nil.
func NewCoordinator(store Store, opts ...Option) (*Coordinator, error) {
	nils.Refuse("checkpoint: NewCoordinator", "store", store)
	c := &Coordinator{
		store:    store,
		clock:    clock.New(),
		timeout:  defaultTimeout,
		tolerate: -1,
		logger:   slog.Default(),
		busy:     make(chan struct{}, 1),
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

// Restored returns the number of the checkpoint that the pipeline resumes from; ok is false for a fresh start.
func (c *Coordinator) Restored() (id uint64, ok bool) {
	if c.restored == nil {
		return 0, false
	}
	return c.restored.ID, true
}

// RestoredKind returns what the checkpoint that the pipeline resumes from was for; ok is false for a fresh start. After a
// [Drain] the job was finished and only what its input has got since is left to do; after a [Suspend] it was stopped to be
// resumed; after a [Periodic] one it did not come to its end.
func (c *Coordinator) RestoredKind() (kind Kind, ok bool) {
	if c.restored == nil {
		return 0, false
	}
	return c.restored.Kind, true
}

// LastComplete returns the number of the newest checkpoint that is complete. A restart would resume from it. It is the restored
// one until one of this run is complete. It is 0 if there is none.
func (c *Coordinator) LastComplete() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.complete
}

// startPatience is how long participants wait for Start before the first warning: it may have been forgotten. Each later
// warning comes after twice the time of the one before.
const startPatience = time.Second

// warnNotStarted names the participants that wait for Start, unless it was called or will not be.
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
	c.logger.Warn("checkpoint: nothing begins before Start of the coordinator, which has not been called",
		slog.String("waiting", listed(names)), slog.Duration("waited", waited))
}

// breakStart makes Start fail, or ends what has started already. Called with mu held.
func (c *Coordinator) breakStart(err error) {
	c.broken = append(c.broken, err)
	if c.starting {
		c.end(err)
	}
}

// Start lets the participants begin. The source, the operators and the sink of the pipeline are made before. If Start fails,
// nothing begins. It fails
//
//   - if a participant has no state in the checkpoint, or cannot decode it;
//   - if the checkpoint has the state of a participant that has not registered;
//   - if a name is missing or taken twice;
//   - if there are two Sources.
func (c *Coordinator) Start() error {
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
					errors.New("nothing of this name has registered: was it renamed or removed? What is in its state would be lost")))
			}
		}
	}
	if err := errors.Join(c.broken...); err != nil {
		c.end(err)
		return err
	}
	close(c.started)
	if c.interval > 0 {
		go c.tick(c.clock.Timer(c.interval))
	}
	return nil
}

// Ended returns a channel that is closed when there will be no more checkpoints: after a final one, a failure, or Close.
func (c *Coordinator) Ended() <-chan struct{} { return c.life.Done() }

// Err returns why there will be no more checkpoints: nil before the end and after a final checkpoint that is complete.
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

// Trigger takes a checkpoint now, after the one that is under way, and returns its number when it is complete. Before
// Start it waits for that. When ctx ends first, the checkpoint is aborted. The error is context.Cause(ctx), why the
// checkpoint was aborted or the run has ended, or that of Close.
func (c *Coordinator) Trigger(ctx context.Context) (id uint64, err error) {
	return c.take(ctx, participant.Periodic)
}

// Finish ends the stream with a final checkpoint of the given kind, [Drain] or [Suspend], and returns when that is
// complete ("stop with savepoint"). It panics for another kind.
//
// For a [Drain] the source stops reading and sends the marker of the end of the input; the final checkpoint is taken when the
// marker has reached all participants. Checkpoints go on until then, and a Suspend may still end the stream before. When ctx
// ends first, the stream has failed, since its source reads no more, and a restart goes on from the last checkpoint. Another
// call, for a stream that is being drained already, does no harm when its ctx ends.
//
// For a [Suspend] the source stops at the barrier. When ctx ends while the barrier is on its way, the stream has failed, too.
// When ctx ends earlier, while another checkpoint is under way, nothing has happened.
//
// The error is nil if the stream has ended in this way already, or does so meanwhile, for instance because its input has ended.
// It is [ErrEnded] if the stream has ended in the other way.
func (c *Coordinator) Finish(ctx context.Context, kind Kind) error {
	final := participant.Kind(kind)
	mustBeFinal("Finish", final)
	err := c.finish(ctx, final)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.finished == final && c.err == nil {
		return nil
	}
	return err
}

func (c *Coordinator) finish(ctx context.Context, kind participant.Kind) error {
	if kind == participant.Suspend {
		_, err := c.take(ctx, kind)
		return err
	}
	r, announced, err := c.endInput(ctx)
	if err != nil {
		return err
	}
	err = c.awaitDrained(ctx, r)
	switch {
	case err == nil && announced:
		_, err = c.take(ctx, participant.Drain)
	case err == nil: // the caller that announced it takes the final checkpoint; to give up here does no harm
		select {
		case <-c.life.Done():
			err = c.endError()
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	if err != nil && announced {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.end(err)
	}
	return err
}

func mustBeFinal(method string, kind participant.Kind) {
	if !kind.Final() {
		panic(fmt.Sprintf("checkpoint: %s: not a final kind: %v", method, kind))
	}
}

// Close ends checkpointing at once, without a final checkpoint if there was none, and closes the store. The contexts of
// [Output.Write] and [Output.Prepare] end. A checkpoint that is being stored or published may come to its end first, and if
// it is a final one, the stream has ended with it; after five seconds its context ends. When Close returns nil, each [Input]
// is closed and no [Sink] writes any more, so another run may begin, also in this process.
//
// If a store, an input or an output does not return although its context has ended, Close gives up after ten seconds and
// returns an error that names it. The store is closed as soon as that call returns, so a directory stays locked until then.
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
		return c.store.Close()
	case <-patience.C:
	}
	c.endWork(ErrClosed)
	patience.Reset(closePatience)
	select {
	case <-quiet:
		return c.store.Close()
	case <-patience.C:
	}
	go func() { // no other run gets the store before this one has left it alone
		<-quiet
		_ = c.store.Close()
	}()
	c.mu.Lock()
	defer c.mu.Unlock()
	return fmt.Errorf("checkpoint: close: still %s after %v, although its context has ended: the store stays open until it returns",
		c.doing, 2*closePatience)
}

// closePatience is how long Close waits for stores, inputs and outputs before it ends their contexts, and once more after that.
const closePatience = 5 * time.Second

// user is a participant that uses what is not the run's own.
type user interface {
	// inUse returns what it does with that, and how to wait, after the end, until it does so no more.
	inUse() (what string, until func())
}

// quiesce waits until, after the end, neither the store, nor an input, nor an output is being used.
func (c *Coordinator) quiesce() {
	c.awaitIdle()
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

// awaitIdle waits until no checkpoint is under way. After the end, none will be: the participants have heard the last.
func (c *Coordinator) awaitIdle() {
	c.busy <- struct{}{}
	<-c.busy
}

// hold waits for the start and until no checkpoint is under way. None begins until busy is received from. After the end,
// of ctx too, it holds nothing.
func (c *Coordinator) hold(ctx context.Context) error {
	select {
	case <-c.started:
	case <-c.life.Done():
	case <-ctx.Done():
	}
	if err := c.noMore(ctx); err != nil { // of several that are ready, select takes any
		return err
	}
	select {
	case c.busy <- struct{}{}:
	case <-c.life.Done():
		return c.endError()
	case <-ctx.Done():
		return c.noMore(ctx)
	}
	if err := c.noMore(ctx); err != nil {
		<-c.busy
		return err
	}
	return nil
}

// noMore returns why no checkpoint is taken any more: the run has ended, or ctx has. It returns nil if checkpoints go on.
func (c *Coordinator) noMore(ctx context.Context) error {
	select {
	case <-c.life.Done():
		return c.endError()
	default:
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// endInput announces the marker of the end of the input, unless that was done before.
func (c *Coordinator) endInput(ctx context.Context) (r *run, announced bool, err error) {
	if err := c.hold(ctx); err != nil {
		return nil, false, err
	}
	defer func() { <-c.busy }()
	c.mu.Lock()
	r = c.drain
	c.mu.Unlock()
	if r != nil {
		return r, false, nil
	}
	r, err = c.begin(participant.EndOfInput)
	return r, err == nil, err
}

// awaitDrained waits until all have reported the marker.
func (c *Coordinator) awaitDrained(ctx context.Context, r *run) error {
	remind := c.clock.Ticker(c.timeout)
	defer remind.Stop()
	reminder := c.newReminder()
	defer reminder.timer.Stop()
	for {
		var err error
		select {
		case <-r.settled:
			return nil
		case <-c.life.Done():
			return c.endError()
		case <-ctx.Done():
			err = context.Cause(ctx)
		case <-reminder.timer.C: // to drain may take long, but not to report for the first time
			reminder.warn(r, false)
			continue
		case <-remind.C:
		}
		c.mu.Lock()
		waiting := maps.Clone(r.waiting)
		c.mu.Unlock()
		if err != nil {
			return fmt.Errorf("checkpoint: draining: %w: no report from %s", err, quoted(waiting))
		}
		c.logger.Warn("checkpoint: the stream is being drained", slog.String("not done", listed(waiting)))
	}
}

// reportPatience is how long participants may take to report before the first warning. Each later one comes after twice the
// time of the one before.
const reportPatience = 10 * time.Second

// reminder warns of participants that do not report.
type reminder struct {
	c     *Coordinator
	timer *clock.Timer // until the next warning
	wait  time.Duration
	total time.Duration
}

func (c *Coordinator) newReminder() *reminder {
	return &reminder{c: c, timer: c.clock.Timer(reportPatience), wait: reportPatience}
}

// warn names the participants that have not reported, and those of them that have not in all of the run; unless all, only if
// there are such.
func (r *reminder) warn(run *run, all bool) {
	r.total += r.wait
	r.wait = r.total // twice the time in all
	r.timer.Reset(r.wait)
	r.c.mu.Lock()
	never := maps.Clone(run.waiting)
	maps.DeleteFunc(never, func(name string, _ struct{}) bool { _, has := r.c.reported[name]; return has })
	attrs := []any{
		slog.Uint64("checkpoint", run.barrier.ID), slog.String("no report from", listed(run.waiting)), slog.Duration("waited", r.total),
	}
	r.c.mu.Unlock()
	if len(never) == 0 && !all {
		return
	}
	if len(never) > 0 {
		attrs = append(attrs, slog.String("never reported, so perhaps not part of the pipeline", listed(never)))
	}
	r.c.logger.Warn("checkpoint: waiting for reports", attrs...)
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
		err = lazyerr.Named(fmt.Sprintf("checkpoint %d", id), err)
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

// beginCompletion leaves the end to the final checkpoint that is about to be stored, unless it has come already.
func (c *Coordinator) beginCompletion() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isEnded {
		return c.endErrorLocked()
	}
	c.completing = true
	return nil
}

// begin announces the next barrier. Called with busy held.
func (c *Coordinator) begin(kind participant.Kind) (*run, error) {
	r, err := c.newRun(kind)
	if err != nil {
		return nil, err
	}
	for _, p := range slices.Backward(c.participants) { // the source, normally the first, when all others know of it
		c.tell(p, func() { p.Pending(r.barrier) })
	}
	return r, nil
}

// tell calls a method of a participant. One that breaks ends the run (law A6).
func (c *Coordinator) tell(p member, f func()) {
	if err := protect(func() error { f(); return nil }); err != nil {
		c.Host().Fail(p.name, err)
	}
}

func (c *Coordinator) newRun(kind participant.Kind) (*run, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isEnded {
		return nil, c.endErrorLocked()
	}
	c.lastID++
	r := &run{
		barrier: participant.NewBarrier(c.lastID, kind, (*host)(c)),
		waiting: make(map[string]struct{}, len(c.participants)),
		states:  make(map[string]participant.State, len(c.participants)),
		settled: make(chan struct{}),
	}
	for _, p := range c.participants {
		r.waiting[p.name] = struct{}{}
	}
	if kind == participant.EndOfInput {
		c.drain = r
	} else {
		c.run = r
		r.request, c.requested = c.requested, false
		c.stats.UnderWay, c.stats.Since = r.barrier.ID, c.clock.Now()
	}
	if len(r.waiting) == 0 {
		close(r.settled)
	}
	return r, nil
}

// await waits until all have reported.
func (c *Coordinator) await(ctx context.Context, r *run) error {
	timer := c.clock.Timer(c.timeout)
	defer timer.Stop()
	reminder := c.newReminder()
	defer reminder.timer.Stop()
	var err error
	for waiting := true; waiting; {
		waiting = false
		select {
		case <-r.settled:
		case <-c.life.Done():
			err = c.endError()
		case <-ctx.Done():
			err = context.Cause(ctx)
		case <-timer.C:
			err = fmt.Errorf("not complete after %v", c.timeout)
		case <-reminder.timer.C:
			reminder.warn(r, true)
			waiting = true
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.run = nil
	if r.err != nil {
		return r.err
	}
	if c.isEnded && len(r.waiting) == 0 { // what ended the run may be that the states do not fit together (law C2)
		return c.endErrorLocked()
	}
	if err != nil && len(r.waiting) > 0 {
		return fmt.Errorf("%w: no report from %s", err, quoted(r.waiting))
	}
	return nil // all have reported, if only just
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

// requestLocked has a checkpoint taken that begins after this moment. Called with mu held.
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

// serveRequests takes checkpoints as long as some are requested. Those that fail are requested again: the next try comes after
// a back-off.
func (c *Coordinator) serveRequests() {
	for backoff := firstBackoff; c.mustServe(); backoff = min(2*backoff, maxBackoff) {
		if _, err := c.Trigger(context.Background()); err == nil {
			backoff = firstBackoff / 2
			continue
		}
		timer := c.clock.Timer(backoff)
		select {
		case <-timer.C:
		case <-c.life.Done():
		}
		timer.Stop()
	}
}

// mustServe reports whether a checkpoint is requested. If not, the goroutine that asks ends.
func (c *Coordinator) mustServe() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.serving = c.requested && !c.isEnded
	return c.serving
}

// end makes err the reason why there will be no more checkpoints, unless there is one. Called with mu held.
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

func (r *run) over() bool {
	select {
	case <-r.settled:
		return true
	default:
		return false
	}
}

func (r *run) fail(err error) {
	r.err = err
	close(r.settled)
}

// listed is for attributes of a log, which the handler quotes if need be.
func listed(names map[string]struct{}) string {
	return strings.Join(slices.Sorted(maps.Keys(names)), ", ")
}

func quoted(names map[string]struct{}) string {
	var out []string
	for name := range names {
		out = append(out, fmt.Sprintf("%q", name))
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// stateError says that a participant and its state in a checkpoint do not fit; checkpoint 0: none. The message of reason,
// which may be a user's, is made when it is asked for.
func stateError(name string, checkpoint uint64, reason error) error {
	if checkpoint == 0 {
		return lazyerr.Named(fmt.Sprintf("checkpoint: state of %q", name), reason)
	}
	return lazyerr.Named(fmt.Sprintf("checkpoint: state of %q in checkpoint %d", name, checkpoint), reason)
}
