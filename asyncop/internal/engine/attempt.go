package engine

import (
	"context"
	"math"
	"time"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/queue"
)

// deadline returns when the total time of e runs out, or Never.
func (g *Engine[IN, OUT]) deadline(e *queue.Entry[Slot[IN, OUT]]) time.Duration {
	switch {
	case e.Value.limited():
		return e.Value.extra.rare.limit.due
	case g.Timeout == 0:
		return Never
	}
	return e.Value.accepted + g.Timeout
}

// tokenDeadline is deadline for what is called for e.
func (g *Engine[IN, OUT]) tokenDeadline(e *queue.Entry[Slot[IN, OUT]]) time.Duration {
	if due := g.deadline(e); due != Never {
		return due
	}
	return call.NoDeadline
}

// start begins the next attempt of e, which is fresh or ready, unless its deadline or a cancel has come (law A5), or there is no
// shared permit or no pace for it: then e waits on. Its deadline is the timers' to fire (law T1).
func (g *Engine[IN, OUT]) start(e *queue.Entry[Slot[IN, OUT]]) {
	if !g.mayStart(e) || (g.Host.Share != nil || g.Pace != nil) && !g.admit(e) {
		return
	}
	g.permits--
	g.begin(e)
}

// mayStart reports whether neither a cancel nor the deadline of e, which is fresh or ready, has come (law A5).
func (g *Engine[IN, OUT]) mayStart(e *queue.Entry[Slot[IN, OUT]]) bool {
	if g.EndIfCancelled(); g.failure != nil { // now, not when the driver looks
		return false
	}
	g.refresh()
	g.overdue = g.now >= g.deadline(e)
	return !g.overdue
}

// begin is the one place where an attempt starts. Its permit was taken, or it is a member of the batch that is being formed.
func (g *Engine[IN, OUT]) begin(e *queue.Entry[Slot[IN, OUT]]) {
	s := &e.Value
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
	deadline, own := g.attemptDeadline(e)
	if own {
		g.Timers.Arm(&s.timer, deadline)
	}
	a := g.newAttempt(s)
	a.Start(g.Host, e, s.attempts, deadline)
	s.attempt = a
	if p := s.place(); p != nil {
		p.batch = g.forming
	}
	g.counts.Attempts++
	if s.attempts == 1 {
		g.retry.policy.Deposit()
	}
	if r := s.rider(); r != nil && !g.observeStart(e, r, a) {
		return
	}
	if before := s.takeBefore(); before != nil {
		if g.forming == nil {
			g.prepare(e, a, before)
			return
		}
		g.prepareMember(e, a, before)
	}
	g.invoke(e, a)
}

// attemptDeadline returns when the time of the last attempt of e runs out; own says that this is not that of e.
func (g *Engine[IN, OUT]) attemptDeadline(e *queue.Entry[Slot[IN, OUT]]) (at time.Duration, own bool) {
	at = g.tokenDeadline(e)
	if g.AttemptTimeout > 0 {
		if end := e.Value.last + g.AttemptTimeout; at == call.NoDeadline || end < at {
			return end, true
		}
	}
	return at, false
}

// admit takes a shared permit for an attempt of e and asks the pace. An attempt that must wait has neither.
func (g *Engine[IN, OUT]) admit(e *queue.Entry[Slot[IN, OUT]]) bool {
	share := g.Host.Share
	if share != nil && !share.Take() {
		g.short = true
		return false
	}
	if g.Pace == nil {
		return true
	}
	if !g.askPace(e) {
		if share != nil {
			share.Release()
		}
		return false
	}
	return true
}

// askPace asks whether an attempt of e may start now. Asking is user code: the time may run out meanwhile.
func (g *Engine[IN, OUT]) askPace(e *queue.Entry[Slot[IN, OUT]]) bool {
	at := g.now
	g.calling(callPace, e)
	wait := g.Pace(g.Timers.Time(at))
	g.called()
	g.refresh()
	if wait > 0 {
		g.paced = later(at, wait)
		return false
	}
	g.overdue = g.now >= g.deadline(e)
	return !g.overdue
}

