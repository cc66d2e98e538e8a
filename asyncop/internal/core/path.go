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

// The path of an element, in the order of this file:
//
//	Accept ─▶ startNewest ─▶ takePermit ─▶ begin ─▶ invoke
//	                             ▲                    ┆
//	                             │                conclude
//	                       startWaiting           endAttempt
//	                             ▲                judge ─▶ reportToBackend
//	                             │                applyDecision
//	                             │      ┌─────────────┼─────────────┐
//	                         retryNow ◀ backOff   endElement     failElement
//	                                                  │          rescue ──▶ endElement
//	                                                  │          giveUp
//	                                                  └─▶ PopHead ◀─┘
//
// The dotted line is the wait for the outcome. judge finds the reason before it reports
// the attempt to the backend. If the policy does not consider results, conclude reports
// the attempt and ends the element without judge.

// Accept takes a slot for in, and starts its first attempt if a permit is free. There
// must be a free slot.
func (g *Machine[IN, OUT]) Accept(in IN) {
	g.refresh()
	s := g.takeSlot(in)
	continues := g.introduce(s, introduction{})
	if continues && g.timeouts != nil {
		continues = g.timeouts.apply(s)
	}
	if continues {
		g.startNewest(s)
	}
}

func (g *Machine[IN, OUT]) takeSlot(in IN) *Slot[IN, OUT] {
	s := g.slots.take()
	s.entry = g.Queue.Put(s)
	s.in, s.phase = in, fresh
	s.accepted, s.due = g.now, Never
	if g.Timeout > 0 && !g.FromAttempt {
		s.due = g.now + g.Timeout
	}
	g.state.Stats.Accepted++
	g.numFresh++
	if g.fresh == nil {
		g.fresh = s
	}
	if g.oldest == nil {
		g.oldest = s
	}
	if g.live == nil && !g.FromAttempt { // with FromAttempt, all deadlines are out of input order
		g.live = s
	}
	return s
}

type introduction struct {
	restored bool
	number   int64 // of a restored element: see Observing.Numbers
}

// introduce shows a new element to the optional parts, and reports whether it continues.
// It continues even after a panic of an observer: see Track.broken.
func (g *Machine[IN, OUT]) introduce(s *Slot[IN, OUT], i introduction) (continues bool) {
	if g.messages.Seen {
		g.messages.attach(s) // first: the observers see the message
	}
	if g.observing != nil {
		g.observing.accepted(s, i)
	}
	if g.keys != nil {
		return g.keys.join(s)
	}
	return true
}

func (g *Machine[IN, OUT]) acceptControl(it Item[IN, OUT]) {
	g.readClock()
	s := g.slots.take()
	s.accepted, s.isMarker = g.now, it.isMarker
	*g.control.ref(s.index) = it.Rest
	s.entry = g.Queue.PutControl(s)
}

// nextStart returns the element that starts next, or nil: retries go before first
// attempts, then older before younger elements.
func (g *Machine[IN, OUT]) nextStart() *Slot[IN, OUT] {
	if t := g.ready.Peek(); t != nil {
		return t.Value
	}
	return g.fresh
}

// startable returns the number of elements that wait for a permit.
func (g *Machine[IN, OUT]) startable() int { return g.ready.Len() + g.numFresh }

// startNewest starts s, the newest element, if possible. If s completes a batch, it
// starts the batch.
func (g *Machine[IN, OUT]) startNewest(s *Slot[IN, OUT]) {
	if g.lookups != nil && s.phase == fresh && g.lookups.start(s) { // with key order, s may be behind
		return
	}
	if g.batches != nil {
		g.batches.startComplete()
		return
	}
	isNext := g.freePermits > 0 && g.nextStart() == s // otherwise others go first
	if isNext && g.takePermit(s) == granted {
		g.begin(s)
	}
}

// startWaiting starts elements in the order of nextStart.
func (g *Machine[IN, OUT]) startWaiting() {
	for n := 0; n < stepLimit && g.freePermits > 0; n++ {
		if !g.start(g.nextStart()) {
			break
		}
	}
	// Retries that fail in place are ready again at once. They could use up the loop above
	// in every step. So first attempts start as well, if there are more free permits than
	// ready retries.
	for n := 0; n < stepLimit && g.freePermits > g.ready.Len(); n++ {
		if !g.start(g.fresh) {
			return
		}
	}
}

// start starts s if it may start. s may be nil. start reports whether others may start
// now.
func (g *Machine[IN, OUT]) start(s *Slot[IN, OUT]) (othersMayStart bool) {
	if s == nil {
		return false
	}
	if g.lookups != nil && g.lookups.start(s) {
		return true
	}
	p := g.takePermit(s)
	if p == granted {
		g.begin(s)
	}
	return p != refused
}

type permission uint8

const (
	granted    permission = iota
	refused               // neither this element nor another one may start now
	passedOver            // this element does not start, because it was put off or has ended; others may start
)

