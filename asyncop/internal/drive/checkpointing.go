package drive

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/asyncop/internal/core"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/internal/fifo"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/wiring"
	"github.com/weirflow/weir/message"
	"github.com/weirflow/weir/queue"
)

// checkpointing is the Participant of an operator.
type checkpointing[IN, OUT any] struct {
	d *Driver[IN, OUT]

	triggered announced                            // by Pending: the coordinator has started a checkpoint
	imminent  announced                            // by Coming: the source sends a barrier or the marker next, or after one more element
	buffer    atomic.Pointer[[]core.Item[IN, OUT]] // for the next copy of the items in flight
	full      atomic.Pointer[chan struct{}]        // not nil while the overflow is too large; closed afterwards: see Overflow

	// Owned by the loop.

	// restoredNumbers are the numbers of the first items of the backlog, which were
	// restored.
	restoredNumbers fifo.Queue[int64]

	newestID      uint64 // of the barriers that have arrived
	budget        budgetSum
	backlogFilled time.Duration                   // when the restored items entered the backlog
	arrived       *participant.Barrier            // a barrier that has arrived and was not handled yet, or nil
	passing       fifo.Queue[participant.Barrier] // barriers that were handled; they are emitted before elements
	encoding      sync.WaitGroup                  // for states that are being encoded
	finalStateErr sharedError                     // the error of encoding the final state; set by the goroutine that encodes
	pause         time.Duration                   // duration of the last copy, for tests
}

// announced has the newest barrier and the marker of the end of the input, once they are
// announced.
type announced struct {
	barrier atomic.Uint64
	marker  atomic.Bool
}

func (a *announced) add(b participant.Barrier) {
	if b.Kind == participant.EndOfInput {
		a.marker.Store(true)
	} else {
		a.barrier.Store(b.ID)
	}
}

// Errors of a stream without a final barrier.
var (
	errNoFinalBarrier = errors.New("asyncop: the input ended without a final barrier")
	errStoppedAlone   = errors.New("asyncop: stopped by Stop, without a final checkpoint: use the Coordinator's Finish")
)

func (d *Driver[IN, OUT]) joinCheckpoints() {
	d.checkpoints = &checkpointing[IN, OUT]{d: d}
	state, resumes := d.Coordinator.Register(d.Name, d.checkpoints)
	var s Snapshot[IN, OUT]
	err := call.OffLoop(func() (err error) { // codecs are user code
		if resumes {
			s, err = d.State.Decode(state.Bytes())
			if err != nil {
				return err
			}
			err = d.fits(&s)
			if err != nil {
				return err
			}
		}
		return d.restoreObserver(&s)
	})
	if err != nil {
		d.Coordinator.Refuse(d.Name, err)
		return
	}
	d.core.AddSpent(s.Spent)
	down := max(0, d.Clock.Now().UnixNano()-s.Taken) // the wall clock may go back
	d.checkpoints.backlogFilled = d.timers.Now()
	for i, it := range s.Items {
		it.Wait, it.Restored = max(0, it.Wait-time.Duration(down)), true
		d.backlog.Push(it)
		d.checkpoints.restoredNumbers.Push(s.Numbers[i])
	}
	d.runEnded = d.Coordinator.Ended()
}

// endWithRun cancels the operator if its coordinator's run has failed. Without this, a
// gate that waits for a checkpoint would stay closed.
func (d *Driver[IN, OUT]) endWithRun() {
	select {
	case <-d.runEnded:
		d.runEnded = nil // once
		if err := d.Coordinator.Err(); err != nil {
			d.host.Cancel(guard.Wrap("asyncop: checkpoints", err))
		}
	default:
	}
}

// fits returns an error if only the state has an observer, or only the operator. A call
// would then be repeated with another number or without one (law X1). There is an
// exception: a final state without called elements always fits.
func (d *Driver[IN, OUT]) fits(s *Snapshot[IN, OUT]) error {
	switch {
	case (d.Observer != nil) == (s.Observer != nil) || s.Final && !s.hasCalls():
		return nil
	case d.Observer != nil:
		return fmt.Errorf("it has no state of the observer %T: elements may have been called without it; "+
			"add an observer with a state after a final checkpoint without called elements, such as the checkpoint of a Drain", d.Observer)
	}
	return errors.New("it has the state of an observer, and elements may have been called under its numbers: give the operator " +
		"that observer; remove it after a final checkpoint without called elements, such as the checkpoint of a Drain")
}

