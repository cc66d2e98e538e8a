package core

import (
	"context"
	"math"
	"math/rand/v2"
	"reflect"
	"time"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/internal/counting"
	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/internal/gate"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/queue"
	"github.com/weirflow/weir/timers"
)

// Config configures a core. It is read-only after New.
type Config[IN, OUT any] struct {
	Queue  queue.Queue[*Slot[IN, OUT]]     // owned by the core
	Timers *timers.Service[*Slot[IN, OUT]] // owned by the core; the driver sets the alarm
	Host   *call.Host                      // shared by the calls
	User   User[IN, OUT]
	Jobs   *[]call.Job[IN, OUT] // for workers; the core appends, the driver takes
	// MakesJobs means that the function is blocking, so the core makes a job of each
	// attempt, and does not call User.Invoke. There is an exception: a job has only the
	// context of the attempt. If an attempt has a reservation, or observers have added
	// values to its context, the core calls User.Invoke, which runs the function by
	// RunBlocking.
	MakesJobs bool

	Policy *decision.Steps[OUT]
	Random *rand.Rand // for the jitter

	Limits

	FailsRun           bool // the first failed element ends the run; otherwise it is dropped
	ExhaustedAsFailure bool // a result whose retry is refused is a failure

	Restored Restored

	// Optional parts; zero means off.
	Keys             Keys[IN, OUT]    // key order; needs an unordered queue
	MaxWaitingPerKey int              // elements behind the first of a line: see FreeSlots; 0 means no limit
	Batching         *Batching        // calls for several elements
	Calls            *BackendCalls    // the backend of Host.Seat admits the attempts
	Lookups          call.Lookups[IN] // elements with the same key share calls and retries
	Handling         *Handling        // User.HandleFailure is called
	OwnTimeouts      bool             // User.TimeoutFor is called
	ChecksResults    bool             // User.CheckResults is called
	AsksForTimelines bool             // User.AsksForTimeline is called
	HandsOver        bool             // User.HandOver is called
	Observers        []observe.Observer
	Counters         []counting.Counter
}

// Limits bound elements and attempts. 0 means no limit.
type Limits struct {
	Timeout        time.Duration // of each element, over all attempts
	FromAttempt    bool          // Timeout begins with the first attempt
	AttemptTimeout time.Duration // of each attempt
	EarlyTimeout   bool          // time out as soon as no retry can start within the timeout
	MaxCalls       int           // permits; 0 means one for each slot
}

// LongestCall returns how long a call that obeys its context takes at most, or 0 if that
// is unknown. Elements may join a shared call just before the first one times out, so
// such a call may take twice as long.
func (c *Config[IN, OUT]) LongestCall() time.Duration {
	if c.Lookups != nil {
		return 2 * min(c.longestAttempt(), math.MaxInt64/2)
	}
	return c.longestAttempt()
}

func (c *Config[IN, OUT]) longestAttempt() time.Duration {
	timeout := c.Timeout
	if c.OwnTimeouts {
		timeout = 0 // unknown
	}
	switch {
	case timeout == 0:
		return c.AttemptTimeout
	case c.AttemptTimeout == 0:
		return timeout
	}
	return min(timeout, c.AttemptTimeout)
}

// Restored sets how much of a restored element's past counts. The rest of its back-off
// counts with every Keep.
type Restored struct {
	Keep Keep
	// ReserveDivisor reserves a part of the timeout for an attempt after the restart, so
	// that an element can end despite restarts. For example, 4 reserves a quarter.
	// Operators use 1 to 10; 0 means no reserve.
	ReserveDivisor int
}

// Keep selects the state that a restored element keeps.
type Keep uint8

// The choices of Keep.
const (
	KeepNothing Keep = iota // attempts do not count, and the element gets its whole timeout
	KeepSince               // attempts count, and the timeout runs from the first one, during the restart as well
	KeepSpent               // attempts count, and the time that was used at the checkpoint
)

