package asyncop_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// breaker is a minimal circuit breaker. Use failsafe-go or a similar library in a
// program.
type breaker struct {
	mu       sync.Mutex
	failures int       // guarded by mu: in a row
	closedAt time.Time // guarded by mu: when calls are let through again
}

var errOpen = errors.New("circuit breaker is open")

func (b *breaker) allow() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if time.Now().Before(b.closedAt) {
		return errOpen
	}
	return nil
}

func (b *breaker) record(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil {
		b.failures = 0
	} else if b.failures++; b.failures == 3 {
		b.failures, b.closedAt = 0, time.Now().Add(50*time.Millisecond)
	}
}

// A circuit breaker by composition: the function asks the breaker before it sends, and a
// refusal has its own reason. Nothing was sent, so even calls that are not idempotent are
// retried after the time that the breaker needs.
func Example_circuitBreaker() {
	b := &breaker{}
	service := errors.New("service failed")
	sent := 0
	call := asyncop.Func(func(_ context.Context, in string, result asyncop.ResultFuture[string]) error {
		if err := b.allow(); err != nil {
			return predicates.WithReason(&predicates.StageError{Stage: predicates.ClientDispatch, Err: err}, predicates.CircuitBreakerOpen)
		}
		sent++
		if sent <= 3 {
			b.record(service)
			return service
		}
		b.record(nil)
		result.Complete(in)
		return nil
	})
	strategy := patient{strategies.BestEffort[string]()}
	policy := strategies.ReasonAware(predicates.Classifiers(
		predicates.Named[string](),
		predicates.ByException[string](predicates.ErrorIs(service), predicates.Unknown),
	), strategy).Immediate()

	op := asyncop.OrderedWaitWithRetry(call, 5*time.Second, 10, policy, asyncop.WithDropOnFailure(), asyncop.WithDrainRetries())
	for _, in := range []string{"a", "b", "c", "d", "e"} {
		op.In() <- in
	}
	close(op.In())
	for out := range op.Out() {
		fmt.Println(out)
	}
	fmt.Println("sent:", sent, "dropped:", op.Stats().Dropped)
	// Output:
	// d
	// e
	// sent: 5 dropped: 3
}

// patient is best effort, except that it waits for the breaker.
type patient struct {
	*strategies.BestEffortStrategy[string]
}

func (s patient) Decide(ctx context.Context, a *predicates.Attempt[string]) (strategies.Action, error) {
	if a.Reason == predicates.CircuitBreakerOpen {
		return strategies.RetryAfter(60 * time.Millisecond), nil
	}
	return s.BestEffortStrategy.Decide(ctx, a)
}
