package asyncop

import "github.com/weirflow/weir/asyncop/internal/core"

// SlotsTaken returns the number of slots taken. It may be called by user code that runs
// on the operator's loop.
func SlotsTaken[IN, OUT any](op *AsyncWaitOperator[IN, OUT]) int { return op.driver.Core().State().Len }

// FreePermits returns the number of permits that are free. It may be called while the
// operator is idle.
func FreePermits[IN, OUT any](op *AsyncWaitOperator[IN, OUT]) int {
	return core.Look(op.driver.Core()).FreePermits
}
