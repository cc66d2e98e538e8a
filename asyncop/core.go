package asyncop

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"path"
	"reflect"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/internal/fifo"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/queue"
	"github.com/weirflow/weir/strategies"
	"github.com/weirflow/weir/timers"
)

// core is the operator without its channels: the queue, the timers and the state of every element. Its owner, the loop,
// feeds it elements, lets it take turns, and carries away what the head of the queue has to emit.
//
// Everything is owned by the loop, except for what says otherwise. No lock is held while user code runs.
type core[IN, OUT any] struct {
	config // read-only
	fn     AsyncFunction[IN, OUT]
	retry  retryableDelegator[OUT]
	hook   hooks[IN, OUT]

	direct *blocking[IN, OUT] // the function itself, if it blocks: the loop then starts calls without AsyncInvoke

	host    *call.Host[*queue.Entry[slot[IN, OUT]]]                       // what its calls share; partly used by other goroutines
	workers *call.Workers[call.Job[*queue.Entry[slot[IN, OUT]], IN, OUT]] // used by other goroutines, too

	timeout      time.Duration // total, per element; 0: none
	checkControl bool          // OUT can hold a control element

	queue   queue.Queue[slot[IN, OUT]]
	timers  *timers.Service[*queue.Entry[slot[IN, OUT]]]
	ready   timers.Heap[*queue.Entry[slot[IN, OUT]]]         // elements in phase ready, the oldest first
	fresh   *queue.Entry[slot[IN, OUT]]                      // the oldest element in phase fresh
	live    *queue.Entry[slot[IN, OUT]]                      // the oldest element with a live deadline: deadlines come in input order
	oldest  *queue.Entry[slot[IN, OUT]]                      // the oldest element that has not left
	odd     timers.Heap[*queue.Entry[slot[IN, OUT]]]         // live deadlines that do not: those of restored elements
	jobs    []call.Job[*queue.Entry[slot[IN, OUT]], IN, OUT] // direct calls that were started and not yet offered to the workers
	offered int                                              // direct calls that were offered to the workers in the last step
	failing fifo.Queue[*queue.Entry[slot[IN, OUT]]]          // elements in phase failing
	permits int                                              // free ones

	asking, before, handlers beside[IN, OUT] // user code on workers that may be left behind

	now   time.Duration // when the loop last looked at the clock
	stale bool          // since then user code has run, or the loop has slept

	drains    bool          // the end of the input lets retries go on
	noRetries bool          // nobody retries any more (law A5)
	failure   error         // why the operator must end; nil: it need not
	failed    *ElementError // the failure, if an element was it
	cut       bool          // the failure is a cancel, as wanted

	rest   *call.Letter[*queue.Entry[slot[IN, OUT]]] // taken from the mailbox and not handled yet
	call   userCall[IN, OUT]                         // the user code that is being run
	judged error                                     // of the outcome that is being decided about
	slow   slowCall[IN, OUT]                         // the call that is being watched

	blocked []slowCall[IN, OUT] // calls that took too long, and nobody was told yet
	witness *witness            // nil with a mock clock

	stats      Stats
	retryLines levelGate
	retryLog   lineLimit
	refuseLog  lineLimit
	giveUpLog  lineLimit
	slowLog    lineLimit
	suppressed bool // lines were, and no line has said how many

	published published             // read by other goroutines
	returned  atomic.Bool           // one of asking, before and handlers has
	broken    atomic.Pointer[error] // what has broken beside the loop, and ended life
}

// hooks are the optional interfaces of the function; nil where there is none.
type hooks[IN, OUT any] struct {
	timeout TimeoutHandler[IN, OUT]
	open    Opener
	close   Closer
	clone   Cloner[IN]
}

// turnLimit bounds what one kind of work does in one turn, so that everything gets its turn.
const turnLimit = 128

// slowCallLimit is when a call on the loop is worth a warning: everything else has waited for it.
const slowCallLimit = 100 * time.Millisecond

