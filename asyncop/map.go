package asyncop

import (
	"cmp"
	"context"
	"slices"

	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/strategies"
)

// The defaults of Map.
const (
	mapCalls = 64   // at once
	mapSlots = 1024 // in flight or waiting; at least the number of calls
)

// Map calls fn for each element and returns the results in the order of the elements:
//
//	rows, err := asyncop.Map(ctx, keys, asyncop.Blocking(table.Get), nil)
//
// strategy is as in [OrderedWaitWithRetry], or nil for no retries. By default elements do
// not time out.
//
// An element has as many results as its call returns; with [ErrNoResult] it has zero. The
// first failure ends Map. It returns a nil slice and an [*ElementError], which is also
// logged ([WithLogger]). The end of ctx ends Map, too, with an error that is or wraps
// context.Cause(ctx).
//
// At most 64 calls run at once, or as many as [WithMaxConcurrentCalls] allows. ctx limits
// the whole time, [WithAttemptTimeout] each call, and [WithTimeoutFor] each element.
//
// To continue after a failure, put [HandleFailure] around fn, as in the example Pairs.
// With [WithDropOnFailure] or [WithFailureSink], Map continues without the results of
// failed elements.
//
// It panics like [OrderedWait], if ctx is nil, and with [WithContext] and
// [WithCheckpoints].
func Map[IN, OUT any](
	ctx context.Context, elements []IN, fn AsyncFunction[IN, OUT], strategy strategies.Retry[OUT], opts ...Option,
) ([]OUT, error) {
	cfg := newConfig(opts)
	guard.RefuseNil("asyncop: Map", "context", ctx)
	refuseIf(cfg.ctx != context.Background(), "Map: WithContext: the context is the first argument")
	refuseIf(cfg.coordinator != nil, "Map: WithCheckpoints: a slice has no barriers")
	calls := cmp.Or(cfg.maxCalls, mapCalls)
	opts = append(slices.Clone(opts), WithContext(ctx), WithMaxConcurrentCalls(calls))
	timeout := maxTimeout // a strategy needs it
	if guard.IsNil(strategy) {
		timeout, strategy = 0, strategies.NoRetry[OUT]()
	}
	op := newOperator("Map", false, fn, timeout, max(calls, mapSlots), strategy, opts)
	results := make([]OUT, 0, len(elements))
	for v, err := range op.ResultsOf(FromSlice(elements)) {
		if err != nil {
			return nil, err
		}
		results = append(results, v)
	}
	return results, nil
}
