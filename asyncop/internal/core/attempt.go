package core

import (
	"context"
	"math"
	"time"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/internal/gate"
	"github.com/weirflow/weir/predicates"
)

// The way of an attempt:
//
//	tryStart ─▶ begin ─▶ invoke ─▶ … ─▶ completed ─▶ concluded ─▶ decide ─▶ settle | fail | backOff ─▶ … ─▶ tryStart
//	                                   attemptTimeOut ─┘

// begin is the one place where an attempt starts. Its permit was taken, or it is one of several elements of a call.
func (g *Machine[IN, OUT]) begin(s *Slot[IN, OUT]) {
	again := s.phase == ready
	if again {
		g.ready.Cancel(&s.timer)
		g.countRetry(s)
	}
	if s.attempts < math.MaxInt32 {
		s.attempts++
	}
	s.last = g.now
	if s.attempts == 1 {
		if !g.knowsFirst(s) {
			s.first = g.now
		}
	}
	a := g.attemptOf(s)
	until := s.due
	if g.AttemptTimeout > 0 && s.last+g.AttemptTimeout < until {
		until = s.last + g.AttemptTimeout
	}
	g.enter(s, running)
	if until != s.due {
		g.Timers.Arm(&s.timer, until)
	}
	g.bind(s, &a.Token, s.attempts, until)
	s.attempt = a
	g.counts.Attempts++
	for _, f := range g.started {
		if !f(s, a) {
			return
		}
	}
	if again && len(g.slots.held.at) > 0 {
		if before, ok := g.take(s).(func(ctx context.Context) error); ok && !g.prepare(s, a, before) {
			return
		}
	}
	g.invoke(s, a)
}

// countRetry notes that s, which is ready, is retried.
func (g *Machine[IN, OUT]) countRetry(s *Slot[IN, OUT]) {
	g.retryOver(s)
	if s.retry&noRetry != 0 {
		s.retry = 0
		return
	}
	if r := g.slots.reasons.get(s.place); !r.last.IsZero() {
		r.retried = r.retried.With(r.last)
		g.slots.reasons.set(s.place, r)
	}
	switch {
	case s.attempts == 0: // restored from scratch
	case s.retry&ByResult != 0:
		g.counts.RetriesOnResult++
	default:
		g.counts.RetriesOnError++
	}
}

// retryOver notes that s does not wait for a retry any more.
func (g *Machine[IN, OUT]) retryOver(s *Slot[IN, OUT]) {
	if s.retry&noRetry == 0 {
		g.counts.WaitingForRetry--
	}
}

// attemptOf returns a new attempt.
func (g *Machine[IN, OUT]) attemptOf(s *Slot[IN, OUT]) *call.Attempt[OUT] {
	if g.newAttempt != nil {
		if a := g.newAttempt(s); a != nil {
			return a
		}
	}
	if g.Direct {
		return call.NewRoomy[OUT]()
	}
	return new(call.Attempt[OUT])
}

// bind makes s wait for what t stands for.
func (g *Machine[IN, OUT]) bind(s *Slot[IN, OUT], t *call.Token, number int32, until time.Duration) {
	t.Start(g.Host, g.slots.wait(s), number, until)
	for _, f := range g.bound {
		f(s, t)
	}
}

// context returns the context of the call of an attempt, also for those who judge it.
func (g *Machine[IN, OUT]) context(s *Slot[IN, OUT], a *call.Attempt[OUT]) context.Context {
	var own call.Cancellable = a
	if g.own != nil {
		own = g.own(a)
	}
	if g.contextOf != nil {
		return g.contextOf(s, own)
	}
	return own
}

// invoke starts the call.
func (g *Machine[IN, OUT]) invoke(s *Slot[IN, OUT], a *call.Attempt[OUT]) {
	ctx := g.context(s, a)
	if g.Direct && ctx == context.Context(a) {
		a.Occupy()
		g.jobs = append(g.jobs, call.Job[IN, OUT]{Attempt: a, In: s.in})
		return
	}
	a.Attend()
	g.calling(s, g.resumes.invoke)
	err := g.Invoke(ctx, s.in, a)
	g.called()
	if err != nil {
		a.CompleteExceptionally(err)
	}
	g.invoked(s)
}

