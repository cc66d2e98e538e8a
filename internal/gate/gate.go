// Package gate is the protocol between operators and backends: an operator asks whether
// an attempt may start, and reports its end. Operators import it instead of package
// backend, which needs net/http.
package gate

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/weirflow/weir/predicates"
)

// Never is a wait that ends only with a wake-up.
const Never = time.Duration(math.MaxInt64)

// Backend is a service that operators call.
type Backend interface {
	// Attach returns the seat of an operator, whose loop sleeps by s.
	Attach(s Sleeper, c Caller) Seat
	// Report describes the backend to people.
	Report() Report
	// Steer carries out an order of a person, if it is newer than the last one.
	Steer(o Order)
	// BreaksTenants reports whether each tenant has a breaker (backend.TenantBreaker).
	// Then the key of a message is its tenant by default.
	BreaksTenants() bool
	// Restrictions returns the tenants that are not up, or paused, and when the list may
	// allow more, or 0 for an empty list.
	Restrictions() (list []Restriction, next time.Duration)
	// TenantsDown describes tenants that are down, probing or held: at most n, longest
	// first.
	TenantsDown(n int) []TenantReport
}

// TenantReport describes a tenant of which no call starts, except a probe.
type TenantReport struct {
	Tenant string
	State  string
	Why    string
	Since  time.Time // start of the outage, or of State if it is held
}

// Restriction bounds a tenant's messages in flight in a worker, while the tenant is not
// up.
type Restriction struct {
	Tenant string
	Share  float64 // of the usual number, rounded up: from 0 for no message to 1
}

// Caller describes an operator to a backend.
type Caller struct {
	Lent    int           // calls on the permit of the call around the operator
	Around  Stamp         // of that permit
	Longest time.Duration // of a call that obeys its context; 0 if unknown
}

// Attachable is a type that embeds [Attached], under an unexported name, so that users do
// not see the protocol.
type Attachable interface{ attached() Backend }

// Attached has the backend of the [Attachable] that embeds it.
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
	Since   time.Time // start of State or, if it is down or probing, of the outage
	Until   time.Time // end of the state down; zero if unknown
	Limit   int       // of running calls; -1 without a limit
	Fleet   int       // of running calls of all processes; 0 if the backend is not shared
	InUse   int       // running calls
	Waiting int       // operators that wait

	States []StateSpan // the last states and the present one, oldest first

	Recovery Recovery
}

// Recovery is the last recovery of a backend from an outage or a hold. With a shared
// limit, it is the fleet's.
type Recovery struct {
	Begun  time.Time // when the load began to grow back; zero if it never did
	Outage time.Time // start of the (first) outage; with a shared limit up to half of the outage later
	Pace   float64   // calls that may start in a second now, at least 1; 0 while it is down or held
}

// StateSpan is a state of a backend. Down and probing are one span: an outage.
type StateSpan struct {
	State string
	Since time.Time
}

// Order is an order of a person to a backend, until a newer one comes.
type Order struct {
	At      time.Time
	Held    bool
	Resumes bool // a backend that is down tries its service, too
	Why     string
	Limit   int // -1 for the backend's own
}

// Sleeper is the sleep of an operator's loop. Any goroutine calls its methods, with a
// lock held. They do not block.
type Sleeper interface {
	WakeUp()
	IsParked() bool // the loop sleeps, or is about to, and will run a step when woken
}

// Seat is the seat of an operator at its backend. Any goroutine calls Release, the loop
// the other methods. now is from the operator's clock.
type Seat interface {
	// Start asks whether an attempt may start now. A refused attempt takes no permit and
	// no part of the rate.
	Start(now time.Time, r *Request) Answer

	// Join adds an element to the batch that was started last.
	Join(r *Request)

	// Refund returns to the rate what Start or Join took for an attempt that needed no
	// call of its own.
	Refund(now time.Time, a *Request)

	// Release frees the permit of a call. stamp is from the Answer to its start.
	Release(stamp Stamp)

	// AttemptEnded reports the end of an attempt, and returns its effect on the element.
	AttemptEnded(now time.Time, e *Evidence) Effect

	// MayRetry takes a retry from the budget, and reports whether there was one.
	MayRetry(now time.Time) bool

	// Wait returns how long to sleep before the operator asks again, or 0 to ask at once.
	// The operator was refused, and could use this number of permits. A wake-up may come
	// earlier.
	Wait(now time.Time, permits int) time.Duration

	// DoneAsking reports that the operator has asked for all calls that it could start.
	// isShort reports whether it was refused. Unused permits that were reserved for it go
	// to other operators.
	DoneAsking(now time.Time, isShort bool)

	// WhyWaiting returns why an element could not start, and how long that lasts, if
	// known. err is nil if the element could start, and may match ErrAnswered.
	WhyWaiting(now time.Time, l *Late) (err error, wait time.Duration)

	// IsDown reports whether the backend or a tenant is down or held, or its load grows
	// back. tenant may be "".
	IsDown(now time.Time, tenant string) bool

	// IsTenantPaused reports whether a tenant is paused so long that messages leave their
	// slots.
	IsTenantPaused(now time.Time, tenant string) bool

	// Leave ends the seat. Running calls keep their permits.
	Leave()
}

