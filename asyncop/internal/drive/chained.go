package drive

import (
	"context"
	"sync/atomic"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/asyncop/internal/core"
	"github.com/weirflow/weir/internal/guard"
)

// ChainedRange is a loop over results on the caller's goroutine.
type ChainedRange[IN, OUT any] struct {
	Next  func() (v IN, ok bool) // does not wait; ok is false at the end
	Yield func(OUT, error) bool
}

// chained is the state of a driver whose loop runs on the goroutine that ranges over the results.
type chained[IN, OUT any] struct {
	wanted atomic.Bool          // a caller ranges: the loop shall hand over to the port that was attached
	next   *attachment[IN, OUT] // that port; written before wanted is set
	handed chan struct{}        // closed by the loop: it has, and its goroutine ends
	owner  atomic.Uint32        // of the core, from then on
	cut    atomic.Bool          // the operator was cancelled
	end    loopEnd              // owned by the loop
	due    atomic.Bool          // a timer is, maybe
}

// The owners of the core of a chained driver.
const (
	ownedByLoop uint32 = iota
	ownedByNone        // the body runs
	rescued            // the operator was cancelled meanwhile, and ended on a goroutine of its own
)

// handsOver hands the core over to a goroutine that ranges over the results, if there is one. The loop ends then.
func (d *Driver[IN, OUT]) handsOver() bool {
	if !d.chain.wanted.Load() || d.failed() || d.mustStop() {
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
	unwatch := context.AfterFunc(d.host.Life, d.rescue)
	returned := false
	defer func() {
		if !returned { // a panic or Goexit, of the body, of the input, or of what the core calls
			d.breakOffLoop()
			unwatch()
			p.r = nil // the operator may be kept
		}
	}()
	d.core.Run(func() {
		for d.step() { // until the end
		}
	})
	returned = true
	switch d.chain.end {
	case loopGoesOn: // all has left, or the operator has failed
		d.finish()
	case loopBroken:
		d.breakOffLoop()
	case loopRescued, loopRescuedBroken:
		<-d.done
	}
	unwatch()
	p.r = nil
	if d.chain.end == loopGoesOn || d.chain.end == loopRescued {
		d.yieldError(&r)
	}
}

// endError returns why the operator has ended, nil if it has ended well, for the caller of a loop.
func (d *Driver[IN, OUT]) endError() error {
	if err := d.Err(); err != nil || d.inClosed {
		return err
	}
	return d.ErrStopped // the input is not done
}

// yieldError yields that.
func (d *Driver[IN, OUT]) yieldError(r *ChainedRange[IN, OUT]) {
	if err := d.endError(); err != nil {
		var none OUT
		r.Yield(none, err)
	}
}

// breakOffLoop ends the operator because the loop over its results ends. Goexit in code that the core called is a failure:
// its goroutine, which is the caller's, cannot go on.
func (d *Driver[IN, OUT]) breakOffLoop() {
	if d.chain.owner.Load() != ownedByLoop && !d.chain.owner.CompareAndSwap(ownedByNone, ownedByLoop) {
		<-d.done
		return
	}
	if err := d.core.State().Exited; err != nil {
		d.core.End(guard.Wrap("asyncop: the goroutine that ranges over the results was ended", err))
	} else {
		d.host.Cancel(d.ErrStopped)
		d.core.End(nil)
	}
	d.finish()
}

// rescue ends the operator if it is cancelled while the body runs, which may go on for ever. If the loop has the core, it
// looks for a cancel itself before it gives it away.
func (d *Driver[IN, OUT]) rescue() {
	d.chain.cut.Store(true)
	if d.chain.owner.CompareAndSwap(ownedByNone, rescued) {
		d.core.End(nil)
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
}

func (p *bodyPort[IN, OUT]) take() bool {
	p.d.core.Away(false) // the time of an element begins when it was made
	v, ok := p.r.Next()
	p.d.receivedElement(v, call.Message{}, ok)
	return true
}

// fewResults are yielded although completions wait: a turn for each result would cost more than the results do.
const fewResults = 16

// put yields what is loaded, unless there is something else to do. It has left when the body has come back.
func (p *bodyPort[IN, OUT]) put() bool {
	d, c := p.d, &p.d.chain
	switch {
	case c.end != loopGoesOn:
		return false
	case p.yielded == 0: // the body may take its time
		if due := d.core.Next(); due != core.Now && due != core.Never && !d.timers.ScheduleAt(due) {
			c.due.Store(true)
		}
	case c.due.Load() || p.yielded >= fewResults && !d.host.Mail.Empty():
		return false
	}
	v := d.results[0]
	c.owner.Store(ownedByNone)
	if c.cut.Load() {
		if !c.owner.CompareAndSwap(ownedByNone, ownedByLoop) {
			c.end = loopRescued
		}
		return false // checkSignals sees it
	}
	more := p.r.Yield(v, nil)
	if !c.owner.CompareAndSwap(ownedByNone, ownedByLoop) {
		if c.end = loopRescued; !more {
			c.end = loopRescuedBroken
		}
		return false
	}
	d.core.Away(true) // the body may have taken its time
	if p.yielded++; !more {
		c.end = loopBroken
	}
	return true
}

func (p *bodyPort[IN, OUT]) flush() { p.yielded = 0 }

func (p *bodyPort[IN, OUT]) sleep() { <-p.d.host.C }

func (p *bodyPort[IN, OUT]) close() { p.d.endInlet() }