func (d *Driver[IN, OUT]) restoreObserver(s *Snapshot[IN, OUT]) error {
	if d.Observer == nil || s.Observer == nil {
		s.Numbers = make([]int64, len(s.Items))
	}
	if d.Observer == nil {
		return nil
	}
	numbers := slices.DeleteFunc(slices.Clone(s.Numbers), func(n int64) bool { return n <= 0 })
	return d.Observer.Restore(s.Observer, numbers, d.Coordinator.RequestCheckpoint)
}

// wasAccepted reports whether the next item of the backlog was accepted before the
// restart, so that it has passed the gates. Items that were read past the capacity have
// not passed them. Such an item has no number at the observer with a state. Without this
// observer the items cannot be told apart, so wasAccepted returns true for all restored
// items.
func (k *checkpointing[IN, OUT]) wasAccepted() bool {
	return k != nil && k.restoredNumbers.Len() > 0 && (k.d.Observer == nil || k.restoredNumbers.Peek() != 0)
}

// leastSpare is for elements that arrive before the copy.
const leastSpare = 1024

// Pending implements participant.Participant. The coordinator has started the checkpoint
// of b. Pending allocates the memory for the copy of the items in flight, so that the
// loop does not wait for this.
func (k *checkpointing[IN, OUT]) Pending(b participant.Barrier) {
	if b.Kind != participant.EndOfInput {
		counts, _, _ := k.d.published.get()
		buffer := make([]core.Item[IN, OUT], counts.InFlight+counts.InFlight/8+leastSpare)
		clear(buffer) // the first write makes the system provide the memory
		k.buffer.Store(&buffer)
	}
	k.triggered.add(b)
	k.d.host.WakeUp()
}

// Completed implements participant.Participant.
func (k *checkpointing[IN, OUT]) Completed(id uint64) {
	k.completedSum(id)
	if k.d.Observer != nil {
		k.d.Observer.Completed(id)
	}
}

// Aborted implements participant.Participant.
func (k *checkpointing[IN, OUT]) Aborted(id uint64, _ error) {
	k.triggered.barrier.CompareAndSwap(id, 0)
}

// Coming announces the next barrier: see checkpoint.Source.
func (k *checkpointing[IN, OUT]) Coming(b participant.Barrier) {
	k.imminent.add(b)
	k.d.host.WakeUp()
}

// Overflow returns nil if the source may continue. Otherwise too many items were read
// past the capacity, and it returns a channel that is closed when the source may
// continue: see checkpoint.Source.
func (k *checkpointing[IN, OUT]) Overflow() <-chan struct{} {
	if full := k.full.Load(); full != nil {
		return *full
	}
	return nil
}

// holdSource stops the source, or lets it continue.
func (k *checkpointing[IN, OUT]) holdSource(hold bool) {
	switch full := k.full.Load(); {
	case hold && full == nil:
		c := make(chan struct{})
		k.full.Store(&c)
	case !hold && full != nil:
		k.full.Store(nil)
		close(*full)
	}
}

// awaitStart waits until all participants accept their states, or the operator must end.
func (d *Driver[IN, OUT]) awaitStart() {
	d.host.Parked.Store(true)
	defer d.host.Parked.Store(false)
	for {
		if d.stopping.Load() { // the run has not begun, so there are no elements to drain
			d.host.Cancel(guard.Wrap("asyncop: not started", d.ErrStopped))
		}
		d.core.EndIfCancelled()
		if d.failed() {
			return
		}
		select {
		case <-d.Coordinator.Started():
			return
		case <-d.Coordinator.Ended():
			d.core.End(guard.Wrap("asyncop: not started", cmp.Or(d.Coordinator.Err(), wiring.ErrClosed)))
		case <-d.host.C:
		}
	}
}

