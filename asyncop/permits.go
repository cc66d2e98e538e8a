package asyncop

import (
	"fmt"

	"github.com/weirflow/weir/asyncop/internal/call"
)

// Permits bound the calls of several operators together, for a backend that they share. The bound may change at any time.
//
//	db := asyncop.NewPermits(50)
//	rows := asyncop.OrderedWait(readRow, 5*time.Second, 1000, asyncop.WithPermits(db))
//	names := asyncop.OrderedWait(readName, 5*time.Second, 1000, asyncop.WithPermits(db))
//
// A permit comes back when its call ends, also while the operator itself is held up. Operators that wait take turns.
//
// It is safe for concurrent use.
type Permits struct{ permits *call.Permits }

// NewPermits returns permits for n calls at a time. It panics if n is negative.
func NewPermits(n int) *Permits {
	mustNotBeNegative("NewPermits", n)
	return &Permits{call.NewPermits(n)}
}

// SetLimit changes how many calls may run at a time; with 0 none begins. Calls that run beyond the new limit are not ended. It
// panics if n is negative.
func (p *Permits) SetLimit(n int) {
	mustNotBeNegative("SetLimit", n)
	p.permits.SetLimit(n)
}

// Limit returns how many calls may run at a time.
func (p *Permits) Limit() int {
	limit, _ := p.permits.Counts()
	return limit
}

// InUse returns how many permits are taken; more than the limit after that was lowered.
func (p *Permits) InUse() int {
	_, used := p.permits.Counts()
	return used
}

func mustNotBeNegative(function string, n int) {
	if n < 0 {
		panic(fmt.Sprintf("asyncop: %s: negative number of permits: %d", function, n))
	}
}

// WithPermits makes each call of the operator take one of p, besides that of [WithMaxConcurrentCalls]. Elements that wait for
// one hold a slot, and neither a permit nor a goroutine; their timeout stands. A callback-style call ends with its attempt, a
// [Blocking] one when its function returns. By default an operator shares no permits.
//
// A call that has a permit of p may run an operator that needs permits of p, too. Give the inner one the context of the call
// ([WithContext]): it then runs one call at a time on the permit of the outer call, and more if there are permits. Without that
// context the two may wait for each other until their timeouts. It panics if p is nil.
func WithPermits(p *Permits) Option {
	if p == nil {
		panic("asyncop: WithPermits: nil permits")
	}
	return func(cfg *config) { cfg.permits = p }
}
