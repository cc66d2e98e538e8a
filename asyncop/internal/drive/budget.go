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

// sumIsStored reports whether the final sum is stored.
func (d *Driver[IN, OUT]) sumIsStored() bool {
	return d.checkpoints != nil && d.checkpoints.budget.isStored.Load()
}
