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
	"github.com/weirflow/weir/internal/guard"
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
	Direct bool                                                         // calls are jobs instead
	Jobs   *[]call.Job[IN, OUT]                                         // for the workers: the core appends, the driver takes

	Policy *decision.Steps[OUT]
	Random *rand.Rand // of the jitter

	Limits

	FailsRun           bool // the first element that fails ends the run; else it is dropped
	ExhaustedAsFailure bool // a result that asks for a retry it does not get is a failure

	Check    func(results []OUT) error // nil: results may be anything
	Restored Restored
	Hooks    Hooks[IN]
}

// Limits bound elements and attempts.
type Limits struct {
	Timeout        time.Duration // total, per element; 0: none
	AttemptTimeout time.Duration // of each attempt; 0: none
	EarlyTimeout   bool          // an element times out as soon as no retry can start within its timeout
	MaxCalls       int           // permits; 0: as many as there are slots
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

// Hooks make what users see, seldom. They may run user code: one that does calls [Machine.Away] first.
type Hooks[IN any] struct {
	TimedOut  func(r Report[IN], out TimedOut) error  // the failure of an element whose time ran out, or the outcome of such an attempt
	Undecided func(d decision.Decision) error         // the failure of an element whose policy failed, or that ExhaustedAsFailure makes fail
	RunFailed func(r Report[IN]) error                // the failure of the run by an element
	GivenUp   func(r Report[IN], how observe.EndKind) // an element was dropped or handed over
}

// TimedOut says what time ran out.
type TimedOut struct {
	Attempt bool  // that of the attempt
	Early   bool  // that of the element, since no retry could start within it
	Closed  error // that of the element, which waited for a backend that is down
}

// Report is what a core says of an element.
type Report[IN any] struct {
	Element       IN
	Err           error         // of its last outcome, or its failure
	Attempts      int           // begun
	Elapsed       time.Duration // since it took its slot
	First         time.Time     // when its first attempt began; zero if none did
	Last          time.Time     // when its last attempt began; zero if none did
	NoRetryReason decision.NoRetryReason
	Reason        predicates.Reason    // of its last outcome
	Reasons       predicates.ReasonSet // of the retries that were begun
	InDoubt       bool                 // an attempt may have taken effect
	Deduplicated  bool                 // and the servers of all such attempts recognise them when they are repeated
	Timeout       time.Duration        // its own, or that of all; 0: none
	Failed        bool                 // it has failed, and was not handed over yet

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
	outcome outcome // of the attempt that has ended, until features know of it
	slots   slots[IN, OUT]
	reasons side[reasons]
	limits  side[*limit[IN, OUT]] // deadlines that do not come in input order

	// For the phase of an element. Control: the element, a queue.Watermark, or the participant.Barrier of an operator that takes no part in
	// checkpoints. Backoff and ready: what the strategy wants done before the next attempt, a func(context.Context) error. Phases of
	// features: theirs.
	held side[any]

	fresh   *Slot[IN, OUT]                  // the element that makes its first attempt next: the oldest in phase fresh
	unbegun int                             // elements in phase fresh
	ready   timers.Heap[*Slot[IN, OUT]]     // elements in phase ready, the oldest first
	readied time.Duration                   // when the first of them got there
	permits int                             // free ones
	stamp   gate.Stamp                      // of the call that a feature has admitted last
	overdue bool                            // the deadline of what was to start has come: timers go first (law T1)
	forming interface{ HasReturned() bool } // a call for several elements that is being started: the mailbox waits

	oldest *Slot[IN, OUT]              // the oldest element of the queue
	live   *Slot[IN, OUT]              // the oldest element with a live deadline: deadlines come in input order
	odd    timers.Heap[*Slot[IN, OUT]] // live deadlines that do not

	now   time.Duration // when the core last looked at the clock
	stale bool          // since then the driver has slept
	ran   bool          // since then user code has run
	exact bool          // there are limits or back-offs, which begin and end by a reading that is not older than user code

	timesAll  bool // how long each attempt took is wanted to the instant, not only of those that failed
	noRetries bool // no element is retried any more (law A5)
	abandoned bool // Abandon was called: no element follows

	rest      *call.Letter         // taken from the mailbox and not handled yet
	user      userCall[IN, OUT]    // the user code that is being run
	resumes   resumptions[IN, OUT] // how to go on after it
	accepting acceptance           // of the newest element
	restoring Item[IN, OUT]        // that is the newest element, if it comes from a checkpoint

	state State
}

// turnLimit bounds what one kind of work does in one turn, so that everything gets its turn.
const turnLimit = 128

// New returns a core without elements and without features.
func New[IN, OUT any](c Config[IN, OUT]) *Machine[IN, OUT] {
	g := &Machine[IN, OUT]{Config: c}
	g.slots.sides = new([]asSide)
	g.reasons, g.limits, g.held = newSide[reasons](g), newSide[*limit[IN, OUT]](g), newSide[any](g)
	g.state.FailedIn = g.Host.Values
	g.looksClosely = c.Policy.NeedsElement()
	if g.MaxCalls == 0 {
		g.MaxCalls = g.Queue.Cap()
	}
	g.permits = g.MaxCalls
	g.exact = c.Timeout > 0 || c.AttemptTimeout > 0 || c.Policy.Classify != nil
	g.resumes = resumptions[IN, OUT]{
		invoke: g.invokeBroke, judge: g.judgeBroke, accepted: g.acceptBroke,
		fail: func(s *Slot[IN, OUT], err error) { g.fails(s, err, false) },
	}
	if g.situation.Random = g.Random; g.looksClosely {
		g.situation.Context = g.question
	}
	return g
}

// State is what a driver may know of a core.
type State struct {
	Len     int // slots that are taken
	Room    int // elements that may be accepted: none once the run must end
	Running int // permits that are taken

	Now    time.Duration // when the core last looked at the clock
	Oldest time.Duration // when the oldest element was accepted; Never if there is none
	Stats  observe.Stats // without Running and InFlight: see Counts
	Failed int64         // attempts that ended with an error, or with the time of their element

	Failure  error           // why the run must end; nil: it need not
	Cause    Cause           // of Failure
	FailedIn context.Context //nolint:containedctx // of the element that has failed the run; the operator's if none has
	Exited   error           // of user code that has ended the goroutine which owned the core: for a driver that does not Run again
}

// Counts returns the counters.
func (s *State) Counts() observe.Stats {
	c := s.Stats
	c.Running = int64(s.Running)
	c.InFlight = c.Accepted - c.Completed - c.Dropped - c.HandedOver - c.Failed - c.Abandoned
	return c
}

// State returns what there is to know. It is the core's: to be read at once, and not to be written.
func (g *Machine[IN, OUT]) State() *State {
	s := &g.state
	s.Running, s.Now, s.Oldest, s.Room = g.MaxCalls-g.permits, g.now, Never, 0
	if g.oldest != nil {
		s.Oldest = g.oldest.accepted
	}
	if s.Len = g.slots.taken; s.Failure == nil && (g.isCrowded == nil || !g.isCrowded()) {
		s.Room = g.Queue.Cap() - s.Len
	}
	if g.user.broke != nil {
		s.Exited = g.user.broke
	}
	return s
}

// ---- The clock

// Away reports that the driver has slept, or is about to run code of users outside of the core. If that may wait, the core reads the clock
// before it uses an instant. If not, it does so only where a limit or a back-off depends on the instant.
func (g *Machine[IN, OUT]) Away(mayWait bool) {
	if mayWait {
		g.stale = true
	} else {
		g.ran = true
	}
}

// tick looks at the clock.
func (g *Machine[IN, OUT]) tick() {
	g.stale = true
	g.refresh()
}

// refresh looks at the clock if time may have passed since the core looked last. Where no instant depends on it, a turn is one
// instant, however long its calls block it.
func (g *Machine[IN, OUT]) refresh() {
	if g.stale || g.ran && g.exact {
		g.now = g.Timers.Now()
		g.stale, g.ran = false, false
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
	g.state.Stats.Accepted++
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
	case g.permits > 0 && g.nextStart() == s && g.mayStart(s):
		g.begin(s)
	}
}

// acceptControl takes a slot for a control element.
func (g *Machine[IN, OUT]) acceptControl(it Item[IN, OUT]) {
	g.tick()
	s := g.slots.take()
	s.accepted, s.retry = g.now, it.Retry&notKept
	*g.held.ref(s.place) = it.Rest
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
	g.user, g.judging = userCall[IN, OUT]{}, judging[OUT]{} // an idle core keeps nothing
	if !g.Host.Mail.Empty() || g.Host.Freed() > 0 || g.state.Failure != nil {
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
	return min(next, g.nextTimer())
}

// nextTimer returns when a timer or a deadline is due, or Never.
func (g *Machine[IN, OUT]) nextTimer() time.Duration {
	next := Never
	if g.live != nil {
		next = g.live.due
	}
	if due, ok := g.odd.Next(); ok {
		next = min(next, due)
	}
	if due, ok := g.Timers.Next(); ok {
		next = min(next, due)
	}
	return next
}

// startsNext returns when an attempt that could start but for a feature may start.
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
	for g.rest != nil && g.state.Failure == nil {
		l := g.rest
		g.rest, l.Next = l.Next, nil
		switch s := g.slots.find(l.Ref); {
		case s == nil:
		case s.phase == running:
			g.conclude(s, completion)
		default:
			g.on[s.phase].answered(s)
		}
	}
}

// fireTimers handles deadlines before retries: no attempt starts at the deadline (law A5).
func (g *Machine[IN, OUT]) fireTimers(now time.Duration) {
	for g.live != nil && g.live.due <= now && g.state.Failure == nil {
		g.timeOut(g.live)
	}
	for due, ok := g.odd.Next(); ok && due <= now && g.state.Failure == nil; due, ok = g.odd.Next() {
		g.timeOut(g.odd.Peek().Value)
	}
	for g.state.Failure == nil {
		t := g.Timers.PopDue(now)
		if t == nil {
			return
		}
		switch s := t.Value; s.phase {
		case running:
			g.conclude(s, ranOut)
		case backoff:
			g.retryNow(s)
		default:
			g.on[s.phase].fired(s)
		}
	}
}

// ---- May this attempt start?

// nextStart returns the element that starts next, or nil: retries before first attempts, oldest first.
func (g *Machine[IN, OUT]) nextStart() *Slot[IN, OUT] {
	if t := g.ready.Peek(); t != nil {
		return t.Value
	}
	return g.fresh
}

// startable returns how many elements could start but for a feature.
func (g *Machine[IN, OUT]) startable() int { return g.ready.Len() + g.unbegun }

// wantsStart reports whether an attempt could start but for a feature.
func (g *Machine[IN, OUT]) wantsStart() bool { return g.permits > 0 && g.nextStart() != nil }

// startWaiting starts attempts that wait.
func (g *Machine[IN, OUT]) startWaiting() {
	for n := 0; n < turnLimit && g.permits > 0; n++ {
		switch s := g.nextStart(); {
		case s == nil:
			return
		case g.mayStart(s):
			g.begin(s)
		case g.nextStart() == s: // and the others behind it wait, too
			return
		}
	}
	// Retries without delay come back again and again. They go before first attempts, not in place of them: with permits for
	// all, those begin too.
	for n := 0; n < turnLimit && g.permits > g.ready.Len(); n++ {
		switch s := g.fresh; {
		case s == nil:
			return
		case g.mayStart(s):
			g.begin(s)
		case g.fresh == s:
			return
		}
	}
}

// mayStart takes what the next attempt of s needs, which is fresh or ready, and reports whether it starts; else nothing is taken. There is
// a permit. Neither a cancel nor the deadline of s may have come (law A5). The deadline is the timers' to fire (law T1). A member of a
// call for several elements needs nothing but its place there.
func (g *Machine[IN, OUT]) mayStart(s *Slot[IN, OUT]) bool {
	if g.Host.Cancelled() { // now, not when the driver looks
		g.endIfCancelled()
	}
	if g.state.Failure != nil || g.overdue {
		return false
	}
	g.refresh()
	switch g.overdue = g.now >= s.due; {
	case g.overdue:
		return false
	case g.forming != nil:
		return g.join == nil || g.join(s)
	case g.admit != nil && !g.admit(s):
		return false
	}
	g.permits--
	return true
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

// End makes the run end for err or, if that is nil, if a context of the host has ended. The first reason counts.
func (g *Machine[IN, OUT]) End(err error) {
	if err != nil {
		g.end(err, ByDriver)
	} else {
		g.endIfCancelled()
	}
}

func (g *Machine[IN, OUT]) end(err error, cause Cause) {
	if g.state.Failure == nil {
		g.state.Failure, g.state.Cause = err, cause
	}
}

func (g *Machine[IN, OUT]) endIfCancelled() {
	if g.state.Failure != nil || !g.Host.Cancelled() {
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
	g.slots.forget()
	g.Queue, g.Timers.Heap, g.ready, g.odd = nil, none, none, none
	g.fresh, g.live, g.oldest = nil, nil, nil
	g.state.FailedIn, g.rest, g.user, g.judge = nil, nil, userCall[IN, OUT]{}, judge[OUT]{}
	for _, f := range g.forget {
		f()
	}
	g.Host.Mail.Close()
}

// ---- User code

// userCall is the user code that the core is running. A panic unwinds the stack up to Run, and runtime.Goexit ends the goroutine:
// how to go on is read here (law A6). So nothing guards a single call.
type userCall[IN, OUT any] struct {
	after func(s *Slot[IN, OUT], err error) // goes on with what the code has broken with; nil: no user code runs
	slot  *Slot[IN, OUT]                    // that it runs for, or nil
	broke error                             // what it has broken with
}

// resumptions are how the core goes on after its own user code. They are made once: a method value is an allocation.
type resumptions[IN, OUT any] struct {
	invoke   func(s *Slot[IN, OUT], err error) // Config.Invoke, or a feature when an attempt begins
	judge    func(s *Slot[IN, OUT], err error) // the policy
	accepted func(s *Slot[IN, OUT], err error) // a feature when an element is accepted
	fail     func(s *Slot[IN, OUT], err error) // what else is asked about an element
}

// calling says that user code is about to run for s, or for none: nil. g.user.after = nil says that it has returned; the slot stays until
// the next call, since to clear it costs a write barrier.
func (g *Machine[IN, OUT]) calling(s *Slot[IN, OUT], after func(s *Slot[IN, OUT], err error)) {
	g.user.after, g.user.slot = after, s
	g.ran = true
}

// Run runs f, which is the driver's loop. Where user code panics in it, Run goes on and runs f again; where user code ends the
// goroutine, the next Run does, on another one. A panic of other code passes.
func (g *Machine[IN, OUT]) Run(f func()) {
	for again := true; again; {
		again = g.runOnce(f)
	}
}

func (g *Machine[IN, OUT]) runOnce(f func()) (again bool) {
	var stands guard.Guard
	defer stands.Close(func(recovered any) {
		switch {
		case g.user.after != nil:
			g.user.broke = call.Panicked(recovered)
			again = recovered != nil
		case recovered != nil: // not the user's
			panic(recovered)
		}
	})
	g.resume()
	f()
	stands.Returned()
	return false
}

// resume goes on where user code has broken, if it has.
func (g *Machine[IN, OUT]) resume() {
	if was := g.user; was.broke != nil {
		g.user = userCall[IN, OUT]{}
		was.after(was.slot, was.broke)
		for _, f := range g.brokenOff {
			f()
		}
	}
	g.readRest()
}
