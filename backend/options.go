package backend

import (
	"fmt"
	"log/slog"
	"math"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/guard"
)

// Option is an option of [New].
type Option func(s *settings)

type settings struct {
	name       string
	limit      int // math.MaxInt if calls are not limited
	least      int // 0 if the limit is not adaptive
	rate       bucket
	callRate   bucket
	tuner      tuner // zero for a fixed rate
	tenantRate bucket

	breaksTenants bool // lost calls of a tenant take down the tenant alone

	retryShare float64 // negative: no budget
	longest    time.Duration
	ramp       time.Duration
	lossShare  float64
	window     int
	dryRun     bool
	clock      clock.Clock
	logger     *slog.Logger

	keeper        store.Keeper  // of the shares; nil if the limit is not shared
	withoutEngine int           // calls while the keeper does not answer
	longestCall   time.Duration // 0 means the longest timeout of the operators
}

// Pauses of a backend that is down, without a demanded time: firstPause, and after a lost
// probe a pauseShare-th of the outage so far, up to longerPause. So it is down at most an
// eighth longer than its service, and probes a long outage rarely.
const (
	firstPause  = 250 * time.Millisecond
	pauseShare  = 8
	longerPause = 10 * time.Second
)

func newSettings(name string, opts []Option) settings {
	if name == "" {
		panic("backend: New: empty name")
	}
	s := settings{
		name: name, limit: math.MaxInt, retryShare: -1, longest: time.Minute, ramp: 5 * time.Second, lossShare: 0.5, window: 100,
		clock: clock.New(), logger: guard.Logger(nil),
	}
	for _, o := range opts {
		o(&s)
	}
	if s.keeper != nil {
		s.mustBeShareable()
	}
	return s
}

// Limit lets n calls run at a time. By default calls are not limited. [Backend.SetLimit]
// changes it. It panics if n is negative.
func Limit(n int) Option {
	mustNotBeNegative("Limit", n)
	return func(s *settings) { s.limit, s.least = n, 0 }
}

// Adaptive lets from least to most calls run at a time: as many as the service answers
// without a queue, found by measuring times and losses of calls. It starts with least. It
// panics unless 1 ≤ least ≤ most.
func Adaptive(least, most int) Option {
	if least < 1 || most < least {
		panic(fmt.Sprintf("backend: Adaptive: want 1 ≤ least ≤ most: %d, %d", least, most))
	}
	return func(s *settings) { s.limit, s.least = most, least }
}

// Rate lets calls with a total cost of n start in each time per. A call costs 1 unless
// the operator has asyncop.Cost; a reported real cost (asyncop.ReportCost) replaces it.
// An element waits for the rate within its timeout, so the timeout must be longer than
// the elements ahead of it take: with 1,000 slots and 10 calls a second, longer than 100
// s and the retries. A pause saves up at most a twentieth of n, or 1 if that is more, and
// no time per has more than n and that. A call that costs more than the savings starts,
// and later calls wait until it is paid for, up to an hour. [CallRate] limits the number
// of calls. By default the rate is not limited. It panics if n or per is not positive.
func Rate(n float64, per time.Duration) Option {
	r := newBucket("Rate", n, per)
	return func(s *settings) { s.rate, s.tuner = r, tuner{} }
}

// CallRate lets n calls start in each time per, whatever they cost. It applies beside
// [Rate] or [AdaptiveRate], for providers that limit both calls and tokens:
//
//	backend.New("llm", backend.CallRate(500, time.Minute), backend.Rate(200_000, time.Minute))
//
// By default the number of calls is not limited. It panics if n or per is not positive.
func CallRate(n float64, per time.Duration) Option {
	r := newBucket("CallRate", n, per)
	return func(s *settings) { s.callRate = r }
}

// AdaptiveRate is a [Rate] that follows the service's limit, between least and most for
// each time per. It starts with most. An answer that asks for fewer calls (429,
// RESOURCE_EXHAUSTED) lowers the rate by a twentieth, at most once a second. Otherwise
// the rate grows: by a tenth each second at first, and by a four-hundredth each second
// near the rate at which the service last refused a call. Answers to calls with a tenant
// do not change the rate. It panics unless 0 < least ≤ most and per is positive.
func AdaptiveRate(least, most float64, per time.Duration) Option {
	r := newBucket("AdaptiveRate", most, per)
	if !(least > 0 && least <= most) { // fails for NaN, too
		panic(fmt.Sprintf("backend: AdaptiveRate: want 0 < least ≤ most: %v, %v", least, most))
	}
	return func(s *settings) {
		s.rate, s.tuner = r, tuner{least: least / float64(per), most: most / float64(per)}
	}
}

