package core

import (
	"context"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/internal/counting"
	"github.com/weirflow/weir/internal/fifo"
	"github.com/weirflow/weir/timers"
)

// Machine has the queue, the timers and the state of every element. Its driver feeds it elements, lets it take turns, and carries
// away what the head of the queue has to emit.
//
// It is owned by one goroutine. No lock is held while user code runs.
type Machine[IN, OUT any] struct {
	Config[IN, OUT]
	retry retryableDelegator[OUT]
	slots slots[IN, OUT]

	ready   timers.Heap[*Slot[IN, OUT]] // elements in phase ready, the oldest first
	fresh   *Slot[IN, OUT]              // the oldest element in phase fresh
	unbegun int                         // elements in phase fresh
	live    *Slot[IN, OUT]              // the oldest element with a live deadline: deadlines come in input order
	oldest  *Slot[IN, OUT]              // the oldest element of the queue
	odd     timers.Heap[*Slot[IN, OUT]] // live deadlines that do not: those of restored elements
	jobs    []call.Job[IN, OUT]         // direct calls that were started and not handed out
	failing fifo.Queue[*Slot[IN, OUT]]  // elements in phase failing that are to be offered now
	handing *handing[IN, OUT]           // the one that is being offered; nil: none is
	permits int                         // free ones
	short   bool                        // no shared permit is free, as far as this turn is concerned
	overdue bool                        // the deadline of what was to start has come: timers go first (law T1)
	paced   time.Duration               // no attempt starts before

	forming *call.Batch[IN, OUT] // the batch that is being formed, or nil
	readied time.Duration        // when the first of the elements in phase ready got there
	whole   bool                 // no element follows those that are here

	// With key order only.
	heads     timers.Heap[*Slot[IN, OUT]] // elements in phase fresh, in input order; instead of fresh
	headed    time.Duration               // when the first of them got there
	turns     time.Duration               // the turn of the newest place
	crowded   int                         // lanes in which as many elements wait as may
	outliving []outlived[IN, OUT]         // calls that keep the keys of elements that have gone on
	places    []*place[IN, OUT]           // to be used again

	asking, before, handlers beside      // user code on workers that may be left behind
	returned                 atomic.Bool // some of it has; set by any goroutine

	now   time.Duration // when the core last looked at the clock
	stale bool          // since then the driver has slept
	ran   bool          // since then user code has run
	exact bool          // nothing goes on by a reading that is older than user code

	noRetries bool            // no element is retried any more (law A5)
	failure   error           // why the run must end; nil: it need not
	cause     Cause           // of failure
	failedIn  context.Context //nolint:containedctx // of the element that has failed the run
	abandoned bool            // Abandon was called: no element follows

	rest   *call.Letter      // taken from the mailbox and not handled yet
	call   userCall[IN, OUT] // the user code that is being run
	judged error             // of the outcome that is being decided about

	observed bool               // there are observers, or counters
	notes    fifo.Queue[note]   // what Report is to hand to the observers
	told     int                // how many of them know of the first one
	attempts []counting.Attempt // what Report is to hand to the counters
	elements []counting.Element // what Report is to hand to the counters
	counted  int                // how many of them know
	riders   []*Rider           // to be used again

	settlements fifo.Queue[settlement] // what SettleMessages is to do
	extras      []*extra[IN, OUT]      // of messages and observed elements that have left, to be used again

	counts observe.Stats
	failed int64 // attempts
}

// turnLimit bounds what one kind of work does in one turn, so that everything gets its turn.
const turnLimit = 128

// New returns a core without elements.
func New[IN, OUT any](c Config[IN, OUT]) *Machine[IN, OUT] {
	g := &Machine[IN, OUT]{Config: c, retry: newRetryableDelegator(c.Policy, c.Random)}
	g.permits = g.maxPermits()
	g.observed = len(c.Observers) > 0 || len(c.Counters) > 0
	g.exact = c.Timeout > 0 || c.TimeoutFor != nil || c.AttemptTimeout > 0 || c.Pace != nil || c.Batch != nil || g.observed
	return g
}

func (g *Machine[IN, OUT]) maxPermits() int {
	if g.MaxCalls == 0 {
		return g.Queue.Cap()
	}
	return g.MaxCalls
}

// Len returns the number of slots taken.
func (g *Machine[IN, OUT]) Len() int { return g.Queue.Len() }

// Room returns the number of free slots.
func (g *Machine[IN, OUT]) Room() int { return g.Queue.Cap() - g.Len() }

// Crowded reports whether a key has as many elements waiting as may.
func (g *Machine[IN, OUT]) Crowded() bool { return g.crowded > 0 }

// HasRoom reports whether an element may be accepted.
func (g *Machine[IN, OUT]) HasRoom() bool { return g.Room() > 0 && !g.Crowded() }

