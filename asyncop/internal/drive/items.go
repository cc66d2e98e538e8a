package drive

import (
	"fmt"
	"reflect"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/asyncop/internal/core"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/wiring"
	"github.com/weirflow/weir/message"
)

// endInput ends the input (law A5). Elements in the backlog still get their first
// attempts.
func (d *Driver[IN, OUT]) endInput() {
	d.life = max(d.life, ending)
	d.endRetriesAndWaits()
}

// endRetriesAndWaits ends the waits of batches and, without drainsRetries, retries (law
// A5).
func (d *Driver[IN, OUT]) endRetriesAndWaits() {
	d.endWaits()
	if !d.drainsRetries {
		d.core.EndRetries()
	}
}

// endWaits makes batches start without waiting for more members, if all elements have
// entered the core.
func (d *Driver[IN, OUT]) endWaits() {
	if d.batches != nil && (d.life >= ending || d.input != inputOpen) && d.backlog.Len() == 0 {
		d.batches.EndInput()
	}
}

// drained reports whether the input has ended and all elements have left.
func (d *Driver[IN, OUT]) drained() bool {
	return d.life >= ending && d.backlog.Len() == 0 && d.core.State().Len == 0
}

// acceptSome takes elements while slots are free, and reports whether there were any.
// Without a free slot the input is not read, except to reach a barrier: see mayOverflow.
// So the end of the input may be noticed only when a slot becomes free.
func (d *Driver[IN, OUT]) acceptSome() (busy bool) {
	d.gateClosed = false
	for range stepLimit {
		if d.backlog.Len() > 0 && d.feed() {
			busy = true
			continue
		}
		if !d.prepareRead() || !d.current.port.take() {
			return busy
		}
		busy = true
	}
	return busy
}

// feed moves the oldest item of the backlog into the core, if a slot is free and the
// gates are open. It reports whether it did.
func (d *Driver[IN, OUT]) feed() bool {
	if d.core.FreeSlots() == 0 || d.suspended() {
		return false
	}
	if len(d.Gates) > 0 && d.backlog.Peek().Kind == core.Record && !d.checkpoints.wasAccepted() {
		isAdmitted := d.askGates()
		if !isAdmitted {
			return false
		}
	}
	it, number := d.backlog.Pop(), int64(0)
	k := d.checkpoints
	if k != nil && k.restoredNumbers.Len() > 0 {
		number = k.restoredNumbers.Pop()
		it.Wait = k.restOf(&it, d.timers.Now())
	}
	if m, ok := it.Rest.(call.Message); ok {
		d.messages.SetNext(m)
	}
	d.core.Restore(it, number)
	d.endWaits()
	return true
}

// prepareRead reports whether the next element may be read, and sets letsIn. If letsIn is
// set, the element enters the core: the backlog is empty, a slot is free, and the gates
// admit it. If letsIn is not set, the element is read only to reach a barrier, and waits
// in the backlog.
func (d *Driver[IN, OUT]) prepareRead() bool {
	if d.life >= ending || d.checkpoints != nil && d.checkpoints.arrived != nil {
		return false
	}
	d.letsIn = d.backlog.Len() == 0 && d.core.FreeSlots() > 0 && (len(d.Gates) == 0 || d.askGates())
	return d.letsIn || d.checkpoints != nil && d.mayOverflow()
}

// received handles a value from Driver.in. ok is false if the channel was closed.
func (d *Driver[IN, OUT]) received(v any, ok bool) {
	if !ok {
		d.receivedEnd()
		return
	}
	in, isIN := v.(IN)
	switch {
	case isIN && d.plain:
		d.receivedElement(in, call.Message{})
		return
	case participant.IsControl(v): // even if IN is any
		d.receivedControl(v)
		return
	}
	in, m, isElement := decoded[IN](v)
	var err error
	switch {
	case !isElement:
		err = d.User.TypeError(v)
	case d.checkpoints != nil && m.Pending():
		err = guard.Wrap("asyncop", wiring.ErrAcknowledged)
	}
	if err != nil {
		d.late.count.Add(1)
		d.refused(observe.Discarded, m)
		d.core.End(err)
		return
	}
	d.receivedElement(in, m)
}

