package hclient

import (
	"context"
	"sync"
)

// call is one Get under way. It ends once: by an answer, an error, or its context.
type call struct {
	row  string
	done func(Result, error)

	mu    sync.Mutex // guards what follows
	ended bool
	stop  func() bool // stops watching the context
	conn  *conn       // where it was sent, to be forgotten there
	id    uint64
}

// watch makes the end of ctx end the call. It reports false, and does nothing, if ctx has
// ended.
func (g *call) watch(ctx context.Context) bool {
	if ctx.Err() != nil {
		return false
	}
	g.mu.Lock() // held until stop is set: ctx may end at once
	defer g.mu.Unlock()
	g.stop = context.AfterFunc(ctx, func() { g.end(Result{}, context.Cause(ctx)) })
	return true
}

// sent notes where the call went.
func (g *call) sent(n *conn, id uint64) {
	g.mu.Lock()
	g.conn, g.id = n, id
	ended := g.ended
	g.mu.Unlock()
	if ended {
		n.forget(id)
	}
}

// end is the first to end the call, or does nothing.
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
		n.forget(id) // nothing left to forget after an answer
	}
	g.done(r, err)
}

func (g *call) hasEnded() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.ended
}