func newCore[IN, OUT any](
	cfg config, fn AsyncFunction[IN, OUT], retry retryableDelegator[OUT], timeout time.Duration,
	q queue.Queue[slot[IN, OUT]],
) *core[IN, OUT] {
	c := &core[IN, OUT]{
		config:       cfg,
		fn:           fn,
		retry:        retry,
		timeout:      timeout,
		checkControl: canHoldControl[OUT](),
		queue:        q,
		permits:      cfg.maxCalls,
	}
	if c.permits == 0 {
		c.permits = q.Cap()
	}
	c.drains = cfg.atEnd == drainRetries
	c.hook.timeout, _ = find[TimeoutHandler[IN, OUT]](fn)
	c.hook.open, _ = find[Opener](fn)
	c.hook.close, _ = find[Closer](fn)
	c.hook.clone, _ = find[Cloner[IN]](fn)
	c.direct = directCall(fn)
	c.workers = call.NewWorkers(func(j call.Job[*queue.Entry[slot[IN, OUT]], IN, OUT]) { j.Do(c.callDirectly) })
	c.host = &call.Host[*queue.Entry[slot[IN, OUT]]]{
		User:     cfg.ctx,
		Values:   context.WithoutCancel(cfg.ctx),
		RealTime: reflect.TypeOf(cfg.clock) == reflect.TypeOf(clock.New()),
		Run:      c.runJob,
		Panicked: func(recovered any) error { return newPanicError(recovered) },
		NilError: ErrNilError,
		Sleeper:  call.NewSleeper(),
	}
	c.host.Life, c.host.Cancel = context.WithCancelCause(cfg.ctx)
	c.timers = timers.NewService[*queue.Entry[slot[IN, OUT]]](cfg.clock, c.host.WakeUp)
	c.host.Clock = c.timers
	if _, mock := cfg.clock.(*clock.Mock); !mock { // time does not pass by itself
		c.witness = &witness{clock: cfg.clock, now: c.timers.Now, asleep: c.host.Parked.Load}
	}
	c.published.set(Stats{}, noOldest)
	return c
}

// runJob has task done by a worker.
func (c *core[IN, OUT]) runJob(task func()) {
	c.workers.Run(call.Job[*queue.Entry[slot[IN, OUT]], IN, OUT]{Task: task})
}

// callDirectly makes a call that the loop has started without AsyncInvoke, on a worker.
func (c *core[IN, OUT]) callDirectly(a *call.Attempt[*queue.Entry[slot[IN, OUT]], OUT], in IN) {
	ctx := (*call.AttemptContext[*queue.Entry[slot[IN, OUT]], OUT])(a)
	c.direct.run(ctx, in, (*call.Returning[*queue.Entry[slot[IN, OUT]], OUT])(a), nil)
}

// tick looks at the clock, and at how long the last call on the loop took.
func (c *core[IN, OUT]) tick() {
	c.now = c.timers.Now()
	c.stale = false
	if c.slow.watched {
		if c.slow.took = c.now - c.slow.since; c.slow.took > slowCallLimit &&
			c.slow.took-(c.witness.stalled(c.now)-c.slow.stalled) > slowCallLimit {
			c.blocked = append(c.blocked, c.slow)
		}
		c.slow = slowCall[IN, OUT]{}
	}
}

// warn writes what the log is owed: calls that blocked the loop, the number of suppressed lines. It runs user code, so it is apart from tick: nothing may come between a look at
// the clock and what follows from it.
func (c *core[IN, OUT]) warn() {
	for _, call := range c.blocked {
		what, advice := c.describe(call)
		c.log(&c.slowLog, slog.LevelWarn, "asyncop: a call blocked the loop", call.in,
			slog.String("call", what), slog.Duration("took", call.took), slog.String("advice", advice))
	}
	c.blocked = nil
	c.logSuppressed(false)
}

// refresh looks at the clock again if time may have passed since the loop looked last.
func (c *core[IN, OUT]) refresh() {
	if c.stale {
		c.tick()
	}
}

// slowCall watches a call on the loop; the clock is looked at anyway soon after it.
type slowCall[IN, OUT any] struct {
	watched bool
	since   time.Duration
	took    time.Duration
	stalled time.Duration // of the witness, at the beginning
	in      IN
	attempt *call.Attempt[*queue.Entry[slot[IN, OUT]], OUT]
	invoked bool // it is AsyncInvoke's
	judged  bool // it is the policy's, maybe after AsyncInvoke
}

// describe names a call that blocked the loop, and says what to do. A predicate that is asked as soon as AsyncInvoke has
// completed its element is watched with that.
func (c *core[IN, OUT]) describe(call slowCall[IN, OUT]) (what, advice string) {
	invoke, judge := "AsyncInvoke of "+c.functionName(), fmt.Sprintf("strategy %T or its predicates", c.retry.policy.Asked)
	switch {
	case !call.judged:
		what, advice = invoke, "wrap what blocks in asyncop.Blocking"
	case call.invoked:
		what, advice = invoke+", or "+judge, "wrap what blocks in asyncop.Blocking; predicates must not wait"
	default:
		what, advice = judge, "predicates must not wait; a strategy of strategies.ReasonAware may, off the loop"
	}
	return what, advice
}