// decoded returns the element in v, and its message, even if the element is not of type
// IN.
func decoded[IN any](v any) (in IN, m call.Message, ok bool) {
	if typed, ok := v.(message.Message[IN]); ok {
		return typed.Value, message.With(typed, struct{}{}), true
	}
	if untyped, ok := message.FromElement(v); ok {
		v, m = untyped.Value, message.With(untyped, struct{}{})
	}
	in, ok = v.(IN)
	if !ok && v == nil {
		ok = reflect.TypeFor[IN]().Kind() == reflect.Interface
	}
	return in, m, ok
}

func (d *Driver[IN, OUT]) receivedEnd() {
	d.input = inputClosed
	d.endWithRun() // if the coordinator's run has failed, upstream may have closed the input for this reason
	d.core.EndIfCancelled()
	if (d.checkpoints != nil || d.barriers.Any()) && !d.final { // the stream was cut
		d.core.End(errNoFinalBarrier)
		return
	}
	d.endInput()
}

// receivedElement handles an element. prepareRead has set letsIn.
func (d *Driver[IN, OUT]) receivedElement(in IN, m call.Message) {
	if d.letsIn {
		if m != (call.Message{}) {
			d.messages.SetNext(m)
		}
		d.core.Accept(in)
		return
	}
	it := core.Item[IN, OUT]{In: in}
	if m != (call.Message{}) {
		it.Rest = m
	}
	d.backlog.Push(it)
}

func (d *Driver[IN, OUT]) receivedControl(v any) {
	it := core.Item[IN, OUT]{Kind: core.Control, Rest: v}
	switch b := v.(type) {
	case wiring.Failure:
		d.core.End(guard.Wrap("asyncop: upstream", b.Err))
		return
	case participant.Barrier:
		d.final = b.Kind.Final()
		if b.Kind == participant.Suspend {
			d.drainsRetries = true // the stream continues, so elements may retry
		}
		if err := d.Node.MarkCheckpointed(); err != nil { // law C2
			d.core.End(guard.Wrap("asyncop", err))
			return
		}
		if err := d.barriers.Add(b.ID, isEndOfInput(b)); err != nil { // law C2
			d.core.End(guard.Wrap("asyncop", err))
			return
		}
		if d.Observer != nil && b.IsReordered() { // law C2
			d.core.End(fmt.Errorf("asyncop: the observer %T needs elements in the same order after a restart, and an operator upstream "+
				"emits them in the order of completion: use an ordered one there", d.Observer))
			return
		}
		if d.Reorders {
			b = b.Reordered()
			it.Rest = b
		}
		switch {
		case isEndOfInput(b): // the marker keeps its position in the queue, but ends retries at once
			d.input = inputMarked
			d.endRetriesAndWaits()
			it = core.Marker[IN, OUT](b)
		case d.checkpoints != nil:
			d.receivedBarrier(b)
			return
		}
	}
	if d.backlog.Len() > 0 || d.core.FreeSlots() == 0 {
		d.backlog.Push(it)
	} else {
		d.core.Restore(it, 0)
	}
}

// allLeft reports whether all accepted items have left, or are in the final checkpoint
// whose barrier has left.
func (d *Driver[IN, OUT]) allLeft() bool {
	if k := d.checkpoints; k != nil && (k.arrived != nil || k.passing.Len() > 0) { // not emitted yet
		return false
	}
	return (d.suspended() || d.drained()) && d.leaving.Len() == 0
}

// emitSome emits results and control elements while downstream takes them.
func (d *Driver[IN, OUT]) emitSome() (busy bool) {
	for n := 0; n < stepLimit && d.load() && d.current.port.put(); n++ {
		d.sent()
		busy = true
	}
	if busy {
		d.current.port.flush()
	}
	return busy
}

