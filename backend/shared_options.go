package backend

import (
	"fmt"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/weirflow/weir/delivery/store"
)

// unknownCall is the longest call of an operator without a timeout.
const unknownCall = time.Minute

// Shared makes all processes that have a backend of this name on the same engine share
// its [Limit], [Rate] and [CallRate] (law B5). Each process holds a lease on a share, in
// a record of the engine. Free permits move within about two seconds to the processes
// that need them, and a process without calls holds no permits. A process starts no call
// in its first 1.3 s, or in the first 1.3 s after a minute without calls; in a busy fleet
// it is about 1.9 s.
//
// keeper is any engine that keeps records: package memory (for the operators of one
// process, and for tests), ext/sqlite (for the processes of one machine), ext/postgres
// and ext/jetstream. It need not be the engine of the messages. Kafka's is not a
// [store.Keeper]: use a PostgreSQL database beside it. All processes must use the same
// database or stream, because two engines have no common limit. They should have the same
// limit and rates.
//
// Shared needs Limit. [New] panics without it, with [Adaptive] and [AdaptiveRate], which
// cannot be shared, and with a name that is not valid UTF-8 without NUL. [TenantRate] and
// pauses of a tenant apply to each process. Of [RetryBudget] only the fixed part is
// divided.
//
// The processes also share the state of the service: outages that one process finds,
// [Backend.Hold] and [Backend.Resume], and demanded pauses of a second or more. One
// process at a time probes, and all share the ramp. A process that makes calls
// [WithoutEngine] has a state of its own.
//
// The goroutine that holds the share ends with the last operator of the backend, whose
// end waits until the share is given up, for a second at most. Shared panics if keeper is
// nil.
func Shared(keeper store.Keeper) Option {
	if keeper == nil {
		panic("backend: Shared: nil keeper")
	}
	return func(s *settings) { s.keeper = keeper }
}

// WithoutEngine lets each process run n calls at a time while the engine of [Shared] does
// not answer. These calls come on top of the limit, so with m processes the service gets
// up to n·m calls, beside calls whose processes still have a lease. A process first uses
// its share until its lease ends, after 5 s. It makes no such calls if the engine
// answers, but other processes always write the record with the shares faster, or a later
// version of weir has written it in an unreadable format. The default is 0: calls wait
// for the engine. It has no effect without Shared. It panics if n is negative.
func WithoutEngine(n int) Option {
	mustNotBeNegative("WithoutEngine", n)
	return func(s *settings) { s.withoutEngine = n }
}

// LongestCall sets the longest time that a call takes, for [Shared]. When a process dies,
// its permits move to others after 5 s plus the longest such time of all processes. Calls
// that run for longer may come on top of the limit. The default is the longest timeout of
// the operators: of an attempt, or else of an element; twice as long for lookups, because
// an element may join a call just before the first one times out. An operator without a
// timeout, or with asyncop.WithTimeoutFor and no attempt timeout, counts as a minute. A
// call that ignores its context may run for longer than its timeout. More than a year
// counts as a year. It has no effect without Shared. It panics if d is not positive.
func LongestCall(d time.Duration) Option {
	if d <= 0 {
		panic(fmt.Sprintf("backend: LongestCall: not positive: %v", d))
	}
	return func(s *settings) { s.longestCall = d }
}

// mustBeShareable panics if an option cannot be shared.
func (s *settings) mustBeShareable() {
	switch {
	case s.least > 0:
		panic("backend: New: Shared and Adaptive: a limit that is found by measuring cannot be shared yet: use Limit")
	case s.tuner.isOn():
		panic("backend: New: Shared and AdaptiveRate: a rate that is found by measuring cannot be shared yet: use Rate")
	case !utf8.ValidString(s.name) || strings.Contains(s.name, "\x00"):
		panic(fmt.Sprintf("backend: New: Shared: the name %q is stored in the engine: use valid UTF-8 without NUL", s.name))
	case s.limit == math.MaxInt:
		panic("backend: New: Shared without Limit: the shares are parts of a limit: add Limit(n)")
	}
}