// mayOverflow reports whether an item may be read past the capacity, to reach a barrier
// or the marker of the end of the input. If the source sends it next, there is no limit.
// If the coordinator has only started the checkpoint, at most MaxOverflow items are read,
// and one more, which may be the barrier.
func (d *Driver[IN, OUT]) mayOverflow() bool {
	if d.failed() {
		return false
	}
	isNear := d.isAhead(&d.checkpoints.triggered) && d.overflowLen() <= d.MaxOverflow
	return isNear || d.isAhead(&d.checkpoints.imminent)
}

// isAhead reports whether an announced barrier or marker has not arrived.
func (d *Driver[IN, OUT]) isAhead(a *announced) bool {
	return a.barrier.Load() > d.checkpoints.newestID || a.marker.Load() && d.input == inputOpen
}

// overflowLen returns the number of items that were read past the capacity.
func (d *Driver[IN, OUT]) overflowLen() int {
	return d.backlog.Len() - d.checkpoints.restoredNumbers.Len()
}

// receivedBarrier handles the arrival of a barrier, which may have to wait: see
// passBarrier.
func (d *Driver[IN, OUT]) receivedBarrier(b participant.Barrier) {
	d.checkpoints.newestID = max(d.checkpoints.newestID, b.ID)
	d.checkpoints.arrived = &b
	if b.Kind == participant.Drain {
		d.endInput() // the elements in flight complete first
	}
	d.passBarrier()
}

// reportMarker is called for each value that was emitted. If it is the marker
// of the end of the input, all elements have left, and reportMarker reports this to the
// coordinator.
func (k *checkpointing[IN, OUT]) reportMarker(value any) {
	if b, ok := value.(participant.Barrier); ok {
		k.encoding.Go(func() { b.Report(k.d.Name, nil, nil) })
	}
}

// passBarrier handles the arrived barrier as soon as it may pass. It reports the state of
// the operator, and lets the barrier overtake the queue.
func (d *Driver[IN, OUT]) passBarrier() {
	k := d.checkpoints
	if k == nil || k.arrived == nil || d.failed() {
		return
	}
	b := *k.arrived
	if b.Kind == participant.Drain && !d.drained() {
		return
	}
	isUnloaded := d.unload()
	if !isUnloaded { // the barrier would separate the results of an element
		return
	}
	k.arrived = nil
	if b.Kind == participant.Suspend {
		d.suspend()
	}
	s, err := d.copyInFlight(b)
	k.encoding.Go(func() { d.report(b, s, err) })
	k.passing.Push(b)
}

// copyInFlight copies the items of a checkpoint (law C1). The loop waits for the copy,
// not for its encoding.
func (d *Driver[IN, OUT]) copyInFlight(b participant.Barrier) (s Snapshot[IN, OUT], err error) {
	began := d.timers.Now()
	var items []core.Item[IN, OUT]
	if buffer := d.checkpoints.buffer.Swap(nil); buffer != nil {
		items = (*buffer)[:0]
	}
	items = d.core.Items(items, d.State.Results != nil)
	for it := range d.backlog.All() {
		if it.Kind != core.Control || !isEndOfInput(it.Rest) {
			it.Wait = d.checkpoints.restOf(&it, d.core.State().Now)
			items = append(items, it)
		}
	}
	s = Snapshot[IN, OUT]{Taken: d.Clock.Now().UnixNano(), Final: b.Kind.Final(), Items: items, Spent: d.core.Spent()}
	d.checkpoints.noteSum(b)
	if d.Observer != nil {
		err = call.OffLoop(func() error { d.snapshotObserver(b.ID, &s); return nil })
	}
	d.checkpoints.pause = d.timers.Now() - began
	return s, err
}

func (d *Driver[IN, OUT]) snapshotObserver(id uint64, s *Snapshot[IN, OUT]) {
	s.Numbers = append(make([]int64, 0, len(s.Items)), d.observing.Numbers(d.Observer.Number)...)
	s.Numbers = slices.AppendSeq(s.Numbers, d.checkpoints.restoredNumbers.All())
	numOverflow := len(s.Items) - len(s.Numbers)
	s.Numbers = append(s.Numbers, make([]int64, numOverflow)...) // the overflow has number 0
	s.Observer = append([]byte{}, d.Observer.Snapshot(id)...)
}

