package drive

import (
	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/asyncop/observe"
)

// port is where the loop takes items from and hands results to: the channels of a flow, a ring in place of its Out, or the rings of
// Results. The loop does not know which one it has. But for what says otherwise, the loop calls it.
type port[IN, OUT any] interface {
	// take takes what comes next, if it is at hand.
	take() bool
	// put hands over what is loaded, if downstream takes it now.
	put() bool
	// flush is called after some were handed over.
	flush()

	// sleep waits until something happens, to the port or else.
	sleep()
	// mayMove reports whether take or put has something to do. Called with parked set: the other side wakes the loop from then on.
	mayMove() bool

	// handed returns how many results were handed over, and where they belong to the operator until downstream is done with them (law O1);
	// nil: they do not.
	handed() (n uint64, by *reader)

	// offer says how many slots are free.
	offer(room int)

	// stop tells the other side that the operator has ended. Called from any goroutine, maybe twice.
	stop()
	// close ends the port with the operator: what is still in it, or comes, is not taken.
	close()
}

// attachment is the port of an operator, once it is known what drives it.
type attachment[IN, OUT any] struct {
	port   port[IN, OUT]
	drains bool // the end of the input lets retries go on

	handed chan struct{} // closed by the loop: its goroutine has handed the core over to the one of put, and ends; nil: it goes on
}

// attach gives the loop another port. Called from any goroutine.
func (d *Driver[IN, OUT]) attach(a *attachment[IN, OUT]) {
	d.attached.Store(a)
	d.host.WakeUp()
	select {
	case <-d.over: // the loop may not have seen it
		a.port.stop()
	default:
	}
}

// switchPort continues with the port of a, unless the loop has it already. It is called before an element is accepted, and
// so before the end of the input is noticed. a is the attachment that the caller has looked at: a newer one, which may ask
// for another goroutine, waits for the next step.
func (d *Driver[IN, OUT]) switchPort(a *attachment[IN, OUT]) {
	if a != d.current {
		close(d.out) // the port before is always the one of the channels
		d.current = a
		d.drains = d.drains || a.drains
	}
}

// ---- A ring in place of Out

// carrierPort is that of a flow whose results Via or To takes.
type carrierPort[IN, OUT any] struct {
	flowPort[IN, OUT]
	out *outlet[any]
}

func (p *carrierPort[IN, OUT]) put() bool { return p.out.ring.put(p.boxed(), call.Message{}) }

func (p *carrierPort[IN, OUT]) flush() { p.out.WakeUp() }

func (p *carrierPort[IN, OUT]) sleep() { p.d.sleepOn(nil) }

func (p *carrierPort[IN, OUT]) mayMove() bool { return p.d.loaded && p.out.mayPut() }

func (p *carrierPort[IN, OUT]) handed() (n uint64, by *reader) {
	return p.out.ring.tail.Load(), &p.out.reader
}

func (p *carrierPort[IN, OUT]) stop() { p.out.close() }

func (p *carrierPort[IN, OUT]) close() {
	p.stop()
	p.d.endInlet()
}

// ---- The rings of Results

// ringPort takes elements from a ring and hands results to another one. Nothing is boxed on the way.
type ringPort[IN, OUT any] struct {
	d   *Driver[IN, OUT]
	in  inlet[IN]
	out *outlet[OUT]
}

func (p *ringPort[IN, OUT]) take() bool {
	v, m, ok := p.in.take()
	if !ok && !p.in.ring.over() {
		return false
	}
	p.d.receivedElement(v, m, ok)
	return true
}

func (p *ringPort[IN, OUT]) put() bool {
	return p.out.ring.put(p.d.results[0], p.d.messageOfNext())
}

func (p *ringPort[IN, OUT]) flush() { p.out.WakeUp() }

func (p *ringPort[IN, OUT]) sleep() { <-p.d.host.C }

func (p *ringPort[IN, OUT]) mayMove() bool {
	return p.d.loaded && p.out.mayPut() || p.d.mayRead() && (p.in.ring.len() > 0 || p.in.ring.ended.Load())
}

func (p *ringPort[IN, OUT]) handed() (n uint64, by *reader) {
	return p.out.ring.tail.Load(), &p.out.reader
}

func (p *ringPort[IN, OUT]) offer(room int) {
	if p.in.ring.messages != nil {
		p.in.offer(room)
	}
}

func (p *ringPort[IN, OUT]) stop() {
	p.in.stop()
	p.out.close()
}

func (p *ringPort[IN, OUT]) close() {
	p.stop()
	for _, m, ok := p.in.take(); ok; _, m, ok = p.in.take() {
		p.d.discarded.Add(1)
		p.d.refused(observe.Discarded, m)
	}
}
