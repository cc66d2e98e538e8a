package drive

import (
	"bytes"
	"context"
	"runtime"
	"strconv"
	"sync/atomic"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/asyncop/internal/core"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/message"
)

// Input is what a chained driver takes elements from: the one of them that is set, or nothing.
type Input[IN any] struct {
	Slice []IN
	Chan  <-chan IN
	Next  func() (v IN, ok bool) // does not wait; ok is false at the end
}

// take returns the next element, if one is at hand; ok is false at the end.
func (in *Input[IN]) take() (v IN, ok, atHand bool) {
	switch {
	case in.Chan != nil:
		select {
		case v, ok = <-in.Chan:
		default:
			return v, false, false
		}
	case in.Next != nil:
		v, ok = in.Next()
	case len(in.Slice) > 0:
		v, in.Slice = in.Slice[0], in.Slice[1:]
		ok = true
	}
	return v, ok, true
}

// ChainedRange is a loop over results on the caller's goroutine: of values or, if YieldMessages is set, of messages.
type ChainedRange[IN, OUT any] struct {
	In    Input[IN]
	Yield func(OUT, error) bool

	Messages      Input[message.Message[IN]]
	YieldMessages func(message.Message[OUT], error) bool

	held call.Message // what the body has, or Clone
}

func (r *ChainedRange[IN, OUT]) yieldError(err error) {
	if r.YieldMessages != nil {
		r.YieldMessages(message.Message[OUT]{}, err)
		return
	}
	var none OUT
	r.Yield(none, err)
}

// chained is the state of a driver whose loop runs on the goroutine that ranges over the results.
type chained[IN, OUT any] struct {
	wanted    atomic.Bool          // a caller ranges: the loop shall hand over to the port that was attached
	next      *attachment[IN, OUT] // that port; written before wanted is set
	handed    chan struct{}        // closed by the loop: it has, and its goroutine ends
	owner     atomic.Uint32        // of the core, from then on
	cut       atomic.Bool          // the operator was cancelled
	due       atomic.Bool          // a timer is, maybe
	goroutine atomic.Uint64        // that ranges, for those who call from the body; 0: none does
}

// Who owns the core of a chained driver.
const (
	ownedByLoop uint32 = iota
	ownedByNone        // the body runs
	rescued            // the operator was cancelled meanwhile, and ended on a goroutine of its own
)

// handsOver hands the core over to a goroutine that ranges over the results, if there is one. The loop ends then.
func (d *Driver[IN, OUT]) handsOver() bool {
	if !d.chain.wanted.Load() || d.core.Failed() || d.mustStop() {
		return false
	}
	d.switchPort()
	close(d.chain.handed)
	return true
}

// Chained drives the operator on the caller's goroutine: it takes what is at hand from the input of r and yields the results.
func (d *Driver[IN, OUT]) Chained(r ChainedRange[IN, OUT]) {
	p := &bodyPort[IN, OUT]{flowPort: flowPort[IN, OUT]{d}, r: &r}
	d.chain.next = &attachment[IN, OUT]{port: p, drains: true, eager: true}
	d.chain.wanted.Store(true)
	d.host.WakeUp()
	select {
	case <-d.chain.handed:
	case <-d.over: // it has ended before
		<-d.done
		d.yieldError(&r)
		return
	}
	d.chain.goroutine.Store(goroutineID())
	defer d.chain.goroutine.Store(0)
	unwatch := context.AfterFunc(d.host.Life, d.rescue)
	returned := false
	defer func() {
		if !returned { // a panic or Goexit, of the body, of the input, or of what the core calls
			d.breakOffLoop()
			unwatch()
			d.giveBackRest(&r)
		}
	}()
	d.core.Run(func() {
		for d.step() { // until the end
		}
	})
	returned = true
	switch p.end {
	case loopGoesOn: // all has left, or the operator has failed
		d.finish()
	case loopBroken:
		d.breakOffLoop()
	case loopRescued, loopRescuedBroken:
		<-d.done
	}
	unwatch()
	d.giveBackRest(&r)
	if p.end == loopGoesOn || p.end == loopRescued {
		d.yieldError(&r)
	}
}

// giveBackRest nacks what the body or Clone did not come back from.
func (d *Driver[IN, OUT]) giveBackRest(r *ChainedRange[IN, OUT]) {
	d.giveBack(r.held)
	r.held = call.Message{}
}

// yieldError yields why the operator has ended, unless it has ended well.
func (d *Driver[IN, OUT]) yieldError(r *ChainedRange[IN, OUT]) {
	err := d.Err()
	if err == nil && !d.inClosed {
		err = d.ErrStopped // for the caller, the input is not done
	}
	if err != nil {
		r.yieldError(err)
	}
}

// breakOffLoop ends the operator because the loop over its results ends. Goexit in code that the core called is a failure:
// its goroutine, which is the caller's, cannot go on.
func (d *Driver[IN, OUT]) breakOffLoop() {
	if d.chain.owner.Load() != ownedByLoop && !d.chain.owner.CompareAndSwap(ownedByNone, ownedByLoop) {
		<-d.done
		return
	}
	if err := d.core.Exited(); err != nil {
		d.core.End(guard.Wrap("asyncop: the goroutine that ranges over the results was ended", err))
	} else {
		d.host.Cancel(d.ErrStopped)
		d.core.EndIfCancelled()
	}
	d.finish()
}

