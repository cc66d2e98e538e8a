package core

import "github.com/weirflow/weir/internal/guard"

// userCall is the user code that the core is running. A panic unwinds the stack up to Run, and runtime.Goexit ends the goroutine:
// how to go on is read here (law A6). So nothing guards a single call.
type userCall[IN, OUT any] struct {
	after func(s *Slot[IN, OUT], err error) // goes on with what the code has broken with; nil: no user code runs
	slot  *Slot[IN, OUT]                    // that it runs for, or nil
	broke error                             // what it has broken with
}

// resumptions are how the core goes on after its own user code. They are made once: a method value is an allocation.
type resumptions[IN, OUT any] struct {
	invoke   func(s *Slot[IN, OUT], err error) // Config.Invoke, or a feature when an attempt begins
	judge    func(s *Slot[IN, OUT], err error) // the policy
	accepted func(s *Slot[IN, OUT], err error) // a feature when an element is accepted
	fail     func(s *Slot[IN, OUT], err error) // what else is asked about an element
}

// calling says that user code is about to run for s, or for none: nil.
func (g *Machine[IN, OUT]) calling(s *Slot[IN, OUT], after func(s *Slot[IN, OUT], err error)) {
	g.call.after, g.call.slot = after, s
	g.ran = true
}

// called says that it has returned.
func (g *Machine[IN, OUT]) called() { g.call.after = nil } // the slot stays until the next call: to clear it costs a write barrier

// Run runs f, which is the driver's loop. Where user code panics in it, Run goes on and runs f again; where user code ends the
// goroutine, the next Run does, on another one. A panic of other code passes.
func (g *Machine[IN, OUT]) Run(f func()) {
	for again := true; again; {
		again = g.runOnce(f)
	}
}

func (g *Machine[IN, OUT]) runOnce(f func()) (again bool) {
	var stands guard.Guard
	defer stands.Close(func(recovered any) {
		switch {
		case g.call.after != nil:
			g.call.broke = g.Host.Panicked(recovered)
			again = recovered != nil
		case recovered != nil: // not the user's
			panic(recovered)
		}
	})
	g.resume()
	f()
	stands.Returned()
	return false
}

// resume goes on where user code has broken, if it has.
func (g *Machine[IN, OUT]) resume() {
	if was := g.call; was.broke != nil {
		g.call = userCall[IN, OUT]{}
		was.after(was.slot, was.broke)
		for _, f := range g.brokenOff {
			f()
		}
	}
	g.readRest()
}

// guarded runs user code for s and returns its panic as an error.
func (g *Machine[IN, OUT]) guarded(s *Slot[IN, OUT], after func(s *Slot[IN, OUT], err error), f func()) (panicked error) {
	var stands guard.Guard
	defer stands.Close(func(recovered any) {
		err := g.Host.Panicked(recovered)
		if recovered == nil {
			g.call.broke = err
			return
		}
		panicked = err
		g.called()
	})
	g.calling(s, after)
	f()
	g.called()
	stands.Returned()
	return nil
}

// Exited returns the error of user code that has ended the goroutine which owned the core, for a driver that does not Run again.
func (g *Machine[IN, OUT]) Exited() error { return g.call.broke }
