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

// Config configures a core. It is read-only once the core runs.
type Config[IN, OUT any] struct {
	Queue  queue.Queue[*Slot[IN, OUT]]                                  // owned by the core
	Timers *timers.Service[*Slot[IN, OUT]]                              // owned by the core; its driver sets the alarm
	Host   *call.Host                                                   // shared by the calls
	Invoke func(ctx context.Context, in IN, a *call.Attempt[OUT]) error // starts a call
	Direct bool                                                         // calls are jobs instead
	Jobs   *[]call.Job[IN, OUT]                                         // for workers: the core appends, the driver takes

	Policy *decision.Steps[OUT]
	Random *rand.Rand // of the jitter

	Limits

	FailsRun           bool // the first element that fails ends the run; otherwise it is dropped
	ExhaustedAsFailure bool // a result that asks for a retry and does not get one is a failure

	Check    func(results []OUT) error // nil if results may be anything
	Restored Restored
	Hooks    Hooks[IN]
}

// Limits bound elements and attempts. 0 means no limit.
type Limits struct {
	Timeout        time.Duration // of each element, over all attempts
	FromAttempt    bool          // Timeout counts from the start of the first attempt, not from the acceptance
	AttemptTimeout time.Duration // of each attempt
	EarlyTimeout   bool          // an element times out as soon as no retry can start within its timeout
	MaxCalls       int           // permits; 0 means as many as there are slots
}

// Restored sets how much elements from a checkpoint keep of the time before the restart,
// besides the rest of their back-off.
type Restored struct {
	Keep Keep
	// LeastPart reserves a part of the timeout for an attempt, so that an element can end
	// after any number of restarts: 10 means a tenth. 0 means no reserve.
	LeastPart int
}

// Keep selects how much of its attempts a restored element keeps.
type Keep uint8

// The choices of Keep.
const (
	KeepNothing Keep = iota // no attempts, and the whole timeout
	KeepSince               // the attempts; all the time since the first of them is used up
	KeepSpent               // the attempts; the time before the restart is used up
)

// Hooks make errors and log lines. Hooks that run user code call [Machine.Away] first.
type Hooks[IN any] struct {
	TimedOut  func(r Report[IN], out TimedOut) error  // returns the error of an element or an attempt that timed out
	Undecided func(d decision.Decision) error         // returns the error of an element whose policy failed, or that ExhaustedAsFailure fails
	RunFailed func(r Report[IN]) error                // returns the error of a run that an element has failed
	GivenUp   func(r Report[IN], how observe.EndKind) // is called for an element that was dropped or handed over
}

// TimedOut describes a timeout.
type TimedOut struct {
	Attempt bool  // an attempt has timed out, not its element
	Early   bool  // the element has time left, but no retry could start within it
	Waited  error // why the backend let the element wait; nil if it did not
}

// Report describes an element to the driver.
type Report[IN any] struct {
	Element       IN
	Err           error         // of the last attempt; once the element has failed, its failure
	Attempts      int           // begun
	Elapsed       time.Duration // since it took its slot
	First         time.Time     // when its first attempt began; zero if none did
	Last          time.Time     // when its last attempt began; zero if none did
	NoRetryReason decision.NoRetryReason
	Reason        predicates.Reason    // of the last attempt
	Reasons       predicates.ReasonSet // of the retries that were begun
	InDoubt       bool                 // an attempt may have taken effect
	Deduplicated  bool                 // and every server involved recognises its requests when they are repeated
	Timeout       time.Duration        // 0 means none
	Failed        bool                 // it has failed, and was not handed over yet

	Context context.Context //nolint:containedctx // of its observers; the operator's if there are none
}

