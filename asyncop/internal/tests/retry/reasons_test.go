package retry_test

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/weirflow/weir/asyncop/internal/optest"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

var alwaysReason = predicates.NewReason("TEST_ALWAYS", true, true)

var rejection = predicates.NewRejection("TEST_REJECTED")

// after returns a strategy that takes d to decide, or fails when its context ends.
func after(d time.Duration, action strategies.Action) strategies.ReasonStrategy[string] {
	return optest.Decides(func(ctx context.Context, _ *optest.View) (strategies.Action, error) {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
			return action, nil
		case <-ctx.Done():
			return strategies.Action{}, context.Cause(ctx)
		}
	})
}

// befores counts Befores.
type befores struct{ begun, ended atomic.Int32 }

// slow returns a Before that takes d and then returns err.
func (b *befores) slow(d time.Duration, err error) func(context.Context) error {
	return func(ctx context.Context) error {
		b.begun.Add(1)
		defer b.ended.Add(1)
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
