package drive

import (
	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/message"
)

// emitSome hands over what may leave, as long as downstream takes it.
func (d *Driver[IN, OUT]) emitSome() (busy bool) {
	for n := 0; n < turnLimit && d.mayEmit() && d.load() && d.current.port.put(); n++ {
		d.sent()
		busy = true
	}
	if busy {
		d.current.port.flush()
	}
	return busy
}

// mayEmit reports whether the next element may be begun: not while a barrier waits for the present one to end, unless it
// waits for all of them.
func (d *Driver[IN, OUT]) mayEmit() bool {
	return d.loaded || !d.barrierArrived() || d.checks.arrived.Kind == participant.Drain
}

// load makes next the next thing to emit and reports whether there is one. Barriers go before everything, but not into
// the middle of an element. Elements that emit nothing leave here.
func (d *Driver[IN, OUT]) load() bool {
	if d.loaded {
		return true
	}
	if d.checks != nil && d.checks.passing.Len() > 0 {
		d.loaded, d.barrier, d.next = true, true, d.checks.passing.Peek()
		return true
	}
	if d.suspended() {
		return false
	}
	results, control := d.core.Head()
	switch {
	case control != nil:
		d.loaded, d.control, d.next = true, control, control
	case len(results) > 0:
		d.loaded, d.results, d.whole = true, results, len(results)
		if m := d.messages.Head(); m != (call.Message{}) {
			d.loadMessage(m)
		}
		d.current.port.load()
	}
	return d.loaded
}

// loadMessage makes results, of which none is next yet, those of a message.
func (d *Driver[IN, OUT]) loadMessage(m call.Message) {
	if d.message = m; len(d.results) > 1 {
		d.parts = message.Split(m, d.results...)
	}
}

// box makes next the next result of the head, as channels carry it.
func (d *Driver[IN, OUT]) box() {
	if d.message == (call.Message{}) {
		d.next = d.results[0]
	} else {
		d.next = message.With(d.messageOfNext(), d.results[0])
	}
}

// messageOfNext returns the message whose value the next result is.
func (d *Driver[IN, OUT]) messageOfNext() call.Message {
	if len(d.parts) > 0 {
		return message.With(d.parts[0], struct{}{})
	}
	return d.message
}

// unload takes back what was loaded and not sent, so that a barrier can go before it, and reports whether it could:
// the results of one element are not split (law Q1).
func (d *Driver[IN, OUT]) unload() bool {
	if d.loaded && !d.barrier {
		if len(d.results) < d.whole {
			return false
		}
		d.nothingLoaded()
	}
	return true
}

func (d *Driver[IN, OUT]) nothingLoaded() {
	d.loaded, d.barrier, d.control, d.results, d.whole, d.next = false, false, nil, nil, 0, nil
	if d.message != (call.Message{}) {
		d.message, d.parts = call.Message{}, nil
	}
}

// sent goes on after next was sent. The entry of an element with several results stays the head of the queue until the
// last one is sent.
func (d *Driver[IN, OUT]) sent() {
	if d.whole > 0 {
		d.emitted++
		if len(d.parts) > 0 {
			d.parts = d.parts[1:]
			d.messages.Carried() // by this part and the others
		}
		if d.results = d.results[1:]; len(d.results) > 0 {
			d.current.port.load()
			return
		}
	}
	barrier, control := d.barrier, d.control
	d.nothingLoaded()
	if barrier {
		d.checks.passing.Pop()
		return
	}
	if control != nil && d.checks != nil {
		d.checks.passedMarker(control)
	}
	d.core.Left()
	if d.observing != nil {
		d.hasLeft()
	}
}
