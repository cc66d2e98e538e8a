package drive

import "github.com/weirflow/weir/internal/wiring"

// Transfer moves the results into next and closes it, on the goroutine of Via or To.
//
// It takes them from a ring, which costs the loop less than out, a channel, does. The loop may have sent some to out
// already: it closes that when it sees the ring.
func (d *Driver[IN, OUT]) Transfer(next chan<- any, tell bool) {
	defer close(next)
	o := newOutlet[any](d.Buffer, d.observing != nil, d.host.WakeUp)
	defer close(o.gone)
	d.attach(&carrierPort[IN, OUT]{flowPort[IN, OUT]{d}, o}, false)
	for v := range d.out {
		next <- v
	}
	for v, _, ok := o.next(); ok; v, _, ok = o.next() {
		next <- v
		o.settle()
	}
	d.passFailure(next, tell)
}

// Share moves results into next and closes it, while others receive from out, too.
func (d *Driver[IN, OUT]) Share(next chan<- any, tell bool) {
	defer close(next)
	for v := range d.out {
		next <- v
	}
	d.passFailure(next, tell)
}

// passFailure makes what follows fail, too, if it can be reported: else it would take the end of a failed stream for a clean
// one.
func (d *Driver[IN, OUT]) passFailure(next chan<- any, tell bool) {
	if err := d.Err(); err != nil && tell {
		next <- wiring.Failure{Err: err}
	}
}
