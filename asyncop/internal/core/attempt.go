package core

import (
	"context"
	"math"
	"time"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/predicates"
)

// deadline returns when the total time of s runs out, or Never.
func (g *Machine[IN, OUT]) deadline(s *Slot[IN, OUT]) time.Duration {
	switch {
	case s.limited():
		return s.extra.rare.limit.due
	case g.Timeout == 0:
		return Never
	}
	return s.accepted + g.Timeout
}

// tokenDeadline is deadline for what is called for s.
func (g *Machine[IN, OUT]) tokenDeadline(s *Slot[IN, OUT]) time.Duration {
	if due := g.deadline(s); due != Never {
		return due
	}
	return call.NoDeadline
}

// start begins the next attempt of s, which is fresh or ready, unless its deadline or a cancel has come (law A5), or there is no
// shared permit or no pace for it: then s waits on. Its deadline is the timers' to fire (law T1).
func (g *Machine[IN, OUT]) start(s *Slot[IN, OUT]) {
	if !g.mayStart(s) || (g.Host.Share != nil || g.Pace != nil) && !g.admit(s) {
		return
	}
	g.permits--
	g.begin(s)
}

// mayStart reports whether neither a cancel nor the deadline of s, which is fresh or ready, has come (law A5).
func (g *Machine[IN, OUT]) mayStart(s *Slot[IN, OUT]) bool {
	if g.EndIfCancelled(); g.failure != nil { // now, not when the driver looks
		return false
	}
	g.refresh()
	g.overdue = g.now >= g.deadline(s)
	return !g.overdue
}

// begin is the one place where an attempt starts. Its permit was taken, or it is a member of the batch that is being formed.
func (g *Machine[IN, OUT]) begin(s *Slot[IN, OUT]) {
	if s.phase == ready {
		g.ready.Cancel(&s.timer)
		g.counts.WaitingForRetry--
		s.retried()
		switch {
		case s.attempts == 0: // restored from scratch
		case s.retry&ByResult != 0:
			g.counts.RetriesOnResult++
		default:
			g.counts.RetriesOnError++
		}
	} else if g.Keys != nil {
		g.heads.Cancel(&s.timer)
	}
	if s.attempts < math.MaxInt32 {
		s.attempts++
	}
	s.last = g.now
	if s.attempts == 1 && !s.knowsFirst() {
		s.first = g.now
	}
	deadline, own := g.attemptDeadline(s)
	if own {
		g.Timers.Arm(&s.timer, deadline)
	}
	a := g.newAttempt(s)
	a.Start(g.Host, g.slots.wait(s), s.attempts, deadline)
	s.attempt = a
	if p := s.standing(); p != nil {
		p.batch = g.forming
	}
	g.counts.Attempts++
	if s.attempts == 1 {
		g.retry.policy.Deposit()
	}
	if r := s.rider(); r != nil && !g.observeStart(s, r, a) {
		return
	}
	if before := s.takeBefore(); before != nil {
		if g.forming == nil {
			g.prepare(s, a, before)
			return
		}
		g.prepareMember(s, a, before)
	}
	g.invoke(s, a)
}

// attemptDeadline returns when the time of the last attempt of s runs out; own says that this is not that of s.
func (g *Machine[IN, OUT]) attemptDeadline(s *Slot[IN, OUT]) (at time.Duration, own bool) {
	at = g.tokenDeadline(s)
	if g.AttemptTimeout > 0 {
		if end := s.last + g.AttemptTimeout; at == call.NoDeadline || end < at {
			return end, true
		}
	}
	return at, false
}

// admit takes a shared permit for an attempt of s and asks the pace. An attempt that must wait has neither.
func (g *Machine[IN, OUT]) admit(s *Slot[IN, OUT]) bool {
	share := g.Host.Share
	if share != nil && !share.Take() {
		g.short = true
		return false
	}
	if g.Pace == nil {
		return true
	}
	if !g.askPace(s) {
		if share != nil {
			share.Release()
		}
		return false
	}
	return true
}

// askPace asks whether an attempt of s may start now. Asking is user code: the time may run out meanwhile.
func (g *Machine[IN, OUT]) askPace(s *Slot[IN, OUT]) bool {
	at := g.now
	g.calling(callPace, s)
	wait := g.Pace(g.Timers.Time(at))
	g.called()
	g.refresh()
	if wait > 0 {
		g.paced = later(at, wait)
		return false
	}
	g.overdue = g.now >= g.deadline(s)
	return !g.overdue
}

