package drive

import (
	"sync"
	"time"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/asyncop/internal/core"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/internal/guard"
)

// leaving is an observed element whose results were put into a ring. It has left when the
// reader has settled the last of them (law O1).
type leaving struct {
	track *core.Track
	upTo  uint64  // number of values of the ring, up to its last result
	by    *reader // of the ring
}

// hasLeft handles an element whose results were all emitted.
func (d *Driver[IN, OUT]) hasLeft() {
	r := d.observing.Leaving()
	if r == nil { // a control element
		return
	}
	if upTo, by := d.current.port.handed(); by != nil {
		d.leaving.Push(leaving{r, upTo, by})
	} else {
		d.observing.Left(r, observe.Emitted)
	}
}

// mayObserve reports whether the next element that leaves has left. It is called with
// Parked set, so the reader wakes the loop from then on.
func (d *Driver[IN, OUT]) mayObserve() bool {
	return d.leaving.Len() > 0 && d.leaving.Peek().upTo <= d.leaving.Peek().by.settled.Load()
}

// observe calls the observers with the new events.
func (d *Driver[IN, OUT]) observe() {
	d.messages.Settle()
	if d.observing == nil {
		return
	}
	for d.mayObserve() {
		d.observing.Left(d.leaving.Pop().track, observe.Emitted)
	}
	d.observing.Report()
}

// observeEnd reports the ends of all elements, once the reader takes no more values. The
// loop has ended.
func (d *Driver[IN, OUT]) observeEnd() {
	if d.observing == nil {
		return
	}
	if d.leaving.Len() > 0 {
		<-d.leaving.Peek().by.stopped
	}
	for d.leaving.Len() > 0 {
		how := observe.Discarded
		if d.mayObserve() {
			how = observe.Emitted
		}
		d.observing.Left(d.leaving.Pop().track, how)
	}
	d.reportEnd()
}

// reportEnd calls the observers after the end of the loop.
func (d *Driver[IN, OUT]) reportEnd() {
	afterTheEnd(d.observing.MayReport, d.observing.Report, d.Hooks.ObserverBroke) // an observer that panics is not called again with the same event
}

// settleMessages settles messages after the end of the loop.
func (d *Driver[IN, OUT]) settleMessages() {
	afterTheEnd(d.messages.MaySettle, d.messages.Settle, d.Hooks.SourceBroke)
}

// afterTheEnd calls user code, after the end of the loop, while there is work.
func afterTheEnd(more func() bool, f func(), broke func(err error)) {
	for more() {
		if err := call.OffLoop(func() error { f(); return nil }); err != nil {
			broke(err)
		}
	}
}

// refused reports that an element was received and not accepted: Discarded or Kept. m is
// its message, if it is one.
func (d *Driver[IN, OUT]) refused(how observe.EndKind, m call.Message) {
	d.messages.Release(m)
	if d.observing != nil {
		d.observing.Refused(how)
	}
}

// observeLate reports n elements that arrived after the end. It returns the number of
// elements that are still to be reported: 0.
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

// admits reports whether all gates admit another element. A gate that does not will wake
// the loop.
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

// tryAdmit asks a gate. If the gate panics, the run ends (law A6).
func (d *Driver[IN, OUT]) tryAdmit(gate observe.Gate) (admitted bool) {
	d.core.Away(true)
	var g guard.Guard
	defer g.Close(func(recovered any) {
		d.core.End(guard.Wrap("asyncop: gate", call.Panicked(recovered)))
		admitted = false
	})
	admitted = gate.TryAdmit()
	d.shut = !admitted
	if d.shut && !d.waiting.Swap(true) {
		gate.Notify(func() {
			d.waiting.Store(false)
			d.host.WakeUp()
		})
	}
	g.Returned()
	return admitted
}

// ---- Statistics

// Counts returns the current counters.
func (d *Driver[IN, OUT]) Counts() observe.Stats {
	s, oldest := d.published.get()
	if s.InFlight > 0 && oldest != core.Never {
		s.OldestAge = max(0, d.timers.Now()-oldest)
	}
	s.Running = max(0, s.Running-d.host.Freed()) // after the end, the loop no longer takes freed permits
	s.LateCompletions = d.host.Late()
	s.Discarded = d.late.count.Load()
	s.Undelivered = d.delivery.undelivered.Load()
	return s
}

// published is the part of the statistics that the loop counts without atomics and
// publishes once a step.
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
