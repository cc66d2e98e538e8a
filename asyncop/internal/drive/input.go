package drive

import (
	"fmt"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/asyncop/internal/core"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/wiring"
)

// endInput takes nothing more. What is in the backlog was taken already: it gets its first attempts, and no retries (law A5).
func (d *Driver[IN, OUT]) endInput() {
	d.inOver = true
	d.endRetries()
}

// endRetries ends retries, unless they are to be drained (law A5).
func (d *Driver[IN, OUT]) endRetries() {
	d.endWaits()
	if !d.drains {
		d.core.EndRetries()
	}
}

// endWaits lets no batch wait for others if none follow those that the core has.
func (d *Driver[IN, OUT]) endWaits() {
	if d.batches != nil && (d.inOver || d.marked) && d.backlog.Len() == 0 {
		d.batches.NoneFollows()
	}
}

// drained reports whether nothing follows and all that was taken has left.
func (d *Driver[IN, OUT]) drained() bool {
	return d.inOver && d.backlog.Len() == 0 && d.core.Len() == 0
}

// acceptSome takes elements as long as there are some and slots for them. End of input is noticed only when a slot is
// free to read for.
func (d *Driver[IN, OUT]) acceptSome() (busy bool) {
	d.shut = false
	for range turnLimit {
		if d.feed() {
			busy = true
			continue
		}
		if !d.mayRead() || !d.current.port.take() {
			return busy
		}
		busy = true
	}
	return busy
}

// feed moves one element of the backlog into the queue, if there are one and a slot for it.
func (d *Driver[IN, OUT]) feed() bool {
	if d.backlog.Len() == 0 || d.core.Failed() || d.core.Room() == 0 || d.suspended() {
		return false
	}
	if len(d.Gates) > 0 && d.backlog.Peek().Kind == core.Record && !d.checks.wasAccepted() && !d.admits() {
		return false
	}
	number := int64(0)
	if d.checks != nil && d.checks.restored > 0 {
		number = d.checks.restoredNumber(0)
		d.checks.restored--
	}
	it := d.backlog.Pop()
	if d.checks != nil {
		it.Wait = d.checks.restOf(&it, d.timers.Now())
	}
	if m, ok := it.Rest.(call.Message); ok {
		d.messages.Next(m)
	}
	if it.Kind == core.Control && isEndOfInput(it.Rest) {
		d.core.AcceptControl(it.Rest, false)
	} else {
		d.core.Restore(it, number)
	}
	d.endWaits()
	return true
}

// mayRead reports whether the next element may be read: if a slot is free for it, or to let a barrier come nearer. Then it does
// not get a slot past the gates.
func (d *Driver[IN, OUT]) mayRead() bool {
	if d.inOver || d.core.Failed() || d.barrierArrived() {
		return false
	}
	d.letsIn = d.backlog.Len() == 0 && d.core.Room() > 0 && (len(d.Gates) == 0 || d.admits())
	return d.letsIn || d.mayOverflow()
}

// received goes on with what has come through in; ok is false if that was closed.
func (d *Driver[IN, OUT]) received(v any, ok bool) {
	if !ok {
		var none IN
		d.receivedElement(none, call.Message{}, false)
		return
	}
	in, m, control, err := d.Decode(v)
	if err == nil && d.checks != nil && m.Pending() {
		err = guard.Wrap("asyncop", d.ErrAcknowledged)
	}
	switch {
	case err != nil:
		d.discarded.Add(1)
		d.refused(observe.Discarded, m)
		d.core.End(err)
	case control:
		d.receivedControl(v)
	default:
		d.receivedElement(in, m, true)
	}
}

// receivedElement goes on with an element; ok is false at the end of the input.
func (d *Driver[IN, OUT]) receivedElement(in IN, m call.Message, ok bool) {
	switch {
	case !ok:
		d.inClosed = true
		d.endWithRun() // upstream may have noticed it first: the end is no clean one
		d.core.EndIfCancelled()
		if (d.checks != nil || d.barriers.Any()) && !d.final { // that is not the end of the input
			d.core.End(errNoFinalBarrier)
			return
		}
		d.endInput()
	case d.letsIn:
		d.messages.Next(m)
		d.core.Accept(in)
	default:
		it := core.Item[IN, OUT]{In: in}
		if m != (call.Message{}) {
			it.Rest = m
		}
		d.backlog.Push(it)
	}
}

func (d *Driver[IN, OUT]) receivedControl(v any) {
	switch b := v.(type) {
	case wiring.Failure:
		d.core.End(guard.Wrap("asyncop: upstream", b.Err))
		return
	case participant.Barrier:
		d.final = b.Kind.Final()
		if b.Kind == participant.Suspend {
			d.drains = true // neither is that: without a part in checkpoints, all is finished as if more came
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
			v = b
		}
		if isEndOfInput(v) {
			d.receivedEndOfInput()
		} else if d.checks != nil {
			d.receivedBarrier(b)
			return
		}
	}
	if d.backlog.Len() == 0 && d.core.Room() > 0 {
		d.core.AcceptControl(v, !isEndOfInput(v))
	} else {
		d.backlog.Push(core.Item[IN, OUT]{Kind: core.Control, Rest: v})
	}
}

// receivedEndOfInput does what the marker makes known at once, also about elements of the backlog. It takes its turn like a
// watermark.
func (d *Driver[IN, OUT]) receivedEndOfInput() {
	d.marked = true
	d.endRetries()
}

// ended reports whether everything that was taken has left.
func (d *Driver[IN, OUT]) ended() bool {
	if d.checks != nil && !d.checks.quiet() {
		return false
	}
	return (d.suspended() || d.drained()) && d.leaving.Len() == 0
}