// ---- The clock

// Slept says that the driver has slept, or run user code that may wait: the time that the core knows is no longer the present.
func (g *Machine[IN, OUT]) Slept() { g.stale = true }

// Beside says that the driver is about to run user code beside the core, such as the input.
func (g *Machine[IN, OUT]) Beside() { g.ran = true }

// tick looks at the clock.
func (g *Machine[IN, OUT]) tick() {
	g.now = g.Timers.Now()
	g.stale, g.ran = false, false
}

// refresh looks at the clock again if time may have passed since the core looked last. Where no limit depends on it, a turn is one
// instant, however long its calls block it.
func (g *Machine[IN, OUT]) refresh() {
	if g.stale || g.ran && g.exact {
		g.tick()
	}
}

// Present returns when the core last looked at the clock.
func (g *Machine[IN, OUT]) Present() time.Duration { return g.now }

// ---- Elements in

// Accept takes a slot for in and starts its first attempt if a permit is free. There must be room. m is the message whose value in
// is, or zero.
func (g *Machine[IN, OUT]) Accept(in IN, m call.Message) {
	s := g.putNew(in, false)
	g.ride(s, m)
	g.observe(s, false, 0)
	if g.goesOn(s) {
		g.startNew(s)
	}
}

// goesOn gives a new element, which its observers know, a place in its lane and a timeout of its own, and reports whether it goes on.
func (g *Machine[IN, OUT]) goesOn(s *Slot[IN, OUT]) bool {
	if g.Keys != nil && !g.join(s) {
		return false
	}
	if g.TimeoutFor != nil {
		g.limitNew(s)
	}
	return true
}

// limitNew gives a new element a timeout of its own, if it has one.
func (g *Machine[IN, OUT]) limitNew(s *Slot[IN, OUT]) {
	if own := g.askTimeout(s); own != g.Timeout {
		g.limit(s, limit[IN, OUT]{due: later(s.accepted, own), total: max(0, own)})
	}
}

// askTimeout returns the timeout of an element: its own, or that of all; if that is negative, it is over.
func (g *Machine[IN, OUT]) askTimeout(s *Slot[IN, OUT]) (own time.Duration) {
	if g.TimeoutFor == nil {
		return g.Timeout
	}
	g.calling(callTimeout, s)
	own = g.TimeoutFor(s.in)
	g.called()
	if own == 0 {
		own = g.Timeout
	}
	return own
}

// limit gives an element a deadline of its own.
func (g *Machine[IN, OUT]) limit(s *Slot[IN, OUT], l limit[IN, OUT]) {
	own := &l
	own.odd.Value = s
	s.more().limit = own
	g.odd.Arm(&own.odd, own.due)
	if g.live == s {
		g.live = g.nextLive(s)
	}
}

// putNew takes a slot for an element with its whole timeout, which may have been called before a restart.
func (g *Machine[IN, OUT]) putNew(in IN, called bool) *Slot[IN, OUT] {
	g.refresh()
	s := g.put()
	s.in, s.accepted = in, g.now
	if called {
		s.doubt = untracked
	}
	if g.live == nil {
		g.live = s
	}
	return s
}

// put takes a slot for a fresh element, which the caller fills: the one place where an element is accepted.
func (g *Machine[IN, OUT]) put() *Slot[IN, OUT] {
	s := g.slots.take()
	s.entry = g.Queue.Put(s)
	s.phase = fresh
	g.counts.Accepted++
	g.unbegun++
	if g.fresh == nil && g.Keys == nil {
		g.fresh = s
	}
	if g.oldest == nil {
		g.oldest = s
	}
	return s
}

// startNew starts the newest element, unless others wait to start.
func (g *Machine[IN, OUT]) startNew(s *Slot[IN, OUT]) {
	if g.Batch != nil {
		g.startBatches(false)
		return
	}
	if g.firstFresh() == s && g.permits > 0 && !g.short && !g.overdue && g.now >= g.paced && g.ready.Len() == 0 {
		g.start(s)
	}
}

// firstFresh returns the oldest element whose first attempt may start, or nil.
func (g *Machine[IN, OUT]) firstFresh() *Slot[IN, OUT] {
	if g.Keys == nil {
		return g.fresh
	}
	if t := g.heads.Peek(); t != nil {
		return t.Value
	}
	return nil
}

// AcceptControl takes a slot for a control element. There must be room.
func (g *Machine[IN, OUT]) AcceptControl(element any) {
	g.tick()
	s := g.slots.take()
	s.accepted = g.now
	s.more().held = element
	s.entry = g.Queue.PutControl(s)
}

// EndRetries ends retries, since no element follows. Law A5: elements in back-off get exactly one more attempt, at once, or after
// the wait that a server demanded; running attempts are awaited and not called again.
func (g *Machine[IN, OUT]) EndRetries() {
	g.noRetries = true
	for s := g.first(); s != nil; s = s.next() {
		if s.phase == backoff && s.retry&Demanded == 0 {
			g.retryNow(s)
		}
	}
}