// checkBegin reports whether an attempt of s may begin now. By law A5 no attempt starts
// after a cancel or at the deadline. If the deadline of s has passed, checkBegin sets
// overdue, so no attempt of any element starts until the next step has fired the timers.
func (g *Machine[IN, OUT]) checkBegin(s *Slot[IN, OUT]) bool {
	g.EndIfCancelled() // the driver may not have noticed the cancel yet
	if g.state.Failure != nil || g.overdue {
		return false
	}
	g.refresh()
	g.overdue = g.now >= s.due
	return !g.overdue
}

// takePermit takes the permits for the next attempt of s. The caller has checked that the
// operator has one.
func (g *Machine[IN, OUT]) takePermit(s *Slot[IN, OUT]) permission {
	if !g.checkBegin(s) {
		return refused
	}
	if g.sawPurge && g.messages.isPurged(s) {
		g.endPurged(s)
		return passedOver
	}
	isMember := g.forming != nil
	if g.backend != nil {
		p := g.backend.admit(s, isMember)
		if p != granted {
			return p
		}
	}
	if !isMember { // a member shares the permit of its batch
		g.freePermits--
	}
	return granted
}

// begin is the only function that starts an attempt.
func (g *Machine[IN, OUT]) begin(s *Slot[IN, OUT]) {
	var step retryStep
	if s.phase == ready {
		if g.hasReasons { // otherwise there are no steps before retries
			step = g.retrySteps.take(s.index)
		}
		g.ready.Cancel(&s.timer)
		g.countRetry(s)
	}
	if s.attempts < math.MaxInt32 {
		s.attempts++
	}
	s.lastBegan = g.now
	if s.attempts == 1 && !s.knowsFirst {
		s.firstBegan = g.now
	}
	if g.FromAttempt && s.due == Never {
		g.startTimeout(s)
	}
	a := g.newAttempt(s)
	deadline := s.due
	if g.AttemptTimeout > 0 && s.lastBegan+g.AttemptTimeout < deadline {
		deadline = s.lastBegan + g.AttemptTimeout
	}
	g.enter(s, running)
	if deadline != s.due { // the deadline of the element has its own timer
		g.Timers.Arm(&s.timer, deadline)
	}
	g.bind(s, &a.Token, s.attempts, deadline)
	s.attempt = a
	g.state.Stats.Attempts++
	if g.lookups != nil {
		g.lookups.started(s, &a.Token)
	}
	if g.keys != nil {
		g.keys.started(s, a)
	}
	if g.observing != nil && !g.observing.started(s, a) {
		return
	}
	if step != nil && !g.prepare(s, a, step) {
		return
	}
	g.invoke(s, a)
}

// newAttempt returns a new attempt of s, or a member of the batch that is being formed.
// If the attempt needs space for a message or a result, one allocation has both.
func (g *Machine[IN, OUT]) newAttempt(s *Slot[IN, OUT]) *call.Attempt[OUT] {
	if g.forming != nil {
		return g.forming.Add()
	}
	if g.lookups != nil && g.lookups.reservation != nil {
		return call.NewReserving[OUT]()
	}
	if g.messages.Seen {
		m := g.messages.attached.get(s.index)
		if m != (call.Message{}) {
			return call.NewCarrying[OUT](m)
		}
	}
	if g.MakesJobs {
		return call.NewRoomy[OUT]()
	}
	return new(call.Attempt[OUT])
}

func (g *Machine[IN, OUT]) countRetry(s *Slot[IN, OUT]) {
	if s.firstPutOff { // it is the first attempt
		s.firstPutOff, s.retry = false, 0
		return
	}
	g.state.Stats.WaitingForRetry--
	if g.hasReasons {
		if of := g.reasons.get(s.index); !of.last.IsZero() {
			g.reasons.ref(s.index).retried = of.retried.With(of.last)
		}
	}
	switch {
	case s.attempts == 0: // attempts before the restart do not count
	case s.retry&ByResult != 0:
		g.state.Stats.RetriesOnResult++
	default:
		g.state.Stats.RetriesOnError++
	}
}

// bind makes s wait for the letter of t in a new generation of its slot.
func (g *Machine[IN, OUT]) bind(s *Slot[IN, OUT], t *call.Token, number int32, deadline time.Duration) {
	g.slots.generations++
	s.generation = g.slots.generations
	t.Host = g.Host
	t.Number, t.Until = number, deadline
	t.Ref = call.Ref{Index: s.index, Stamp: g.stamp, Generation: s.generation}
	if g.messages.Seen {
		t.Carry(g.messages.attached.get(s.index))
	}
}