// load sets the next value to emit, and reports whether there is one. Barriers overtake
// elements, except a Drain. They do not separate the results of an element.
func (d *Driver[IN, OUT]) load() bool {
	if d.loaded {
		return true
	}
	if k := d.checkpoints; k != nil {
		switch {
		case k.arrived != nil && k.arrived.Kind != participant.Drain: // it passes first: see passBarrier
			return false
		case k.passing.Len() > 0:
			d.loaded, d.barrier = true, true
			d.next = k.passing.Peek()
			return true
		}
	}
	if d.suspended() {
		return false
	}
	results, control := d.core.Head()
	switch {
	case control != nil:
		d.loaded, d.next = true, control
	case len(results) > 0:
		d.loaded = true
		d.results, d.numResults = results, len(results)
		if d.messages.Seen {
			d.loadMessage(d.messages.PrepareHead())
		}
	}
	return d.loaded
}

func (d *Driver[IN, OUT]) loadMessage(m call.Message) {
	d.message = m
	if m != (call.Message{}) && len(d.results) > 1 {
		d.parts = message.Split(m, d.results...)
	}
}

func (d *Driver[IN, OUT]) messageOfNext() call.Message {
	if len(d.parts) > 0 {
		return message.With(d.parts[0], struct{}{})
	}
	return d.message
}

// unload takes back a loaded value, so that a barrier can overtake it. It returns false
// if some results of the element were sent: a barrier must not separate them (law Q1).
func (d *Driver[IN, OUT]) unload() bool {
	if d.loaded && !d.barrier {
		if len(d.results) < d.numResults {
			return false
		}
		d.upNext = upNext[OUT]{}
	}
	return true
}

// sent is called when the loaded value was sent. An element stays at the head until its
// last result was sent.
func (d *Driver[IN, OUT]) sent() {
	if d.numResults > 0 {
		d.emitted++
		if len(d.parts) > 0 {
			d.parts = d.parts[1:]
			d.messages.NoteCarried() // the parts carry the message
		}
		d.results = d.results[1:]
		if len(d.results) > 0 {
			d.next = nil
			return
		}
	}
	barrier, next := d.barrier, d.next
	d.upNext = upNext[OUT]{}
	if barrier {
		d.checkpoints.passing.Pop()
		return
	}
	if d.checkpoints != nil {
		d.checkpoints.reportMarker(next)
	}
	d.core.PopHead(observe.Emitted)
	if d.observing != nil {
		d.noteEmitted()
	}
}

// flowPort is the port for the channels of a flow: In and Out.
type flowPort[IN, OUT any] struct{ d *Driver[IN, OUT] }

func (p *flowPort[IN, OUT]) take() bool {
	select {
	case v, ok := <-p.d.in:
		p.d.received(v, ok)
		return true
	default:
		return false
	}
}

// boxed returns the loaded value for a channel.
func (p *flowPort[IN, OUT]) boxed() any {
	d := p.d
	switch {
	case d.next != nil:
	case d.message == (call.Message{}):
		d.next = d.results[0]
	default:
		d.next = message.With(d.messageOfNext(), d.results[0])
	}
	return d.next
}

func (p *flowPort[IN, OUT]) put() bool {
	select {
	case p.d.out <- p.boxed():
		return true
	default:
		return false
	}
}

func (p *flowPort[IN, OUT]) flush() {}

func (p *flowPort[IN, OUT]) sleep() {
	if p.d.loaded {
		p.d.sleepOn(p.d.out, p.boxed())
	} else {
		p.d.sleepOn(nil, nil)
	}
}

// sleepOn waits until a value arrives through In, value is sent to dest, or the loop is
// woken. If dest is nil, it sends no value.
func (d *Driver[IN, OUT]) sleepOn(dest chan<- any, value any) {
	var in <-chan any
	if d.prepareRead() {
		in = d.in
	}
	select {
	case v, ok := <-in:
		d.host.Parked.Store(false) // letters of this element need not wake the loop
		d.received(v, ok)
	case dest <- value:
		d.sent()
	case <-d.runEnded: // see checkSignals
	case <-d.host.C:
	}
}

func (p *flowPort[IN, OUT]) lookForWork() bool { return false }

// putCount returns no reader: the results in Out belong to downstream.
func (p *flowPort[IN, OUT]) putCount() (n uint64, by *reader) { return 0, nil }

func (p *flowPort[IN, OUT]) announceSlots(int) {}

func (p *flowPort[IN, OUT]) stop() {}

func (p *flowPort[IN, OUT]) close() {
	close(p.d.out)
	p.d.discardFromIn()
}
