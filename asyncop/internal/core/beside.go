package core

import (
	"sync/atomic"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/internal/fifo"
)

// beside bounds one kind of user code that runs on workers and that its element may leave behind there: strategies that may
// block, what they want done before a retry, handlers of failures. What ignores the end of its context counts until it returns.
// As many as there are slots may run; what comes then waits for its turn, and the deadlines of its elements stand.
type beside struct {
	running int                 // the core's
	waiting fifo.Queue[waiting] // the core's; those whose turn is over are skipped

	returned atomic.Int64 // those that have, and that the core has not seen yet
}

// waiting is a task that waits until it may run.
type waiting struct {
	ref  call.Ref
	task func()
}

// runBeside has a task done on a worker when its turn has come, unless its token is over by then. The task looks itself whether
// it is late.
func (g *Machine[IN, OUT]) runBeside(b *beside, token *call.Token, task func()) {
	run := func() {
		defer func() { // also if the task ends its goroutine
			b.returned.Add(1)
			g.returned.Store(true)
			g.Host.WakeUp()
		}()
		task()
	}
	if b.running < g.Queue.Cap() {
		b.running++
		g.Host.Run(run)
		return
	}
	if b.waiting.Len() >= 2*g.Queue.Cap() { // most of them are over, since each of the others has a slot
		for n := b.waiting.Len(); n > 0; n-- {
			if old := b.waiting.Pop(); g.slots.find(old.ref) != nil {
				b.waiting.Push(old)
			}
		}
	}
	b.waiting.Push(waiting{token.Ref, run})
}

// runWaiting goes on with those whose turn has come because others have returned.
func (g *Machine[IN, OUT]) runWaiting() {
	if !g.returned.Load() {
		return
	}
	g.returned.Store(false)
	for _, b := range []*beside{&g.asking, &g.before, &g.handlers} {
		b.running -= int(b.returned.Swap(0))
		for b.running < g.Queue.Cap() && b.waiting.Len() > 0 {
			if w := b.waiting.Pop(); g.slots.find(w.ref) != nil {
				b.running++
				g.Host.Run(w.task)
			}
		}
	}
}