// Machine has the queue, the timers and the state of every element. Its driver feeds it
// elements, calls [Machine.Step], and takes the results from the head of the queue.
//
// It is owned by one goroutine. It holds no lock while user code runs.
type Machine[IN, OUT any] struct {
	Config[IN, OUT]

	// The optional parts; nil if the operator does not have them.
	keys      *keyOrder[IN, OUT]
	batches   *Batches[IN, OUT]
	backend   *atBackend[IN, OUT]
	messages  *Messages[IN, OUT]
	observers *Observing[IN, OUT]
	handler   *Handler[IN, OUT]
	sink      *HandOver[IN, OUT]
	history   *history[IN, OUT]
	timeouts  *ownTimeouts[IN, OUT]
	retryLog  *retryLog[IN, OUT]

	slots   slots[IN, OUT]
	reasons perSlot[reasons]           // empty unless the policy looks at reasons
	limits  perSlot[*limit[IN, OUT]]   // deadlines that do not come in input order
	control perSlot[any]               // a control element: a queue.Watermark, or a participant.Barrier
	before  perSlot[beforeRetry]       // phases backoff and ready: the step before the retry
	asked   perSlot[*question[OUT]]    // phase deciding
	handled perSlot[*handlerCall[OUT]] // phase handling

	fresh   *Slot[IN, OUT]              // makes its first attempt next: the oldest element in phase fresh
	unbegun int                         // elements in phase fresh
	ready   timers.Heap[*Slot[IN, OUT]] // elements in phase ready that may be called, the oldest first
	readied time.Duration               // when the oldest of them became ready
	permits int                         // free permits
	stamp   gate.Stamp                  // of the call that the backend has admitted last
	overdue bool                        // the deadline of the next element to start has come: timers go first (law T1)

	oldest *Slot[IN, OUT]              // the oldest element of the queue
	live   *Slot[IN, OUT]              // the oldest element with a live deadline: deadlines come in input order
	odd    timers.Heap[*Slot[IN, OUT]] // live deadlines that do not: see limit

	now      time.Duration // the last reading of the clock
	slept    bool          // since then the driver may have slept
	ranCode  bool          // since then user code has run
	isExact  bool          // limits or back-offs depend on the time that user code takes
	timesAll bool          // the duration of each attempt is measured, not only of those that failed

	looksClosely bool // the policy looks at more of an attempt than its number, results and error
	asksWorkers  bool // the strategy may block: a worker asks it
	noRetries    bool // retries have ended (law A5)
	abandoned    bool // Abandon was called

	unread     *call.Letter            // letters that were taken from the mailbox and not handled yet
	attemptEnd attemptEnd              // of the attempt that ended last, until reportEnd
	view       predicates.Attempt[OUT] // of the attempt that is judged
	policyNow  decision.Situation      // for the policy; used again and again

	state State
}

// stepLimit bounds how often one kind of work is repeated in one step.
const stepLimit = 128

// New returns a core without elements and without optional parts.
func New[IN, OUT any](c Config[IN, OUT]) *Machine[IN, OUT] {
	g := &Machine[IN, OUT]{Config: c}
	g.slots.others = new([]anyPerSlot)
	g.reasons, g.limits, g.control = newPerSlot[reasons](g), newPerSlot[*limit[IN, OUT]](g), newPerSlot[any](g)
	g.before, g.asked, g.handled = newPerSlot[beforeRetry](g), newPerSlot[*question[OUT]](g), newPerSlot[*handlerCall[OUT]](g)
	g.state.FailedIn = g.Host.Values
	g.looksClosely = c.Policy.NeedsElement()
	g.asksWorkers = !c.Policy.AtOnce && !c.Policy.NoRetry
	if g.MaxCalls == 0 {
		g.MaxCalls = g.Queue.Cap()
	}
	g.permits = g.MaxCalls
	g.isExact = c.Timeout > 0 || c.AttemptTimeout > 0 || c.Policy.Classify != nil
	return g
}

// State describes a core to its driver.
type State struct {
	Len     int // slots that are taken
	Room    int // elements that may be accepted: none once the run must end
	Running int // permits that are taken

	Now    time.Duration // the last reading of the clock
	Oldest time.Duration // when the oldest element was accepted; Never if there is none
	Stats  observe.Stats // without Running and InFlight: see Counts
	Failed int64         // attempts that ended with an error, or at the deadline of their element

	Failure  error           // why the run must end; nil if it need not
	Cause    Cause           // of Failure
	FailedIn context.Context //nolint:containedctx // of the element that has failed the run; the operator's if none has
}

// Counts returns the counters.
func (s *State) Counts() observe.Stats {
	c := s.Stats
	c.Running = int64(s.Running)
	c.InFlight = c.Accepted - c.Completed - c.Dropped - c.HandedOver - c.Failed - c.Abandoned
	return c
}

// State returns the state of the core, which owns it: it is valid until the next call,
// and read-only.
func (g *Machine[IN, OUT]) State() *State {
	s := &g.state
	s.Running, s.Now, s.Oldest, s.Room = g.MaxCalls-g.permits, g.now, Never, 0
	if g.oldest != nil {
		s.Oldest = g.oldest.accepted
	}
	if s.Len = g.slots.taken; s.Failure == nil && (g.keys == nil || g.keys.crowded == 0) {
		s.Room = g.Queue.Cap() - s.Len
	}
	return s
}

// ---- The clock

// Away reports that the driver has slept, or is about to run user code outside of the
// core. If that may wait, the core reads the clock before it uses an instant. Otherwise
// it does so only if limits or back-offs depend on the instant.
func (g *Machine[IN, OUT]) Away(mayWait bool) {
	if mayWait {
		g.slept = true
	} else {
		g.ranCode = true
	}
}

// tick reads the clock.
func (g *Machine[IN, OUT]) tick() {
	g.slept = true
	g.refresh()
}

// refresh reads the clock if time may have passed since the last reading. An operator
// without limits and back-offs uses one reading for a whole step, even if its calls block
// the loop.
func (g *Machine[IN, OUT]) refresh() {
	if g.slept || g.ranCode && g.isExact {
		g.now = g.Timers.Now()
		g.slept, g.ranCode = false, false
	}
}

