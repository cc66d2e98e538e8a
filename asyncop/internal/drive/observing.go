package drive

import (
	"sync"
	"time"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/asyncop/internal/core"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/internal/guard"
)

// leaving is an element whose results are in a ring. It has left when the reader has
// consumed its last result (law O1).
type leaving struct {
	track *core.Track
	upTo  uint64 // number of values of the ring up to its last result
	by    *reader
}

// noteEmitted records the end of the element whose results were emitted last. If they are
// in a ring, the record waits until they have left.
func (d *Driver[IN, OUT]) noteEmitted() {
	r := d.observing.TakeLeaving()
	if r == nil { // a control element
		return
	}
	if upTo, by := d.current.port.putCount(); by != nil {
		d.leaving.Push(leaving{r, upTo, by})
	} else {
		d.observing.RecordEnd(r, observe.Emitted)
	}
}

// mayObserve reports whether the oldest of d.leaving has left. When the reader consumes
// values later, it wakes the loop if Parked is set: see outlet.noteConsumed.
func (d *Driver[IN, OUT]) mayObserve() bool {
	return d.leaving.Len() > 0 && d.leaving.Peek().upTo <= d.leaving.Peek().by.consumed.Load()
}

// settleAndReport settles messages, and calls observers, for the elements that have ended
// since the last step.
func (d *Driver[IN, OUT]) settleAndReport() {
	d.messages.Settle()
	if d.observing == nil {
		return
	}
	for d.mayObserve() {
		d.observing.RecordEnd(d.leaving.Pop().track, observe.Emitted)
	}
	d.observing.Report()
}

// observeEnd reports the ends of all elements, when the reader has stopped.
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
		d.observing.RecordEnd(d.leaving.Pop().track, how)
	}
	d.reportEnd()
}

func (d *Driver[IN, OUT]) reportEnd() {
	runAfterTheEnd(d.observing.MayReport, d.observing.Report, d.User.LogObserverPanic)
}

func (d *Driver[IN, OUT]) settleMessages() {
	runAfterTheEnd(d.messages.MaySettle, d.messages.Settle, d.User.LogSourcePanic)
}

// runAfterTheEnd calls work, which is user code, until hasWork returns false. If work
// panics, it is called again for the remaining events. runAfterTheEnd is called after the
// end of the loop.
func runAfterTheEnd(hasWork func() bool, work func(), logPanic func(err error)) {
	for hasWork() {
		if err := call.OffLoop(func() error { work(); return nil }); err != nil {
			logPanic(err)
		}
	}
}

// refused reports that an element was not accepted: Discarded or Kept.
func (d *Driver[IN, OUT]) refused(how observe.EndKind, m call.Message) {
	d.messages.Release(m)
	if d.observing != nil {
		d.observing.Refused(how)
	}
}

// observeLate reports n elements that arrived after the end. It waits for done, so the
// loop must not call it.
func (d *Driver[IN, OUT]) observeLate(n int) {
	if d.observing == nil {
		return
	}
	<-d.done
	for range n {
		d.observing.Refused(observe.Discarded)
	}
	d.reportEnd()
}

// askGates reports whether all gates admit another element. A closed gate will wake the
// loop when it opens.
func (d *Driver[IN, OUT]) askGates() bool {
	for _, gate := range d.Gates {
		isAdmitted := d.tryAdmit(gate)
		if !isAdmitted {
			return false
		}
	}
	return true
}

// gateHasOpened reports whether a closed gate may have opened. If it opens later, it
// wakes the loop if Parked is set: see tryAdmit.
func (d *Driver[IN, OUT]) gateHasOpened() bool { return d.gateClosed && !d.gateWillWake.Load() }

// tryAdmit asks a gate. A panic ends the run (law A6).
func (d *Driver[IN, OUT]) tryAdmit(gate observe.Gate) (admitted bool) {
	d.core.NoteSlept()
	var g guard.Guard
	defer g.Close(func(recovered any) {
		d.core.End(guard.Wrap("asyncop: gate", call.Panicked(recovered)))
		admitted = false
	})
	admitted = gate.TryAdmit()
	d.gateClosed = !admitted
	if d.gateClosed && !d.gateWillWake.Swap(true) {
		gate.Notify(func() {
			d.gateWillWake.Store(false)
			d.host.WakeUp()
		})
	}
	g.Returned()
	return admitted
}

// Counts returns the current counters.
func (d *Driver[IN, OUT]) Counts() observe.Stats {
	s, oldest, erred := d.published.get()
	if s.InFlight > 0 && oldest != core.Never {
		s.OldestAge = max(0, d.timers.Now()-oldest)
	}
	if s.LastError != nil {
		s.LastErrorAge = max(0, d.timers.Now()-erred)
	}
	s.Running = max(0, s.Running-d.host.Freed()) // after the end, the core does not take freed permits
	s.LateCompletions = d.host.Late()
	s.Discarded = d.late.count.Load()
	s.Undelivered = d.delivery.undelivered.Load()
	return s
}

// published has the statistics of the last step.
type published struct {
	mu     sync.Mutex
	counts observe.Stats // guarded by mu
	oldest time.Duration // guarded by mu; when the oldest element was accepted, or core.Never
	erred  time.Duration // guarded by mu; when the last error came
}

func (p *published) set(c observe.Stats, oldest, erred time.Duration) {
	p.mu.Lock()
	p.counts, p.oldest, p.erred = c, oldest, erred
	p.mu.Unlock()
}

func (p *published) get() (c observe.Stats, oldest, erred time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counts, p.oldest, p.erred
}
