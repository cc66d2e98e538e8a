package optest

import (
	"context"

	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

var UnsafeReason = predicates.NewReason("TEST_UNSAFE", false, false)

var SafeReason = predicates.NewReason("TEST_SAFE", true, false)

type View = predicates.Attempt[string]

type Policy = strategies.Policy[string]

// Because returns a policy that gives reason for every error.
func Because(reason predicates.Reason, s strategies.ReasonStrategy[string]) *Policy {
	return Aware(predicates.ByException[string](predicates.HasException, reason), s)
}

// Aware is strategies.ReasonAware, which also recognises strategies of Immediate.
func Aware(classify predicates.Classifier[string], s strategies.ReasonStrategy[string]) *Policy {
	if s, ok := s.(immediately); ok {
		return strategies.ReasonAware(classify, s.ReasonStrategy).Immediate()
	}
	return strategies.ReasonAware(classify, s)
}

type immediately struct {
	strategies.ReasonStrategy[string]
}

func Immediate(s strategies.ReasonStrategy[string]) strategies.ReasonStrategy[string] {
	return immediately{s}
}

// Decides makes a strategy that may block of a function.
func Decides(f func(ctx context.Context, a *View) (strategies.Action, error)) strategies.ReasonStrategy[string] {
	return strategies.ReasonStrategyFunc[string](f)
}

// Always returns a strategy with a fixed answer, on the loop or off it.
func Always(atOnce bool, action strategies.Action) strategies.ReasonStrategy[string] {
	s := Decides(func(context.Context, *View) (strategies.Action, error) { return action, nil })
	if atOnce {
		return Immediate(s)
	}
	return s
}