// restOf returns the rest of the back-off of a restored item. Time in the backlog counts.
func (k *checkpointing[IN, OUT]) restOf(it *core.Item[IN, OUT], now time.Duration) time.Duration {
	return max(0, it.Wait-(now-k.backlogFilled))
}

// report encodes and reports a state, or err, on a new goroutine.
func (d *Driver[IN, OUT]) report(b participant.Barrier, s Snapshot[IN, OUT], err error) {
	var state participant.State
	if err == nil {
		err = call.OffLoop(func() (err error) {
			state, err = d.State.Encode(s)
			return err
		})
	}
	if err != nil && b.Kind.Final() {
		// before the report, which may end the operator
		d.checkpoints.finalStateErr.set(guard.Wrap(fmt.Sprintf("asyncop: state of final checkpoint %d", b.ID), err))
	}
	b.Report(d.Name, state, err)
}

// awaitFinalState waits until the states are encoded, and returns the error of encoding the
// final state, or nil. If the operator is cancelled meanwhile, it returns the cause at
// once.
func (d *Driver[IN, OUT]) awaitFinalState() error {
	encoded := make(chan struct{})
	go func() {
		d.checkpoints.encoding.Wait()
		close(encoded)
	}()
	var cut error
	select {
	case <-encoded:
	case <-d.host.Life.Done():
		cut = context.Cause(d.host.Life)
	}
	return cmp.Or(d.checkpoints.finalStateError(), cut)
}

// finalStateError is awaitFinalState without waiting. If the error leads to a cancel, it
// is set before the cancel.
func (k *checkpointing[IN, OUT]) finalStateError() error {
	if k == nil {
		return nil
	}
	return k.finalStateErr.get()
}

// awaitInputEnd waits, after a final barrier, until upstream closes In or the run has
// ended. If an element arrives, the barrier has overtaken it on another branch, which is
// an error (law C2).
func (d *Driver[IN, OUT]) awaitInputEnd() error {
	isPending := d.checkpoints.triggered.barrier.Load() == d.checkpoints.newestID // started by the coordinator, and not aborted
	if !d.final || !isPending {
		// In may stay open: the coordinator has aborted the checkpoint, so the run ends.
		// Or the source was registered after the operator, so it could send the barrier
		// before Pending was called here.
		return nil
	}
	for d.input != inputClosed {
		select {
		case v, ok := <-d.in:
			if !ok {
				d.input = inputClosed
			}
			switch v := v.(type) {
			case wiring.Failure:
				return guard.Wrap("asyncop: upstream", v.Err)
			case participant.Barrier:
				if err := d.barriers.Add(v.ID, isEndOfInput(v)); err != nil {
					return guard.Wrap("asyncop", err)
				}
			case queue.Watermark:
			default:
				if ok {
					d.late.count.Add(1)
					m, _ := message.FromElement(v)
					d.refused(observe.Discarded, message.With(m, struct{}{}))
					return guard.Wrap("asyncop", wiring.ErrAfterFinal)
				}
			}
		case <-d.Coordinator.Ended():
			return nil
		case <-d.host.Life.Done():
			return nil
		}
	}
	return nil
}

// endCheckpoints fails the coordinator's run if the operator has failed with err, or was
// stopped without a final barrier.
func (d *Driver[IN, OUT]) endCheckpoints(err error) {
	switch {
	case d.checkpoints == nil:
	case err != nil:
		d.Coordinator.Fail(d.Name, err)
	case !d.final: // Stop was called: if the input had closed, err would be errNoFinalBarrier
		d.Coordinator.Fail(d.Name, errStoppedAlone)
	}
}

// isRedelivered reports whether an element that Abandon has returned is redelivered. The
// source of its message redelivers it, or the next run of a stream with checkpoints.
func (d *Driver[IN, OUT]) isRedelivered(e *core.Slot[IN, OUT]) bool {
	return d.checkpoints != nil || d.barriers.Any() || d.messages.ComesAgain(e)
}

// isEndOfInput reports whether a control element is the marker of the end of the input.
// Only barriers follow it.
func isEndOfInput(control any) bool {
	b, ok := control.(participant.Barrier)
	return ok && b.Kind == participant.EndOfInput
}
