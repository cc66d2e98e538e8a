package core

import (
	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/internal/guard"
)

// userCall is the user code that the core is running, and how to go on after it. A panic unwinds the stack up to Run, and
// runtime.Goexit ends the goroutine: what was being done is read here (law A6). So nothing guards a single call.
type userCall[IN, OUT any] struct {
	kind  callKind
	entry *Slot[IN, OUT] // invoked, decided about, accepted, or to be admitted
	broke error          // what the call has broken with
}

type callKind uint8

const (
	noCall       callKind = iota
	callInvoke            // Config.Invoke, or the observer of an attempt that begins
	callJudge             // the policy, which is shown an outcome
	callConclude          // the policy, after its strategy has answered
	callAccepted          // the observer of an element that was accepted
	callReport            // the observer of what has ended
	callPace              // Config.Pace
	callKey               // the key function
	callTimeout           // Config.TimeoutFor
	callSettle            // the sources of messages that have ended
)

// calling says that user code is about to run for s, or for none: nil.
func (g *Machine[IN, OUT]) calling(kind callKind, s *Slot[IN, OUT]) {
	g.call.kind, g.call.entry = kind, s
	g.ran = true
}

// called says that it has returned.
func (g *Machine[IN, OUT]) called() { g.call.kind = noCall } // the entry stays until the next call: to clear it costs a write barrier

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
		case g.call.kind != noCall:
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

// guarded runs user code for s and returns its panic as an error.
func (g *Machine[IN, OUT]) guarded(kind callKind, s *Slot[IN, OUT], f func()) (panicked error) {
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
	g.calling(kind, s)
	f()
	g.called()
	stands.Returned()
	return nil
}

// broken goes on after user code that has broken with err (law A6).
func (g *Machine[IN, OUT]) broken(err error) {
	was := g.call
	g.call = userCall[IN, OUT]{}
	switch s := was.entry; was.kind {
	case callInvoke:
		s.attempt.Attend() // an observer may have broken, before the call
		s.attempt.CompleteExceptionally(err)
		g.invoked(s)
	case callJudge:
		g.doubt(s)
		g.decided(s, g.judged, &decision.Decision{}, err)
	case callConclude:
		g.decided(s, g.judged, &decision.Decision{}, err)
	case callAccepted:
		s.rider().told.broken = err
		g.goesOn(s)
	case callKey:
		g.fail(s, err)
	case callReport:
		g.Hooks.ObserverBroke(err)
	case callSettle:
		g.Hooks.SourceBroke(err)
	case callPace:
		if g.Host.Share != nil {
			g.Host.Share.Release()
		}
		g.refuse(s, err)
	case callTimeout:
		g.fail(s, err)
	case noCall:
	}
}

// resume goes on where user code has broken, if it has.
func (g *Machine[IN, OUT]) resume() {
	if err := g.call.broke; err != nil {
		g.broken(err)
		g.sendBatch() // one that it has broken off
	}
	g.readRest()
}

// Exited returns the error of user code that has ended the goroutine which owned the core, for a driver that does not Run again.
func (g *Machine[IN, OUT]) Exited() error { return g.call.broke }