// invoke starts the call of an attempt. A blocking call becomes a job for the workers.
func (g *Machine[IN, OUT]) invoke(s *Slot[IN, OUT], a *call.Attempt[OUT]) {
	var ctx context.Context = a
	if g.batches != nil || g.lookups != nil || g.observing != nil {
		ctx = g.contextOfCall(s, a)
	}
	if g.MakesJobs && ctx == context.Context(a) { // see Config.MakesJobs
		a.Occupy(true) // until the worker completes it
		*g.Jobs = append(*g.Jobs, call.Job[IN, OUT]{Attempt: a, In: s.in})
		return
	}
	if g.Host.Lease != nil && !g.awaitLease(s, a) {
		return
	}
	err := g.callFunction(ctx, s.in, a)
	if err != nil {
		a.CompleteExceptionally(err) // late if the function has completed the attempt (law A2)
	}
	if g.backend != nil && a.Borrowed() { // the function has taken the outcome of another call
		g.backend.refund(s)
	}
	g.invoked(s)
}

// contextOfCall returns the context of the call of a. It is a itself, except in three
// cases: a belongs to a batch, a has a reservation, or observers have added values.
func (g *Machine[IN, OUT]) contextOfCall(s *Slot[IN, OUT], a *call.Attempt[OUT]) context.Context {
	var ctx call.Cancellable = a
	if g.forming != nil {
		ctx = g.forming.Context()
	}
	if g.lookups != nil && g.lookups.reservation != nil {
		ctx = call.WithReservation(a, g.lookups.reservation)
	}
	return g.context(s, ctx)
}

// awaitLease reports whether the call of a may be made now: the lease of its permit lasts
// (law B5). If the lease has ended, awaitLease starts a wait, after which prepared
// continues.
func (g *Machine[IN, OUT]) awaitLease(s *Slot[IN, OUT], a *call.Attempt[OUT]) (continues bool) {
	lease := g.Host.Lease
	isMember := g.forming != nil // its batch checks the lease before the call
	hasReservation := g.lookups != nil && g.lookups.reservation != nil
	if isMember || hasReservation || lease.MayCall(a.Ref.Stamp) {
		return true
	}
	return g.prepare(s, a, func(ctx context.Context) error { return lease.Await(ctx, a.Ref.Stamp) })
}

// callFunction calls the function. A panic becomes its error.
func (g *Machine[IN, OUT]) callFunction(ctx context.Context, in IN, a *call.Attempt[OUT]) (err error) {
	g.ranCode = true
	returned := false
	defer func() {
		if !returned {
			err = g.noteBroken("AsyncInvoke", recover())
		}
	}()
	err = g.User.Invoke(ctx, in, a)
	returned = true
	return err
}

// context returns the context of user code for s: bare with the values of observers. bare
// is an attempt or the token of a task.
func (g *Machine[IN, OUT]) context(s *Slot[IN, OUT], bare call.Cancellable) context.Context {
	if g.observing != nil {
		return g.observing.contextOf(s, bare)
	}
	return bare
}

// invoked continues after the function has returned. If the attempt has completed in
// place, it is concluded at once. If it has posted a letter, other letters may be before
// it in the mailbox (law Q1): see Completion in place in package call.
func (g *Machine[IN, OUT]) invoked(s *Slot[IN, OUT]) {
	a := s.attempt
	isInPlace := a.EndInvoke()
	switch {
	case isInPlace: // complete, and without a letter
		g.conclude(s, completed)
	case a.Completed():
		g.readMailEarly()
	}
}

// readMailEarly reads the mailbox before the next step does. In three cases it leaves the
// mailbox unread:
//
//   - The loop is reading letters already.
//   - A batch is formed. A letter may make the core call a function (prepared), and that
//     call would join the batch. The next step reads the mailbox.
//   - A reservation is held, which that call would get. lookups.start reads the mailbox
//     after its attempt.
func (g *Machine[IN, OUT]) readMailEarly() {
	hasReservation := g.lookups != nil && g.lookups.reservation != nil
	if g.unread == nil && g.forming == nil && !hasReservation {
		g.unread = g.Host.Mail.Take()
		g.readLetters()
	}
}

// attemptEnd describes the end of an attempt, until reportEnd.
type attemptEnd struct {
	isUnreported bool // otherwise attemptEnd is zero
	results      int
	err          error
	took         time.Duration
	isTimed      bool          // took is set; otherwise the report measures it, including the time of the policy
	isRetried    bool          // a retry follows
	delay        time.Duration // before the retry
}

type howEnded uint8

const (
	completed howEnded = iota // it completed in time
	ranOut                    // the timeout of the attempt or of its element has passed
	cutOff                    // the run ends, or its message was purged
)

