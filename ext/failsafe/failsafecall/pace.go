package failsafecall

import (
	"sync"
	"time"

	"github.com/failsafe-go/failsafe-go/circuitbreaker"

	"github.com/weirflow/weir/asyncop"
)

// Pace returns the pace of a circuit breaker: while it is open no attempt starts, so that elements wait for it without using up
// retries or a retry budget. When its time is over an attempt starts every 20 ms until it is closed; what it refuses then is
// refused by [Guard], which is needed as well.
//
//	op := asyncop.OrderedWaitWithRetry(failsafecall.Guard(breaker, call), 10*time.Second, 1000, strategy,
//		asyncop.WithPace(failsafecall.Pace(breaker)))
//
// It panics if breaker is nil. The pace may be shared by operators, and is safe for concurrent use.
func Pace(breaker circuitbreaker.CircuitBreaker[any]) asyncop.Pacer {
	if breaker == nil {
		panic("failsafecall: Pace: nil breaker")
	}
	return &pace{breaker: breaker}
}

type pace struct {
	breaker circuitbreaker.CircuitBreaker[any]

	mu   sync.Mutex
	next time.Time // guarded by mu; of an attempt while the breaker is not closed
}

// Take implements asyncop.Pacer.
func (p *pace) Take(now time.Time) (wait time.Duration) {
	if p.breaker.IsClosed() {
		return 0
	}
	if wait = p.breaker.RemainingDelay(); wait > 0 {
		return wait
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if wait = p.next.Sub(now); wait > 0 {
		return wait
	}
	p.next = now.Add(trialWait)
	return 0
}