// invokeBroke goes on after the function, or a feature's user code before it, has broken.
func (g *Machine[IN, OUT]) invokeBroke(s *Slot[IN, OUT], err error) {
	s.attempt.Attend() // it may have broken before the call
	s.attempt.CompleteExceptionally(err)
	g.invoked(s)
}

// invoked goes on after the function has returned, or broken: an error or panic after it has completed the attempt is late (A2). An
// attempt that is complete is handled here, in the order of the completions (law Q1).
func (g *Machine[IN, OUT]) invoked(s *Slot[IN, OUT]) {
	a := s.attempt
	switch first := a.Leave(); {
	case first && g.rest == nil:
		g.completed(s)
	case first: // letters are being read: they were before it
		g.Host.Mail.Post(&a.Letter)
	case a.Completed() && g.rest == nil && g.forming == nil: // others were before it
		g.rest = g.Host.Mail.Take()
		g.readRest()
	}
}

// Jobs hands out the calls that were started since it was called last, and reports how many there were. offer must not keep the slice.
func (g *Machine[IN, OUT]) Jobs(offer func(jobs ...call.Job[IN, OUT])) (n int) {
	n = len(g.jobs)
	if n > 0 {
		offer(g.jobs...)
		clear(g.jobs)
		g.jobs = g.jobs[:0]
	}
	return n
}

// attemptEnd is how an attempt ends.
type attemptEnd uint8

const (
	completion attemptEnd = iota // it was completed in time
	ranOut                       // its own time ran out, or that of its element
	cutOff                       // the run ends
)

// endAttempt is the one place where an attempt ends. Its permit comes back, unless a function of it still runs, which will give it
// back.
func (g *Machine[IN, OUT]) endAttempt(s *Slot[IN, OUT], a *call.Attempt[OUT], how attemptEnd) (end call.Released) {
	switch how {
	case completion:
		end.Freed = a.LetGo()
	case ranOut:
		end = a.Expire()
	case cutOff:
		end = a.Cut()
	}
	if around := g.Host.Around; around != nil && how != completion && s.phase == running && end.Stage < predicates.NetworkTime {
		around.ReportStage(predicates.NetworkTime) // its call may be about to send
	}
	if end.Freed {
		g.permits++
	}
	for _, f := range g.released {
		f(s, a, end)
	}
	return end
}

// completed handles the attempt of s, which was completed in time.
func (g *Machine[IN, OUT]) completed(s *Slot[IN, OUT]) {
	a := s.attempt
	g.endAttempt(s, a, completion)
	results, err := a.Outcome()
	if err == nil && g.Check != nil {
		if err = g.Check(results); err != nil {
			a.DropResults()
		}
	}
	if err != nil {
		results = nil
	}
	o := outcome[OUT]{results: results}
	o.stage, o.inDoubt, o.tracked = a.Report()
	g.conclude(s, a, err, o)
}

// outcome is what an attempt has come to, beside its error. Results of one that has timed out are not looked at: it may be being
// completed.
type outcome[OUT any] struct {
	results []OUT
	stage   predicates.Stage // the latest that is known of
	inDoubt bool             // a client has a request in doubt
	tracked bool             // the servers of all that are in doubt recognise them
}

// attemptTimeOut ends the running attempt of s; that is an outcome like any other.
func (g *Machine[IN, OUT]) attemptTimeOut(s *Slot[IN, OUT]) {
	a := s.attempt
	s.attempt = nil // it may be being completed right now
	end := g.endAttempt(s, a, ranOut)
	g.counts.AttemptTimeouts++
	o := outcome[OUT]{stage: max(predicates.NetworkTime, end.Stage), inDoubt: end.InDoubt, tracked: end.Tracked} // the call may be about to send
	if s.phase == preparing {
		o.stage = predicates.ClientDispatch // there is no call
	}
	g.conclude(s, a, g.Hooks.AttemptTimedOut(int(s.attempts)), o)
}

// conclude goes on with the outcome of the attempt a of s.
func (g *Machine[IN, OUT]) conclude(s *Slot[IN, OUT], a *call.Attempt[OUT], err error, o outcome[OUT]) {
	g.Timers.Cancel(&s.timer)
	if err != nil {
		s.err = err
		g.attemptFailed(err)
	}
	for _, f := range g.concluded {
		f(s, len(o.results), err)
	}
	if g.Policy.Considers(err) {
		g.decide(s, a, err, o)
		return
	}
	g.hear(s, err, predicates.Reason{}, 0)
	if err != nil {
		s.doubts(predicates.Reason{}, o.stage, o.tracked)
	}
	g.settle(s, err)
}