// refuse ends e, which is fresh or ready, with the error of what was to admit its attempt (law A6).
func (g *Engine[IN, OUT]) refuse(e *queue.Entry[Slot[IN, OUT]], err error) {
	if e.Value.phase == ready {
		g.ready.Cancel(&e.Value.timer)
		g.counts.WaitingForRetry--
	}
	g.fail(e, err)
}

func (g *Engine[IN, OUT]) newAttempt(s *Slot[IN, OUT]) *call.Attempt[*queue.Entry[Slot[IN, OUT]], OUT] {
	m := s.message()
	switch {
	case g.forming != nil:
		a := g.forming.Add()
		a.Carry(m)
		return a
	case m != (call.Message{}):
		return call.NewCarrying[*queue.Entry[Slot[IN, OUT]], OUT](m)
	case g.Direct:
		return call.NewRoomy[*queue.Entry[Slot[IN, OUT]], OUT]()
	}
	return new(call.Attempt[*queue.Entry[Slot[IN, OUT]], OUT])
}

// invoke starts the call.
func (g *Engine[IN, OUT]) invoke(e *queue.Entry[Slot[IN, OUT]], a *call.Attempt[*queue.Entry[Slot[IN, OUT]], OUT]) {
	s := &e.Value
	g.enter(e, running)
	if g.Direct && s.values() == nil {
		a.Occupy()
		g.jobs = append(g.jobs, call.Job[*queue.Entry[Slot[IN, OUT]], IN, OUT]{Attempt: a, In: s.in})
		return
	}
	g.watch(e, SlowInvoke)
	a.Attend()
	g.calling(callInvoke, e)
	err := g.Invoke(g.contextOf(e, a), s.in, a)
	g.called()
	if err != nil {
		a.CompleteExceptionally(err)
	}
	g.invoked(e)
}

// invoked goes on after the function has returned, or broken: an error or panic after it has completed the attempt is late (A2). An
// attempt that is complete is handled here, in the order of the completions (law Q1).
func (g *Engine[IN, OUT]) invoked(e *queue.Entry[Slot[IN, OUT]]) {
	a := e.Value.attempt
	switch first := a.Leave(); {
	case first && g.rest == nil:
		g.completed(e)
	case first: // letters are being read: they were before it
		g.Host.Mail.Post(&a.Letter)
	case a.Completed() && g.rest == nil: // others were before it
		g.readMail()
	}
}

