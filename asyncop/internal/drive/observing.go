package drive

import (
	"sync"
	"time"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/asyncop/internal/core"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/internal/guard"
)

// leaving is an observed element whose results were put into a ring. It has left when the reader is done with the last of them
// (law O1).
type leaving struct {
	track *core.Track
	upTo  uint64  // values of the ring
	by    *reader // of it
}

// hasLeft goes on with the element that has left, whose results were handed over.
func (d *Driver[IN, OUT]) hasLeft() {
	r := d.observing.Leaving()
	if r == nil { // a control element
		return
	}
	if upTo, by := d.current.port.handed(); by != nil {
		d.leaving.Push(leaving{r, upTo, by})
	} else {
		d.observing.Gone(r, observe.Emitted)
	}
}

// mayObserve reports whether the next element that leaves has left. Called with parked set: the reader wakes the loop after it.
func (d *Driver[IN, OUT]) mayObserve() bool {
	return d.leaving.Len() > 0 && d.leaving.Peek().upTo <= d.leaving.Peek().by.settled.Load()
}

// observe calls the observers with what has happened.
func (d *Driver[IN, OUT]) observe() {
	d.messages.Settle()
	if d.observing == nil {
		return
	}
	for d.mayObserve() {
		d.observing.Gone(d.leaving.Pop().track, observe.Emitted)
	}
	d.observing.Report()
}

// observeEnd reports what became of all elements, once the reader takes no more. Off the loop: that has ended.
func (d *Driver[IN, OUT]) observeEnd() {
	if d.observing == nil {
		return
	}
	if d.leaving.Len() > 0 {
		<-d.leaving.Peek().by.gone
	}
	for d.leaving.Len() > 0 {
		how := observe.Discarded
		if d.mayObserve() {
			how = observe.Emitted
		}
		d.observing.Gone(d.leaving.Pop().track, how)
	}
	d.reportEnd()
}

// reportEnd calls the observers off the loop, once that has ended.
func (d *Driver[IN, OUT]) reportEnd() {
	afterTheEnd(d.observing.MayReport, d.observing.Report, d.Hooks.ObserverBroke) // one that breaks is not called again with the same
}

// settleMessages settles messages off the loop, once that has ended.
func (d *Driver[IN, OUT]) settleMessages() {
	afterTheEnd(d.messages.MaySettle, d.messages.Settle, d.Hooks.SourceBroke)
}

// afterTheEnd calls user code off the loop, as long as there is something to do.
func afterTheEnd(more func() bool, f func(), broke func(err error)) {
	for more() {
		if err := call.OffLoop(func() error { f(); return nil }); err != nil {
			broke(err)
		}
	}
}

// refused says that an element was received and not accepted: Discarded or Kept. m is the message that it is, if it is one.
func (d *Driver[IN, OUT]) refused(how observe.EndKind, m call.Message) {
	d.messages.Release(m)
	if d.observing != nil {
		d.observing.Refused(how)
	}
}

// observeLate reports n elements that came after the end, off the loop. It returns 0: how many are left.
func (d *Driver[IN, OUT]) observeLate(n int) int {
	if d.observing == nil {
		return 0
	}
	<-d.done
	for range n {
		d.observing.Refused(observe.Discarded)
	}
	d.reportEnd()
	return 0
}

// admits reports whether all gates let another element in. A gate that does not wakes the loop when it may.
func (d *Driver[IN, OUT]) admits() bool {
	for _, gate := range d.Gates {
		if !d.tryAdmit(gate) {
			return false
		}
	}
	return true
}

// gateHasOpened reports whether a gate that was shut has reported since then that it may
// be open. Call it with parked set: a report that came before did not wake the loop.
func (d *Driver[IN, OUT]) gateHasOpened() bool { return d.shut && !d.waiting.Load() }

// tryAdmit asks a gate. If it breaks, the run ends (law A6).
func (d *Driver[IN, OUT]) tryAdmit(gate observe.Gate) (admitted bool) {
	d.core.Away(true)
	var stands guard.Guard
	defer stands.Close(func(recovered any) {
		d.core.End(guard.Wrap("asyncop: gate", call.Panicked(recovered)))
		admitted = false
	})
	admitted = gate.TryAdmit()
	if d.shut = !admitted; d.shut && !d.waiting.Swap(true) {
		gate.Notify(func() {
			d.waiting.Store(false)
			d.host.WakeUp()
		})
	}
	stands.Returned()
	return admitted
}

// ---- Statistics

// Counts returns the counters of the moment.
func (d *Driver[IN, OUT]) Counts() observe.Stats {
	s, oldest := d.published.get()
	if s.InFlight > 0 && oldest != core.Never {
		s.OldestAge = max(0, d.timers.Now()-oldest)
	}
	s.Running = max(0, s.Running-d.host.Freed()) // after the end, nothing takes the permits back any more
	s.LateCompletions = d.host.Late()
	s.Discarded = d.discarded.Load()
	s.Undelivered = d.delivery.undelivered.Load()
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
