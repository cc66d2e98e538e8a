package asyncop

import (
	"context"
	"errors"
	"fmt"

	"github.com/weirflow/weir/internal/guard"
)

// Stopper is an operator for [StopAll]: an [*AsyncWaitOperator] of any types.
type Stopper interface {
	Stop(ctx context.Context) error
	Done() <-chan struct{}
}

// StopAll stops a row of operators, given in the order of the stream, and returns when
// all of them have ended. It stops the first operator, which drains into the next one. If
// ctx ends first, it cancels the operators that have not ended.
//
// It returns nil if all accepted elements were finished. Otherwise it returns the error
// of the first operator that failed itself; after the end of ctx that error matches
// [ErrStopped] and the cause of ctx.
//
// As for Stop, code that an operator waits for must not call StopAll. A loop over the
// results of the row needs another goroutine for it, and ends with [ErrStopped]. StopAll
// panics if an operator is nil, or without operators.
func StopAll(ctx context.Context, operators ...Stopper) error {
	guard.RefuseNil("asyncop: StopAll", "context", ctx)
	refuseIf(len(operators) == 0, "StopAll: no operators")
	for i, op := range operators {
		guard.RefuseNil("asyncop: StopAll", fmt.Sprintf("operator %d", i+1), op)
	}
	var first, own error // own is the first error that is not about a later operator
	for i, op := range operators {
		if i > 0 {
			select {
			case <-op.Done(): // its predecessors' elements have passed it
			case <-ctx.Done():
			}
		}
		err := op.Stop(ctx)
		if errors.Is(err, ErrStopped) && ctx.Err() == nil {
			err = nil // its input was the loop over an operator with a clean end
		}
		if first == nil {
			first = err
		}
		if _, later := errors.AsType[*DownstreamError](err); own == nil && !later {
			own = err
		}
	}
	if own != nil {
		return own
	}
	return first
}
