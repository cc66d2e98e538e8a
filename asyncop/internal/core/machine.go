package core

import (
	"context"
	"math"
	"math/rand/v2"
	"time"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/internal/gate"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/queue"
	"github.com/weirflow/weir/timers"
)

// Config is what a core is made of. It is read-only once the core runs.
type Config[IN, OUT any] struct {
	Queue  queue.Queue[*Slot[IN, OUT]]                                  // owned by the core
	Timers *timers.Service[*Slot[IN, OUT]]                              // owned by the core, whose driver sets the alarm
	Host   *call.Host                                                   // what the calls share
	Invoke func(ctx context.Context, in IN, a *call.Attempt[OUT]) error // starts a call
	Direct bool                                                         // calls are handed out by Jobs instead

	Policy *decision.Steps[OUT]
	Random *rand.Rand // of the jitter

	Timeout        time.Duration // total, per element; 0: none
	AttemptTimeout time.Duration // of each attempt; 0: none
	EarlyTimeout   bool          // an element times out as soon as no retry can start within its timeout
	MaxCalls       int           // permits; 0: as many as there are slots

	FailsRun           bool // the first element that fails ends the run; else it is dropped
	ExhaustedAsFailure bool // a result that asks for a retry it does not get is a failure

	Check    func(results []OUT) error // nil: results may be anything
	Restored Restored
	Hooks    Hooks[IN]
}

// Restored is what elements from a checkpoint keep of the time before the restart, beside the rest of their back-off.
type Restored struct {
	Keep      Keep
	LeastPart int // an element has at least the LeastPart-th part of its timeout for an attempt, so that a restart gets on; 0: nothing
}

// Keep is what of an element's attempts is kept.
type Keep uint8

// What may be kept.
const (
	KeepNothing Keep = iota // no attempts, the whole timeout
	KeepSince               // the attempts; all the time since the first of them is spent
	KeepSpent               // the attempts; the time before the restart is spent
)

// Hooks make what users see, seldom. They may run user code: one that does calls [Machine.Slept] first.
type Hooks[IN any] struct {
	TimedOut        func(r Report[IN], early bool, closed error) error // the failure of an element whose time ran out; closed: it waited for a backend that is
	AttemptTimedOut func(attempt int) error                            // the outcome of an attempt whose time ran out
	Exhausted       func(d decision.Decision) error                    // the failure of an element that ExhaustedAsFailure makes fail
	DecisionFailed  func(err error) error                              // the failure of an element whose policy failed with err
	RunFailed       func(r Report[IN]) error                           // the failure of the run by an element
	GivenUp         func(r Report[IN], how observe.EndKind)            // an element was dropped or handed over
}

// Report is what a core says of an element.
type Report[IN any] struct {
	Element  IN
	Err      error         // of its last outcome, or its failure
	Attempts int           // begun
	Elapsed  time.Duration // since it took its slot
	First    time.Time     // when its first attempt began; zero if none did
	Last     time.Time     // when its last attempt began; zero if none did
	Verdict  decision.Verdict
	Reason   predicates.Reason    // of its last outcome
	Reasons  predicates.ReasonSet // of the retries that were begun
	InDoubt  bool                 // an attempt may have taken effect
	Tracked  bool                 // and the servers of all that may have recognise them when they come again
	Timeout  time.Duration        // its own, or that of all; 0: none
	Failed   bool                 // it has failed, and was not handed over yet

	Context context.Context //nolint:containedctx // with what its observers know of it; the operator's if there are none
}

