package drive

import (
	"sync"
	"time"

	"github.com/weirflow/weir/asyncop/internal/core"
	"github.com/weirflow/weir/asyncop/observe"
)

// Counts returns the counters of the moment.
func (d *Driver[IN, OUT]) Counts() observe.Stats {
	s, oldest := d.published.get()
	if s.InFlight > 0 && oldest != core.Never {
		s.OldestAge = max(0, d.timers.Now()-oldest)
	}
	s.Running = max(0, s.Running-d.host.Freed()) // after the end, nothing takes the permits back any more
	s.LateCompletions = d.host.Late()
	s.Discarded = d.discarded.Load()
	s.Discarded += d.attached.Load().port.stranded()
	return s
}

// published is the part of the statistics that the loop counts without atomics and publishes once a turn.
type published struct {
	mu     sync.Mutex
	counts observe.Stats // guarded by mu
	oldest time.Duration // guarded by mu; when the oldest element was accepted, or core.Never
}

func (p *published) set(c observe.Stats, oldest time.Duration) {
	p.mu.Lock()
	p.counts, p.oldest = c, oldest
	p.mu.Unlock()
}

func (p *published) get() (observe.Stats, time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counts, p.oldest
}
