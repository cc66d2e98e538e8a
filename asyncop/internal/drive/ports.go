package drive

import (
	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/asyncop/observe"
)

// port is the source of items and the destination of results. There are four:
//
//	flowPort       the channels of a flow
//	transferPort   Via, To: a flow with a ring in place of its Out
//	ringPort       Results: two rings
//	bodyPort       ResultsOf: the caller's goroutine
//
// The loop calls the methods of a port, unless stated otherwise.
type port[IN, OUT any] interface {
	// take takes the next item if one is ready.
	take() bool
	// put emits the loaded value if downstream takes it now.
	put() bool
	// flush is called after some values were put.
	flush()

	// sleep waits until the port or the loop has work.
	sleep()
	// lookForWork reports whether take or put has work. Otherwise the goroutine at the
	// other end, or a gate, will wake the loop: Parked is set, so that a wake-up is not
	// lost. A port whose sleep waits for its channels need not report their work.
	lookForWork() bool

	// putCount returns the number of emitted results, and the reader that consumes them
	// (law O1). by is nil if emitted results belong to downstream at once.
	putCount() (n uint64, by *reader)

	// announceSlots announces the number of free slots.
	announceSlots(free int)

	// stop notifies the other end of the operator's end. Any goroutine may call it, even
	// twice.
	stop()
	// close ends the port. Present and later items are discarded.
	close()
}

// attachment is a port, and how the loop uses it.
type attachment[IN, OUT any] struct {
	port          port[IN, OUT]
	drainsRetries bool // see Driver.drainsRetries

	// moved is closed when the caller's goroutine continues with the core. It is nil if
	// the loop keeps its goroutine.
	moved chan struct{}
}

// attach sets the next port. Any goroutine may call it.
func (d *Driver[IN, OUT]) attach(a *attachment[IN, OUT]) {
	d.attached.Store(a)
	d.host.WakeUp()
	select {
	case <-d.ended: // the loop may not have seen the port
		a.port.stop()
	default:
	}
}

// switchPort continues with the port of a, the attachment that the caller has looked at.
// A newer attachment, which may need another goroutine, waits for the next step.
// switchPort is called before input is taken.
func (d *Driver[IN, OUT]) switchPort(a *attachment[IN, OUT]) {
	if a != d.current {
		close(d.out) // only the first port uses the channel
		d.current = a
		d.drainsRetries = d.drainsRetries || a.drainsRetries
	}
}

// transferPort is the port of a flow with Via or To.
type transferPort[IN, OUT any] struct {
	flowPort[IN, OUT]
	out *outlet[any]
}

func (p *transferPort[IN, OUT]) put() bool { return p.out.ring.put(p.boxed(), call.Message{}) }

func (p *transferPort[IN, OUT]) flush() { p.out.WakeUp() }

func (p *transferPort[IN, OUT]) sleep() { p.d.sleepOn(nil, nil) }

func (p *transferPort[IN, OUT]) lookForWork() bool { return p.d.loaded && p.out.lookForSpace() }

func (p *transferPort[IN, OUT]) putCount() (n uint64, by *reader) {
	return p.out.ring.tail.Load(), &p.out.reader
}

func (p *transferPort[IN, OUT]) stop() { p.out.close() }

func (p *transferPort[IN, OUT]) close() {
	p.stop()
	p.d.discardFromIn()
}

// ringPort takes elements from a ring and puts results into another.
type ringPort[IN, OUT any] struct {
	d   *Driver[IN, OUT]
	in  inlet[IN]
	out *outlet[OUT]
}

func (p *ringPort[IN, OUT]) take() bool {
	v, m, ok := p.in.take()
	switch {
	case ok:
		p.d.receivedElement(v, m)
	case p.in.ring.exhausted():
		p.d.receivedEnd()
	default:
		return false
	}
	return true
}

func (p *ringPort[IN, OUT]) put() bool {
	return p.out.ring.put(p.d.results[0], p.d.messageOfNext())
}

func (p *ringPort[IN, OUT]) flush() { p.out.WakeUp() }

func (p *ringPort[IN, OUT]) sleep() { <-p.d.host.C }

func (p *ringPort[IN, OUT]) lookForWork() bool {
	return p.d.loaded && p.out.lookForSpace() || p.d.prepareRead() && (p.in.ring.len() > 0 || p.in.ring.ended.Load())
}

func (p *ringPort[IN, OUT]) putCount() (n uint64, by *reader) {
	return p.out.ring.tail.Load(), &p.out.reader
}

func (p *ringPort[IN, OUT]) announceSlots(free int) {
	if p.in.ring.messages != nil {
		p.in.announceSlots(free)
	}
}

func (p *ringPort[IN, OUT]) stop() {
	p.in.stop()
	p.out.close()
}

func (p *ringPort[IN, OUT]) close() {
	p.stop()
	for _, m, ok := p.in.take(); ok; _, m, ok = p.in.take() {
		p.d.late.count.Add(1)
		p.d.refused(observe.Discarded, m)
	}
}
