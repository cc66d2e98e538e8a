package asyncop

import (
	"github.com/weirflow/weir/internal/gate"
	"github.com/weirflow/weir/internal/guard"
)

// Backend is the service that an operator calls: a *Backend of package backend.
type Backend interface {
	// Attach is called by operators.
	Attach(s gate.Sleeper, lent int) gate.Place
}

// WithBackend makes the operator ask b before each attempt, retries included, and tell it how the attempt went. b is shared with all
// operators that call the same service, and may be closed: package backend has its states.
//
//	pay := backend.New("payments", backend.Adaptive(8, 200), backend.RetryBudget(0.2))
//	op := asyncop.OrderedWaitWithRetry(charge, 10*time.Second, 1000, strategy, asyncop.WithBackend(pay))
//
// Elements that wait for b hold a slot, and neither a permit nor a goroutine; they have begun no attempt. Their timeout stands. One that
// runs out while b is closed, or closed for the element's tenant, ends its element with an error that matches [ErrBackendClosed]: the
// failure policy decides. The same holds while the load of b grows back, or its limit is 0, and for an element that was never called since
// the limit or rate of b was used up. A message
// (delivery.Run) that was not called is given back until the opening, and its visit does not count. One that was called is the failure
// policy's, too: it may be what breaks the service. A delivery.Queue lets it wait once more.
//
// An attempt that met an outage, because it was lost while b was closing, closed or opening, uses up no retry of the strategy or of b's
// budget, up to three times an element. It is repeated only if the strategy wants that.
//
// A batch is a call: it has a permit, costs as much as its members together, and is lost if all of them are. The retry budget counts
// members. A call that runs an operator with the same backend lends it its permit for a single call at a time, if the inner
// operator gets the context of the call ([WithContext]).
//
// opts are [Cost] and [Tenant]. WithBackend panics if b is nil.
func WithBackend(b Backend, opts ...Option) Option {
	if guard.IsNil(b) {
		panic("asyncop: WithBackend: nil backend")
	}
	return func(cfg *config) {
		cfg.backend = b
		for _, o := range opts {
			o(cfg)
		}
	}
}

// Cost says, for [WithBackend], how much a call for an element takes from the rate of its backend; the default is 1 a call.
// cost is called on the operator's loop for each attempt that is asked for, and must not block. A panic fails the element,
// and so does a cost that is negative, infinite or NaN. IN must be the operator's. It panics if cost is nil.
func Cost[IN any](cost func(in IN) float64) Option {
	if cost == nil {
		panic("asyncop: Cost: nil function")
	}
	return func(cfg *config) { cfg.cost = cost }
}

// Tenant says, for [WithBackend], for whom an element is called; "" stands for no tenant, the default. A tenant that must
// wait lets the others pass. tenant is called as the function of [Cost] is. A function made by [Batched] cannot have tenants:
// the constructor panics. It panics if tenant is nil.
func Tenant[IN any](tenant func(in IN) string) Option {
	if tenant == nil {
		panic("asyncop: Tenant: nil function")
	}
	return func(cfg *config) { cfg.tenant = tenant }
}
