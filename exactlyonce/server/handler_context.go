package server

import (
	"context"
	"sync"
	"time"

	"github.com/weirflow/weir/internal/oncewire"
)

// handlerContext is the context of a handler. It ends with its caller's context or, while
// other attempts wait for the answer, when the last of them has left.
type handlerContext struct {
	call     *Call
	parent   context.Context
	deserted bool // parent has ended; guarded by Results.mu

	mu       sync.Mutex
	inner    context.Context // made when needed
	stop     func() bool     // stops waiting for parent
	endIt    context.CancelCauseFunc
	returned bool // the handler has returned
}

var _ context.Context = (*handlerContext)(nil)

// Deadline reports no deadline, because the caller's may pass while other attempts wait.
func (*handlerContext) Deadline() (deadline time.Time, ok bool) { return time.Time{}, false }

func (h *handlerContext) Done() <-chan struct{} { return h.open().Done() }

func (h *handlerContext) Err() error {
	if h.parent.Err() != nil {
		h.open()
		h.desert() // the function that waits for parent may not have run yet
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.inner != nil:
		return h.inner.Err()
	case h.returned:
		return context.Canceled
	}
	return nil
}

func (h *handlerContext) Value(key any) any {
	if key == (oncewire.RequestKey{}) {
		return h.call.req
	}
	h.mu.Lock()
	inner := h.inner
	h.mu.Unlock()
	if inner != nil {
		return inner.Value(key)
	}
	v := h.parent.Value(key)
	if _, ok := v.(context.Context); ok { // package context looks for a derived context's ancestor, which must not be parent
		return h.open().Value(key)
	}
	return v
}

// open returns the inner context, and makes it when needed.
func (h *handlerContext) open() context.Context {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.inner == nil {
		h.inner, h.endIt = context.WithCancelCause(context.WithoutCancel(h.parent))
		switch {
		case h.returned:
			h.endIt(nil)
		case h.parent.Done() != nil:
			h.stop = context.AfterFunc(h.parent, h.desert)
		}
	}
	return h.inner
}

func (h *handlerContext) desert() {
	r, f := h.call.results, h.call.flight
	r.mu.Lock()
	h.deserted = true
	alone := f.waiting == 0
	r.mu.Unlock()
	if alone {
		h.cancel()
	}
}

func (h *handlerContext) cancel() {
	h.mu.Lock()
	end := h.endIt
	h.mu.Unlock()
	if end != nil {
		end(context.Cause(h.parent))
	}
}

func (h *handlerContext) end() {
	h.mu.Lock()
	h.returned = true
	end, stop := h.endIt, h.stop
	h.mu.Unlock()
	if stop != nil {
		stop()
	}
	if end != nil {
		end(nil)
	}
}