// refuse ends s, which is fresh or ready, with the error of what was to admit its attempt (law A6).
func (g *Machine[IN, OUT]) refuse(s *Slot[IN, OUT], err error) {
	if s.phase == ready {
		g.ready.Cancel(&s.timer)
		g.counts.WaitingForRetry--
	}
	g.fail(s, err)
}

func (g *Machine[IN, OUT]) newAttempt(s *Slot[IN, OUT]) *call.Attempt[OUT] {
	m := s.message()
	switch {
	case g.forming != nil:
		a := g.forming.Add()
		a.Carry(m)
		return a
	case m != (call.Message{}):
		return call.NewCarrying[OUT](m)
	case g.Direct:
		return call.NewRoomy[OUT]()
	}
	return new(call.Attempt[OUT])
}

// invoke starts the call.
func (g *Machine[IN, OUT]) invoke(s *Slot[IN, OUT], a *call.Attempt[OUT]) {
	g.enter(s, running)
	if g.Direct && s.values() == nil {
		a.Occupy()
		g.jobs = append(g.jobs, call.Job[IN, OUT]{Attempt: a, In: s.in})
		return
	}
	a.Attend()
	g.calling(callInvoke, s)
	err := g.Invoke(g.contextOf(s, a), s.in, a)
	g.called()
	if err != nil {
		a.CompleteExceptionally(err)
	}
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
		g.readMail()
	}
}

// Jobs hands out the direct calls and the batches that were started since it was called last, and reports whether there were any. offer must not
// keep the slice.
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
func (g *Machine[IN, OUT]) endAttempt(
	s *Slot[IN, OUT], a *call.Attempt[OUT], how attemptEnd,
) (end call.Ending) {
	switch how {
	case completion:
		end.Freed = a.Done()
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
	} else {
		g.outlives(s, a) // law K1
	}
	if end.Over && g.Host.Share != nil {
		g.Host.Share.Release()
	}
	return end
}

// completed handles the attempt of s, which was completed in time.
func (g *Machine[IN, OUT]) completed(s *Slot[IN, OUT]) {
	a := s.attempt
	g.endAttempt(s, a, completion)
	results, err := a.Outcome()
	if err == nil && g.hasControl(results) {
		err = g.ErrControlResult
		a.DropResults()
	}
	g.concluded(s, a, err, nil)
}

func (g *Machine[IN, OUT]) hasControl(results []OUT) bool {
	if g.IsControl == nil {
		return false
	}
	for _, r := range results {
		if g.IsControl(r) {
			return true
		}
	}
	return false
}

// timedOut is how far an attempt had come that has timed out. Its results are not looked at: it may be being completed.
type timedOut struct {
	stage   predicates.Stage // the latest that is known of
	inDoubt bool             // a client has a request in doubt
	tracked bool             // the servers of all that are in doubt recognise them
}

// concluded goes on with the outcome of the attempt a of s: its own, with this error, or that of its timeout.
func (g *Machine[IN, OUT]) concluded(
	s *Slot[IN, OUT], a *call.Attempt[OUT], err error, timeout *timedOut,
) {
	g.Timers.Cancel(&s.timer)
	if err != nil {
		s.err = err
		g.attemptFailed(err)
	}
	if g.observed {
		results := 0
		if timeout == nil {
			results = len(a.Results())
		}
		g.conclude(s, results, err)
	}
	if !g.retry.policy.Considers(err) {
		if err != nil {
			stage, _, isTracked := stageOf(a, timeout)
			s.doubts(predicates.Reason{}, stage, isTracked)
		}
		g.settle(s, err)
		return
	}
	g.judge(s, a, err, timeout)
}

// attemptFailed notes that an attempt has ended with an error, or with the time of its element.
func (g *Machine[IN, OUT]) attemptFailed(err error) {
	g.failed++
	g.counts.LastError = err
}

// stageOf returns how far an attempt has come.
func stageOf[OUT any](a *call.Attempt[OUT], timeout *timedOut) (stage predicates.Stage, inDoubt, isTracked bool) {
	if timeout != nil {
		return timeout.stage, timeout.inDoubt, timeout.tracked
	}
	return a.Report()
}

