package drive

import (
	"context"
	"sync"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/internal/guard"
)

// Range is a range over results.
type Range[IN, OUT any] struct {
	Iterate  func(put func(IN, call.Message) bool) error // puts the input until put returns false
	Yield    func(OUT, call.Message, error) bool
	Messages bool // values come with messages
}

// Results drives the operator with the input and the body of r.
func (d *Driver[IN, OUT]) Results(r Range[IN, OUT]) {
	e := &ringPort[IN, OUT]{d: d, in: newInlet[IN](d.Buffer), out: newOutlet[OUT](d.Buffer, d.observing != nil, d.host.WakeUp)}
	if r.Messages {
		e.in.ring.messages = make([]call.Message, len(e.in.ring.buf))
		e.out.ring.messages = make([]call.Message, len(e.out.ring.buf))
	}
	d.attach(&attachment[IN, OUT]{port: e, drainsRetries: true})
	go d.pull(e, &r)

	var held call.Message // of the result in the body
	defer func() {
		<-d.done
		d.release(held)
		for _, m, ok := e.out.ring.take(); ok; _, m, ok = e.out.ring.take() {
			d.release(m)
		}
		close(d.in)
	}()
	leave := sync.OnceFunc(func() { close(e.out.stopped) }) // called before <-d.done, because observeEnd waits for it
	all := false
	defer func() {
		leave()
		if !all { // a break, a panic, or Goexit
			d.host.Cancel(d.ErrStopped)
		}
	}()
	for v, m, ok := e.out.next(); ok; v, m, ok = e.out.next() {
		held = m
		more := r.Yield(v, m, nil)
		held = call.Message{}
		e.out.noteConsumed()
		if !more {
			return
		}
	}
	all = true
	leave()
	<-d.done
	d.yieldEnd(func(v OUT, err error) bool { return r.Yield(v, call.Message{}, err) })
}

// pull feeds the loop, on its own goroutine.
func (d *Driver[IN, OUT]) pull(e *ringPort[IN, OUT], r *Range[IN, OUT]) {
	refused := 0
	defer func() {
		e.in.ring.ended.Store(true)
		d.host.WakeUp()
		if e.in.ring.stopped.Load() {
			<-d.done
			d.observeLate(refused + e.in.ring.len())
			for _, m, ok := e.in.ring.take(); ok; _, m, ok = e.in.ring.take() { // arrived while the loop ended
				d.late.count.Add(1)
				d.release(m)
			}
		}
	}()
	var g guard.Guard
	defer g.Close(func(recovered any) {
		d.inputErr.set(guard.Wrap("asyncop: input of Results", call.Panicked(recovered)))
		d.host.Cancel(d.inputErr.get())
	})
	host := d.host
	put := func(v IN, m call.Message) bool {
		if !e.in.put(v, m) {
			d.late.count.Add(1)
			refused++
			d.release(m)
			return false
		}
		host.WakeUp()
		return true
	}
	if err := r.Iterate(put); err != nil {
		d.inputErr.set(guard.Wrap("asyncop: input of Results", err))
	}
	g.Returned()
}

// AwaitSlots waits until messages may be fetched, and returns how many, or 0 if ctx or
// the operator has ended: see inlet.awaitSlots. The input of Messages calls it.
func (d *Driver[IN, OUT]) AwaitSlots(ctx context.Context) int {
	port, ok := d.attached.Load().port.(*ringPort[IN, OUT])
	if !ok || port.in.ring.messages == nil {
		panic("asyncop: AwaitSlots: not called by the input of Messages")
	}
	return port.in.awaitSlots(ctx)
}

// release releases an unprocessed message, by user code of its source (law A6). Any
// goroutine may call it.
func (d *Driver[IN, OUT]) release(m call.Message) {
	if m.Pending() {
		if err := call.OffLoop(func() error { m.Release(); return nil }); err != nil {
			d.User.LogSourcePanic(err)
		}
	}
}
