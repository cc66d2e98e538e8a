package asyncop_test

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// Reasons of the tests, one of each kind.
var (
	unsafeReason = predicates.NewReason("TEST_UNSAFE", false, false)
	safeReason   = predicates.NewReason("TEST_SAFE", true, false)
	alwaysReason = predicates.NewReason("TEST_ALWAYS", true, true)
	rejection    = predicates.NewRejection("TEST_REJECTED")
)

type (
	view   = predicates.Attempt[string]
	policy = strategies.Policy[string]
)

// because returns the policy that names reason for every error.
func because(reason predicates.Reason, s strategies.ReasonStrategy[string]) *policy {
	return aware(predicates.ByException[string](predicates.HasException, reason), s)
}

// aware is strategies.ReasonAware, and knows of strategies that do not block.
func aware(classify predicates.Classifier[string], s strategies.ReasonStrategy[string]) *policy {
	if s, ok := s.(immediately); ok {
		return strategies.ReasonAware(classify, s.ReasonStrategy).Immediate()
	}
	return strategies.ReasonAware(classify, s)
}

// immediately is a strategy that does not block.
type immediately struct {
	strategies.ReasonStrategy[string]
}

func immediate(s strategies.ReasonStrategy[string]) strategies.ReasonStrategy[string] {
	return immediately{s}
}

// decides is a strategy that may block, as a func.
func decides(f func(ctx context.Context, a *view) (strategies.Action, error)) strategies.ReasonStrategy[string] {
	return strategies.ReasonStrategyFunc[string](f)
}

// always is a strategy that always gives the same answer, on the loop or off it.
func always(atOnce bool, action strategies.Action) strategies.ReasonStrategy[string] {
	s := decides(func(context.Context, *view) (strategies.Action, error) { return action, nil })
	if atOnce {
		return immediate(s)
	}
	return s
}

// after is a strategy that takes its time, as long as the element has some.
func after(d time.Duration, action strategies.Action) strategies.ReasonStrategy[string] {
	return decides(func(ctx context.Context, _ *view) (strategies.Action, error) {
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

// befores counts what runs before retries.
type befores struct{ begun, ended atomic.Int32 }

// slow takes d and then returns err.
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
