// Package failsafecall puts policies of [github.com/failsafe-go/failsafe-go] around the function of an operator: a circuit
// breaker, and hedges. Its retries, timeouts and bulkheads have no place here: an operator has its own, which hold no
// goroutine while an element waits.
//
// # Circuit breaker
//
//	breaker := circuitbreaker.NewBuilder[any]().WithFailureThreshold(5).WithDelay(time.Second).Build()
//	op := asyncop.OrderedWaitWithRetry(
//		failsafecall.Guard(breaker, asyncop.Blocking(pay)), 10*time.Second, 1000,
//		strategies.ReasonAware(predicates.Classifiers(predicates.Named[Receipt](), httpretry.Classifier[Receipt]()), nil))
//
// A call that the breaker refuses fails with circuitbreaker.ErrOpen. The error says that nothing was sent (stage
// ClientDispatch, reason predicates.CircuitBreakerOpen, which predicates.Named reads) and how long the breaker stays open
// (predicates.ServerPushback). So a reason-aware strategy repeats it, also if the call must not happen twice, and its element
// waits as long as the breaker does, without a permit. With [Pace] it waits before its attempt begins, and uses up no retry.
//
// # Hedges
//
// [Hedged] makes a second call beside one that is slow, and takes the first answer. It does so only for calls that may happen
// twice.
//
// # Time
//
// failsafe-go uses the real clock, also if the operator has another one.
package failsafecall