// ---- A turn

// Turn handles what has happened since the last one. Law T1: the clock is read first, so completions that were handed
// in until then go before timers that are due.
func (g *Machine[IN, OUT]) Turn() {
	g.tick()
	now := g.now
	if freed := g.Host.TakeFreed(); freed > 0 {
		g.permits += freed
		g.callsReturned()
	}
	g.short, g.overdue = false, false
	g.runWaiting()
	if g.Batch != nil && g.startFull() {
		return
	}
	g.readMail()
	g.fireTimers(now)
	g.startWaiting()
	g.handOver()
	if s := g.Host.Share; s != nil {
		s.Settle(g.short)
	}
}

// What Next returns beside an instant.
const (
	Now   = time.Duration(math.MinInt64)
	Never = time.Duration(math.MaxInt64)
)

// Next returns when the next turn is due: an instant, Now, or Never. Whatever is posted wakes the driver earlier, so the driver says
// first that it is about to sleep: then nothing that is posted from now on is missed.
func (g *Machine[IN, OUT]) Next() time.Duration {
	g.tick()
	g.call = userCall[IN, OUT]{} // an idle core keeps nothing
	if !g.Host.Mail.Empty() || g.Host.Freed() > 0 || g.returned.Load() || g.failure != nil || g.mayReport() || g.MaySettle() || g.mayHandOver() {
		return Now
	}
	next := Never
	switch {
	case !g.wantsStart():
	case g.now < g.paced:
		next = g.paced
	case g.Batch != nil && !g.isDue():
		next = g.batchDue()
	case g.Host.Share == nil || !g.Host.Share.Wait(g.waiting()):
		return Now
	}
	if due, ok := g.Timers.Next(); ok {
		next = min(next, due)
	}
	if g.live != nil {
		next = min(next, g.deadline(g.live))
	}
	if due, ok := g.odd.Next(); ok {
		next = min(next, due)
	}
	return next
}

// readMail handles completions and answers, in the order in which they were posted.
func (g *Machine[IN, OUT]) readMail() {
	g.rest = g.Host.Mail.Take()
	g.readRest()
}

func (g *Machine[IN, OUT]) readRest() {
	for g.rest != nil && g.failure == nil {
		l := g.rest
		g.rest = l.Unchain()
		g.receive(l)
	}
}

// receive goes on with the element that waits for a letter. Law A2: if none does any more, it was late, and is counted
// already. The phase says what the letter is about.
func (g *Machine[IN, OUT]) receive(l *call.Letter) {
	s := g.slots.find(l.Ref)
	if s == nil {
		return
	}
	switch {
	case s.phase == running || s.phase == preparing && s.attempt.Completed():
		g.completed(s)
	case s.phase == preparing:
		g.prepared(s, s.attempt)
	case s.phase == deciding:
		g.answer(s, s.take().(*question[IN, OUT]))
	case s.phase == handling:
		g.handled(s, s.take().(*call.Handling[OUT]))
	case s.phase == failing:
		g.answered(s, s.rare().held.(*handing[IN, OUT]))
	default:
		panic(fmt.Sprintf("asyncop: a letter came in phase %v", s.phase))
	}
}

// fireTimers handles deadlines before retries: no attempt starts at the deadline (law A5).
func (g *Machine[IN, OUT]) fireTimers(now time.Duration) {
	for g.live != nil && g.deadline(g.live) <= now && g.failure == nil {
		g.timeOut(g.live)
	}
	for due, ok := g.odd.Next(); ok && due <= now && g.failure == nil; due, ok = g.odd.Next() {
		g.timeOut(g.odd.Peek().Value)
	}
	for g.failure == nil {
		t := g.Timers.PopDue(now)
		if t == nil {
			return
		}
		switch s := t.Value; s.phase {
		case preparing, running:
			g.attemptTimeOut(s)
		case backoff:
			g.retryNow(s)
		case handling:
			g.handlerTimeOut(s)
		case failing:
			g.failing.Push(s)
		default:
			panic(fmt.Sprintf("asyncop: a timer fired in phase %v", s.phase))
		}
	}
}

func (g *Machine[IN, OUT]) timerIsDue() bool {
	due, some := g.Timers.Next()
	odd, limited := g.odd.Next()
	return some && due <= g.now || limited && odd <= g.now || g.live != nil && g.deadline(g.live) <= g.now
}