// functionName names the function: by its type, or by its name if it is a plain one.
func (c *core[IN, OUT]) functionName() string {
	fn := c.fn
	if h, ok := fn.(*withTimeoutHandler[IN, OUT]); ok {
		fn = h.AsyncFunction
	}
	if v := reflect.ValueOf(fn); v.Kind() == reflect.Func {
		if f := runtime.FuncForPC(v.Pointer()); f != nil {
			return path.Base(f.Name())
		}
	}
	return fmt.Sprintf("%T", fn)
}

// ---- Elements in

// hasRoom tells whether a slot is free.
func (c *core[IN, OUT]) hasRoom() bool { return c.queue.Len() < c.queue.Cap() }

// accept takes a slot for in and starts its first attempt if a permit is free. The queue must have room.
func (c *core[IN, OUT]) accept(in IN) {
	c.startNew(c.putNew(in, false))
}

// putNew takes a slot for an element with its whole timeout, which may have been called before a restart.
func (c *core[IN, OUT]) putNew(in IN, called bool) *queue.Entry[slot[IN, OUT]] {
	c.refresh()
	e := c.put(slot[IN, OUT]{in: in, accepted: c.now, inDoubt: called})
	if c.live == nil {
		c.live = e
	}
	return e
}

// put takes a slot for a fresh element.
func (c *core[IN, OUT]) put(s slot[IN, OUT]) *queue.Entry[slot[IN, OUT]] {
	s.phase = fresh
	e := c.queue.Put(s)
	e.Value.timer.Value = e
	c.stats.Accepted++
	if c.fresh == nil {
		c.fresh = e
	}
	if c.oldest == nil {
		c.oldest = e
	}
	return e
}

// startNew starts the newest element, unless others wait for a permit.
func (c *core[IN, OUT]) startNew(e *queue.Entry[slot[IN, OUT]]) {
	if c.fresh == e && c.permits > 0 && c.ready.Len() == 0 {
		c.start(e)
	}
}

// acceptControl takes a slot for a control element. The queue must have room.
func (c *core[IN, OUT]) acceptControl(element any) {
	c.tick()
	c.queue.PutControl(slot[IN, OUT]{extra: &extra[IN, OUT]{held: element}, accepted: c.now})
}

// endRetries says that no element follows. Law A5: unless retries are to be drained, elements in back-off get exactly one
// more attempt, at once, or after the wait that a server demanded; running attempts are awaited and not called again.
func (c *core[IN, OUT]) endRetries() {
	if c.drains {
		return
	}
	c.noRetries = true
	for e := c.queue.First(); e != nil; e = e.Next() {
		if e.Value.phase == backoff && e.Value.retry&demanded == 0 {
			c.retryNow(e)
		}
	}
}

// ---- A turn

// turn handles what has happened since the last one. Law T1: the clock is read first, so completions that were handed
// in until then go before timers that are due.
func (c *core[IN, OUT]) turn() {
	c.tick()
	now := c.now
	c.permits += c.host.TakeFreed()
	c.runWaiting()
	c.readMail()
	c.fireTimers(now)
	c.startWaiting()
}

// mayPark tells whether the loop may sleep as far as the core is concerned, and sees to it that it is woken for the next
// timer. Called with parked set, so that nothing posted from now on is missed.
func (c *core[IN, OUT]) mayPark() bool {
	c.tick() // the sleep is not part of the last call
	if len(c.blocked) > 0 || !c.host.Mail.Empty() || c.host.Freed() > 0 || c.returned.Load() || c.failure != nil || c.canStart() {
		return false
	}
	due, ok := c.timers.Next()
	if c.live != nil && c.timeout > 0 {
		if d := c.deadline(c.live); !ok || d < due {
			due, ok = d, true
		}
	}
	if d, odd := c.odd.Next(); odd && (!ok || d < due) {
		due, ok = d, true
	}
	if d, some := c.suppressedDue(); some && (!ok || d < due) {
		due, ok = d, true
	}
	return !ok || c.timers.ScheduleAt(due)
}

// readMail handles completions and answers, in the order in which they were posted.
func (c *core[IN, OUT]) readMail() {
	c.rest = c.host.Mail.Take()
	c.readRest()
}

func (c *core[IN, OUT]) readRest() {
	for c.rest != nil && c.failure == nil {
		l := c.rest
		c.rest = l.Unchain()
		c.receive(l)
	}
}