// conclude ends the attempt of s. The policy judges it if it has failed, or if the policy
// considers results. An attempt that has snoozed its message is not judged.
func (g *Machine[IN, OUT]) conclude(s *Slot[IN, OUT], how howEnded) {
	a := s.attempt
	end := g.endAttempt(s, how)
	g.Timers.Cancel(&s.timer)
	var results []OUT
	var err error
	switch {
	case how == ranOut:
		err = g.timeOutAttempt(s, &end)
	case a.Failure != nil:
		err = a.Failure
	case g.ChecksResults:
		err = g.User.CheckResults(a.Results)
	}
	if err == nil {
		results = a.Results
	}
	if err != nil && how == completed && g.messages.Seen {
		delay, isSnoozed := g.findSnooze(s, err)
		if isSnoozed {
			g.endSnoozed(s, err, delay)
			return
		}
	}
	g.attemptEnd = attemptEnd{isUnreported: true, results: len(results), err: err}
	if err != nil || g.timesAll { // to read the clock for each result would be expensive
		g.refresh()
		g.attemptEnd.took, g.attemptEnd.isTimed = g.now-s.lastBegan, true
	}
	if err != nil {
		s.err = err
		g.state.FailedAttempts++
		g.state.Stats.LastError, g.state.Erred = err, g.now
	}
	isJudged := err != nil || g.Policy.ConsidersResults
	if !isJudged {
		if g.backend != nil {
			g.reportToBackend(s, &a.Token, nil, predicates.Reason{}, 0)
		}
		g.endElement(s, nil)
		return
	}
	v := &g.view
	v.Number = int(s.attempts)
	v.Err, v.Results = err, results
	v.Stage, v.InDoubt = end.Stage, end.InDoubt
	v.Idempotent = false // FindReason sets it, as well as the reason
	v.ReasonRetries = 0
	if g.hasReasons { // otherwise the policy does not read them
		v.Input = s.in
		v.Values = g.context(s, a)
		v.Reasons = g.reasons.get(s.index).retried
	}
	g.judge(s, &a.Token, end.Deduplicated)
}

// timeOutAttempt counts the timeout of the attempt of s, and returns its error. It
// removes the attempt from s, because another goroutine may be writing its results.
func (g *Machine[IN, OUT]) timeOutAttempt(s *Slot[IN, OUT], end *call.Released) error {
	s.attempt = nil
	end.Stage = max(predicates.NetworkTime, end.Stage) // the call may send a request from now on
	if s.phase == preparing {
		end.Stage = predicates.ClientDispatch // the call has not begun
	}
	g.state.Stats.AttemptTimeouts++
	return g.User.TimeoutError(g.report(s), TimedOut{Attempt: true})
}

// endAttempt is the only function that ends the attempt of s. It frees the permits of the
// operator and the backend. If a function of the attempt is still running, its goroutine
// frees them.
func (g *Machine[IN, OUT]) endAttempt(s *Slot[IN, OUT], how howEnded) (end call.Released) {
	a := s.attempt
	switch how {
	case completed:
		end = a.Release()
	case ranOut:
		end = a.Expire()
	case cutOff:
		end = a.Cut()
	}
	outer := g.Host.OuterCall
	if outer != nil && how != completed && s.phase == running && end.Stage < predicates.NetworkTime {
		// The call may send a request from now on, but its reports no longer count.
		outer.ReportStage(predicates.NetworkTime)
	}
	if end.OperatorPermit {
		g.freePermits++
	} else {
		g.Host.NoteOutliving(&a.Token)
	}
	if g.lookups != nil {
		g.lookups.attemptEnded(s, &a.Token)
	}
	if g.keys != nil {
		g.keys.attemptEnded(s, end)
	}
	if end.BackendPermit {
		g.Host.FreeBackendPermit(a.Ref.Stamp)
	}
	return end
}

// reportToBackend reports the end of an attempt of s to the backend. It reports whether a
// retry is free: see atBackend.report.
func (g *Machine[IN, OUT]) reportToBackend(
	s *Slot[IN, OUT], t *call.Token, err error, reason predicates.Reason, pushback time.Duration,
) (isFree bool) {
	g.refresh()
	// A call that began in the second half of the element's time, and was cut off by the
	// deadline, may have been late rather than lost.
	isCut := g.now >= s.due && g.isHurried(s, s.lastBegan) && pushback == 0 && guard.Is(err, context.DeadlineExceeded)
	cost, isReported := t.Cost()
	return g.backend.report(s, gate.Evidence{
		Err: err, Reason: reason, Pushback: pushback, Cut: isCut,
		Ignored:  s.phase == preparing, // not sent
		Borrowed: t.Borrowed(),
		Reported: cost, IsReported: isReported,
	})
}

// judging is the state of judge for judgeExited.
type judging struct {
	isDeduplicated bool // every server recognises repeated requests
	isReported     bool // the attempt was reported to the backend
	isFree         bool // see atBackend.report
}

