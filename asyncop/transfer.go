package asyncop

import (
	weirflow "github.com/weirflow/weir/flow"
	"github.com/weirflow/weir/internal/inband"
)

// transfer moves the results into next and closes it, on the goroutine of Via or To.
//
// It takes them from a ring, which costs the loop less than out, a channel, does. The loop may have sent some to out
// already: it closes that when it sees the ring.
func (p *pump[IN, OUT]) transfer(next chan<- any, tell bool) {
	defer close(next)
	o := newOutlet[any](p.core.buffer, p.core.host.WakeUp)
	p.carried.Store(&o)
	p.core.host.WakeUp()
	select {
	case <-p.over: // the loop may not have seen it
		o.close()
	default:
	}
	for v := range p.out {
		next <- v
	}
	for v, ok := o.next(); ok; v, ok = o.next() {
		next <- v
	}
	p.passFailure(next, tell)
}

// share moves results into next and closes it, while others receive from out, too.
func (p *pump[IN, OUT]) share(next chan<- any, tell bool) {
	defer close(next)
	for v := range p.out {
		next <- v
	}
	p.passFailure(next, tell)
}

// passFailure makes what follows fail, too, if it can be told: else it would take the end of a failed stream for a clean one.
func (p *pump[IN, OUT]) passFailure(next chan<- any, tell bool) {
	if err := p.Err(); err != nil && tell {
		next <- inband.Failure{Err: err}
	}
}

// takesFailures reports whether next is an operator or a flow of weir. Others would take a failure for an element.
func takesFailures(next any) bool {
	switch next.(type) {
	case interface{ isOperator() }, *weirflow.Flow:
		return true
	}
	return false
}
