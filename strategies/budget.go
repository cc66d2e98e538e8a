package strategies

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/benbjohnson/clock"
)

// Budget bounds how much load retries may add to what a service gets anyway, so
// that an outage is not multiplied by everybody who comes back. It is a bucket of
// tokens, one for a retry: first attempts fill it by a fraction each, time fills it
// a little so that a trickle of calls can be retried at all, and retries empty it.
// Over any time, be it a second or an hour,
//
//	retries ≤ burst + fraction × first attempts + perSecond × seconds
//
// A retry that is not covered is not made, and its element ends with what it has.
// Not charged is the one attempt more that an element gets at the end of the input
// if its back-off would have outlasted its timeout: that retry was not going to be
// made. Operators that drain their retries (WithDrainRetries of package asyncop) do
// not make it either.
//
// A retry is charged when it is scheduled, whatever becomes of it. So retries that a
// circuit breaker will refuse empty the budget, too, although the service never
// sees them: a pipeline that has a breaker needs either no budget or a back-off as
// long as the breaker's own.
//
// The idea is that of the retry budgets of Finagle and Linkerd, and of gRPC's
// throttling (A6, Client Retries), which counts successes instead of attempts.
//
// One budget belongs to one service: policies of several operators that call the
// same may share it ([Policy.WithBudget]). Operators call Deposit and Withdraw by
// way of their policy. A nil *Budget covers everything. Safe for concurrent use.
type Budget struct {
	fraction  int64   // in grains
	perSecond float64 // in tokens
	capacity  int64   // in grains
	clock     clock.Clock

	balance atomic.Int64 // in grains; from 0 to capacity

	mu       sync.Mutex
	credited time.Time // guarded by mu: until when perSecond is in balance
	rest     float64   // guarded by mu: part of a grain that is not
}

// grain is the smallest part of a token. Whole numbers of grains make ten tenths a
// whole.
const grain = 1_000_000_000

// maxTokens keeps the balance within an int64 of grains.
const maxTokens = math.MaxInt32

// BudgetOption changes a setting of a [Budget].
type BudgetOption func(*Budget)

// BudgetClock sets the clock of a budget; the default is the real one. It panics
// if c is nil.
func BudgetClock(c clock.Clock) BudgetOption {
	mustNotBeNil("BudgetClock", c)
	return func(b *Budget) { b.clock = c }
}

// NewBudget returns a full bucket of burst tokens, into which every first attempt
// puts a fraction of a token, and every second perSecond. With 0.2, 10 and 100, a
// service that fails altogether gets 20 % more calls than it would without retries
// and ten a second on top, after a hundred at once in the beginning.
//
// NewBudget panics if fraction is not in [0, 1], perSecond is negative or not
// finite, burst is below 1, or an option is nil. A fraction of a billionth is the smallest that
// counts, and a burst of 2³¹−1 the largest.
func NewBudget(fraction, perSecond float64, burst int, opts ...BudgetOption) *Budget {
	switch {
	case !(fraction >= 0 && fraction <= 1): // in this form NaN fails too
		panic(fmt.Sprintf("strategies: NewBudget: fraction outside [0, 1]: %v", fraction))
	case !(perSecond >= 0 && perSecond <= math.MaxFloat64):
		panic(fmt.Sprintf("strategies: NewBudget: perSecond negative or not finite: %v", perSecond))
	case burst < 1:
		panic(fmt.Sprintf("strategies: NewBudget: burst below 1: %d", burst))
	}
	b := &Budget{
		fraction:  int64(math.Round(fraction * grain)),
		perSecond: perSecond,
		capacity:  int64(min(burst, maxTokens)) * grain,
		clock:     clock.New(),
	}
	for i, opt := range opts {
		if opt == nil {
			panic(fmt.Sprintf("strategies: NewBudget: option %d is nil", i))
		}
		opt(b)
	}
	b.balance.Store(b.capacity)
	b.credited = b.clock.Now()
	return b
}

// Deposit is called for every first attempt. It costs one atomic load while the
// bucket is full.
func (b *Budget) Deposit() {
	if b != nil {
		b.add(b.fraction)
	}
}

// Withdraw takes one token and reports whether there was one. It is called for
// every retry that is about to be scheduled.
func (b *Budget) Withdraw() bool {
	if b == nil {
		return true
	}
	b.creditTime()
	for {
		balance := b.balance.Load()
		if balance < grain {
			return false
		}
		if b.balance.CompareAndSwap(balance, balance-grain) {
			return true
		}
	}
}

// Balance returns the tokens that are there, for metrics.
func (b *Budget) Balance() float64 {
	if b == nil {
		return math.Inf(1)
	}
	b.creditTime()
	return float64(b.balance.Load()) / grain
}

// add puts grains into the bucket, as far as there is room. What order deposits
// and time come in makes no difference as long as nothing is taken in between.
func (b *Budget) add(grains int64) {
	for {
		balance := b.balance.Load()
		filled := balance + min(grains, b.capacity-balance)
		if filled == balance || b.balance.CompareAndSwap(balance, filled) {
			return
		}
	}
}

// creditTime puts in what has come with time since it was called last.
func (b *Budget) creditTime() {
	if b.perSecond == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.clock.Now()
	passed := now.Sub(b.credited)
	if passed <= 0 {
		return
	}
	b.credited = now
	grains := float64(passed)*b.perSecond + b.rest // nanoseconds times tokens a second are grains
	if grains >= float64(b.capacity) {
		b.rest = 0
		b.add(b.capacity)
		return
	}
	whole := math.Floor(grains)
	b.rest = grains - whole
	b.add(int64(whole))
}