// judge asks the policy about the attempt in g.view, and applies the decision. If the
// strategy may block, a worker asks it, and strategyAnswered continues. The policy turns
// panics into errors, so only runtime.Goexit skips the end of judge.
func (g *Machine[IN, OUT]) judge(s *Slot[IN, OUT], t *call.Token, isDeduplicated bool) {
	v, j := &g.view, judging{isDeduplicated: isDeduplicated}
	returned := false
	defer func() {
		if !returned {
			g.judgeExited(s, t, &j)
		}
	}()
	// Step 1: find the reason for a retry and the reason of the failure.
	situation := g.readSituation(s, v)
	isKnown, err := g.Policy.FindReason(v)
	failureReason := g.Policy.FindReasonOfFailure(v, isKnown)
	if failureReason != g.reasons.get(s.index).last {
		g.reasons.ref(s.index).last = failureReason
	}
	if len(g.Policy.MaxRetries) > 0 {
		v.ReasonRetries = g.retriesFor(s, v.Reason)
	}
	// Step 2: report the attempt to the backend.
	if g.backend != nil {
		var pushback time.Duration
		if err == nil && g.Policy.Considers(v.Err) { // otherwise pushback is 0, and the backend asks v.Err
			pushback, err = decision.FindPushback(v)
		}
		j.isReported = true
		j.isFree = g.reportToBackend(s, t, g.attemptEnd.err, failureReason, pushback)
		g.updateAfterReport(s, v)
	}
	// Step 3: decide, with the strategy's answer if needed.
	var d decision.Decision
	isDecided := true
	if err != nil {
		d = decision.Fail(v, err)
	} else {
		d, isDecided = g.Policy.DecideAtOnce(v, situation)
	}
	if !isDecided && !g.asksWorkers {
		ctx := g.Host.Life
		if g.hasReasons { // the context has the values of the attempt
			ctx = call.WithEnd(g.context(s, t), g.Host.Life)
		}
		d = g.Policy.Conclude(v, g.Policy.Ask(ctx, v), situation)
		isDecided = true
	}
	returned = true
	// Step 4: set the doubt before s ends or reaches its deadline: see addDoubt. After an
	// error, the reason of the failure counts; after results, the reason for the retry.
	reason := failureReason
	if v.Err == nil {
		reason = v.Reason
	}
	s.addDoubt(reason, v.Stage, isDeduplicated)
	if s.doubt == deduplicated && isRefused(g.context(s, t)) {
		s.doubt = noDoubt
	}
	if isDecided {
		g.applyDecision(s, &d, j.isFree)
	} else {
		g.askOnWorker(s, j.isFree)
	}
}

// readSituation sets the times of v, and returns the other state that the policy reads.
// Only a policy with reasons needs the current time. For others, backOff reads the clock.
func (g *Machine[IN, OUT]) readSituation(s *Slot[IN, OUT], v *predicates.Attempt[OUT]) *decision.Situation {
	if g.hasReasons {
		g.readClock()
	}
	v.Remaining, v.Elapsed = decision.NoDeadline, g.now-s.accepted
	if s.due != Never {
		v.Remaining = max(0, s.due-g.now)
	}
	situation := &g.situation
	situation.Finishing = g.retriesEnded
	situation.Waiting = int(g.state.Stats.WaitingForRetry)
	g.ranCode = true // by the policy, which runs next
	return situation
}

// judgeAnswer continues judge after a worker has asked the strategy.
func (g *Machine[IN, OUT]) judgeAnswer(s *Slot[IN, OUT], v *predicates.Attempt[OUT], answer decision.Answer, isFree bool) {
	returned := false
	defer func() {
		if !returned {
			g.failElement(s, guard.Join(g.noteBroken("the jitter", nil), g.attemptEnd.err))
		}
	}()
	situation := g.readSituation(s, v)
	d := g.Policy.Conclude(v, answer, situation)
	returned = true
	g.applyDecision(s, &d, isFree)
}

// judgeExited ends s after the policy has called runtime.Goexit. The run fails as well.
func (g *Machine[IN, OUT]) judgeExited(s *Slot[IN, OUT], t *call.Token, j *judging) {
	err := g.noteBroken("the retry strategy or one of its predicates", nil)
	if g.backend != nil && !j.isReported {
		g.reportToBackend(s, t, g.attemptEnd.err, predicates.Reason{}, 0)
	}
	s.addDoubt(g.view.Reason, g.view.Stage, j.isDeduplicated)
	g.failElement(s, guard.Join(err, g.attemptEnd.err))
}

// updateAfterReport updates v after reportToBackend, which has read the clock. With an
// old value of Remaining, a retry that is too late could use the budget. Number leaves
// out attempts that the backend forgives.
func (g *Machine[IN, OUT]) updateAfterReport(s *Slot[IN, OUT], v *predicates.Attempt[OUT]) {
	if s.due != Never { // Remaining stays NoDeadline otherwise
		v.Remaining = max(0, s.due-g.now)
	}
	v.Number = max(1, int(s.attempts)-g.backend.forgiven(s))
	g.ranCode = true // the policy runs next
}

// applyDecision carries out the decision of the policy. With lookups, s may share the
// decision about another element of the same key: see lookups.share. A retry that is not
// free is taken from the backend's retry budget.
func (g *Machine[IN, OUT]) applyDecision(s *Slot[IN, OUT], d *decision.Decision, isFree bool) {
	mayShare := g.lookups != nil && g.attemptEnd.err != nil
	isShared := mayShare && g.lookups.share(s, d)
	if d.NeedsBudget && !isFree && g.backend != nil {
		isTaken := g.backend.takeRetry()
		if !isTaken {
			d.NoRetryReason, d.Before = decision.OverBudget, nil
			d.Demanded, d.Delay = 0, 0
		}
	}
	if mayShare && !isShared {
		g.lookups.keepDecision(s, d)
	}
	switch d.NoRetryReason {
	case decision.Final:
		g.endElement(s, d.Err)
	case decision.Retried:
		if len(g.Policy.MaxRetries) > 0 && !isFree {
			g.countForReason(s, d.Reason)
		}
		g.backOff(s, d)
	default:
		g.refuseRetry(s, d)
	}
}

