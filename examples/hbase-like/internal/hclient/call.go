package hclient

import (
	"context"
	"sync"
)

// call is one Get in progress. It ends once: with an answer, an error, or the end of its
// context.
type call struct {
	row  string
	done func(Result, error)

	mu    sync.Mutex // guards the fields below
	ended bool
	stop  func() bool // stops watching the context
	conn  *conn       // the connection it was sent on, which must forget it
	id    uint64
}

// watch makes the end of ctx end the call. If ctx has already ended it returns false and
// does nothing.
func (g *call) watch(ctx context.Context) bool {
	if ctx.Err() != nil {
		return false
	}
	g.mu.Lock() // held until stop is set: ctx may end at once
	defer g.mu.Unlock()
	g.stop = context.AfterFunc(ctx, func() { g.end(Result{}, context.Cause(ctx)) })
	return true
}

// sent records the connection and the id of the request.
func (g *call) sent(n *conn, id uint64) {
	g.mu.Lock()
	g.conn, g.id = n, id
	ended := g.ended
	g.mu.Unlock()
	if ended {
		n.forget(id)
	}
}

// end ends the call. Only the first call of end has an effect.
func (g *call) end(r Result, err error) {
	g.mu.Lock()
	if g.ended {
		g.mu.Unlock()
		return
	}
	g.ended = true
	n, id := g.conn, g.id
	g.mu.Unlock()
	g.stop()
	if n != nil {
		n.forget(id) // no effect after an answer
	}
	g.done(r, err)
}

func (g *call) hasEnded() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.ended
}