// receive goes on with the element that waits for a letter. Law A2: if none does any more, it was late, and is counted
// already. The phase says what the letter is about.
func (c *core[IN, OUT]) receive(l *call.Letter[*queue.Entry[slot[IN, OUT]]]) {
	e := l.Entry
	if e == nil {
		return
	}
	switch s := &e.Value; {
	case s.phase == running || s.phase == preparing && s.attempt.Completed():
		c.completed(e, s.attempt)
	case s.phase == preparing:
		c.prepared(e, s.attempt)
	case s.phase == deciding:
		c.answer(e, s.take().(*question[IN, OUT]))
	case s.phase == handling:
		c.handled(e, s.take().(*call.Handling[*queue.Entry[slot[IN, OUT]], OUT]))
	default:
		panic(fmt.Sprintf("asyncop: a letter came in phase %v", s.phase))
	}
}

// fireTimers handles deadlines before retries: no attempt starts at the deadline (law A5).
func (c *core[IN, OUT]) fireTimers(now time.Duration) {
	for c.timeout > 0 && c.live != nil && c.deadline(c.live) <= now && c.failure == nil {
		c.timeOut(c.live)
	}
	for due, ok := c.odd.Next(); ok && due <= now && c.failure == nil; due, ok = c.odd.Next() {
		c.timeOut(c.odd.Peek().Value)
	}
	for c.failure == nil {
		t := c.timers.PopDue(now)
		if t == nil {
			return
		}
		switch e := t.Value; e.Value.phase {
		case preparing, running:
			c.attemptTimeOut(e)
		case backoff:
			c.retryNow(e)
		case handling:
			c.handlerTimeOut(e)
		default:
			panic(fmt.Sprintf("asyncop: a timer fired in phase %v", e.Value.phase))
		}
	}
}

// startWaiting starts attempts that wait for a permit: retries before first attempts, oldest first.
func (c *core[IN, OUT]) startWaiting() {
	for n := 0; n < turnLimit && c.canStart(); n++ {
		e := c.fresh
		if t := c.ready.Peek(); t != nil {
			e = t.Value
		}
		c.start(e)
	}
	// Retries without delay come back again and again. They go before first attempts, not in place of them: with permits for
	// all, those begin too.
	for n := 0; n < turnLimit && c.canStart() && c.fresh != nil && c.permits > c.ready.Len(); n++ {
		c.start(c.fresh)
	}
}

func (c *core[IN, OUT]) canStart() bool {
	return c.failure == nil && c.permits > 0 && (c.fresh != nil || c.ready.Len() > 0)
}

// ---- Attempts

// deadline returns when the total time of e runs out; with no timeout it means nothing.
func (c *core[IN, OUT]) deadline(e *queue.Entry[slot[IN, OUT]]) time.Duration {
	if e.Value.limited() {
		return e.Value.extra.limit.due
	}
	return e.Value.accepted + c.timeout
}

// start begins the next attempt of e, which is fresh or ready, unless its deadline or a cancel has come (law A5).
func (c *core[IN, OUT]) start(e *queue.Entry[slot[IN, OUT]]) {
	s := &e.Value
	if c.endIfCancelled(); c.failure != nil { // now, not when the loop is told
		return
	}
	c.refresh()
	if c.timeout > 0 && c.now >= c.deadline(e) {
		c.timeOut(e)
		return
	}
	if s.phase == ready {
		c.ready.Cancel(&s.timer)
		c.stats.WaitingForRetry--
		s.retried()
		switch {
		case s.attempts == 0: // restored from scratch
		case s.retry&byResult != 0:
			c.stats.RetriesOnResult++
		default:
			c.stats.RetriesOnError++
		}
	}
	c.permits--
	if s.attempts < math.MaxInt32 {
		s.attempts++
	}
	s.last = c.now
	if s.attempts == 1 && !s.limited() {
		s.first = c.now
	}
	deadline := call.NoDeadline
	if c.timeout > 0 {
		deadline = c.deadline(e)
	}
	if c.attemptTimeout > 0 {
		if end := c.now + c.attemptTimeout; deadline == call.NoDeadline || end < deadline {
			deadline = end
			c.timers.Arm(&s.timer, end)
		}
	}
	a := c.newAttempt()
	a.Start(c.host, e, s.attempts, deadline)
	s.attempt = a
	c.stats.Attempts++
	if s.attempts == 1 {
		c.retry.policy.Deposit()
	}
	if before := s.takeBefore(); before != nil {
		c.prepare(e, a, before)
		return
	}
	c.invoke(e, a)
}