// Jobs hands out the direct calls and the batches that were started since it was called last, and reports whether there were any. offer must not
// keep the slice.
func (g *Engine[IN, OUT]) Jobs(offer func(jobs ...call.Job[*queue.Entry[Slot[IN, OUT]], IN, OUT])) (n int) {
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
func (g *Engine[IN, OUT]) endAttempt(
	e *queue.Entry[Slot[IN, OUT]], a *call.Attempt[*queue.Entry[Slot[IN, OUT]], OUT], how attemptEnd,
) (end call.Ending) {
	switch how {
	case completion:
		a.Entry = nil
		end.Freed = a.Done()
	case ranOut:
		end = a.Expire()
	case cutOff:
		end = a.Cut()
	}
	if around := g.Host.Around; around != nil && how != completion && e.Value.phase == running && end.Stage < predicates.NetworkTime {
		around.ReportStage(predicates.NetworkTime) // its call may be about to send
	}
	if end.Freed {
		g.permits++
	} else {
		g.outlives(e, a) // law K1
	}
	if end.Over && g.Host.Share != nil {
		g.Host.Share.Release()
	}
	return end
}

// completed handles the attempt of e, which was completed in time.
func (g *Engine[IN, OUT]) completed(e *queue.Entry[Slot[IN, OUT]]) {
	a := e.Value.attempt
	g.endAttempt(e, a, completion)
	results, err := a.Outcome()
	if err == nil && g.hasControl(results) {
		err = g.ErrControlResult
		a.DropResults()
	}
	g.concluded(e, a, err, nil)
}

func (g *Engine[IN, OUT]) hasControl(results []OUT) bool {
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

// concluded goes on with the outcome of the attempt a of e: its own, with this error, or that of its timeout.
func (g *Engine[IN, OUT]) concluded(
	e *queue.Entry[Slot[IN, OUT]], a *call.Attempt[*queue.Entry[Slot[IN, OUT]], OUT], err error, timeout *timedOut,
) {
	s := &e.Value
	g.Timers.Cancel(&s.timer)
	if err != nil {
		s.err = err
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
		g.settle(e, err)
		return
	}
	g.judge(e, a, err, timeout)
}

// stageOf returns how far an attempt has come.
func stageOf[E, OUT any](a *call.Attempt[E, OUT], timeout *timedOut) (stage predicates.Stage, inDoubt, isTracked bool) {
	if timeout != nil {
		return timeout.stage, timeout.inDoubt, timeout.tracked
	}
	return a.Report()
}

// retryNow ends the back-off of e: it competes for a permit, or waits for its key.
func (g *Engine[IN, OUT]) retryNow(e *queue.Entry[Slot[IN, OUT]]) {
	g.Timers.Cancel(&e.Value.timer)
	g.enter(e, ready)
	if g.mayCall(e) { // law K1
		g.armReady(e)
	}
}

// armReady lets e, which is ready, compete for a permit.
func (g *Engine[IN, OUT]) armReady(e *queue.Entry[Slot[IN, OUT]]) {
	if g.ready.Len() == 0 {
		g.readied = g.now
	}
	g.ready.Arm(&e.Value.timer, e.Value.accepted)
}

// attemptTimeOut ends the running attempt of e; that is an outcome like any other.
func (g *Engine[IN, OUT]) attemptTimeOut(e *queue.Entry[Slot[IN, OUT]]) {
	s := &e.Value
	a := s.attempt
	s.attempt = nil // it may be being completed right now
	end := g.endAttempt(e, a, ranOut)
	g.counts.AttemptTimeouts++
	at := &timedOut{stage: max(predicates.NetworkTime, end.Stage), inDoubt: end.InDoubt, tracked: end.Tracked} // the call may be about to send
	if s.phase == preparing {
		at.stage = predicates.ClientDispatch // there is no call
	}
	g.concluded(e, a, g.Hooks.AttemptTimedOut(int(s.attempts)), at)
}

// timeOut ends e at its deadline. Law A3: whatever the element was doing, this is final.
func (g *Engine[IN, OUT]) timeOut(e *queue.Entry[Slot[IN, OUT]]) {
	s := &e.Value
	isEarly := g.now < g.deadline(e)
	switch s.phase {
	case preparing, running:
		g.Timers.Cancel(&s.timer)
		end := g.endAttempt(e, s.attempt, ranOut)
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
	if g.Handle == nil {
		g.giveUp(e, failure)
		return
	}
	g.handle(e, failure, true)
}

// handle asks Handle for results in place of a failure, on a worker, under a limit of its own.
func (g *Engine[IN, OUT]) handle(e *queue.Entry[Slot[IN, OUT]], failure error, timedOut bool) {
	s := &e.Value
	g.attemptOver(s, false, 0)
	s.attempt = nil
	s.err = failure
	g.enter(e, handling)
	g.refresh() // its time begins now
	limit := g.now + g.HandlerLimit
	h := &call.Handling[*queue.Entry[Slot[IN, OUT]], OUT]{TimedOut: timedOut}
	h.Start(g.Host, e, 0, limit)
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
func (g *Engine[IN, OUT]) handled(e *queue.Entry[Slot[IN, OUT]], h *call.Handling[*queue.Entry[Slot[IN, OUT]], OUT]) {
	h.Entry = nil
	s := &e.Value
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
		g.giveUp(e, err)
		return
	}
	s.more().held = &kept[OUT]{results}
	g.settle(e, nil)
}

func (g *Engine[IN, OUT]) handlerTimeOut(e *queue.Entry[Slot[IN, OUT]]) {
	s := &e.Value
	h := s.take().(*call.Handling[*queue.Entry[Slot[IN, OUT]], OUT])
	h.Expire()
	g.giveUp(e, g.Hooks.HandlerBroke(s.err, h.TimedOut, g.ErrHandlerLimit))
}
