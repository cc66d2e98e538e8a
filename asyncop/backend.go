package asyncop

import (
	"context"
	"math"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/internal/gate"
	"github.com/weirflow/weir/internal/guard"
)

// Backend is the service that an operator calls: a *Backend of package backend.
type Backend interface{ attachable }

type attachable = gate.Attachable

// WithBackend makes the operator ask b before each attempt and report its outcome. All
// operators that call the same service share b, whose states package backend describes.
//
//	pay := backend.New("payments", backend.Adaptive(8, 200), backend.RetryBudget(0.2))
//	op := asyncop.OrderedWaitWithRetry(charge, 10*time.Second, 1000, strategy,
//		asyncop.WithBackend(pay))
//
// Elements that wait for b hold a slot, but no permit and no goroutine. Waiting is not an
// attempt, and does not extend their timeout, unless [WithTimeoutFromFirstAttempt]. If
// the timeout runs out while b is down or held, has a limit of 0, is ramping, or is
// paused for the element's tenant, the element fails with an error that matches
// [ErrBackendDown]. So does an element that was never called because the limit or rate of
// b was used up. In a worker (delivery.Run) a message that was not called is released
// until b is up, and its visit does not count. A message that was called goes to the
// failure policy, because it may have caused the outage. A delivery.Queue lets it wait
// once more.
//
// An attempt that met an outage, because it was lost while b was going down, down or
// coming back, does not use up a retry of the strategy or of b's budget, up to three
// times for each element. The strategy still decides whether it is repeated.
//
// A batch is one call, which costs as much as its members together, and is lost if all of
// them are. The retry budget counts members. A call that runs an operator with the same
// backend lends it its permit, for one call at a time, if the inner operator has the
// context of the call ([WithContext]).
//
// A throttled attempt (429) does not use up an attempt or a retry. Only the timeout
// limits such attempts, and then releases a message whose calls were all throttled.
//
// While the tenant of a message is down, or paused for a second or more
// (backend.TenantBreaker), the message ends at once, as if its timeout had run out.
//
// opts are [Cost], [Tenant] and [Budget]. WithBackend panics if b is nil, and the
// constructor panics if the operator has two backends.
func WithBackend(b Backend, opts ...Option) Option {
	guard.RefuseNil("asyncop: WithBackend", "backend", b)
	return func(cfg *config) {
		if cfg.backend != nil {
			panic("asyncop: WithBackend: the operator already has a backend: give one backend all limits and rates of the service")
		}
		cfg.backend = b
		for _, o := range opts {
			o(cfg)
		}
	}
}

// Cost is an option of [WithBackend]. It sets how much a call for an element takes from
// the rate of its backend. The default is 1. If cost returns an estimate, the call
// reports the real cost: see [ReportCost]. An attempt that the service refused (429, or a
// refused connection) costs 0. cost is called on the loop once for each attempt, and must
// not block. A panic, and a negative, infinite or NaN cost, fails the element. IN must be
// the operator's type. Cost panics if cost is nil.
func Cost[IN any](cost func(in IN) float64) Option {
	guard.RefuseNil("asyncop: Cost", "function", cost)
	return func(cfg *config) { cfg.cost = cost }
}

// ReportCost reports the real cost of the call of ctx, such as the tokens that a language
// model has used. At the end of the attempt it replaces the estimate of [Cost] in the
// rate of the backend.
//
//	reply, err := model.Complete(ctx, prompt)
//	if err == nil {
//		asyncop.ReportCost(ctx, float64(reply.Usage.TotalTokens))
//	}
//
// Several reports of a call add up. Reports without a running attempt are ignored. The
// cost of a batch is divided equally among its members. The cost of a shared call
// (package lookup) belongs to the element that started it. ReportCost panics if cost is
// negative, infinite or NaN. It is safe for concurrent use.
func ReportCost(ctx context.Context, cost float64) {
	refuseIf(!(cost >= 0 && cost <= math.MaxFloat64), "ReportCost: want a finite number of 0 or more: %v", cost) // rejects NaN, too
	r, ok := ctx.Value(call.CostKey{}).(call.CostReporter)
	if ok {
		r.ReportCost(cost)
	}
}

// Budget is an option of [WithBackend]. It limits the settled cost of the operator's
// calls, in the unit of [Cost]. When the sum reaches total, calls no longer start.
// Running calls complete, so the sum may exceed total by their cost. Their results leave
// as far as the order allows. If other elements still need a call, the operator ends with
// an error that matches [ErrBudgetSpent]. By default the cost is not limited. Budget
// panics if total is not positive and finite.
//
// With checkpoints ([WithCheckpoints]) the sum is part of the state. The operator takes a
// checkpoint before it ends, from which a run with a larger budget continues, without
// repeating calls whose results have left or are stored (State.Results). After a crash
// the sum is from the last checkpoint.
func Budget(total float64) Option {
	refuseIf(!(total > 0 && total <= math.MaxFloat64), "Budget: want a finite number above 0: %v", total) // rejects NaN, too
	return func(cfg *config) { cfg.budget = total }
}

// Tenant is an option of [WithBackend]. It sets the tenant of each element; "" means no
// tenant. By default only messages with backend.TenantBreaker have a tenant, their key
// (message.Meta.Key). Other elements overtake a tenant that must wait. tenant is called
// like the function of [Cost]. The constructor panics with [Batched]. Tenant panics if
// tenant is nil.
func Tenant[IN any](tenant func(in IN) string) Option {
	guard.RefuseNil("asyncop: Tenant", "function", tenant)
	return func(cfg *config) { cfg.tenant = tenant }
}