func (c *core[IN, OUT]) newAttempt() *call.Attempt[*queue.Entry[slot[IN, OUT]], OUT] {
	if c.direct == nil {
		return new(call.Attempt[*queue.Entry[slot[IN, OUT]], OUT])
	}
	return call.NewRoomy[*queue.Entry[slot[IN, OUT]], OUT]()
}

// invoke calls the function.
func (c *core[IN, OUT]) invoke(e *queue.Entry[slot[IN, OUT]], a *call.Attempt[*queue.Entry[slot[IN, OUT]], OUT]) {
	s := &e.Value
	c.enter(e, running)
	if c.direct != nil {
		a.Occupy()
		c.jobs = append(c.jobs, call.Job[*queue.Entry[slot[IN, OUT]], IN, OUT]{Attempt: a, In: s.in})
		return
	}
	c.slow = slowCall[IN, OUT]{
		watched: true, invoked: true, since: c.now, stalled: c.witness.atStart(), in: s.in, attempt: a,
	}
	err := c.protect(callInvoke, nil, a, func() {
		err := c.fn.AsyncInvoke((*call.AttemptContext[*queue.Entry[slot[IN, OUT]], OUT])(a), s.in, a)
		if err != nil {
			a.CompleteExceptionally(err)
		}
	})
	c.invoked(a, err)
}

// invoked goes on after AsyncInvoke has ended, by whatever means. An error or panic after the attempt was completed is
// late (A2). If the attempt is complete, it is handled at once, unless others were before it (law Q1).
func (c *core[IN, OUT]) invoked(a *call.Attempt[*queue.Entry[slot[IN, OUT]], OUT], panicked error) {
	if panicked != nil {
		a.CompleteExceptionally(panicked)
	}
	if c.rest == nil && c.host.Mail.TakeOnly(&a.Letter) {
		c.receive(&a.Letter)
	}
}

// timedOut is how far an attempt had come that has timed out. Its results are not looked at: it may be being completed.
type timedOut struct {
	stage   predicates.Stage // the latest that is known of
	inDoubt bool             // a client has a request in doubt
}

// completed handles an attempt that was completed in time.
func (c *core[IN, OUT]) completed(e *queue.Entry[slot[IN, OUT]], a *call.Attempt[*queue.Entry[slot[IN, OUT]], OUT]) {
	a.Entry = nil
	if a.Done() {
		c.permits++
	}
	results, err := a.Outcome()
	if err == nil && c.checkControl && hasControl(results) {
		err = ErrControlResult
		a.DropResults()
	}
	c.concluded(e, a, err, nil)
}

// concluded goes on with the outcome of the attempt a of e: its own, with this error, or that of its timeout.
func (c *core[IN, OUT]) concluded(
	e *queue.Entry[slot[IN, OUT]], a *call.Attempt[*queue.Entry[slot[IN, OUT]], OUT], err error, timeout *timedOut,
) {
	s := &e.Value
	c.timers.Cancel(&s.timer)
	if err != nil {
		s.err = err
	}
	if !c.retry.policy.Considers(err) {
		if err != nil {
			stage, _ := stageOf(a, timeout)
			s.doubt(predicates.Reason{}, stage)
		}
		c.settle(e, err)
		return
	}
	c.judge(e, a, err, timeout)
}

// stageOf returns how far an attempt has come.
func stageOf[E, OUT any](a *call.Attempt[E, OUT], timeout *timedOut) (stage predicates.Stage, inDoubt bool) {
	if timeout != nil {
		return timeout.stage, timeout.inDoubt
	}
	return a.Report()
}

// retryNow ends the back-off of e: it competes for a permit.
func (c *core[IN, OUT]) retryNow(e *queue.Entry[slot[IN, OUT]]) {
	c.timers.Cancel(&e.Value.timer)
	c.enter(e, ready)
	c.ready.Arm(&e.Value.timer, e.Value.accepted)
}

// attemptTimeOut ends the running attempt of e; that is an outcome like any other.
func (c *core[IN, OUT]) attemptTimeOut(e *queue.Entry[slot[IN, OUT]]) {
	s := &e.Value
	a := s.attempt
	s.attempt = nil // somebody may be completing it right now
	end := a.Expire()
	c.takeBack(end)
	c.stats.AttemptTimeouts++
	at := &timedOut{stage: max(predicates.NetworkTime, end.Stage), inDoubt: end.InDoubt} // the call may be about to send
	if s.phase == preparing {
		at.stage = predicates.ClientDispatch // there is no call
	}
	c.concluded(e, a, &AttemptTimeoutError{Limit: c.attemptTimeout, Attempt: int(s.attempts)}, at)
}

