package drive

import (
	"sync/atomic"

	"github.com/weirflow/weir/checkpoint/participant"
)

// budgetSum stores the sum of the costs in a checkpoint, before a run ends because its
// budget is spent.
type budgetSum struct {
	isRequested bool          // a checkpoint was requested for the sum; owned by the loop
	barrier     atomic.Uint64 // number of the checkpoint with the final sum, or 0
	isStored    atomic.Bool   // the checkpoint with the final sum is complete
}

// mustEndForBudget reports whether the run must end, because its budget is spent and the
// results of all calls have left as far as the order allows.
func (d *Driver[IN, OUT]) mustEndForBudget() bool {
	return !d.loaded && d.core.MustEndForBudget()
}

// endWhenSpent ends the run because its budget is spent. With checkpoints, it waits until
// a checkpoint with the sum is complete.
func (d *Driver[IN, OUT]) endWhenSpent() {
	k := d.checkpoints
	if k == nil || k.budget.isStored.Load() {
		d.core.End(d.User.BudgetError(d.core.Spent()))
		return
	}
	if !k.budget.isRequested {
		k.budget.isRequested = true
		d.Coordinator.RequestCheckpoint()
	}
}

// noteSum notes that the checkpoint of b has the final sum.
func (k *checkpointing[IN, OUT]) noteSum(b participant.Barrier) {
	if k.budget.isRequested {
		k.budget.barrier.Store(b.ID)
	}
}

// completedSum lets the run end if its sum is stored.
func (k *checkpointing[IN, OUT]) completedSum(id uint64) {
	barrier := k.budget.barrier.Load()
	if barrier != 0 && id >= barrier {
		k.budget.isStored.Store(true)
		k.d.host.WakeUp()
	}
}

// mayEndForBudget reports whether the sum was stored, so that the next step may end the
// run. It returns false while a result or a call must leave first: they wake the loop.
func (d *Driver[IN, OUT]) mayEndForBudget() bool {
	return d.checkpoints != nil && d.checkpoints.budget.isStored.Load() && d.mustEndForBudget()
}