// TimedOut describes a timeout.
type TimedOut struct {
	Attempt bool  // an attempt has timed out; otherwise its element
	Early   bool  // before the deadline: no retry could start within the remaining time, or its tenant is down
	Waited  error // why the backend made it wait, or nil
}

// Report describes an element to the methods of User.
type Report[IN any] struct {
	Element       IN
	Err           error         // the failure of the element or, until it has failed, the last error of an attempt
	Attempts      int           // begun so far
	Elapsed       time.Duration // since it took its slot
	First         time.Time     // start of its first attempt, or zero
	Last          time.Time     // start of its last attempt, or zero
	NoRetryReason decision.NoRetryReason
	Reason        predicates.Reason    // of the last attempt
	Reasons       predicates.ReasonSet // of the retries that began
	InDoubt       bool                 // an attempt may have taken effect
	Deduplicated  bool                 // every server recognises its repeated requests
	Timeout       time.Duration        // 0 without a timeout
	CutOff        bool                 // it has not failed: the end of the run has cut it off

	Context context.Context //nolint:containedctx // from its observers, or the operator's
}

// Machine has the queue, the timers and the state of every element. Its driver feeds it
// elements, calls [Machine.Step], and takes the results from the head of the queue.
//
// It is owned by one goroutine. It holds no lock while user code runs.
type Machine[IN, OUT any] struct {
	Config[IN, OUT]

	// The optional parts, or nil.
	keys      *keyOrder[IN, OUT]
	batches   *Batches[IN, OUT]
	backend   *atBackend[IN, OUT]
	lookups   *lookups[IN, OUT]
	observing *Observing[IN, OUT]
	handler   *handler[IN, OUT]
	sink      *HandOver[IN, OUT]
	timeouts  *ownTimeouts[IN, OUT]

	messages Messages[IN, OUT]
	history  history[IN, OUT]
	retryLog retryLog[IN, OUT]

	slots         slots[IN, OUT]
	reasons       perSlot[reasons]
	reasonRetries perSlot[[]int32]               // retries for each limited reason; nil before the first
	ownDeadlines  perSlot[*ownDeadline[IN, OUT]] // see ownDeadline
	control       perSlot[any]                   // of control elements: a queue.Watermark or a participant.Barrier
	retrySteps    perSlot[retryStep]             // phases backoff and ready
	questions     perSlot[*question[OUT]]        // phase deciding
	handlerCalls  perSlot[*handlerCall[OUT]]     // phase handling

	fresh       *Slot[IN, OUT]              // the oldest element in phase fresh
	numFresh    int                         // elements in phase fresh
	ready       timers.Heap[*Slot[IN, OUT]] // elements in phase ready whose key is free, the oldest first
	readySince  time.Duration               // since when the heap ready is not empty
	freePermits int
	forming     *call.Batch[IN, OUT] // or nil: see Batches.start
	stamp       gate.Stamp           // at the backend, of the call that was admitted last
	overdue     bool                 // see checkBegin

	oldest     *Slot[IN, OUT]              // in the queue, except control elements
	live       *Slot[IN, OUT]              // the oldest with a live deadline in input order: see firstLive
	outOfOrder timers.Heap[*Slot[IN, OUT]] // live deadlines out of input order: see ownDeadline

	now            time.Duration // the last reading of the clock
	slept          bool          // the driver may have slept since the reading
	ranCode        bool          // user code has run since the reading
	needsExactTime bool          // limits or back-offs depend on the time of user code
	timesAll       bool          // measure every attempt, even if it succeeded

	hasReasons   bool // the policy has reasons: see decision.Steps.HasReasons
	asksWorkers  bool // the strategy may block
	retriesEnded bool // EndRetries was called (law A5)
	abandoned    bool // Abandon was called
	sawPurge     bool // EndPurged was called, so messages may be purged

	unread     *call.Letter            // letters that were taken and not handled yet
	attemptEnd attemptEnd              // of the attempt that ended last, until reportEnd
	view       predicates.Attempt[OUT] // the attempt that is judged
	situation  decision.Situation      // reused

	state State
}