// takeBack takes the permit of an attempt that has ended, unless a function of it still runs, which will give it back.
func (c *core[IN, OUT]) takeBack(end call.Ending) {
	if end.Freed {
		c.permits++
	}
}

// timeOut ends e at its deadline. Law A3: whatever the element was doing, this is final.
func (c *core[IN, OUT]) timeOut(e *queue.Entry[slot[IN, OUT]]) {
	s := &e.Value
	isEarly := c.now < c.deadline(e)
	switch s.phase {
	case preparing, running:
		c.timers.Cancel(&s.timer)
		c.takeBack(s.attempt.Expire())
		s.inDoubt = s.inDoubt || s.phase == running // whatever it reported: the call may be about to send
	case deciding:
		c.stats.Deciding--
		s.take().(*question[IN, OUT]).Expire()
	case backoff:
		c.timers.Cancel(&s.timer)
		c.stats.WaitingForRetry--
	case ready:
		c.ready.Cancel(&s.timer)
		c.stats.WaitingForRetry--
	default: // fresh: there is nothing to undo
	}
	s.attempt = nil
	c.stats.Timeouts++
	if c.hook.timeout == nil {
		c.fail(e, c.timeoutError(s, isEarly, nil))
		return
	}
	c.enter(e, handling)
	c.refresh() // the handler's time begins now
	limit := c.now + c.handlerLimit
	h := &call.Handling[*queue.Entry[slot[IN, OUT]], OUT]{Early: isEarly}
	h.Start(c.host, e, 0, limit)
	s.more().held = h
	c.timers.Arm(&s.timer, limit)
	in := s.in
	c.runBeside(&c.handlers, &h.Token, func() {
		h.Run(func() ([]OUT, error) {
			return c.hook.timeout.Timeout((*call.Context[*queue.Entry[slot[IN, OUT]]])(&h.Token), in)
		})
	})
}

// handled goes on after the timeout handler has answered; its outcome is final, as everything is after the deadline (A3).
func (c *core[IN, OUT]) handled(e *queue.Entry[slot[IN, OUT]], h *call.Handling[*queue.Entry[slot[IN, OUT]], OUT]) {
	h.Entry = nil
	s := &e.Value
	c.timers.Cancel(&s.timer)
	results, err, panicked := h.Outcome()
	switch {
	case panicked:
		err = c.timeoutError(s, h.Early, err)
	case err != nil:
	case c.checkControl && hasControl(results):
		err = ErrControlResult
	default:
		s.more().held = &kept[OUT]{results}
	}
	c.settle(e, err)
}

func (c *core[IN, OUT]) handlerTimeOut(e *queue.Entry[slot[IN, OUT]]) {
	s := &e.Value
	h := s.take().(*call.Handling[*queue.Entry[slot[IN, OUT]], OUT])
	h.Expire()
	c.fail(e, c.timeoutError(s, h.Early, ErrHandlerLimit))
}

func (c *core[IN, OUT]) timeoutError(s *slot[IN, OUT], isEarly bool, handler error) *TimeoutError {
	return &TimeoutError{
		Limit: c.timeout, Attempts: int(s.attempts), Last: s.err, Handler: handler, Early: isEarly,
		InDoubt: s.inDoubt, element: s.in, policy: c.retry.policy,
	}
}

// ---- Elements out

// settle ends e with the results of its attempt, or with err.
func (c *core[IN, OUT]) settle(e *queue.Entry[slot[IN, OUT]], err error) {
	if err != nil {
		c.fail(e, err)
		return
	}
	c.enter(e, done)
	c.queue.Complete(e)
}

// fail ends e by the failure policy.
func (c *core[IN, OUT]) fail(e *queue.Entry[slot[IN, OUT]], err error) {
	c.tick()
	s := &e.Value
	s.attempt = nil
	s.err = err
	c.stats.Failures++
	if c.policy == sideOutput {
		c.enter(e, failing)
		c.failing.Push(e)
		return
	}
	c.enter(e, ended)
	c.queue.Complete(e)
	if c.policy == dropElement {
		c.stats.Dropped++
		c.logGivenUp("asyncop: element dropped", s)
		return
	}
	c.stats.Failed++
	failed := &ElementError{
		Element: s.in, Attempts: int(s.attempts), Elapsed: c.now - s.accepted, Err: err, label: c.labelOf(s.in),
		Verdict: s.verdict, Reason: s.reason(), InDoubt: s.inDoubt, policy: c.retry.policy, Operator: c.name,
	}
	failed.retries = c.allowed
	if c.failure == nil {
		c.failed = failed
	}
	c.end(failed)
}

