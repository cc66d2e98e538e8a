// Package gate is the protocol between operators and backends: an operator asks whether an
// attempt may start, and reports its end. Operators import it instead of package backend,
// which needs net/http.
package gate

import (
	"errors"
	"math"
	"time"

	"github.com/weirflow/weir/predicates"
)

// Never is a wait that only a wake-up ends.
const Never = time.Duration(math.MaxInt64)

// Backend is a service that operators call.
type Backend interface {
	// Attach returns the seat of an operator, whose loop sleeps by s. lent of its calls
	// run on the permit of the call around the operator.
	Attach(s Sleeper, lent int) Seat
	// Report describes the backend to people.
	Report() Report
	// Steer carries out an order of a person, if it is newer than the last one.
	Steer(o Order)
}

// Attachable is a type that embeds [Attached], under an unexported name, so that its users
// do not see the protocol. A backend.Backend does.
type Attachable interface{ attached() Backend }

// Attached makes a type [Attachable].
type Attached struct{ backend Backend }

// AttachedBy returns the Attached of a backend.
func AttachedBy(b Backend) Attached { return Attached{b} }

func (a Attached) attached() Backend { return a.backend }

// Of returns the backend behind a, or nil if a is nil.
func Of(a Attachable) Backend {
	if a == nil {
		return nil
	}
	return a.attached()
}

// Report describes a backend.
type Report struct {
	Name    string
	State   string
	Why     string
	Since   time.Time // start of State
	Until   time.Time // end of the state down; zero if unknown
	Limit   int       // of running calls; -1 without a limit
	InUse   int       // running calls
	Waiting int       // operators that wait
}

// Order is an order of a person to a backend. It is valid until a newer one comes.
type Order struct {
	At      time.Time
	Held    bool
	Resumes bool // a backend that is down tries its service, too
	Why     string
	Limit   int // -1 for the backend's own
}

// Sleeper is the sleep of an operator's loop. Its methods are called from any goroutine,
// with a lock held, and do not block.
type Sleeper interface {
	WakeUp()
	IsParked() bool // it sleeps, or is about to: it takes a turn when it is woken
}

// Seat is the seat of an operator at its backend. Release is called from any goroutine,
// the rest by the operator's loop. A refused attempt has taken nothing.
type Seat interface {
	// Start asks whether an attempt may start at now, of the operator's clock.
	Start(now time.Time, r *Request) Answer

	// Join says that the call which has started last is for one more element.
	Join(r *Request)

	// Refund gives the rate back what Start or Join has taken for an attempt whose
	// element gets the outcome of another call, or of none.
	Refund(now time.Time, a *Request)

	// Release says that the call of an attempt is over. stamp is from the Answer to its
	// start.
	Release(stamp Stamp)

	// AttemptEnded reports the end of an attempt, and returns its effect on the element.
	AttemptEnded(now time.Time, e *Evidence) Effect

	// MayRetry takes a retry out of the budget.
	MayRetry(now time.Time) bool

	// Wait returns how long to sleep before the seat asks again; 0: not at all. The
	// operator has been refused, is about to sleep, and has a use for so many permits. A
	// wake-up may come earlier.
	Wait(now time.Time, wants int) time.Duration

	// DoneAsking says that the operator is awake, has asked for all it could start, and
	// whether it was refused. What was kept for it is given to others.
	DoneAsking(now time.Time, isShort bool)

	// WhyWaiting returns why an element could not start, and how long that lasts as far
	// as is known; nil: it could. The error may match ErrAnswered.
	WhyWaiting(now time.Time, l *Late) (err error, wait time.Duration)

	// IsDown reports whether the backend is down or held, or on the way back.
	IsDown(now time.Time) bool

	// Leave ends the seat. Calls that run have their permits until they are over.
	Leave()
}

// Effect is the consequence of the end of an attempt for its element.
type Effect uint8

const (
	// Counts means that the attempt uses up a retry as usual.
	Counts Effect = iota
	// Outage means that the attempt met an outage: it uses up no retry, up to a number of
	// times.
	Outage
	// Throttled means that the service asked for fewer calls: the attempt uses up no
	// attempt, retry or visit (law B6).
	Throttled
)

// Request asks whether an attempt may start.
type Request struct {
	Cost    float64 // taken from the rate
	Tenant  string  // "" is none
	Retry   bool
	Outages int    // that the element has met
	Hurried bool   // it has less than half of its time left
	Element uint64 // tells the elements of an operator apart
	Joined  bool   // it is part of the call of a batch, and did not start it
}

// Answer is whether an attempt may start.
type Answer struct {
	Wait  time.Duration // 0: it may start. Otherwise, with Other: ask for it again after so long
	Stamp Stamp         // of an attempt that may start: for Release
	Other bool          // another element may start at once: ask for the next one
}

// Stamp says when a call began, if it is to be timed: 0 if not. It is small since every
// attempt has one.
type Stamp uint32

// tick is what stamps are exact to. A call of more than two hours looks shorter.
const tick = 4 * time.Microsecond

// StampOf returns the stamp of a call that begins at an instant.
func StampOf(at time.Duration) Stamp { return Stamp(at/tick)<<1 | 1 }

// Since returns how long it took from the stamp, which is not 0, to an instant.
func (s Stamp) Since(at time.Duration) time.Duration {
	return time.Duration((StampOf(at)-s)>>1) * tick
}

// Late is an element whose time has run out.
type Late struct {
	Tenant    string
	PutOff    bool      // it waits since it was refused while others were not
	Throttled bool      // the service has answered each of its attempts with a request for fewer calls, or it had none
	Begun     time.Time // its last attempt; zero: none
	Failed    time.Time // when it failed as a message, at the visit before this one; zero: never
}

// ErrAnswered says that the service has answered between an element's last two failures:
// it may be what the service does not bear.
var ErrAnswered = errors.New("it has answered since the message failed before")

// Evidence is what the end of an attempt tells about the service.
type Evidence struct {
	Err      error
	Reason   predicates.Reason // that a classifier has found; zero: none
	Ignored  bool              // nothing was sent: it says nothing of the backend
	Cut      bool              // it began in the second half of its element's time, and was cut off by the end of that
	Borrowed bool              // another element made the call and reports it, or there was no call. Its effect counts all the same
	Begun    time.Time         // when it started
	Pushback time.Duration     // that a result demands; Err is asked for its own
	Tenant   string
	Element  uint64
	Call     *Call // that the attempt is a part of; nil: it is a call of its own

	// Cost is what the attempt has taken from the rate. AttemptEnded replaces it by the
	// cost that was settled: the reported cost, or 0 if the service has refused the call.
	Cost       float64
	Reported   float64 // the real cost
	IsReported bool    // by the function
}

// Call is a call for several elements. It has one outcome: it is lost if the attempts of
// all its elements are.
type Call struct {
	Element uint64 // the one that Start was asked for
	Left    int    // attempts that have not been heard

	// Results of the attempts that have ended. They belong to the backend.
	Answered  bool          // not all were lost
	Throttled bool          // one was
	Lost      bool          // one was
	Demanded  time.Duration // the longest wait
}
