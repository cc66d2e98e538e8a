package drive

import (
	"sync"

	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/lazyerr"
)

// ends are what the loop takes elements from and hands results to, in place of channels, when Results drives the operator.
// Nothing is boxed on the way.
type ends[IN, OUT any] struct {
	in  inlet[IN]
	out *outlet[OUT]

	failed error // the error that the input ended with; written before in is ended
}

// Results drives the operator with what iterate puts, until that returns or put reports false, and yields its results.
func (d *Driver[IN, OUT]) Results(iterate func(put func(IN) bool) error, yield func(OUT, error) bool) {
	e := &ends[IN, OUT]{in: newInlet[IN](d.Buffer), out: newOutlet[OUT](d.Buffer, d.engine.IsObserved(), d.host.WakeUp)}
	d.attached.Store(e)
	select {
	case <-d.over: // before it saw the ends
		e.close()
	default:
	}
	go d.pull(e, iterate)

	defer func() {
		<-d.done
		close(d.in) // nobody else has it
	}()
	leave := sync.OnceFunc(func() { close(e.out.gone) }) // before done, which waits for it
	all := false
	defer func() {
		leave()
		if !all { // a break, a panic, or Goexit
			d.host.Cancel(d.ErrStopped)
		}
	}()
	for v, ok := e.out.next(); ok; v, ok = e.out.next() {
		more := yield(v, nil)
		e.out.settle()
		if !more {
			return
		}
	}
	all = true
	leave()
	<-d.done
	err := d.Err()
	if err == nil && !d.inClosed {
		err = d.ErrStopped // for the caller, the input is not done
	}
	if err != nil {
		var none OUT
		yield(none, err)
	}
}

// pull feeds the loop, on a goroutine of its own.
func (d *Driver[IN, OUT]) pull(e *ends[IN, OUT], iterate func(put func(IN) bool) error) {
	refused := 0
	defer func() {
		e.in.ring.ended.Store(true)
		d.host.WakeUp()
		if e.in.ring.stopped.Load() {
			<-d.done
			d.observeLate(refused + e.in.ring.len())
		}
	}()
	var g guard.Guard
	defer g.Close(func(recovered any) {
		d.BreakOff(lazyerr.Named("asyncop: input of Results", d.Panicked(recovered)))
	})
	clone, host := d.Clone, d.host
	err := iterate(func(v IN) bool {
		if clone != nil {
			v = clone(v) // before the input goes on
		}
		if !e.in.put(v) {
			d.discarded.Add(1)
			refused++
			return false
		}
		host.WakeUp()
		return true
	})
	if err != nil {
		e.failed = lazyerr.Named("asyncop: input of Results", err)
	}
	g.Returned()
}

// close ends both ends: what is still in them, or comes, is not taken.
func (e *ends[IN, OUT]) close() {
	e.in.stop()
	e.out.close()
}
