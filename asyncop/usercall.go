package asyncop

import (
	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/queue"
)

// userCall is the user code that the loop is running, and how to go on after it. runtime.Goexit in user code ends the
// loop's goroutine; its successor reads here what was being done (law A6).
type userCall[IN, OUT any] struct {
	kind    callKind
	attempt *call.Attempt[*queue.Entry[slot[IN, OUT]], OUT] // invoked
	entry   *queue.Entry[slot[IN, OUT]]                     // decided about
	exited  *PanicError                                     // the call ended the goroutine
}

type callKind uint8

const (
	noCall     callKind = iota
	callInvoke          // AsyncFunction.AsyncInvoke
	callDecide          // what the policy consists of
)

// protect runs user code on the loop and returns its panic as an error. If the code ends the goroutine instead, protect
// does not return and the loop's successor resumes.
func (c *core[IN, OUT]) protect(
	kind callKind, e *queue.Entry[slot[IN, OUT]], a *call.Attempt[*queue.Entry[slot[IN, OUT]], OUT], f func(),
) (panicked error) {
	c.call.kind, c.call.entry, c.call.attempt = kind, e, a
	c.stale = true
	var g guard.Guard
	defer g.Close(func(recovered any) {
		err := newPanicError(recovered)
		if recovered == nil {
			c.call.exited = err
			return
		}
		c.call = userCall[IN, OUT]{}
		panicked = err
	})
	f()
	g.Returned()
	c.call.kind, c.call.entry, c.call.attempt = noCall, nil, nil // and nothing is kept
	return nil
}

// resume goes on where user code ended the loop's goroutine; it does nothing in any other case.
func (c *core[IN, OUT]) resume() {
	was := c.call
	c.call = userCall[IN, OUT]{}
	if was.exited != nil {
		switch was.kind {
		case callInvoke:
			c.invoked(was.attempt, was.exited)
		case callDecide:
			c.decided(was.entry, c.judged, decision.Decision{}, was.exited)
		case noCall:
		}
	}
	c.readRest()
}