// TenantRate is [Rate] for each tenant (asyncop.Tenant). Calls without a tenant do not
// count.
func TenantRate(n float64, per time.Duration) Option {
	r := newBucket("TenantRate", n, per)
	return func(s *settings) { s.tenantRate = r }
}

// TenantBreaker gives each tenant states of its own: lost calls of a tenant take down
// only this tenant, by the rules of [LossShare], [LongestPause] and [Ramp]. So each
// customer can have a service of its own, such as a webhook. The tenant of a message is
// its key (delivery.Key), unless the operator has asyncop.Tenant.
//
// A tenant goes down after five lost calls in a row, or as soon as more than the share of
// the window of LossShare is lost, of its calls since a loss. Calls without a tenant are
// judged together, and take down the whole backend. Each process judges tenants by its
// own calls, also with [Shared].
//
// In a worker (delivery.Run) the messages of a key that is down stay in their queue,
// without visits, if the queue has delivery.WithFairByKey. Messages of other queues, and
// of operators with asyncop.Tenant, are released when it is their turn. A lost probe is a
// failed visit of its message, so choose layers (delivery.RetryAfter) whose visits last
// longer than an outage: otherwise messages of a key with few of them become dead
// letters. A tenant that is not up and makes no calls for ten minutes is up again.
func TenantBreaker() Option { return func(s *settings) { s.breaksTenants = true } }

// RetryBudget bounds retries to this share of the first attempts, and ten a second, and a
// hundred at once. Instead of a retry beyond it, the element ends with its present
// outcome. Retries of attempts that met an outage are not charged. By default retries are
// not bounded. It panics if share is not in [0, 1].
func RetryBudget(share float64) Option {
	if !(share >= 0 && share <= 1) { // fails for NaN, too
		panic(fmt.Sprintf("backend: RetryBudget: share outside [0, 1]: %v", share))
	}
	return func(s *settings) { s.retryShare = share }
}

// LossShare sets when lost calls take the backend down: when more than this share of
// window calls is lost, of the last calls that have ended, or of the calls that started
// after a loss. The default is half of 100. The backend also goes down when as many calls
// in a row are lost as are running, but at least five. It panics unless 0 < share ≤ 1 and
// window ≥ 1.
func LossShare(share float64, window int) Option {
	if !(share > 0 && share <= 1) || window < 1 {
		panic(fmt.Sprintf("backend: LossShare: share %v, window %d: want a share above 0 and up to 1, and a window of 1 or more", share, window))
	}
	return func(s *settings) { s.lossShare, s.window = share, window }
}

// LongestPause bounds how long an answer of the service may pause the backend
// (Retry-After). The default is a minute. It panics if d is not positive.
func LongestPause(d time.Duration) Option {
	if d <= 0 {
		panic(fmt.Sprintf("backend: LongestPause: not positive: %v", d))
	}
	return func(s *settings) { s.longest = d }
}

// Ramp sets how long the load takes to grow back after an outage: the rate of starts
// grows from 0 to its value before the outage, however long a call takes. After an outage
// of less than 2 d the ramp takes half as long as the outage. Outages that follow each
// other within d count as one. The default is 5 s. It panics if d is not positive.
func Ramp(d time.Duration) Option {
	if d <= 0 {
		panic(fmt.Sprintf("backend: Ramp: not positive: %v", d))
	}
	return func(s *settings) { s.ramp = d }
}

// DryRun keeps the backend up: a log line and Stats.WouldHaveTripped report when it would
// have gone down. Limit, rate, retry budget and [Backend.Hold] stay in force. With
// [Shared] such a process neither takes the others down nor obeys their outages, but a
// hold applies to all.
func DryRun() Option { return func(s *settings) { s.dryRun = true } }

// WithClock sets the clock, which must be the operators'. The default is the real clock.
// It panics if c is nil.
func WithClock(c clock.Clock) Option {
	if c == nil {
		panic("backend: WithClock: nil clock")
	}
	return func(s *settings) { s.clock = c }
}

// WithLogger sets the logger; the default is slog.Default(). Going down is logged at
// WARN, coming back at INFO. It panics if l is nil.
func WithLogger(l *slog.Logger) Option {
	if l == nil {
		panic("backend: WithLogger: nil logger")
	}
	return func(s *settings) { s.logger = guard.Logger(l) }
}

func mustNotBeNegative(function string, n int) {
	if n < 0 {
		panic(fmt.Sprintf("backend: %s: negative number of calls: %d", function, n))
	}
}
