package asyncop

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/queue"
	"github.com/weirflow/weir/strategies"
)

// What Map has if no option says otherwise.
const (
	mapCalls = 64   // at once
	mapSlots = 1024 // elements in flight or waiting; more if more calls are allowed
)

// Map calls fn for each of the elements and returns the results in the order of the elements:
//
//	rows, err := asyncop.Map(ctx, keys, asyncop.Blocking(table.Get))
//
// The first failure ends Map. Then there are no results, and the error is an [*ElementError] that names the element; it is also
// logged ([WithLogger]). The end of ctx ends Map, too; the error is or wraps context.Cause(ctx). An element has as many results
// as its call returns: with [ErrNoResult] none.
//
// At most 64 calls run at once, or as many as [WithMaxConcurrentCalls] allows. ctx bounds the time of all calls together,
// [WithAttemptTimeout] that of each call, and [WithTimeoutFor] that of each element.
//
// To go on after a failure, put [HandleFailure] around fn, which replaces a failure by results: the example Pairs has a value
// or an error for each element, in order. With [WithDropOnFailure] or [WithFailureSink] elements that fail have no result, and
// the others go on.
//
// It panics for what [OrderedWait] does, if ctx is nil, and with [WithContext] and [WithCheckpoints].
func Map[IN, OUT any](
	ctx context.Context, elements []IN, fn AsyncFunction[IN, OUT], opts ...Option,
) ([]OUT, error) {
	return mapAll(ctx, "Map", elements, fn, 0, strategies.NoRetry[OUT](), opts)
}

// MapWithRetry is [Map] with the retries of [OrderedWaitWithRetry]. An element has no timeout: the number of retries and ctx
// bound it.
func MapWithRetry[IN, OUT any](
	ctx context.Context, elements []IN, fn AsyncFunction[IN, OUT],
	strategy strategies.AsyncRetryStrategy[OUT], opts ...Option,
) ([]OUT, error) {
	return mapAll(ctx, "MapWithRetry", elements, fn, maxTimeout, strategy, opts)
}

func mapAll[IN, OUT any](
	ctx context.Context, name string, elements []IN, fn AsyncFunction[IN, OUT], timeout time.Duration,
	strategy strategies.AsyncRetryStrategy[OUT], opts []Option,
) ([]OUT, error) {
	cfg := newConfig(opts)
	switch {
	case guard.IsNil(ctx):
		panic(fmt.Sprintf("asyncop: %s: nil context", name))
	case cfg.ctx != context.Background():
		panic(fmt.Sprintf("asyncop: %s: WithContext: the context is the first argument", name))
	case cfg.coordinator != nil:
		panic(fmt.Sprintf("asyncop: %s: WithCheckpoints: a slice has no barriers", name))
	}
	calls := cmp.Or(cfg.maxCalls, mapCalls)
	opts = append(slices.Clone(opts), WithContext(ctx), WithMaxConcurrentCalls(calls))
	op := newOperator(name, queue.NewOrdered, fn, timeout, max(calls, mapSlots), strategy, opts)
	results := make([]OUT, 0, len(elements))
	for v, err := range op.ResultsOf(FromSlice(elements)) {
		if err != nil {
			return nil, err
		}
		results = append(results, v)
	}
	return results, nil
}
