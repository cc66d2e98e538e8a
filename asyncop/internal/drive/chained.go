package drive

import (
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
type chained struct {
	broken bool        // by the body; owned by the loop
	due    atomic.Bool // a timer is, maybe
}

// handsOver hands the core over to a goroutine that ranges over the results, if there is one. The loop ends then.
func (d *Driver[IN, OUT]) handsOver() bool {
	a := d.attached.Load()
	if a.handed == nil || d.failed() || d.mustStop() {
		return false
	}
	d.switchPort()
	close(a.handed)
	return true
}

// Chained drives the operator on the caller's goroutine: it takes what is at hand from the input of r and yields the results.
func (d *Driver[IN, OUT]) Chained(r ChainedRange[IN, OUT]) {
	p := &bodyPort[IN, OUT]{flowPort: flowPort[IN, OUT]{d}, r: &r}
	handed := make(chan struct{})
	d.attach(&attachment[IN, OUT]{port: p, drains: true, handed: handed})
	select {
	case <-handed:
	case <-d.over: // it has ended before
		<-d.done
		d.yieldError(&r)
		return
	}
	ended := false // all has left, or the operator has failed
	defer func() {
		if p.r = nil; !ended { // a break, a panic or Goexit, of the body, of the input, or of what the core calls
			d.breakOffLoop()
		}
	}()
	d.core.Run(func() {
		for d.step() { // until the end
		}
	})
	if d.chain.broken {
		return
	}
	ended = true
	d.finish()
	d.yieldError(&r)
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
	if err := d.core.State().Exited; err != nil {
		d.core.End(guard.Wrap("asyncop: the goroutine that ranges over the results was ended", err))
	} else {
		d.host.Cancel(d.ErrStopped)
		d.core.End(nil)
	}
	d.finish()
}

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
	case c.broken || d.host.Cancelled(): // checkSignals sees it
		return false
	case p.yielded == 0: // the body may take its time
		if due := d.core.Next(); due != core.Now && due != core.Never && !d.timers.ScheduleAt(due) {
			c.due.Store(true)
		}
	case c.due.Load() || p.yielded >= fewResults && !d.host.Mail.Empty():
		return false
	}
	more := p.r.Yield(d.results[0], nil)
	d.core.Away(true) // the body may have taken its time
	p.yielded++
	c.broken = !more
	return true
}

func (p *bodyPort[IN, OUT]) flush() { p.yielded = 0 }

func (p *bodyPort[IN, OUT]) sleep() { <-p.d.host.C }

func (p *bodyPort[IN, OUT]) close() { p.d.endInlet() }
