package messages_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/internal/testing/suite"
	"github.com/weirflow/weir/message"
)

// Messages in the queue need no more allocations than values: neither the element nor its
// single result is boxed, and the core reuses the memory that it needs for a message. In
// a flow there is one allocation, for the message that leaves.
func TestAllocationsOfMessages(t *testing.T) {
	if suite.Race {
		t.Skip("the race detector allocates")
	}
	const n = 20_000
	fn := asyncop.Func(func(_ context.Context, in int, result asyncop.ResultFuture[int]) error {
		result.Complete(in)
		return nil
	})
	m := message.New(7, &message.Meta{ID: "a"}, func(message.Settlement) {})
	values := func(yield func(int, error) bool) {
		for range n {
			if !yield(7, nil) {
				return
			}
		}
	}
	messages := func(yield func(message.Message[int], error) bool) {
		for range n {
			if !yield(m, nil) {
				return
			}
		}
	}
	start := func() *asyncop.AsyncWaitOperator[int, int] { return asyncop.OrderedWait(fn, 0, 100) }
	perElement := func(run func()) float64 { return testing.AllocsPerRun(3, run) / n }

	const inQueue = 2.1 // the attempt and its results, and a share of the start
	require.Less(t, perElement(func() {
		for _, err := range start().ResultsFrom(values) {
			require.NoError(t, err)
		}
	}), inQueue, "values: those that end at once take less")
	require.LessOrEqual(t, perElement(func() {
		for _, err := range start().Messages(messages) {
			require.NoError(t, err)
		}
	}), inQueue, "Messages")
	flow := func(v any) func() {
		return func() {
			op := start()
			go func() {
				defer close(op.In())
				for range n {
					op.In() <- v
				}
			}()
			for range op.Out() {
			}
		}
	}
	require.LessOrEqual(t, perElement(flow(m)), inQueue+1, "flow")
}
