package core

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/internal/counting"
	"github.com/weirflow/weir/internal/decision"
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
	Batch  *Batching[IN, OUT]                                           // calls are for several elements, and handed out by Jobs; nil: each is for one

	// Handle returns what an element emits in place of its failure, or what it fails with. It is called for elements that have run
	// out of time, and with HandlesAll for all that fail. nil: there is none.
	Handle     func(ctx context.Context, r Report[IN], timedOut bool) ([]OUT, error)
	HandlesAll bool

	Policy *decision.Steps[OUT]
	Random *rand.Rand // of the jitter

	Timeout        time.Duration             // total, per element; 0: none
	TimeoutFor     func(in IN) time.Duration // in place of Timeout, unless it is 0; an element for which it is negative is late already; nil: Timeout is for all
	AttemptTimeout time.Duration             // of each attempt; 0: none
	HandlerLimit   time.Duration             // of Handle
	EarlyTimeout   bool                      // an element times out as soon as no retry can start within its timeout
	MaxCalls       int                       // 0: as many as there are slots; calls may also need a permit of Host.Share

	Pace func(now time.Time) (wait time.Duration) // asked before each attempt: 0, or when to ask again; nil: no pace

	OnFailure          FailurePolicy
	Sink               func(ctx context.Context, r Report[IN]) error // takes elements that HandOver is for; on a worker, one at a time
	ExhaustedAsFailure bool                                          // a result that asks for a retry it does not get is a failure

	Restored  Keep // what restored elements keep
	LeastPart int  // of its timeout, a restored element has at least the LeastPart-th part for an attempt, so that a restart gets on

	IsControl    func(v any) bool // nil: OUT cannot hold a control element
	IsEndOfInput func(control any) bool

	ErrControlResult error // of an element whose results contain a control element
	ErrHandlerLimit  error // of a Handle that exceeds its limit

	Keys       Keys[IN, OUT] // law K1; nil: no key order. The queue must be unordered then
	MaxWaiting int           // elements of a key beside the one that is called; 0: any number

	Observers []observe.Observer
	Counters  []counting.Counter // observers that only count
	Hooks     Hooks[IN]
}

// FailurePolicy is what becomes of elements that fail.
type FailurePolicy uint8

// The failure policies.
const (
	FailRun  FailurePolicy = iota // the first one ends the run
	Drop                          // they are dropped
	HandOver                      // they are offered to Sink until that takes them
)

// Keep is what a restored element keeps of the time before the restart, beside the rest of its back-off.
type Keep uint8

// What may be kept.
const (
	KeepNothing Keep = iota // no attempts, the whole timeout
	KeepSince               // the attempts; all the time since the first of them is spent
	KeepSpent               // the attempts; the time before the restart is spent
)

// Hooks are what the core calls seldom: they build public errors and write logs. All are there. They may run user code: one
// that does calls [Machine.Slept] first.
type Hooks[IN any] struct {
	TimedOut        func(r Report[IN], early bool) error                   // the failure of an element whose time ran out
	HandlerBroke    func(failure error, timedOut bool, broken error) error // the failure of an element whose Handle broke
	AttemptTimedOut func(attempt int) error                                // the outcome of an attempt whose time ran out
	Exhausted       func(d decision.Decision) error                        // the failure of an element that ExhaustedAsFailure makes fail
	DecisionFailed  func(err error) error                                  // the failure of an element whose policy failed with err
	RunFailed       func(r Report[IN]) error                               // the failure of the run by an element
	GivenUp         func(r Report[IN], how observe.EndKind)                // an element was dropped or handed over
	NotTaken        func(r Report[IN], err error, wait time.Duration)      // the sink has not taken an element, which is offered again; 0: never
	LogsRetries     func() bool                                            // whether the next two write anything
	Retrying        func(r Report[IN], d decision.Decision)
	NotRetried      func(r Report[IN], d decision.Decision)
	ObserverBroke   func(err error) // where that is no element's outcome
	SourceBroke     func(err error) // of a message that was being settled
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
