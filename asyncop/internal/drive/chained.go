package drive

import (
	"bytes"
	"context"
	"runtime"
	"strconv"
	"sync/atomic"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/asyncop/internal/core"
	"github.com/weirflow/weir/internal/lazyerr"
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

	held call.Message           // what the body has, or Clone
	rest []message.Message[OUT] // parts of a message that were not yielded
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
type chained struct {
	wanted    atomic.Bool   // a caller ranges: the loop shall hand over
	handed    chan struct{} // closed by the loop: it has, and its goroutine ends
	owner     atomic.Uint32 // of the core, from then on
	cut       atomic.Bool   // the operator was cancelled
	due       atomic.Bool   // a timer is, maybe
	goroutine atomic.Uint64 // that ranges, for those who call from the body; 0: none does
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
	d.drains = true
	close(d.chain.handed)
	return true
}

// Chained drives the operator on the caller's goroutine: it takes what is at hand from the input of r and yields the results.
func (d *Driver[IN, OUT]) Chained(r ChainedRange[IN, OUT]) {
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
	var end loopEnd
	d.core.Run(func() { end = d.rangeOver(&r) })
	returned = true
	switch end {
	case loopGoesOn:
	case loopBroken:
		d.breakOffLoop()
	case loopEnded:
		d.finish()
	case loopRescued, loopRescuedBroken:
		<-d.done
	}
	unwatch()
	d.giveBackRest(&r)
	if end == loopEnded || end == loopRescued {
		d.yieldError(&r)
	}
}

// giveBackRest nacks what the body or Clone did not come back from, and parts of a message that it did not get.
func (d *Driver[IN, OUT]) giveBackRest(r *ChainedRange[IN, OUT]) {
	d.giveBack(r.held)
	for _, part := range r.rest {
		d.giveBack(message.With(part, struct{}{}))
	}
	r.held, r.rest = call.Message{}, nil
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
		d.core.End(lazyerr.Named("asyncop: the goroutine that ranges over the results was ended", err))
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

// loopEnd is how the loop over the results has ended.
type loopEnd uint8

const (
	loopGoesOn loopEnd = iota
	loopEnded          // all has left, or the operator has failed
	loopBroken         // by its body
	loopRescued
	loopRescuedBroken // and the body wants no more
)

// rangeOver is the loop: like step, with the input and the body on the same goroutine.
func (d *Driver[IN, OUT]) rangeOver(r *ChainedRange[IN, OUT]) loopEnd {
	for {
		d.Hooks.FlushLines(false)
		d.observe()
		d.checkSignals()
		if d.core.Failed() {
			return loopEnded
		}
		if d.chain.due.Load() {
			d.chain.due.Store(false)
		}
		d.core.Turn()
		busy := d.acceptFrom(r)
		d.publish()
		if d.core.Failed() {
			return loopEnded
		}
		if d.core.Jobs(d.workers.Offer) > 0 { // now: the body may take its time
			d.workers.Send()
			busy = true
		}
		d.setAlarm()
		slots := d.core.Len()
		yielded, end := d.yieldSome(r)
		if end != loopGoesOn {
			return end
		}
		if d.drained() {
			return loopEnded
		}
		switch {
		case busy || yielded || d.core.Len() < slots:
			d.yielded = false
		case !d.yielded && d.core.Running() > 0: // as step does
			d.yielded = true
			runtime.Gosched()
		default:
			d.parkOn(r)
		}
	}
}

// acceptFrom takes what is at hand, as far as there are slots. Without checkpoints, there is neither backlog nor overflow.
func (d *Driver[IN, OUT]) acceptFrom(r *ChainedRange[IN, OUT]) (busy bool) {
	d.shut = false
	for range min(turnLimit, d.core.Room()) {
		if d.inOver || d.core.Failed() || d.core.Room() == 0 || len(d.Gates) > 0 && !d.admits() {
			return busy
		}
		if r.In.Next != nil || r.Messages.Next != nil {
			d.core.Beside() // the time of an element begins when it was made
		}
		if r.YieldMessages != nil {
			m, ok, atHand := r.Messages.take()
			if !atHand {
				return busy
			}
			d.took(r, m.Value, message.With(m, struct{}{}), ok)
		} else {
			v, ok, atHand := r.In.take()
			if !atHand {
				return busy
			}
			d.took(r, v, call.Message{}, ok)
		}
		busy = true
	}
	return busy
}

// took goes on with an element, for which there is a slot; ok is false at the end of the input.
func (d *Driver[IN, OUT]) took(r *ChainedRange[IN, OUT], v IN, m call.Message, ok bool) {
	if !ok {
		d.receivedElement(v, m, false)
		return
	}
	if d.Clone != nil {
		r.held = m
		d.core.Beside()
		v = d.Clone(v) // before the input goes on
		r.held = call.Message{}
	}
	d.messages.Next(m)
	d.core.Accept(v)
}

// setAlarm sees to it that due is set when the next timer is.
func (d *Driver[IN, OUT]) setAlarm() {
	if due := d.core.Next(); due != core.Now && due != core.Never && !d.timers.ScheduleAt(due) {
		d.chain.due.Store(true)
	}
}

// fewResults are yielded although completions wait: a turn for each result would cost more than the results do.
const fewResults = 16

// yieldSome yields what may leave, until there is something else to do. An element has left when the body has come back.
func (d *Driver[IN, OUT]) yieldSome(r *ChainedRange[IN, OUT]) (busy bool, end loopEnd) {
	for n := range turnLimit {
		if n > 0 && d.chain.due.Load() || n >= fewResults && !d.host.Mail.Empty() {
			break
		}
		results, _ := d.core.Head()
		if len(results) == 0 {
			break
		}
		busy = true
		m := d.messages.Head()
		for i, v := range results {
			if r.YieldMessages != nil {
				d.hold(r, m, results[i:])
			}
			d.chain.owner.Store(ownedByNone)
			if d.chain.cut.Load() {
				if !d.chain.owner.CompareAndSwap(ownedByNone, ownedByLoop) {
					return busy, loopRescued
				}
				return busy, loopGoesOn // checkSignals sees it
			}
			more := r.yield(v)
			if !d.chain.owner.CompareAndSwap(ownedByNone, ownedByLoop) {
				if more {
					return busy, loopRescued
				}
				return busy, loopRescuedBroken
			}
			d.core.Slept() // the body may have taken its time
			d.emitted++
			if i == len(results)-1 {
				d.core.Left()
				if d.observing != nil {
					d.hasLeft()
				}
			}
			if !more {
				return busy, loopBroken
			}
		}
	}
	return busy, loopGoesOn
}

// hold gets the message ready whose value is a result of the head, the first of the rest. From then on it is not the core's.
func (d *Driver[IN, OUT]) hold(r *ChainedRange[IN, OUT], m call.Message, rest []OUT) {
	if len(r.rest) == 0 && len(rest) > 1 {
		r.rest = message.Split(m, rest...)
	}
	d.messages.Carried()
	r.held = m
	if len(r.rest) > 0 {
		r.held, r.rest = message.With(r.rest[0], struct{}{}), r.rest[1:]
	}
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

// parkOn sleeps until something happens, to the input or else.
func (d *Driver[IN, OUT]) parkOn(r *ChainedRange[IN, OUT]) {
	d.host.Parked.Store(true)
	if !d.host.Cancelled() && !d.mustStop() && !d.gateHasOpened() && d.mayPark() {
		d.publish()
		var elements <-chan IN
		var messages <-chan message.Message[IN]
		if d.mayRead() {
			elements, messages = r.In.Chan, r.Messages.Chan
		}
		d.core.Slept()
		select {
		case v, ok := <-elements:
			d.host.Parked.Store(false)
			d.took(r, v, call.Message{}, ok)
		case m, ok := <-messages:
			d.host.Parked.Store(false)
			d.took(r, m.Value, message.With(m, struct{}{}), ok)
		case <-d.host.C:
		}
	}
	d.host.Parked.Store(false)
}

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