// Leased is a [Seat] whose permits depend on a lease, which may end between Start and the
// call. BeginCall or MayCall comes directly before every call (law B5). Any goroutine may
// call the methods.
type Leased interface {
	// BeginCall waits until a call with the permit of the stamp may be made, and returns
	// the value for EndCall. If ctx, the context of the call, ends earlier, it returns
	// its error, and the call must not be made.
	BeginCall(ctx context.Context, stamp Stamp) (Stamp, error)
	// EndCall notes that the call has returned.
	EndCall(call Stamp)
	// MayCall reports whether a function that makes its call by itself may be called now,
	// without blocking. Its call ends when the permit is released.
	MayCall(stamp Stamp) bool
	// Await waits until MayCall may succeed, or returns the error of ctx.
	Await(ctx context.Context, stamp Stamp) error
}

// Effect is the consequence of the end of an attempt for its element.
type Effect uint8

const (
	// Counts means that the attempt uses up a retry as usual.
	Counts Effect = iota
	// Outage means that the attempt met an outage, and up to a number of times uses up no
	// retry.
	Outage
	// Throttled means that the service asked for fewer calls: no attempt, retry or visit
	// is used up (law B6).
	Throttled
)

// Request asks whether an attempt may start.
type Request struct {
	Cost    float64 // taken from the rate
	Tenant  string  // "" without a tenant
	Retry   bool
	Outages int    // attempts of the element that met an outage
	Hurried bool   // the element has less than half of its time left
	Element uint64 // identifies the element within its operator
	Joined  bool   // the attempt joins a batch that was started before
}

// Answer is the answer to a Request.
type Answer struct {
	Wait           time.Duration // 0 if the attempt may start; otherwise, with OthersMayStart, the time until the element may ask again
	Stamp          Stamp         // for Release, if the attempt may start
	OthersMayStart bool          // other elements may start at once
	TenantIsDown   bool          // with OthersMayStart: the tenant is down or paused for long, so a message does not wait
}

// Stamp is the start of a measured call, or 0. It is small because every attempt has one.
type Stamp uint32

// tick is the resolution of stamps. A call of more than two hours seems shorter.
const tick = 4 * time.Microsecond

// StampOf returns the stamp of a call that begins at an instant.
func StampOf(at time.Duration) Stamp { return Stamp(at/tick)<<1 | 1 }

// Since returns the time from the stamp, which is not 0, to an instant.
func (s Stamp) Since(at time.Duration) time.Duration {
	return time.Duration((StampOf(at)-s)>>1) * tick
}

// Late is an element whose time has run out.
type Late struct {
	Tenant    string
	PutOff    bool      // it was refused while other elements were not
	Throttled bool      // all its attempts, if any, were answered with a request for fewer calls
	Begun     time.Time // start of its last attempt, or zero
	Failed    time.Time // when its message failed at the visit before, or zero
}

// ErrAnswered reports that the service has answered other calls between the last two
// failures of an element, which may itself be the cause.
var ErrAnswered = errors.New("it has answered since the message failed before")

// ErrTenantDown is matched by the reason why an element could not start, if its tenant is
// down or paused. Other tenants may be up.
var ErrTenantDown = errors.New("its tenant is down")

// Evidence describes the end of an attempt, as evidence of the state of the service.
type Evidence struct {
	Err      error
	Reason   predicates.Reason // from a classifier, or zero
	Ignored  bool              // not evidence: no request was sent, or its message was purged
	Cut      bool              // it began in the second half of its element's time, and the deadline cut it off
	Borrowed bool              // another element reports the call, or there was none; the Effect is the same
	Begun    time.Time         // start of the attempt
	Pushback time.Duration     // wait that a result demands; 0 to ask Err
	Tenant   string
	Element  uint64
	Call     *Call // the batch of the attempt, or nil

	// Cost is the amount taken from the rate. AttemptEnded replaces it by the settled
	// cost: the reported cost, or 0 if the service refused the call.
	Cost       float64
	Reported   float64 // the real cost
	IsReported bool    // the function has reported it
}

// Call is a batch. It is lost if the attempts of all its elements are lost.
type Call struct {
	Element uint64 // the element of Start
	Left    int    // attempts that were not reported yet

	// Ended attempts; owned by the backend.
	Answered  bool          // an attempt was not lost
	Throttled bool          // an attempt was throttled
	Lost      bool          // an attempt was lost
	Demanded  time.Duration // the longest wait
}