// later returns the instant d after at, or the last instant there is.
func later(at, d time.Duration) time.Duration {
	if d > math.MaxInt64-at {
		return math.MaxInt64
	}
	return at + d
}

// ---- A step of the loop

// Step handles everything that has happened since the last step. Law T1: the clock is
// read first, so completions that were handed in until then go before timers that are
// due.
func (g *Machine[IN, OUT]) Step() {
	g.tick()
	now := g.now
	g.takeFreedPermits()
	g.overdue = false
	if g.backend != nil {
		g.backend.isShort = false
	}
	if g.batches != nil && g.batches.startFull() {
		return // completions wait: reading them takes as long as a short call
	}
	g.unread = g.Host.Mail.Take()
	g.readLetters()
	g.fireTimers(now)
	if g.batches != nil {
		g.batches.startWaiting(true)
	} else {
		g.startWaiting()
	}
	if g.backend != nil {
		g.backend.settle()
	}
	if g.sink != nil {
		g.sink.offerNext()
	}
}

// takeFreedPermits takes the permits of calls that had outlived their attempts.
func (g *Machine[IN, OUT]) takeFreedPermits() {
	freed := g.Host.TakeFreed()
	if freed == 0 {
		return
	}
	g.permits += freed
	if g.keys != nil {
		g.keys.freeReturned()
	}
}

// What Next returns besides an instant.
const (
	Now   = time.Duration(math.MinInt64)
	Never = call.NoDeadline
)

// Next returns when the next step is due: an instant, Now, or Never. Letters wake the
// driver earlier. So the driver first announces that it is about to sleep: then no letter
// is missed.
func (g *Machine[IN, OUT]) Next() time.Duration {
	g.tick()
	g.view = predicates.Attempt[OUT]{} // an idle core keeps no results
	switch {
	case !g.Host.Mail.Empty() || g.Host.Freed() > 0 || g.state.Failure != nil:
		return Now
	case g.messages != nil && g.messages.MaySettle():
		return Now
	case g.observers != nil && g.observers.MayReport():
		return Now
	case g.sink != nil && g.sink.mayOffer():
		return Now
	}
	next := Never
	if g.permits > 0 && g.nextStart() != nil {
		next = g.startsNext()
	}
	return min(next, g.nextTimer())
}

// nextTimer returns when the next timer or deadline is due, or Never.
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

// startsNext returns when the next element may start, if there is a permit: a batch may
// wait for more elements, and the backend may refuse calls for a time.
func (g *Machine[IN, OUT]) startsNext() time.Duration {
	if g.batches != nil {
		if at := g.batches.startsAt(); at != Now {
			return at
		}
	}
	if g.backend != nil {
		return g.backend.opensAt()
	}
	return Now
}

// readLetters handles completions and answers in the order in which they were posted. A
// letter for which no element waits any more is late, and is counted already (law A2).
func (g *Machine[IN, OUT]) readLetters() {
	for g.unread != nil && g.state.Failure == nil {
		l := g.unread
		g.unread, l.Next = l.Next, nil
		if s := g.slots.find(l.Ref); s != nil {
			g.answered(s)
		}
	}
}

// answered handles the letter that s has waited for.
func (g *Machine[IN, OUT]) answered(s *Slot[IN, OUT]) {
	switch s.phase {
	case running:
		g.conclude(s, completed)
	case preparing:
		g.prepared(s)
	case deciding:
		g.strategyAnswered(s)
	case handling:
		g.handler.returned(s)
	case failing:
		g.sink.answered(s)
	default: // the other phases wait for no letter
	}
}

// fireTimers handles deadlines before retries: no attempt starts at the deadline (law
// A5).
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
		case running, preparing:
			g.conclude(s, ranOut)
		case backoff:
			g.retryNow(s)
		case handling:
			g.handler.exceeded(s)
		case failing:
			g.sink.failing.Push(s)
		default: // the other phases have no timer
		}
	}
}

// ---- User code

// User code on the loop is called by a small function each, whose deferred function turns
// a panic into an error where it happens (law A6).
//
// broke returns that error. recovered is nil if the code has ended its goroutine, which
// is the loop's: then the run ends. The deferred functions of the loop finish the
// operator.
func (g *Machine[IN, OUT]) broke(name string, recovered any) error {
	err := call.Panicked(recovered)
	if recovered == nil {
		g.fail(&GoexitError{Code: name, Err: err}, ByDriver)
	}
	return err
}

// GoexitError is the failure of a run whose loop was ended by user code that called
// runtime.Goexit.
type GoexitError struct {
	Code string // the name of the code, such as "AsyncInvoke"
	Err  error  // a *guard.PanicError
}

func (e *GoexitError) Error() string {
	return "asyncop: " + e.Code + " ended the goroutine of the operator: " + e.Err.Error()
}

// Unwrap returns the error of the code.
func (e *GoexitError) Unwrap() error { return e.Err }