// Machine has the queue, the timers and the state of every element. Its driver feeds it elements, lets it take turns, and carries
// away what the head of the queue has to emit.
//
// It is owned by one goroutine. No lock is held while user code runs.
type Machine[IN, OUT any] struct {
	Config[IN, OUT]
	moments[IN, OUT]
	judge[OUT]
	slots slots[IN, OUT]

	fresh   *Slot[IN, OUT]                  // the oldest element in phase fresh
	unbegun int                             // elements in phase fresh
	ready   timers.Heap[*Slot[IN, OUT]]     // elements in phase ready, the oldest first
	readied time.Duration                   // when the first of them got there
	jobs    []call.Job[IN, OUT]             // calls that were started and not handed out
	permits int                             // free ones
	stamp   gate.Stamp                      // of the call that a feature has admitted last
	overdue bool                            // the deadline of what was to start has come: timers go first (law T1)
	forming interface{ HasReturned() bool } // a call for several elements that is being started: the mailbox waits

	oldest *Slot[IN, OUT]              // the oldest element of the queue
	live   *Slot[IN, OUT]              // the oldest element with a live deadline: deadlines come in input order
	odd    timers.Heap[*Slot[IN, OUT]] // live deadlines that do not
	limits side[*limit[IN, OUT]]       // of elements with an odd deadline

	now   time.Duration // when the core last looked at the clock
	stale bool          // since then the driver has slept
	ran   bool          // since then user code has run
	exact bool          // no step uses a reading that is older than user code

	noRetries bool            // no element is retried any more (law A5)
	failure   error           // why the run must end; nil: it need not
	cause     Cause           // of failure
	failedIn  context.Context //nolint:containedctx // of the element that has failed the run
	abandoned bool            // Abandon was called: no element follows

	rest      *call.Letter         // taken from the mailbox and not handled yet
	call      userCall[IN, OUT]    // the user code that is being run
	resumes   resumptions[IN, OUT] // how to go on after it
	accepting acceptance           // of the newest element
	restoring Item[IN, OUT]        // that is the newest element, if it comes from a checkpoint

	counts observe.Stats
	failed int64 // attempts
}

// turnLimit bounds what one kind of work does in one turn, so that everything gets its turn.
const turnLimit = 128

// New returns a core without elements and without features.
func New[IN, OUT any](c Config[IN, OUT]) *Machine[IN, OUT] {
	g := &Machine[IN, OUT]{Config: c, judge: newJudge(c.Policy)}
	if g.MaxCalls == 0 {
		g.MaxCalls = g.Queue.Cap()
	}
	g.permits = g.MaxCalls
	g.exact = c.Timeout > 0 || c.AttemptTimeout > 0
	g.resumes = resumptions[IN, OUT]{
		invoke: g.invokeBroke, judge: g.judgeBroke, accepted: g.acceptBroke, fail: g.fail,
	}
	return g
}

// Len returns the number of slots taken.
func (g *Machine[IN, OUT]) Len() int { return g.Queue.Len() }

// Room returns how many elements may be accepted.
func (g *Machine[IN, OUT]) Room() int {
	if g.isCrowded != nil && g.isCrowded() {
		return 0
	}
	return g.Queue.Cap() - g.Queue.Len()
}

// Running returns how many permits are taken.
func (g *Machine[IN, OUT]) Running() int { return g.MaxCalls - g.permits }

// Counts returns the counters, and when the oldest element was accepted: Never if there is none.
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

// ---- The clock

// Slept says that the driver has slept, or run user code that may wait: the time that the core knows is no longer the present.
func (g *Machine[IN, OUT]) Slept() { g.stale = true }

// Beside says that the driver is about to run user code beside the core, such as the input.
func (g *Machine[IN, OUT]) Beside() { g.ran = true }

// Present returns when the core last looked at the clock.
func (g *Machine[IN, OUT]) Present() time.Duration { return g.now }

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

// later returns the instant d after at, or the last one there is.
func later(at, d time.Duration) time.Duration {
	if d > math.MaxInt64-at {
		return math.MaxInt64
	}
	return at + d
}

// ---- Elements in

// acceptance is what features learn of the element that is being accepted.
type acceptance struct {
	restored bool
	number   int64 // of a restored one: see Observing.Numbers
	isItem   bool  // it is Machine.restoring, and its timeout is looked at later
	moment   int   // the one in accepted that is being called
}