// hear passes on how the attempt of s went, and reports whether it met an outage. One that was prepared only has sent nothing.
func (g *Machine[IN, OUT]) hear(s *Slot[IN, OUT], err error, reason predicates.Reason, pushback time.Duration) (outage bool) {
	if g.heard == nil {
		return false
	}
	return g.heard(s, gate.Outcome{Err: err, Reason: reason, Pushback: pushback, Ignored: s.phase == preparing})
}

// attemptFailed notes that an attempt has ended with an error, or with the time of its element.
func (g *Machine[IN, OUT]) attemptFailed(err error) {
	g.failed++
	g.counts.LastError = err
}

// backOff lets s wait for its next attempt. One whose retry could not start before its deadline waits for the deadline, or
// times out early by choice.
func (g *Machine[IN, OUT]) backOff(s *Slot[IN, OUT], d *judgement) {
	g.tick()
	g.enter(s, backoff)
	g.counts.WaitingForRetry++
	tooLate := s.due != Never && d.Delay >= s.due-g.now // capped, or it would be now
	delay := d.Delay
	if tooLate {
		delay = 0
	}
	g.attemptOver(s, !tooLate, delay)
	for _, f := range g.decided {
		f(s, *d, !tooLate)
	}
	switch {
	case tooLate && g.EarlyTimeout:
		g.timeOut(s)
	case d.Delay == 0 && !tooLate:
		g.retryNow(s)
	default: // a timer that is due at the deadline or later never fires: deadlines come first
		g.Timers.Arm(&s.timer, later(g.now, max(d.Delay, d.Demanded)))
	}
}

// attemptOver says what follows from the attempt of an element that has one: nothing, or a retry after d.
func (g *Machine[IN, OUT]) attemptOver(s *Slot[IN, OUT], again bool, d time.Duration) {
	for _, f := range g.over {
		f(s, again, d)
	}
}

// retryNow ends the back-off of s: it competes for a permit, or waits until a feature lets it.
func (g *Machine[IN, OUT]) retryNow(s *Slot[IN, OUT]) {
	g.Timers.Cancel(&s.timer)
	g.enter(s, ready)
	if g.mayCall == nil || g.mayCall(s) {
		g.armReady(s)
	}
}

// armReady lets s, which is ready, compete for a permit.
func (g *Machine[IN, OUT]) armReady(s *Slot[IN, OUT]) {
	if g.ready.Len() == 0 {
		g.readied = g.now
	}
	g.ready.Arm(&s.timer, s.accepted)
}

// timeOut ends s at its deadline. Law A3: whatever the element was doing, this is final.
func (g *Machine[IN, OUT]) timeOut(s *Slot[IN, OUT]) {
	isEarly, called := g.now < s.due, s.phase == running
	switch s.phase {
	case fresh, behind: // there is nothing to undo
	case preparing, running:
		g.Timers.Cancel(&s.timer)
		end := g.endAttempt(s, s.attempt, ranOut)
		g.hear(s, context.DeadlineExceeded, predicates.Reason{}, 0)
		if called { // whatever it reported: the call may be about to send
			s.doubt = max(s.doubt, doubtOf(end.Tracked))
		}
	case backoff:
		g.Timers.Cancel(&s.timer)
		g.retryOver(s)
	case ready:
		g.ready.Cancel(&s.timer)
		g.retryOver(s)
	default:
		g.on[s.phase].cut(s, true)
	}
	s.attempt = nil
	for _, f := range g.concluded {
		f(s, 0, context.DeadlineExceeded)
	}
	g.attemptOver(s, false, 0)
	g.counts.Timeouts++
	var closed error
	var wait time.Duration
	if g.closed != nil {
		closed, wait = g.closed(s, called)
	}
	failure := g.Hooks.TimedOut(g.report(s), isEarly, closed)
	if closed != nil && s.attempts == 0 && g.giveBack != nil && g.giveBack(s, failure, wait) { // law W2: what was called counts as visited
		s.err = failure
		g.enter(s, ended)
		g.complete(s)
		g.Ended(s, observe.Abandoned)
		return
	}
	if called {
		g.attemptFailed(failure)
	}
	g.fails(s, failure, true)
}
