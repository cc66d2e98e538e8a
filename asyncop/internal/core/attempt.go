package core

import (
	"context"
	"math"
	"time"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/internal/gate"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/predicates"
)

// begin is the one place where an attempt starts. Its permit was taken, or it is one of several elements of a call.
func (g *Machine[IN, OUT]) begin(s *Slot[IN, OUT]) {
	var before any // what the strategy wants done first
	if s.phase == ready {
		if g.prepare != nil {
			before = g.unhold(s)
		}
		g.ready.Cancel(&s.timer)
		g.countRetry(s)
	}
	if s.attempts < math.MaxInt32 {
		s.attempts++
	}
	s.last = g.now
	if s.attempts == 1 && !s.knows {
		s.first = g.now
	}
	var a *call.Attempt[OUT]
	if g.newAttempt != nil {
		a = g.newAttempt(s)
	}
	switch {
	case a != nil:
	case g.Direct:
		a = call.NewRoomy[OUT]()
	default:
		a = new(call.Attempt[OUT])
	}
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
	g.state.Stats.Attempts++
	for _, f := range g.started {
		if !f(s, a) {
			return
		}
	}
	if before, ok := before.(func(ctx context.Context) error); ok && !g.prepare(s, a, before) {
		return
	}
	g.invoke(s, a)
}

// countRetry notes that s, which is ready, is retried.
func (g *Machine[IN, OUT]) countRetry(s *Slot[IN, OUT]) {
	if s.retry&noRetry != 0 {
		s.retry = 0
		return
	}
	g.state.Stats.WaitingForRetry--
	if g.looksClosely {
		if of := g.reasons.get(s.place); !of.last.IsZero() {
			g.reasons.ref(s.place).retried = of.retried.With(of.last)
		}
	}
	switch {
	case s.attempts == 0: // restored from scratch
	case s.retry&ByResult != 0:
		g.state.Stats.RetriesOnResult++
	default:
		g.state.Stats.RetriesOnError++
	}
}

// retryOver notes that s does not wait for a retry any more.
func (g *Machine[IN, OUT]) retryOver(s *Slot[IN, OUT]) {
	if s.retry&noRetry == 0 {
		g.state.Stats.WaitingForRetry--
	}
}

// bind makes s wait for something that runs elsewhere and has the token t: that begins a turn.
func (g *Machine[IN, OUT]) bind(s *Slot[IN, OUT], t *call.Token, number int32, until time.Duration) {
	g.slots.turns++
	s.turn = g.slots.turns
	t.Host, t.Ref, t.Number, t.Until = g.Host, call.Ref{Place: s.place, Stamp: g.stamp, Turn: s.turn}, number, until
	for _, f := range g.bound {
		f(s, t)
	}
}

// context returns the context of user code that runs for s, with the end of own.
func (g *Machine[IN, OUT]) context(s *Slot[IN, OUT], own call.Cancellable) context.Context {
	if g.contextOf != nil {
		return g.contextOf(s, own)
	}
	return own
}

// invoke starts the call.
func (g *Machine[IN, OUT]) invoke(s *Slot[IN, OUT], a *call.Attempt[OUT]) {
	var own call.Cancellable = a
	if g.own != nil {
		own = g.own(a)
	}
	ctx := context.Context(own)
	if g.contextOf != nil {
		ctx = g.contextOf(s, own)
	}
	if g.Direct && ctx == context.Context(a) {
		a.Occupy(true)
		*g.Jobs = append(*g.Jobs, call.Job[IN, OUT]{Attempt: a, In: s.in})
		return
	}
	g.calling(s, g.resumes.invoke)
	err := g.Invoke(ctx, s.in, a)
	g.user.after = nil
	if err != nil {
		a.CompleteExceptionally(err)
	}
	g.invoked(s)
}