// retriesFor returns how often s was retried for a reason that the policy limits.
func (g *Machine[IN, OUT]) retriesFor(s *Slot[IN, OUT], reason predicates.Reason) int {
	i := g.Policy.LimitOf(reason)
	counts := g.reasonRetries.get(s.index)
	if i < 0 || counts == nil {
		return 0
	}
	return int(counts[i])
}

// countForReason counts a retry of s if the policy limits retries for the reason.
func (g *Machine[IN, OUT]) countForReason(s *Slot[IN, OUT], reason predicates.Reason) {
	i := g.Policy.LimitOf(reason)
	if i < 0 {
		return
	}
	counts := g.reasonRetries.ref(s.index)
	if *counts == nil {
		*counts = make([]int32, len(g.Policy.MaxRetries))
	}
	(*counts)[i]++
}

// refuseRetry ends s, although there was a reason for a retry.
func (g *Machine[IN, OUT]) refuseRetry(s *Slot[IN, OUT], d *decision.Decision) {
	s.noRetryReason = d.NoRetryReason
	g.retryLog.write(s, d, false)
	if d.NoRetryReason == decision.Failed {
		g.failElement(s, g.User.UndecidedError(*d))
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
	default: // decision.Refused
	}
	if d.Err == nil && g.ExhaustedAsFailure {
		d.Err = g.User.UndecidedError(*d)
	}
	g.endElement(s, d.Err)
}

// backOff makes s wait for its next attempt. If that cannot start before the deadline, s
// waits for the deadline, or times out at once with EarlyTimeout.
func (g *Machine[IN, OUT]) backOff(s *Slot[IN, OUT], d *decision.Decision) {
	if d.Err != nil {
		s.err = d.Err
	}
	if d.Before != nil {
		*g.retrySteps.ref(s.index) = d.Before
	}
	s.retry = 0
	if g.attemptEnd.err == nil {
		s.retry = ByResult
	}
	if d.Demanded > 0 {
		s.retry |= Demanded
	}
	g.refresh()
	g.enter(s, backoff)
	g.state.Stats.WaitingForRetry++
	left := max(0, s.due-g.now)
	isTooLate := s.due != Never && d.Delay >= left // d.Capped is from an earlier reading of the clock
	if isTooLate && g.backend != nil && g.backend.mayWaitOut(s) {
		isTooLate = false
	}
	if isTooLate {
		d.Delay = left // for the log line and the timer
	} else {
		g.attemptEnd.isRetried, g.attemptEnd.delay = true, d.Delay
	}
	g.reportEnd(s)
	s.attempt = nil
	g.retryLog.write(s, d, !isTooLate)
	switch {
	case isTooLate && g.EarlyTimeout:
		g.timeOut(s)
	case d.Delay == 0 && !isTooLate:
		g.retryNow(s)
	default:
		// If it is too late for a retry, this timer is due at or after the deadline. The
		// deadline goes first, and s times out. There is an exception: the backend goes
		// down meanwhile, and waitOut removes the deadline. Then the timer fires.
		g.Timers.Arm(&s.timer, later(g.now, max(d.Delay, d.Demanded)))
		if d.Demanded > 0 && g.backend != nil && g.backend.isTenantPaused(s) {
			g.leaveForTenant(s)
		}
	}
}

// putOff makes s, which is fresh or ready, wait until an instant as in a back-off. Either
// the tenant of s must wait, or a lookup of its key: see lookups.waitForRetry. Other
// elements may start.
func (g *Machine[IN, OUT]) putOff(s *Slot[IN, OUT], end time.Duration) {
	if s.phase == ready {
		g.ready.Cancel(&s.timer)
	} else {
		s.firstPutOff = true
	}
	g.enter(s, backoff)
	g.Timers.Arm(&s.timer, end)
}

// retryNow ends the back-off of s. It then waits for a permit or, with key order, for
// calls that hold its key.
func (g *Machine[IN, OUT]) retryNow(s *Slot[IN, OUT]) {
	g.Timers.Cancel(&s.timer)
	g.enter(s, ready)
	if g.keys != nil && !g.keys.mayBeCalled(s) {
		return
	}
	if g.ready.Len() == 0 {
		g.readySince = g.now
	}
	g.ready.Arm(&s.timer, s.accepted)
}

