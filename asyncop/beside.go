package asyncop

import (
	"sync/atomic"

	"github.com/weirflow/weir/internal/fifo"
)

// beside bounds one kind of user code that runs on workers and that its element may leave behind there: strategies that may
// block, what they want done before a retry, timeout handlers. What ignores the end of its context counts until it returns.
// As many as there are slots may run; what comes then waits for its turn, and the deadlines of its elements stand.
type beside[IN, OUT any] struct {
	running int                      // the loop's
	waiting fifo.Queue[job[IN, OUT]] // the loop's; those whose attempt is over are skipped

	returned atomic.Int64 // those that have, and that the loop has not seen yet
}

// runBeside has a task done on a worker when its turn has come, unless its attempt is over by then.
func (c *core[IN, OUT]) runBeside(b *beside[IN, OUT], a *attempt[IN, OUT], task func()) {
	j := job[IN, OUT]{attempt: a, task: func(late error) {
		defer func() { // also if the task ends its goroutine
			b.returned.Add(1)
			c.returned.Store(true)
			c.wakeUp()
		}()
		if late == nil {
			task()
		}
	}}
	if b.running < c.queue.Cap() {
		b.running++
		c.workers.run(j)
		return
	}
	if b.waiting.Len() >= 2*c.queue.Cap() { // most of them are over, since each of the others has a slot
		for n := b.waiting.Len(); n > 0; n-- {
			if old := b.waiting.Pop(); old.attempt.entry != nil {
				b.waiting.Push(old)
			}
		}
	}
	b.waiting.Push(j)
}

// runWaiting goes on with those whose turn has come because others have returned.
func (c *core[IN, OUT]) runWaiting() {
	if !c.returned.Load() {
		return
	}
	c.returned.Store(false)
	for _, b := range []*beside[IN, OUT]{&c.asking, &c.before, &c.handlers} {
		b.running -= int(b.returned.Swap(0))
		for b.running < c.queue.Cap() && b.waiting.Len() > 0 {
			if j := b.waiting.Pop(); j.attempt.entry != nil {
				b.running++
				c.workers.run(j)
			}
		}
	}
}