// Accept takes a slot for in and starts its first attempt if a permit is free. There must be room.
func (g *Machine[IN, OUT]) Accept(in IN) {
	g.refresh()
	s := g.put(in, g.now)
	if len(g.accepted) > 0 && !g.accept(s, acceptance{}) {
		return
	}
	g.startNew(s)
}

// accept lets features have a look at a new element, and reports whether it goes on.
func (g *Machine[IN, OUT]) accept(s *Slot[IN, OUT], a acceptance) bool {
	for g.accepting = a; g.accepting.moment < len(g.accepted); g.accepting.moment++ {
		if !g.accepted[g.accepting.moment](s) {
			return false
		}
	}
	return true
}

// acceptBroke goes on after a feature's user code has broken while s was accepted: with the other features.
func (g *Machine[IN, OUT]) acceptBroke(s *Slot[IN, OUT], _ error) {
	g.accepting.moment++
	switch goesOn := g.accept(s, g.accepting); {
	case !goesOn:
	case g.accepting.isItem:
		g.restored(s)
	default:
		g.startNew(s)
	}
}

// put takes a slot for a fresh element with its whole timeout: the one place where an element is accepted.
func (g *Machine[IN, OUT]) put(in IN, at time.Duration) *Slot[IN, OUT] {
	s := g.slots.take()
	s.entry = g.Queue.Put(s)
	s.in, s.accepted, s.phase, s.due = in, at, fresh, Never
	if g.Timeout > 0 {
		s.due = at + g.Timeout
	}
	g.counts.Accepted++
	g.unbegun++
	if g.fresh == nil {
		g.fresh = s
	}
	if g.oldest == nil {
		g.oldest = s
	}
	if g.live == nil {
		g.live = s
	}
	return s
}

// startNew starts the newest element, unless others wait to start.
func (g *Machine[IN, OUT]) startNew(s *Slot[IN, OUT]) {
	switch {
	case g.start != nil:
		g.start(s)
	case g.next() == s && g.ready.Len() == 0 && g.mayStartSome():
		g.tryStart(s)
	}
}

// AcceptControl takes a slot for a control element. There must be room. One that is not kept is in no checkpoint.
func (g *Machine[IN, OUT]) AcceptControl(element any, kept bool) {
	g.tick()
	s := g.slots.take()
	s.accepted = g.now
	g.slots.held.set(s.place, element)
	if !kept {
		s.retry = notKept
	}
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
		for _, f := range g.freed {
			f()
		}
	}
	g.overdue = false
	for _, f := range g.turnBegins {
		if f() {
			return
		}
	}
	g.rest = g.Host.Mail.Take()
	g.readRest()
	g.fireTimers(now)
	if g.start != nil {
		g.start(nil)
	} else {
		g.startWaiting()
	}
	for _, f := range g.turnEnds {
		f()
	}
}

// What Next returns beside an instant.
const (
	Now   = time.Duration(math.MinInt64)
	Never = call.NoDeadline
)

// Next returns when the next turn is due: an instant, Now, or Never. Whatever is posted wakes the driver earlier, so the driver says
// first that it is about to sleep: then nothing that is posted from now on is missed.
func (g *Machine[IN, OUT]) Next() time.Duration {
	g.tick()
	g.call = userCall[IN, OUT]{} // an idle core keeps nothing
	if !g.Host.Mail.Empty() || g.Host.Freed() > 0 || g.failure != nil {
		return Now
	}
	for _, f := range g.isBusy {
		if f() {
			return Now
		}
	}
	next := Never
	if g.wantsStart() {
		if next = g.startsNext(); next == Now {
			return Now
		}
	}
	if due, ok := g.Timers.Next(); ok {
		next = min(next, due)
	}
	if g.live != nil {
		next = min(next, g.live.due)
	}
	if due, ok := g.odd.Next(); ok {
		next = min(next, due)
	}
	return next
}

// startsNext returns when an attempt that waits for nothing but a feature may start.
func (g *Machine[IN, OUT]) startsNext() time.Duration {
	if g.startsAt != nil {
		if at := g.startsAt(); at != Now {
			return at
		}
	}
	if g.opensAt != nil {
		return g.opensAt()
	}
	return Now
}