// timeOut ends s at its deadline or, with EarlyTimeout, before it. This is final (law
// A3). There is an exception: s may wait beyond its deadline for the end of an outage.
func (g *Machine[IN, OUT]) timeOut(s *Slot[IN, OUT]) {
	if g.backend != nil && g.now >= s.due && g.backend.mayWaitOut(s) {
		g.backend.waitOut(s)
		return
	}
	isEarly := g.now < s.due
	hadAttempt := s.phase == preparing || s.phase == running
	if hadAttempt {
		g.endAttemptAtDeadline(s)
	} else {
		g.endWait(s)
	}
	s.attempt = nil
	g.reportEnd(s)
	g.state.Stats.Timeouts++
	var refusal error // why the backend made s wait, or nil
	var stillRefuses time.Duration
	if g.backend != nil {
		refusal, stillRefuses = g.backend.whyWaited(s)
	}
	if refusal != nil {
		g.backend.noteWaited(s)
	}
	failure := g.User.TimeoutError(g.report(s), TimedOut{Early: isEarly, Waited: refusal})
	if refusal != nil && g.releaseUnvisited(s, failure, stillRefuses) {
		return // the message is redelivered
	}
	if hadAttempt {
		g.refresh()
		g.state.FailedAttempts++
		g.state.Stats.LastError, g.state.Erred = failure, g.now
	}
	g.failTimedOut(s, failure)
}

// releaseUnvisited ends s, which has waited for its backend, if its message was not
// visited: see isVisited. The message is redelivered after wait at the earliest (laws B2
// and B6). releaseUnvisited reports whether s has ended.
func (g *Machine[IN, OUT]) releaseUnvisited(s *Slot[IN, OUT], failure error, wait time.Duration) bool {
	if g.backend.isVisited(s) || !g.messages.releaseAfter(s, failure, wait) {
		return false
	}
	g.endReleased(s, failure)
	return true
}

// leaveForTenant ends s, whose tenant is down, if s has a message. So the slot serves
// other messages. The message is released or, if it was visited, fails. leaveForTenant
// reports whether s has ended.
func (g *Machine[IN, OUT]) leaveForTenant(s *Slot[IN, OUT]) bool {
	if !g.messages.Seen || !g.messages.isPending(s) {
		return false
	}
	refusal, wait := g.backend.whyWaited(s)
	if refusal == nil { // the tenant came up
		return false
	}
	g.endWait(s)
	g.reportEnd(s)
	failure := g.User.TimeoutError(g.report(s), TimedOut{Early: true, Waited: refusal})
	if !g.releaseUnvisited(s, failure, wait) {
		g.failTimedOut(s, failure)
	}
	return true
}

func (g *Machine[IN, OUT]) endReleased(s *Slot[IN, OUT], err error) {
	s.err = err
	g.enter(s, endedWithoutResults)
	g.allowToLeave(s)
	g.Ended(s, observe.Abandoned)
}

// endWait ends the wait of s: for a permit, a back-off or the answer of a strategy.
func (g *Machine[IN, OUT]) endWait(s *Slot[IN, OUT]) {
	switch s.phase {
	case deciding:
		q := g.takeQuestion(s)
		q.Expire()
	case backoff, ready:
		if s.phase == backoff {
			g.Timers.Cancel(&s.timer)
		} else {
			g.ready.Cancel(&s.timer)
		}
		if !s.firstPutOff { // otherwise it does not wait for a retry
			g.state.Stats.WaitingForRetry--
		}
	default: // fresh or behind
	}
}

// endAttemptAtDeadline ends the attempt of s at the deadline of s.
func (g *Machine[IN, OUT]) endAttemptAtDeadline(s *Slot[IN, OUT]) {
	wasCalled := s.phase == running
	g.Timers.Cancel(&s.timer)
	end := g.endAttempt(s, ranOut)
	if g.backend != nil {
		g.reportToBackend(s, &s.attempt.Token, context.DeadlineExceeded, predicates.Reason{}, 0)
	}
	if wasCalled { // the call may send a request from now on, even if it has not reported one
		s.doubt = max(s.doubt, doubtOf(end.Deduplicated))
	}
	g.attemptEnd = attemptEnd{isUnreported: true, err: context.DeadlineExceeded, took: g.now - s.lastBegan, isTimed: true}
}

// endElement completes s with the results of its attempt or, if err is not nil, fails it.
func (g *Machine[IN, OUT]) endElement(s *Slot[IN, OUT], err error) {
	if err != nil {
		g.failElement(s, err)
		return
	}
	g.reportEnd(s)
	g.enter(s, done)
	g.state.Done++
	if g.keys == nil || g.keys.isFirst(s) { // otherwise s leaves when it is the first
		g.allowToLeave(s)
	}
}

// reportEnd reports the end of the attempt of s to observers and history, unless it was
// reported before.
func (g *Machine[IN, OUT]) reportEnd(s *Slot[IN, OUT]) {
	if !g.attemptEnd.isUnreported {
		return
	}
	if g.observing != nil {
		g.observing.attemptEnded(s, &g.attemptEnd)
	}
	g.history.attemptEnded(s, &g.attemptEnd)
	g.attemptEnd = attemptEnd{}
}