// stepLimit bounds the repetitions of one kind of work in a step.
const stepLimit = 128

// New returns a core without elements.
func New[IN, OUT any](c Config[IN, OUT]) *Machine[IN, OUT] {
	g := &Machine[IN, OUT]{Config: c}
	g.slots.sideTables = new([]anyPerSlot)
	g.reasonRetries = newPerSlot[[]int32](g)
	g.reasons = newPerSlot[reasons](g)
	g.ownDeadlines = newPerSlot[*ownDeadline[IN, OUT]](g)
	g.control = newPerSlot[any](g)
	g.retrySteps = newPerSlot[retryStep](g)
	g.questions = newPerSlot[*question[OUT]](g)
	g.handlerCalls = newPerSlot[*handlerCall[OUT]](g)
	g.state.FailedIn = g.Host.Values
	g.situation.Random = c.Random
	g.hasReasons = c.Policy.HasReasons()
	g.asksWorkers = !c.Policy.AtOnce && !c.Policy.NoRetry
	if g.MaxCalls == 0 {
		g.MaxCalls = g.Queue.Cap()
	}
	g.freePermits = g.MaxCalls
	g.addParts()
	return g
}

// addParts makes the parts of the core. Limits, and parts that use the time, need an
// exact clock.
func (g *Machine[IN, OUT]) addParts() {
	c := &g.Config
	g.needsExactTime = c.Timeout > 0 || c.AttemptTimeout > 0 || c.Policy.Classify != nil || c.OwnTimeouts || c.Calls != nil || c.Batching != nil
	g.messages.core, g.messages.attached = g, newPerSlot[call.Message](g)
	_, hasMethod := any(*new(IN)).(predicates.Idempotent)
	g.messages.mayBeIdempotent = hasMethod || reflect.TypeFor[IN]().Kind() == reflect.Interface || c.Policy.Idempotent != nil
	if len(c.Observers) > 0 || len(c.Counters) > 0 {
		g.needsExactTime, g.timesAll = true, true
		g.observing = &Observing[IN, OUT]{core: g, tracks: newPerSlot[*Track](g)}
	}
	if c.Keys != nil {
		g.keys = &keyOrder[IN, OUT]{core: g, positions: newPerSlot[linePosition[IN, OUT]](g)}
	}
	if c.OwnTimeouts {
		g.timeouts = &ownTimeouts[IN, OUT]{core: g}
	}
	if c.Handling != nil {
		g.handler = &handler[IN, OUT]{core: g, Handling: *c.Handling}
	}
	if c.Calls != nil {
		g.backend = &atBackend[IN, OUT]{core: g, BackendCalls: *c.Calls, seat: g.Host.Seat, requests: newPerSlot[requestState](g)}
	}
	if c.Lookups != nil {
		g.lookups = &lookups[IN, OUT]{Lookups: c.Lookups, core: g, states: newPerSlot[lookingUp](g), lineages: make(map[any]*lineage)}
	}
	if c.HandsOver {
		g.sink = &HandOver[IN, OUT]{core: g, offers: newPerSlot[*offer](g)}
	}
	if c.Batching != nil {
		g.batches = &Batches[IN, OUT]{core: g, Batching: *c.Batching}
	}
	g.history.core, g.history.attempts = g, newPerSlot[*attemptHistory](g)
	g.retryLog.core, g.retryLog.validUntil = g, math.MinInt64
}

// Messages settles messages.
func (g *Machine[IN, OUT]) Messages() *Messages[IN, OUT] { return &g.messages }

// Observing returns the observers' part, or nil.
func (g *Machine[IN, OUT]) Observing() *Observing[IN, OUT] { return g.observing }