// startWaiting starts attempts that wait for a permit: retries before first attempts, oldest first.
func (g *Machine[IN, OUT]) startWaiting() {
	if g.Batch != nil {
		g.startBatches(true)
		return
	}
	for n := 0; n < turnLimit && g.canStart(); n++ {
		g.start(g.nextStart())
	}
	// Retries without delay come back again and again. They go before first attempts, not in place of them: with permits for
	// all, those begin too.
	for n := 0; n < turnLimit && g.canStart() && g.firstFresh() != nil && g.permits > g.ready.Len(); n++ {
		g.start(g.firstFresh())
	}
}

// nextStart returns the element that starts next, or nil.
func (g *Machine[IN, OUT]) nextStart() *Slot[IN, OUT] {
	if t := g.ready.Peek(); t != nil {
		return t.Value
	}
	return g.firstFresh()
}

// wantsStart reports whether an attempt waits for nothing but a shared permit or the pace.
func (g *Machine[IN, OUT]) wantsStart() bool {
	return g.failure == nil && g.permits > 0 && (g.firstFresh() != nil || g.ready.Len() > 0)
}

// waiting returns how many calls wait for nothing but a shared permit.
func (g *Machine[IN, OUT]) waiting() (n int) {
	n = g.startable()
	if g.Batch != nil {
		n = 1 + (n-1)/g.Batch.MaxSize
	}
	return min(n, g.permits)
}

// startable returns how many elements wait for their next attempt only.
func (g *Machine[IN, OUT]) startable() int { return g.ready.Len() + g.unbegun }

func (g *Machine[IN, OUT]) canStart() bool {
	return g.wantsStart() && !g.short && !g.overdue && g.now >= g.paced
}

// ---- The end of the run

// Cause says what ended a run.
type Cause uint8

// What may end a run.
const (
	ByDriver  Cause = iota // End
	ByElement              // an element failed, and FailRun is the policy
	ByCancel               // a context of the host has ended
)

// Failure returns why the run must end, or nil.
func (g *Machine[IN, OUT]) Failure() (cause Cause, err error) { return g.cause, g.failure }

// FailedIn returns the context of the element that has failed the run; the operator's if none has.
func (g *Machine[IN, OUT]) FailedIn() context.Context {
	if g.failedIn != nil {
		return g.failedIn
	}
	return g.Host.Values
}

// Failed reports whether the run must end.
func (g *Machine[IN, OUT]) Failed() bool { return g.failure != nil }

// End makes the run end for err. The first reason counts.
func (g *Machine[IN, OUT]) End(err error) { g.end(err, ByDriver) }

func (g *Machine[IN, OUT]) end(err error, cause Cause) {
	if g.failure == nil {
		g.failure, g.cause = err, cause
	}
}

// EndIfCancelled makes the run end if it was cancelled.
func (g *Machine[IN, OUT]) EndIfCancelled() {
	if g.failure != nil || !g.Host.Cancelled() {
		return
	}
	cause := context.Cause(g.Host.Life)
	if cause == nil {
		cause = context.Cause(g.Host.User)
	}
	g.end(cause, ByCancel)
}

// Forget lets go of all elements: user code may keep futures and contexts for ever, and the core with them. It is not used any
// more.
func (g *Machine[IN, OUT]) Forget() {
	none := timers.Heap[*Slot[IN, OUT]]{}
	g.slots = slots[IN, OUT]{}
	g.Queue, g.Timers.Heap, g.ready, g.odd, g.heads = nil, none, none, none, none
	g.Keys, g.outliving, g.places = nil, nil, nil
	g.fresh, g.live, g.oldest, g.forming = nil, nil, nil, nil
	g.failing, g.handing = fifo.Queue[*Slot[IN, OUT]]{}, nil
	for _, b := range []*beside{&g.asking, &g.before, &g.handlers} {
		b.waiting = fifo.Queue[waiting]{}
	}
	g.notes, g.riders, g.failedIn = fifo.Queue[note]{}, nil, nil
	g.attempts, g.elements = nil, nil
	g.settlements, g.extras = fifo.Queue[settlement]{}, nil
	g.rest, g.call = nil, userCall[IN, OUT]{}
	g.Host.Mail.Take()
}

// ---- What others look at

// Counts returns the counters, and when the oldest element was accepted; Never if there is none.
func (g *Machine[IN, OUT]) Counts() (c observe.Stats, oldest time.Duration) {
	c, oldest = g.counts, Never
	if g.oldest != nil {
		oldest = g.oldest.accepted
	}
	c.Running = int64(g.Running())
	c.InFlight = c.Accepted - c.Completed - c.Dropped - c.HandedOver - c.Failed - c.Abandoned
	return c, oldest
}

// Attempts returns how many attempts were begun, and how many have ended with an error, or with the time of their element.
func (g *Machine[IN, OUT]) Attempts() (begun, failed int64) { return g.counts.Attempts, g.failed }

// Running returns how many permits are taken.
func (g *Machine[IN, OUT]) Running() int { return g.maxPermits() - g.permits }