// readRest handles completions and answers, in the order in which they were posted. Law A2: a letter that no element waits for
// any more is late, and is counted already.
func (g *Machine[IN, OUT]) readRest() {
	for g.rest != nil && g.failure == nil {
		l := g.rest
		g.rest = l.Unchain()
		switch s := g.slots.find(l.Ref); {
		case s == nil:
		case s.phase == running:
			g.completed(s)
		default:
			g.on[s.phase].answered(s)
		}
	}
}

// fireTimers handles deadlines before retries: no attempt starts at the deadline (law A5).
func (g *Machine[IN, OUT]) fireTimers(now time.Duration) {
	for g.live != nil && g.live.due <= now && g.failure == nil {
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
		case running:
			g.attemptTimeOut(s)
		case backoff:
			g.retryNow(s)
		default:
			g.on[s.phase].fired(s)
		}
	}
}

// ---- May this attempt start?

// next returns the element that makes its first attempt next, or nil.
func (g *Machine[IN, OUT]) next() *Slot[IN, OUT] {
	if g.nextFresh != nil {
		return g.nextFresh()
	}
	return g.fresh
}

// nextStart returns the element that starts next, or nil: retries before first attempts, oldest first.
func (g *Machine[IN, OUT]) nextStart() *Slot[IN, OUT] {
	if t := g.ready.Peek(); t != nil {
		return t.Value
	}
	return g.next()
}

// wantsStart reports whether an attempt waits for nothing but a feature.
func (g *Machine[IN, OUT]) wantsStart() bool { return g.permits > 0 && g.nextStart() != nil }

// mayStartSome reports whether one more attempt may start, as far as that is known without asking for it.
func (g *Machine[IN, OUT]) mayStartSome() bool {
	return g.permits > 0 && !g.overdue && g.failure == nil && (g.isShut == nil || !g.isShut())
}

// startWaiting starts attempts that wait.
func (g *Machine[IN, OUT]) startWaiting() {
	for n := 0; n < turnLimit && g.mayStartSome(); n++ {
		s := g.nextStart()
		if s == nil {
			return
		}
		g.tryStart(s)
	}
	// Retries without delay come back again and again. They go before first attempts, not in place of them: with permits for
	// all, those begin too.
	for n := 0; n < turnLimit && g.permits > g.ready.Len() && g.mayStartSome(); n++ {
		s := g.next()
		if s == nil {
			return
		}
		g.tryStart(s)
	}
}

// tryStart begins the next attempt of s, which is fresh or ready, if it may start; else s waits on.
func (g *Machine[IN, OUT]) tryStart(s *Slot[IN, OUT]) {
	if g.mayStart(s) && (g.admit == nil || g.admit(s)) {
		g.permits--
		g.begin(s)
	}
}

// mayStart reports whether neither a cancel nor the deadline of s has come (law A5). The deadline is the timers' to fire (law T1).
func (g *Machine[IN, OUT]) mayStart(s *Slot[IN, OUT]) bool {
	if g.EndIfCancelled(); g.failure != nil { // now, not when the driver looks
		return false
	}
	g.refresh()
	g.overdue = g.now >= s.due
	return !g.overdue
}

// ---- The end of the run

// Cause says what ended a run.
type Cause uint8

// What may end a run.
const (
	ByDriver  Cause = iota // End
	ByElement              // an element failed, and FailsRun
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
	g.slots, g.limits = slots[IN, OUT]{}, side[*limit[IN, OUT]]{}
	g.Queue, g.Timers.Heap, g.ready, g.odd = nil, none, none, none
	g.fresh, g.live, g.oldest, g.jobs = nil, nil, nil, nil
	g.failedIn, g.rest, g.call, g.judge = nil, nil, userCall[IN, OUT]{}, judge[OUT]{}
	for _, f := range g.forget {
		f()
	}
	g.Host.Mail.Take()
}