// retryNow ends the back-off of s: it competes for a permit, or waits for its key.
func (g *Machine[IN, OUT]) retryNow(s *Slot[IN, OUT]) {
	g.Timers.Cancel(&s.timer)
	g.enter(s, ready)
	if g.mayCall(s) { // law K1
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

// attemptTimeOut ends the running attempt of s; that is an outcome like any other.
func (g *Machine[IN, OUT]) attemptTimeOut(s *Slot[IN, OUT]) {
	a := s.attempt
	s.attempt = nil // it may be being completed right now
	end := g.endAttempt(s, a, ranOut)
	g.counts.AttemptTimeouts++
	at := &timedOut{stage: max(predicates.NetworkTime, end.Stage), inDoubt: end.InDoubt, tracked: end.Tracked} // the call may be about to send
	if s.phase == preparing {
		at.stage = predicates.ClientDispatch // there is no call
	}
	g.concluded(s, a, g.Hooks.AttemptTimedOut(int(s.attempts)), at)
}

// timeOut ends s at its deadline. Law A3: whatever the element was doing, this is final.
func (g *Machine[IN, OUT]) timeOut(s *Slot[IN, OUT]) {
	isEarly, called := g.now < g.deadline(s), s.phase == running
	switch s.phase {
	case preparing, running:
		g.Timers.Cancel(&s.timer)
		end := g.endAttempt(s, s.attempt, ranOut)
		if s.phase == running { // whatever it reported: the call may be about to send
			s.doubt = max(s.doubt, doubtOf(end.Tracked))
		}
	case deciding:
		g.counts.Deciding--
		s.take().(*question[IN, OUT]).Expire()
	case backoff:
		g.Timers.Cancel(&s.timer)
		g.counts.WaitingForRetry--
	case ready:
		g.ready.Cancel(&s.timer)
		g.counts.WaitingForRetry--
	default: // fresh, behind: there is nothing to undo
	}
	s.attempt = nil
	g.conclude(s, 0, context.DeadlineExceeded)
	g.attemptOver(s, false, 0)
	g.counts.Timeouts++
	failure := g.Hooks.TimedOut(g.report(s), isEarly)
	if called {
		g.attemptFailed(failure)
	}
	if g.Handle == nil {
		g.giveUp(s, failure)
		return
	}
	g.handle(s, failure, true)
}

// handle asks Handle for results in place of a failure, on a worker, under a limit of its own.
func (g *Machine[IN, OUT]) handle(s *Slot[IN, OUT], failure error, timedOut bool) {
	g.attemptOver(s, false, 0)
	s.attempt = nil
	s.err = failure
	g.enter(s, handling)
	g.refresh() // its time begins now
	limit := g.now + g.HandlerLimit
	h := &call.Handling[OUT]{TimedOut: timedOut}
	h.Start(g.Host, g.slots.wait(s), 0, limit)
	h.Carry(s.message())
	s.more().held = h
	g.Timers.Arm(&s.timer, limit)
	r, ctx := g.report(s), g.contextBeside(s, &h.Token)
	r.Failed = true
	g.runBeside(&g.handlers, &h.Token, func() {
		h.Run(func() ([]OUT, error) {
			return g.Handle(ctx, r, timedOut)
		})
	})
}

// handled goes on after Handle has answered. That is final, for a retry would be one after the deadline or after the last (law A3).
func (g *Machine[IN, OUT]) handled(s *Slot[IN, OUT], h *call.Handling[OUT]) {
	g.Timers.Cancel(&s.timer)
	results, err, panicked := h.Outcome()
	switch {
	case panicked:
		err = g.Hooks.HandlerBroke(s.err, h.TimedOut, err)
	case err != nil:
	case g.hasControl(results):
		err = g.ErrControlResult
	}
	if err != nil {
		g.giveUp(s, err)
		return
	}
	s.more().held = &kept[OUT]{results}
	g.settle(s, nil)
}

func (g *Machine[IN, OUT]) handlerTimeOut(s *Slot[IN, OUT]) {
	h := s.take().(*call.Handling[OUT])
	h.Expire()
	g.giveUp(s, g.Hooks.HandlerBroke(s.err, h.TimedOut, g.ErrHandlerLimit))
}
