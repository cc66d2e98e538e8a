package core

import (
	"context"
	"time"

	"github.com/weirflow/weir/asyncop/internal/call"
)

// Batching says how calls for several elements are made.
//
// Config.Invoke is called for each member. Its function, which may have wrappers around it, finds the batch in the context and
// joins it. Then the batch is a job.
type Batching[IN, OUT any] struct {
	Of      any                          // the function, as it looks for its batch
	MaxSize int                          // members
	MaxWait time.Duration                // of an element that may start; 0: a turn
	Call    func(b *call.Batch[IN, OUT]) // makes the call, on a worker
}

// NoneFollows says that no element follows those that are here: a batch does not wait for others any more.
func (g *Machine[IN, OUT]) NoneFollows() { g.whole = true }

// isEnough reports whether a batch goes without a wait: it has all its members, or no others can come. An element that waits to
// leave makes room when downstream takes it.
func (g *Machine[IN, OUT]) isEnough() bool {
	return g.startable() >= g.Batch.MaxSize || g.whole || !g.HasRoom() && g.Queue.Head() == nil
}

// isDue reports whether a batch goes, if there is a permit.
func (g *Machine[IN, OUT]) isDue() bool { return g.isEnough() || g.now >= g.batchDue() }

// batchDue returns when the first of those that may start has waited for MaxWait. Retries count as one group from the first on,
// and so do first attempts in key order.
func (g *Machine[IN, OUT]) batchDue() time.Duration {
	since := Never
	if g.fresh != nil {
		since = max(0, g.fresh.accepted) // that of a restored one may be before the start
	}
	if g.heads.Len() > 0 {
		since = g.headed
	}
	if g.ready.Len() > 0 {
		since = min(since, g.readied)
	}
	return later(since, g.Batch.MaxWait)
}

// startBatches starts batches as long as one goes, with waits or without.
func (g *Machine[IN, OUT]) startBatches(withWaits bool) {
	for n := 0; n < turnLimit && g.canStart() && (g.isEnough() || withWaits && g.isDue()); n++ {
		g.startBatch()
	}
}

// startFull starts a full batch, if there is one, and reports whether it is to be handed out. Then the turn ends: what other calls have
// completed is looked at later, since that takes as long as a short call. Timers that are due go first (law T1).
func (g *Machine[IN, OUT]) startFull() bool {
	if g.canStart() && g.startable() >= g.Batch.MaxSize && !g.timerIsDue() {
		g.startBatch()
	}
	return len(g.jobs) > 0
}

// startBatch starts a batch of those that may start: retries before first attempts, oldest first. The first member is asked for
// what the call as a whole needs, permits and the pace.
func (g *Machine[IN, OUT]) startBatch() {
	s := g.nextStart()
	if !g.mayStart(s) || (g.Host.Share != nil || g.Pace != nil) && !g.admit(s) {
		return
	}
	g.permits--
	size := min(g.startable(), g.Batch.MaxSize)
	g.forming = call.NewBatch[IN, OUT](g.Host, g.Batch.Of, size)
	for ; s != nil && g.forming.Len() < size && g.mayStart(s); s = g.nextStart() {
		g.begin(s)
	}
	g.sendBatch()
}

// sendBatch ends the forming of a batch, if there is one. Members that wrappers of the function have completed are not called.
func (g *Machine[IN, OUT]) sendBatch() {
	b := g.forming
	if b == nil {
		return
	}
	g.forming = nil
	if b.Close() {
		g.jobs = append(g.jobs, call.Job[IN, OUT]{Task: func() { g.Batch.Call(b) }})
		return
	}
	g.permits++
	if g.Host.Share != nil {
		g.Host.Share.Release()
	}
	g.callsReturned()
}

// prepareMember has what the strategy wants done first done on a worker. The call of the batch waits for it; if it fails, for
// the others only.
func (g *Machine[IN, OUT]) prepareMember(
	s *Slot[IN, OUT], a *call.Attempt[OUT], before func(ctx context.Context) error,
) {
	done := make(chan struct{})
	g.forming.After(done)
	ctx := g.contextBeside(s, &a.Token)
	g.runBeside(&g.before, &a.Token, func() {
		defer close(done)
		g.doBefore(ctx, a, before)
	})
}