// rescue ends the operator if it is cancelled while the body runs, which may go on for ever. If the loop has the core, it
// looks for a cancel itself before it gives it away.
func (d *Driver[IN, OUT]) rescue() {
	d.chain.cut.Store(true)
	if d.chain.owner.CompareAndSwap(ownedByNone, rescued) {
		d.core.EndIfCancelled()
		d.finish()
	}
}

// loopEnd is how the loop over the results has ended, other than by the end of the operator.
type loopEnd uint8

const (
	loopGoesOn loopEnd = iota
	loopBroken         // by its body
	loopRescued
	loopRescuedBroken // and the body wants no more
)

// bodyPort is the input and the body of a loop over results, on the caller's goroutine.
type bodyPort[IN, OUT any] struct {
	flowPort[IN, OUT] // its channels are not used
	r                 *ChainedRange[IN, OUT]
	yielded           int // since the loop has done something else
	end               loopEnd
}

func (p *bodyPort[IN, OUT]) take() bool {
	d, r := p.d, p.r
	if r.In.Next != nil || r.Messages.Next != nil {
		d.core.Beside() // the time of an element begins when it was made
	}
	if r.YieldMessages != nil {
		m, ok, atHand := r.Messages.take()
		if atHand {
			p.took(m.Value, message.With(m, struct{}{}), ok)
		}
		return atHand
	}
	v, ok, atHand := r.In.take()
	if atHand {
		p.took(v, call.Message{}, ok)
	}
	return atHand
}

// took goes on with an element, for which there is a slot; ok is false at the end of the input.
func (p *bodyPort[IN, OUT]) took(v IN, m call.Message, ok bool) {
	if clone := p.d.Clone; ok && clone != nil {
		p.r.held = m
		p.d.core.Beside()
		v = clone(v) // before the input goes on
		p.r.held = call.Message{}
	}
	p.d.receivedElement(v, m, ok)
}

func (p *bodyPort[IN, OUT]) load() {}

// fewResults are yielded although completions wait: a turn for each result would cost more than the results do.
const fewResults = 16

// put yields what is loaded, unless there is something else to do. It has left when the body has come back.
func (p *bodyPort[IN, OUT]) put() bool {
	d, c := p.d, &p.d.chain
	switch {
	case p.end != loopGoesOn:
		return false
	case p.yielded == 0: // the body may take its time
		if due := d.core.Next(); due != core.Now && due != core.Never && !d.timers.ScheduleAt(due) {
			c.due.Store(true)
		}
	case c.due.Load() || p.yielded >= fewResults && !d.host.Mail.Empty():
		return false
	}
	v := d.results[0]
	if p.r.YieldMessages != nil { // from now on the message is the body's
		p.r.held = d.messageOfNext()
		d.messages.Carried()
		if len(d.parts) > 0 {
			d.parts, d.taken = d.parts[1:], true
		}
	}
	c.owner.Store(ownedByNone)
	if c.cut.Load() {
		if !c.owner.CompareAndSwap(ownedByNone, ownedByLoop) {
			p.end = loopRescued
		}
		return false // checkSignals sees it
	}
	more := p.r.yield(v)
	if !c.owner.CompareAndSwap(ownedByNone, ownedByLoop) {
		if p.end = loopRescued; !more {
			p.end = loopRescuedBroken
		}
		return false
	}
	d.core.Slept() // the body may have taken its time
	if p.yielded++; !more {
		p.end = loopBroken
	}
	return true
}

// yield calls the body with a result of the head.
func (r *ChainedRange[IN, OUT]) yield(v OUT) (more bool) {
	if r.YieldMessages == nil {
		return r.Yield(v, nil)
	}
	more = r.YieldMessages(message.With(r.held, v), nil)
	r.held = call.Message{}
	return more
}

func (p *bodyPort[IN, OUT]) flush() { p.yielded = 0 }

func (p *bodyPort[IN, OUT]) isOver() bool { return p.end != loopGoesOn }

func (p *bodyPort[IN, OUT]) sleep() {
	d, r := p.d, p.r
	var elements <-chan IN
	var messages <-chan message.Message[IN]
	if d.mayRead() {
		elements, messages = r.In.Chan, r.Messages.Chan
	}
	select {
	case v, ok := <-elements:
		d.host.Parked.Store(false)
		p.took(v, call.Message{}, ok)
	case m, ok := <-messages:
		d.host.Parked.Store(false)
		p.took(m.Value, message.With(m, struct{}{}), ok)
	case <-d.host.C:
	}
}

func (p *bodyPort[IN, OUT]) leave() {}

func (p *bodyPort[IN, OUT]) close() { p.d.endInlet() }

// Drives reports whether the caller is the goroutine that ranges over the results: if it waits for the operator, it waits for
// itself.
func (d *Driver[IN, OUT]) Drives() bool {
	g := d.chain.goroutine.Load()
	return g != 0 && g == goroutineID()
}

// goroutineID returns the number of the caller's goroutine, which package runtime writes into stacks only: "goroutine 7
// [running]".
func goroutineID() uint64 {
	buf := make([]byte, 64)
	fields := bytes.Fields(buf[:runtime.Stack(buf, false)])
	id, _ := strconv.ParseUint(string(fields[1]), 10, 64)
	return id
}