// invokeBroke goes on after the function, or a feature's user code before it, has broken.
func (g *Machine[IN, OUT]) invokeBroke(s *Slot[IN, OUT], err error) {
	s.attempt.CompleteExceptionally(err)
	g.invoked(s)
}

// invoked goes on after the function has returned, or broken: an error or panic after it has completed the attempt is late (A2). An
// attempt that is complete is handled here, in the order of the completions (law Q1).
func (g *Machine[IN, OUT]) invoked(s *Slot[IN, OUT]) {
	switch a := s.attempt; {
	case a.Leave(): // no letters are being read: what is called then has left before
		g.conclude(s, completion)
	case a.Completed() && g.rest == nil && g.forming == nil: // others were before it
		g.rest = g.Host.Mail.Take()
		g.readRest()
	}
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
		end = a.LetGo()
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

// outcome is how an attempt has ended, until it is known what follows from that.
type outcome struct {
	is      bool // an attempt has ended
	results int
	err     error
	took    time.Duration // the attempt
	timed   bool          // took is known; else it has ended just now, but for what the policy took
}

// conclude ends the attempt of s, which was completed or whose own time ran out, and goes on with its outcome.
func (g *Machine[IN, OUT]) conclude(s *Slot[IN, OUT], how attemptEnd) {
	a := s.attempt
	end := g.endAttempt(s, a, how)
	g.Timers.Cancel(&s.timer)
	var results []OUT
	var err error
	if how == ranOut {
		s.attempt = nil                                    // it may be being completed right now: results are not looked at
		end.Stage = max(predicates.NetworkTime, end.Stage) // the call may be about to send
		if s.phase == preparing {
			end.Stage = predicates.ClientDispatch // there is no call
		}
		g.state.Stats.AttemptTimeouts++
		err = g.Hooks.TimedOut(g.report(s), TimedOut{Attempt: true})
	} else if results, err = a.Results, a.Failure; err == nil && g.Check != nil {
		if err = g.Check(results); err != nil {
			a.Results = nil
		}
	}
	considered := g.Policy.Results
	if err != nil {
		results, s.err, considered = nil, err, g.Policy.Errors
		g.state.Failed++
		g.state.Stats.LastError = err
	}
	g.outcome = outcome{is: true, results: len(results), err: err}
	if err != nil || g.timesAll { // else a reading of the clock can be spared
		g.refresh()
		g.outcome.took, g.outcome.timed = g.now-s.last, true
	}
	if !considered {
		if g.heard != nil {
			g.hear(s, &a.Token, err, predicates.Reason{}, 0)
		}
		if err != nil {
			s.doubts(predicates.Reason{}, end.Stage, end.Deduplicated)
		}
		g.settle(s, err)
		return
	}
	j := &g.judging
	j.is, j.isAnswered, j.isHeard = true, false, false
	j.token, j.deduplicated = &a.Token, end.Deduplicated
	v := &j.view
	v.Number, v.Err, v.Results, v.Stage, v.InDoubt = int(s.attempts), err, results, end.Stage, end.InDoubt
	v.Reason = predicates.Reason{} // the policy may break before it has found one
	if g.looksClosely {
		v.Input = s.in
		v.Values = g.context(s, a)
		v.Reasons = g.reasons.get(s.place).retried
	}
	g.decide(s, v, nil)
}

// hear passes on how the attempt of s went, whose token is t, and reports whether it met an outage. One that was prepared only has sent nothing,
// and one whose outcome is borrowed has made no call.
func (g *Machine[IN, OUT]) hear(s *Slot[IN, OUT], t *call.Token, err error, reason predicates.Reason, pushback time.Duration) (outage bool) {
	if g.heard == nil {
		return false
	}
	g.refresh()
	cut := g.now >= s.due && s.isHurried(s.last) && pushback == 0 && guard.Is(err, context.DeadlineExceeded)
	return g.heard(s, gate.Evidence{Err: err, Reason: reason, Pushback: pushback, Ignored: s.phase == preparing, Cut: cut, Borrowed: t.Borrowed()})
}

// backOff lets s wait for its next attempt. One whose retry could not start before its deadline waits for the deadline, or
// times out early by choice.
func (g *Machine[IN, OUT]) backOff(s *Slot[IN, OUT], d *decision.Decision) {
	g.refresh()
	g.enter(s, backoff)
	g.state.Stats.WaitingForRetry++
	delay, tooLate := d.Delay, false
	if left := max(0, s.due-g.now); s.due != Never && d.Delay >= left { // capped, or it would be now
		delay, tooLate, d.Delay = 0, true, left
	}
	g.follows(s, !tooLate, delay)
	s.attempt = nil
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

// retryNow ends the back-off of s: it competes for a permit, or waits until a feature lets it.
func (g *Machine[IN, OUT]) retryNow(s *Slot[IN, OUT]) {
	g.Timers.Cancel(&s.timer)
	g.enter(s, ready)
	if g.mayCall != nil && !g.mayCall(s) {
		return
	}
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
		g.hear(s, &s.attempt.Token, context.DeadlineExceeded, predicates.Reason{}, 0)
		if called { // whatever it reported: the call may be about to send
			s.doubt = max(s.doubt, doubtOf(end.Deduplicated))
		}
		g.outcome = outcome{is: true, err: context.DeadlineExceeded, took: g.now - s.last, timed: true}
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
	g.follows(s, false, 0)
	g.state.Stats.Timeouts++
	var closed error
	var wait time.Duration
	if g.closed != nil {
		closed, wait = g.closed(s)
	}
	failure := g.Hooks.TimedOut(g.report(s), TimedOut{Early: isEarly, Closed: closed})
	if closed != nil && s.attempts == 0 && g.giveBack != nil && g.giveBack(s, failure, wait) { // law W2: what was called counts as visited
		s.err = failure
		g.enter(s, ended)
		g.complete(s)
		g.Ended(s, observe.Abandoned)
		return
	}
	if called {
		g.state.Failed++
		g.state.Stats.LastError = failure
	}
	g.fails(s, failure, true)
}

// ---- What follows from an outcome

// judge is what the core knows while it shows an outcome to the policy. The state of elements is in their slots.
type judge[OUT any] struct {
	looksClosely bool               // the policy looks at more of an attempt than its number and outcome
	situation    decision.Situation // of the operator
	judging      judging[OUT]       // that was judged last, until the core is idle: to clear it each time costs 4 %
}

// judging is about the outcome that is being judged: of the element that user code runs for, whose attempt has ended.
type judging[OUT any] struct {
	is         bool        // it is judged right now
	isAnswered bool        // by a strategy that was asked elsewhere
	isHeard    bool        // features know of the outcome
	outage     bool        // the attempt met one
	token      *call.Token // of the attempt

	view         predicates.Attempt[OUT] // what the policy sees of the attempt; a strategy that is asked elsewhere gets a copy
	deduplicated bool                    // the servers of the requests in doubt of view recognise them when they are repeated
}

// decide shows the outcome that is judged to the policy, which says what follows. A strategy that may block is asked elsewhere; then decide
// is called again, with its answer. An outage takes nothing out of the budget for retries.
func (g *Machine[IN, OUT]) decide(s *Slot[IN, OUT], v *predicates.Attempt[OUT], answer *decision.Answer) {
	if g.looksClosely { // else only the number and the outcome count, and backOff looks at the clock before it says that a retry is too late
		g.tick()
	}
	v.Remaining, v.Elapsed = decision.NoDeadline, g.now-s.accepted
	if s.due != Never {
		v.Remaining = max(0, s.due-g.now)
	}
	j, now := &g.judging, &g.situation
	now.Finishing, now.Waiting, now.Answer, now.Outage = g.noRetries, int(g.state.Stats.WaitingForRetry), answer, j.outage
	g.calling(s, g.resumes.judge)
	if g.looksClosely && answer == nil {
		v.Idempotent = g.Policy.IsIdempotent(v.Input)
	}
	d := g.Policy.Decide(g.Host.Life, v, now)
	g.user.after, now.Answer = nil, nil
	if answer == nil {
		// What the policy has found out about the outcome counts now: the deadline of s may come next, or this is its end.
		s.doubts(v.Reason, v.Stage, j.deduplicated)
	}
	if d.NoRetryReason == decision.Asked {
		g.ask(s)
		return
	}
	g.decidedOn(s, &d, nil)
}

// judgeBroke goes on after the policy has broken.
func (g *Machine[IN, OUT]) judgeBroke(s *Slot[IN, OUT], err error) {
	j := g.judging
	if !j.isAnswered {
		s.doubts(j.view.Reason, j.view.Stage, j.deduplicated)
		if !j.isHeard {
			g.hear(s, j.token, g.outcome.err, predicates.Reason{}, 0)
		}
	}
	g.decidedOn(s, &decision.Decision{}, err)
}

// found passes on the outcome that is judged, with its reason. Attempts that met an outage do not count.
func (g *Machine[IN, OUT]) found() (outage bool) {
	s, j := g.user.slot, &g.judging
	pushback, _ := decision.PushbackOf(&j.view)
	j.outage = g.hear(s, j.token, g.outcome.err, j.view.Reason, pushback)
	j.isHeard = true
	if s.due != Never { // or the budget would be charged for a retry that comes too late after a call that blocked the loop
		j.view.Remaining = max(0, s.due-g.now)
	}
	g.ran = true // the policy goes on
	j.view.Number = max(1, int(s.attempts)-g.forgiven(s))
	return j.outage
}

// question returns the context of a question to a strategy: the values of the attempt, and the end of the operator.
func (g *Machine[IN, OUT]) question() context.Context {
	return call.WithEnd(g.context(g.user.slot, g.judging.token), g.Host.Life)
}

// decidedOn does what the policy has decided about the outcome. If it panicked, s ends with that (law A6).
func (g *Machine[IN, OUT]) decidedOn(s *Slot[IN, OUT], d *decision.Decision, panicked error) {
	g.judging.is = false
	if g.looksClosely && d.Reason != g.reasons.get(s.place).last {
		g.reasons.ref(s.place).last = d.Reason
	}
	switch {
	case panicked != nil:
		g.fails(s, guard.Join(panicked, g.outcome.err), false)
	case d.NoRetryReason == decision.Final:
		g.settle(s, d.Err)
	case d.NoRetryReason == decision.Retried:
		if d.Err != nil {
			s.err = d.Err
		}
		if d.Before != nil {
			*g.held.ref(s.place) = d.Before
		}
		s.retry = 0
		if g.outcome.err == nil {
			s.retry = ByResult
		}
		if d.Demanded > 0 {
			s.retry |= Demanded
		}
		g.backOff(s, d)
	default:
		g.notRetried(s, d)
	}
}

// notRetried ends s, which there was a reason to retry.
func (g *Machine[IN, OUT]) notRetried(s *Slot[IN, OUT], d *decision.Decision) {
	s.noRetry = d.NoRetryReason
	for _, f := range g.decided {
		f(s, *d, false)
	}
	if d.NoRetryReason == decision.Failed {
		g.fails(s, g.Hooks.Undecided(*d), false)
		return
	}
	g.state.Stats.Exhausted++
	switch d.NoRetryReason {
	case decision.Finishing:
		g.state.Stats.CutByEndOfInput++
	case decision.OverBudget:
		g.state.Stats.OverBudget++
	case decision.TooManyWaiting:
		g.state.Stats.TooManyWaiting++
	default: // Refused
	}
	if d.Err == nil && g.ExhaustedAsFailure {
		d.Err = g.Hooks.Undecided(*d)
	}
	g.settle(s, d.Err)
}