// allowToLeave lets s leave the queue as soon as its order allows it.
func (g *Machine[IN, OUT]) allowToLeave(s *Slot[IN, OUT]) {
	g.Queue.Complete(s.entry)
	if g.keys != nil {
		g.keys.leaveLine(s)
	}
}

// failElement ends s with a failure, unless there is a handler for all failures.
func (g *Machine[IN, OUT]) failElement(s *Slot[IN, OUT], err error) {
	g.reportEnd(s)
	if g.handler != nil && g.handler.All {
		g.handler.rescue(s, err, false)
		return
	}
	g.giveUp(s, err)
}

// failTimedOut ends s, which has timed out, unless there is a handler.
func (g *Machine[IN, OUT]) failTimedOut(s *Slot[IN, OUT], err error) {
	g.reportEnd(s)
	if g.handler != nil {
		g.handler.rescue(s, err, true)
		return
	}
	g.giveUp(s, err)
}

// giveUp ends s with its final failure: s is handed over or dropped, or fails the run.
func (g *Machine[IN, OUT]) giveUp(s *Slot[IN, OUT], err error) {
	g.readClock()
	s.attempt = nil
	s.err = err
	g.state.Stats.Failures++
	if g.sink != nil {
		g.sink.awaitOffer(s)
		return
	}
	g.enter(s, endedWithoutResults)
	g.allowToLeave(s)
	if g.FailsRun {
		g.failRun(s)
		return
	}
	r := g.report(s) // before Ended: its observers still have its context
	g.Ended(s, observe.Dropped)
	g.User.LogGivenUp(r, observe.Dropped)
}

func (g *Machine[IN, OUT]) failRun(s *Slot[IN, OUT]) {
	r := g.report(s)
	g.Ended(s, observe.Failed)
	if g.state.Failure == nil {
		g.state.FailedIn = r.Context
	}
	g.fail(g.User.RunError(r), ByElement)
}

// Ended reports the end of an element, once for each element (law O1). The driver calls
// it for the elements that Abandon has returned, the core for all others.
func (g *Machine[IN, OUT]) Ended(s *Slot[IN, OUT], how observe.EndKind) {
	if g.observing != nil {
		g.observing.ended(s, how)
	}
	g.history.ended(s, how)
	if g.messages.Seen {
		g.messages.ended(s, how)
	}
	switch how {
	case observe.Emitted, observe.Empty:
		g.state.Stats.Completed++
	case observe.HandedOver:
		g.state.Stats.HandedOver++
	case observe.Dropped:
		g.state.Stats.Dropped++
	case observe.Failed:
		g.state.Stats.Failed++
	case observe.Abandoned, observe.Kept:
		g.state.Stats.Abandoned++
	default: // Discarded: it was not accepted
	}
}

func (g *Machine[IN, OUT]) report(s *Slot[IN, OUT]) Report[IN] {
	of := g.reasons.get(s.index)
	r := Report[IN]{
		Element: s.in, Err: s.err, Attempts: int(s.attempts), Elapsed: g.now - s.accepted,
		NoRetryReason: s.noRetryReason, Reason: of.last, Reasons: of.retried,
		InDoubt: s.doubt != noDoubt, Deduplicated: s.doubt == deduplicated,
		Timeout: g.Timeout, Context: g.contextForReport(s),
	}
	if own := g.ownDeadlines.get(s.index); own != nil {
		r.Timeout = own.total
	}
	if s.attempts > 0 {
		r.First, r.Last = g.Timers.Time(s.firstBegan), g.Timers.Time(s.lastBegan)
	}
	return r
}

// contextForReport returns the context of s from its observers, or the operator's with
// its message.
func (g *Machine[IN, OUT]) contextForReport(s *Slot[IN, OUT]) context.Context {
	if len(g.Observers) > 0 { // g.observing may only count
		return g.observing.contextForReport(s)
	}
	return g.messages.Context(s)
}

// Head returns the results or the control element at the head of the queue, or neither if
// the head must wait. Elements without results leave here.
func (g *Machine[IN, OUT]) Head() (results []OUT, control any) {
	for {
		e := g.Queue.Head()
		if e == nil {
			return nil, nil
		}
		switch s := e.Value; s.phase {
		case controlElement:
			return nil, g.control.get(s.index)
		case done:
			results = s.attempt.Results
			if len(results) > 0 {
				return results, nil
			}
		default: // endedWithoutResults
		}
		g.PopHead(observe.Empty)
	}
}

// PopHead removes the head of the queue. An element in phase done ends here with how,
// Emitted or Empty. Others have ended before.
func (g *Machine[IN, OUT]) PopHead(how observe.EndKind) {
	s := g.Queue.Head().Value
	if s.phase == done {
		g.state.Done--
		g.Ended(s, how)
	}
	if s == g.oldest {
		g.oldest = nextIn(s, func(s *Slot[IN, OUT]) bool { return s.phase != controlElement })
	}
	g.messages.carried = false // it describes the head
	g.Queue.Pop()
	g.slots.putBack(s)
}