// Batches returns the part for batches, or nil.
func (g *Machine[IN, OUT]) Batches() *Batches[IN, OUT] { return g.batches }

// HandOver returns the part for the failure sink, or nil.
func (g *Machine[IN, OUT]) HandOver() *HandOver[IN, OUT] { return g.sink }

// State is the state of a core for its driver.
type State struct {
	Len     int // slots that are taken
	Running int // permits that are taken

	Now            time.Duration // the last reading of the clock
	Oldest         time.Duration // when the oldest element was accepted, or Never
	Stats          observe.Stats // without Running and InFlight: see Counts
	Done           int           // elements in phase done
	Erred          time.Duration // when Stats.LastError came
	FailedAttempts int64         // attempts that ended with an error, or by the deadline of their element

	Failure  error           // why the run must end, or nil
	EndedBy  EndedBy         // who caused Failure
	FailedIn context.Context //nolint:containedctx // of the element that failed the run; otherwise the operator's
}

// Counts returns the counters.
func (s *State) Counts() observe.Stats {
	c := s.Stats
	c.Running = int64(s.Running)
	c.InFlight = c.Accepted - c.Completed - c.Dropped - c.HandedOver - c.Failed - c.Abandoned
	return c
}

// State returns the state, which is read-only and valid until the next call.
func (g *Machine[IN, OUT]) State() *State {
	s := &g.state
	s.Len = g.slots.taken
	s.Running = g.MaxCalls - g.freePermits
	s.Now, s.Oldest = g.now, Never
	if g.oldest != nil {
		s.Oldest = g.oldest.accepted
	}
	return s
}

// FreeSlots returns how many elements may be accepted. It is 0 if the run must end, or if
// the line of a key has reached MaxWaitingPerKey.
func (g *Machine[IN, OUT]) FreeSlots() int {
	isCrowded := g.keys != nil && g.keys.crowdedLines > 0
	if g.state.Failure != nil || isCrowded {
		return 0
	}
	return g.Queue.Cap() - g.slots.taken
}

// NoteSlept notes that the driver sleeps, or runs user code that may take long. The core
// will read the clock before it uses the time.
func (g *Machine[IN, OUT]) NoteSlept() { g.slept = true }

// NoteRanCode notes that the driver runs user code that takes little time. The core will
// read the clock only if limits or back-offs depend on the time.
func (g *Machine[IN, OUT]) NoteRanCode() { g.ranCode = true }

func (g *Machine[IN, OUT]) readClock() {
	g.slept = true
	g.refresh()
}

// refresh reads the clock if time may have passed. Without limits and back-offs, one
// reading serves a whole step.
func (g *Machine[IN, OUT]) refresh() {
	if g.slept || g.ranCode && g.needsExactTime {
		g.now = g.Timers.Now()
		g.slept, g.ranCode = false, false
	}
}

// later returns at + d, or the last possible instant.
func later(at, d time.Duration) time.Duration {
	if d > math.MaxInt64-at {
		return math.MaxInt64
	}
	return at + d
}

// Step handles the events since the last step. It reads the clock first, so completions
// posted until then go before due timers (law T1).
func (g *Machine[IN, OUT]) Step() {
	g.readClock()
	now := g.now
	g.takeFreedPermits()
	g.overdue = false
	if g.backend != nil {
		g.backend.wasRefused = false
	}
	if g.batches != nil && g.batches.startFull() {
		// The step ends here, so that a worker gets the batch now. Completions wait for
		// a step without a full batch. It follows soon, because each batch takes a permit.
		return
	}
	g.unread = g.Host.Mail.Take()
	g.readLetters()
	g.fireTimers(now)
	if g.batches != nil {
		g.batches.startDue()
	} else {
		g.startWaiting()
	}
	if g.lookups != nil {
		g.lookups.startOthers()
	}
	if g.backend != nil {
		g.backend.doneAsking()
	}
	if g.sink != nil {
		g.sink.offerNext()
	}
}

