package drive

import (
	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/asyncop/internal/core"
)

// ChainedRange is a range over results on the caller's goroutine.
type ChainedRange[IN, OUT any] struct {
	Next  func() (v IN, ok bool) // does not block; ok is false at the end
	Yield func(OUT, error) bool
}

// switchGoroutine gives the core to a goroutine that ranges over the results, if there is
// one, and reports whether it did. Then the goroutine of the loop must end.
func (d *Driver[IN, OUT]) switchGoroutine() bool {
	a := d.attached.Load()
	if a.moved == nil || d.failed() || d.mustStop() {
		return false
	}
	d.switchPort(a)
	close(a.moved)
	return true
}

// Chained runs the loop on the caller's goroutine.
func (d *Driver[IN, OUT]) Chained(r ChainedRange[IN, OUT]) {
	p := &bodyPort[IN, OUT]{flowPort: flowPort[IN, OUT]{d}, r: &r}
	handed := make(chan struct{})
	d.attach(&attachment[IN, OUT]{port: p, drainsRetries: true, moved: handed})
	select {
	case <-handed:
	case <-d.ended:
		<-d.done
		d.yieldEnd(r.Yield)
		return
	}
	hasEnded := false
	defer func() {
		p.r = nil
		if !hasEnded { // a break; or the body, the input or code that the core calls has panicked or called Goexit
			d.breakOffLoop()
		}
	}()
	for d.step() {
	}
	if p.broken {
		return
	}
	hasEnded = true
	d.finish()
	d.yieldEnd(r.Yield)
}

// yieldEnd yields the error of the operator, or ErrStopped after a clean end before the
// end of the input.
func (d *Driver[IN, OUT]) yieldEnd(yield func(OUT, error) bool) {
	err := d.Err()
	if err == nil && d.input != inputClosed {
		err = d.ErrStopped
	}
	if err != nil {
		yield(*new(OUT), err)
	}
}

// breakOffLoop ends the operator because the range over its results ends early. After a
// Goexit on the loop, the run has failed already (law A6).
func (d *Driver[IN, OUT]) breakOffLoop() {
	if !d.failed() {
		d.host.Cancel(d.ErrStopped)
		d.core.EndIfCancelled()
	}
	d.finish()
}

// bodyPort is the input and the body of a ChainedRange.
type bodyPort[IN, OUT any] struct {
	flowPort[IN, OUT] // its channels are not used
	r                 *ChainedRange[IN, OUT]
	numYielded        int  // results since the loop did other work
	broken            bool // the body has left the range
}

func (p *bodyPort[IN, OUT]) take() bool {
	p.d.core.NoteRanCode() // the time of an element begins when Next returns it
	v, ok := p.r.Next()
	if ok {
		p.d.receivedElement(v, call.Message{})
	} else {
		p.d.receivedEnd()
	}
	return true
}

// fewResults is the number of results yielded while completions wait. A step for each
// result would be too expensive.
const fewResults = 16

// put yields the loaded result, unless there is other work. Each step yields at least one
// result, so that other work cannot delay results for long. A result has left when the
// body returns.
func (p *bodyPort[IN, OUT]) put() bool {
	d := p.d
	if d.host.Cancelled() { // checkSignals handles it
		return false
	}
	if p.numYielded == 0 {
		p.setAlarmForBody()
	} else if d.timerDue.Load() || p.numYielded >= fewResults && !d.host.Mail.Empty() {
		return false
	}
	p.broken = !p.r.Yield(d.results[0], nil)
	d.core.NoteSlept() // the body may have taken long
	p.numYielded++
	if p.broken {
		d.host.Cancel(d.ErrStopped)
	}
	return true
}

// setAlarmForBody sets the alarm for the next timer. When it rings, put yields no more
// results in this step. It does not interrupt the body.
func (p *bodyPort[IN, OUT]) setAlarmForBody() {
	due := p.d.core.Next()
	if due == core.Now || due == core.Never {
		return
	}
	isAhead := p.d.timers.ScheduleAt(due)
	if !isAhead {
		p.d.timerDue.Store(true)
	}
}

func (p *bodyPort[IN, OUT]) flush() { p.numYielded = 0 }

func (p *bodyPort[IN, OUT]) sleep() { <-p.d.host.C }

func (p *bodyPort[IN, OUT]) close() { p.d.discardFromIn() }
