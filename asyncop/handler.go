package asyncop

import (
	"context"
	"slices"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/internal/guard"
)

// handler returns results in place of a failure.
type handler[IN, OUT any] struct {
	ofTimeouts bool // not of other failures
	handle     func(ctx context.Context, f Failure[IN]) ([]OUT, error)
}

// handlersOf returns the handlers of fn and of the functions inside it, the innermost
// first, and whether one handles all failures. Of several Timeout methods the outermost
// counts.
func handlersOf[IN, OUT any](fn AsyncFunction[IN, OUT]) (handlers []handler[IN, OUT], all bool) {
	timeouts := false
	for inner := any(fn); inner != nil; {
		switch f := inner.(type) {
		case *withFallback[IN, OUT]:
			handlers, all = slices.Insert(handlers, 0, handler[IN, OUT]{handle: f.fallback}), true
		case TimeoutHandler[IN, OUT]:
			if !timeouts {
				timeouts = true
				handlers = slices.Insert(handlers, 0, handler[IN, OUT]{true, func(ctx context.Context, failure Failure[IN]) ([]OUT, error) {
					return f.Timeout(ctx, failure.Element)
				}})
			}
		case fallback:
			panic("asyncop: HandleFailure inside of a wrapper with other types would not be called: put it around the wrapper")
		}
		w, ok := inner.(call.Wrapper)
		if !ok {
			break
		}
		inner = w.Unwrap()
	}
	return handlers, all
}

// handle calls the handlers in order, each with the error of its predecessor, until one
// succeeds.
func handle[IN, OUT any](
	ctx context.Context, handlers []handler[IN, OUT], f Failure[IN], timedOut bool,
) (results []OUT, err error) {
	for i, h := range handlers {
		if h.ofTimeouts && !timedOut {
			continue
		}
		if i == len(handlers)-1 {
			return h.handle(ctx, f)
		}
		broke := false
		err = guard.Call(func() (err error) { results, err = h.handle(ctx, f); return err }, func(recovered any) error {
			broke = true
			return call.Panicked(recovered)
		})
		if err == nil {
			return results, nil
		}
		if broke {
			err = handlerBroke(f.Err, i == 0 && timedOut, err)
		}
		if ctx.Err() != nil { // the answer would be ignored
			return nil, err
		}
		f.Err = err
	}
	return nil, f.Err
}

// handlerBroke returns the failure of an element whose handler has panicked or exceeded
// its limit.
func handlerBroke(failure error, timedOut bool, broken error) error {
	if t, ok := failure.(*TimeoutError); ok && timedOut { //nolint:errorlint // it is the operator's own
		with := *t
		with.Handler = broken
		return &with
	}
	return guard.Join(failure, broken)
}