func (g *Machine[IN, OUT]) takeFreedPermits() {
	freed := g.Host.TakeFreed()
	if freed == 0 {
		return
	}
	g.freePermits += freed
	if g.keys != nil {
		g.keys.freeReturned()
	}
}

// Special results of Next.
const (
	Now   = time.Duration(math.MinInt64)
	Never = call.NoDeadline
)

// Next returns when the next step is due: an instant, Now, or Never. A letter that comes
// later wakes the driver. For this, the driver sets Host.Parked before it calls Next.
func (g *Machine[IN, OUT]) Next() time.Duration {
	g.readClock()
	g.view = predicates.Attempt[OUT]{} // an idle core keeps no results
	switch {
	case !g.Host.Mail.Empty() || g.Host.Freed() > 0 || g.state.Failure != nil:
		return Now
	case g.messages.MaySettle():
		return Now
	case g.observing != nil && g.observing.MayReport():
		return Now
	case g.sink != nil && g.sink.mayOffer():
		return Now
	}
	next := Never
	if g.freePermits > 0 && g.nextStart() != nil {
		next = g.startsAt()
	}
	return min(next, g.nextTimer())
}

func (g *Machine[IN, OUT]) nextTimer() time.Duration {
	next := Never
	if g.live != nil {
		next = g.live.due
	}
	if due, ok := g.outOfOrder.Next(); ok {
		next = min(next, due)
	}
	if due, ok := g.Timers.Next(); ok {
		next = min(next, due)
	}
	return next
}

// startsAt returns when the next element may start, given a permit. A batch may wait for
// more elements, and the backend may refuse calls.
func (g *Machine[IN, OUT]) startsAt() time.Duration {
	if g.batches != nil {
		at := g.batches.startsAt()
		if at != Now {
			return at
		}
	}
	if g.backend != nil {
		return g.backend.asksAgainAt()
	}
	return Now
}

// readLetters handles completions and answers in the order of posting. It ignores a
// letter of an earlier generation (law A2). Package call has counted the completion as
// late.
func (g *Machine[IN, OUT]) readLetters() {
	for g.unread != nil && g.state.Failure == nil {
		l := g.unread
		g.unread, l.Next = l.Next, nil
		s := g.slots.find(l.Ref)
		if s == nil {
			continue
		}
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
		default: // other phases do not wait for letters
		}
	}
}

// fireTimers handles deadlines before retries, because no attempt starts at the deadline
// (law A5).
func (g *Machine[IN, OUT]) fireTimers(now time.Duration) {
	for g.live != nil && g.live.due <= now && g.state.Failure == nil {
		g.timeOut(g.live)
	}
	for due, ok := g.outOfOrder.Next(); ok && due <= now && g.state.Failure == nil; due, ok = g.outOfOrder.Next() {
		g.timeOut(g.outOfOrder.Peek().Value)
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
			g.sink.toOffer.Push(s)
		default: // the timers of other phases are not in Timers
		}
	}
}

// noteBroken returns the error of user code that did not return (law A6): see User code
// in doc.go. recovered is the result of recover. If it is nil, the code has called
// runtime.Goexit. Then noteBroken fails the run, and the deferred functions of the loop
// finish the operator.
func (g *Machine[IN, OUT]) noteBroken(name string, recovered any) error {
	err := call.Panicked(recovered)
	if recovered == nil {
		g.fail(&GoexitError{Code: name, Err: err}, ByDriver)
	}
	return err
}

// GoexitError is the failure of a run that called runtime.Goexit on the loop.
type GoexitError struct {
	Code string // such as "AsyncInvoke"
	Err  error  // a *guard.PanicError
}

func (e *GoexitError) Error() string {
	return "asyncop: " + e.Code + " ended the goroutine of the operator: " + e.Err.Error()
}

func (e *GoexitError) Unwrap() error { return e.Err }