// end makes the loop end the operator. The first reason counts.
func (c *core[IN, OUT]) end(err error) {
	if c.failure == nil {
		c.failure = err
	}
}

// endIfCancelled ends the operator if it was cancelled.
func (c *core[IN, OUT]) endIfCancelled() {
	if c.failure != nil || !c.host.Cancelled() {
		return
	}
	cause := context.Cause(c.host.Life)
	if cause == nil {
		cause = context.Cause(c.host.User)
	}
	c.end(cause)
	c.cut = !c.isBroken(cause)
}

// handlerBroke ends the operator because of its failure handler, and tells so, for it may be ending already. Called from the
// handler's goroutine.
func (c *core[IN, OUT]) handlerBroke(err error) {
	c.breakOff(err)
	_ = offLoop(func() error {
		c.logger.LogAttrs(context.WithoutCancel(c.ctx), slog.LevelWarn, "asyncop: the failure handler broke",
			withStack([]slog.Attr{slog.Any("error", err)})...)
		return nil
	})
}

// breakOff ends the operator for something that has broken beside the loop. Called from any goroutine.
func (c *core[IN, OUT]) breakOff(err error) {
	c.broken.CompareAndSwap(nil, &err)
	c.host.Cancel(err)
}

// isBroken reports whether cause is what has broken beside the loop, and no cancel.
func (c *core[IN, OUT]) isBroken(cause error) bool {
	b := c.broken.Load()
	return b != nil && *b == cause //nolint:errorlint // the same, not the like; it is a pointer of ours
}

// logEnd writes, once, that the operator has failed, whoever waits for it: the caller of Wait and the loop over Results may
// not look. That it was cancelled was wanted, and the end of a loop by its own body says nothing new.
func (c *core[IN, OUT]) logEnd(err error) {
	switch {
	case !c.cut:
		c.logAttrs(slog.LevelError, "asyncop: operator failed", slog.Any("error", err))
	case c.failure != ErrStopped: //nolint:errorlint // what a break is, itself
		c.logAttrs(slog.LevelInfo, "asyncop: operator cancelled", slog.Any("error", err))
	}
}

// takenBySide completes the oldest failing element: the side output has it.
func (c *core[IN, OUT]) takenBySide() {
	e := c.failing.Pop()
	c.stats.SideOutput++
	c.enter(e, ended)
	c.queue.Complete(e)
	c.logGivenUp("asyncop: element given up", &e.Value)
}

// logGivenUp tells of an element that failed, and why there was no other attempt.
func (c *core[IN, OUT]) logGivenUp(msg string, s *slot[IN, OUT]) {
	attrs := []slog.Attr{slog.Int("attempts", int(s.attempts)), slog.Any("error", s.err)}
	if s.verdict != strategies.Accepted {
		attrs = append(attrs, slog.String("verdict", s.verdict.String()))
	}
	if r := s.reason(); !r.IsZero() {
		attrs = append(attrs, slog.String("reason", r.String()))
	}
	c.log(&c.giveUpLog, slog.LevelWarn, msg, s.in, attrs...)
}

// left removes the head of the queue: it has been emitted.
func (c *core[IN, OUT]) left(e *queue.Entry[slot[IN, OUT]]) {
	if e.Value.phase == done {
		c.stats.Completed++
	}
	if e == c.oldest {
		c.oldest = nextIn(e, func(s *slot[IN, OUT]) bool { return s.phase != control })
	}
	c.queue.Pop()
}

// failureOf describes a failing element for the side output.
func (c *core[IN, OUT]) failureOf(s *slot[IN, OUT], err error) Failure[IN] {
	f := Failure[IN]{
		Element: s.in, Err: err, Attempts: int(s.attempts), Elapsed: c.now - s.accepted, Reasons: s.reasons(),
		Verdict: s.verdict, Reason: s.reason(), InDoubt: s.inDoubt, policy: c.retry.policy,
	}
	if s.attempts > 0 {
		f.FirstAttempt, f.LastAttempt = c.timers.Time(s.first), c.timers.Time(s.last)
	}
	return f
}

