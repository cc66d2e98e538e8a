package asyncop

// transfer moves the results into next and closes it, on the goroutine of Via or To.
//
// It takes them from a ring, which costs the loop less than out, a channel, does. The loop may have sent some to out
// already: it closes that when it sees the ring.
func (p *pump[IN, OUT]) transfer(next chan<- any) {
	defer close(next)
	o := newOutlet[any](p.core.buffer, p.core.wakeUp)
	p.carried.Store(&o)
	p.core.wakeUp()
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
}

// share moves results into next and closes it, while others receive from out, too.
func (p *pump[IN, OUT]) share(next chan<- any) {
	defer close(next)
	for v := range p.out {
		next <- v
	}
}