// offerJobs offers the direct calls that were started to the workers that come free, and tells whether there were any.
func (c *core[IN, OUT]) offerJobs() bool {
	c.offered = len(c.jobs)
	if c.offered == 0 {
		return false
	}
	c.workers.Offer(c.jobs...)
	clear(c.jobs)
	c.jobs = c.jobs[:0]
	return true
}

// giveWay lets workers whose calls return take what was offered, without a switch, if most of the calls that run are others.
func (c *core[IN, OUT]) giveWay() {
	if running := c.maxPermits() - c.permits; c.offered > 0 && running > 2*c.offered {
		runtime.Gosched()
	}
}

// sendWorkers sends workers for those of the calls offered in the step before that are still there.
func (c *core[IN, OUT]) sendWorkers() {
	if c.offered > 0 {
		c.offered = 0
		c.workers.Send()
	}
}

// endJobs has workers give back the permits of calls that were started and have no worker yet. Their attempts have been
// ended: no call is made.
func (c *core[IN, OUT]) endJobs() {
	c.offerJobs()
	c.workers.Send()
}

// abandon ends the contexts of all attempts and returns the elements that have not ended, in input order (law A1).
func (c *core[IN, OUT]) abandon() []*queue.Entry[slot[IN, OUT]] {
	var cut []*queue.Entry[slot[IN, OUT]]
	for e := c.queue.First(); e != nil; e = e.Next() {
		s := &e.Value
		switch {
		case s.phase == control:
			continue
		case s.phase == preparing || s.phase == running:
			s.inDoubt = s.inDoubt || s.phase == running
			c.takeBack(s.attempt.Cut())
		case s.phase == deciding:
			c.stats.Deciding--
			s.take().(*question[IN, OUT]).Cut()
		case s.phase == handling:
			s.take().(*call.Handling[*queue.Entry[slot[IN, OUT]], OUT]).Cut()
		case s.phase == backoff || s.phase == ready:
			c.stats.WaitingForRetry--
		case s.phase == ended:
			continue
		case s.phase == done && len(s.results()) == 0:
			c.stats.Completed++ // with nothing to emit
			continue
		case s.phase == done:
			s.inDoubt = s.inDoubt || s.attempts > 0 // that it has taken effect is not known to anybody else
		}
		cut = append(cut, e)
	}
	return cut
}

// ---- Bookkeeping

// enter changes the phase of e and keeps the cursors on the oldest element of their kind.
func (c *core[IN, OUT]) enter(e *queue.Entry[slot[IN, OUT]], p phase) {
	e.Value.phase = p
	if e == c.fresh {
		c.fresh = nextIn(e, func(s *slot[IN, OUT]) bool { return s.phase == fresh })
	}
	if p.live() {
		return
	}
	if e == c.live {
		c.live = nextIn(e, func(s *slot[IN, OUT]) bool { return s.phase.live() && !s.limited() })
	}
	if e.Value.limited() {
		c.odd.Cancel(&e.Value.extra.limit.odd)
	}
}

// nextIn returns the next element after e that is wanted. A cursor passes every element once, so this is constant time
// in the long run.
func nextIn[IN, OUT any](
	e *queue.Entry[slot[IN, OUT]], wanted func(*slot[IN, OUT]) bool,
) *queue.Entry[slot[IN, OUT]] {
	for e = e.Next(); e != nil && !wanted(&e.Value); {
		e = e.Next()
	}
	return e
}

// publish makes the statistics visible.
func (c *core[IN, OUT]) publish() {
	oldest := noOldest
	if c.oldest != nil {
		oldest = c.oldest.Value.accepted
	}
	s := c.stats
	s.Running = int64(c.maxPermits() - c.permits)
	s.InFlight = s.Accepted - s.Completed - s.Dropped - s.SideOutput - s.Failed - s.Abandoned
	c.published.set(s, oldest)
}

func (c *core[IN, OUT]) maxPermits() int {
	if c.maxCalls == 0 {
		return c.queue.Cap()
	}
	return c.maxCalls
}

// isEndOfInput tells whether a control element is the marker of the end of the input, behind which only barriers come.
func isEndOfInput(control any) bool {
	b, ok := control.(participant.Barrier)
	return ok && b.Kind == participant.EndOfInput
}

// canHoldControl tells whether a value of type OUT can be a control element.
func canHoldControl[OUT any]() bool {
	t := reflect.TypeFor[OUT]()
	return t.Kind() == reflect.Interface || participant.IsControl(reflect.Zero(t).Interface())
}

func hasControl[OUT any](results []OUT) bool {
	for _, r := range results {
		if participant.IsControl(r) {
			return true
		}
	}
	return false
}
