package flow_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/flow"
	"github.com/weirflow/weir/queue"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestFlowOut_ControlElements(t *testing.T) {
	w, b := queue.Watermark{Timestamp: time.Unix(1, 0)}, participant.NewBarrier(1, participant.Periodic, nil)
	first := flow.NewMap(func(n int) int { return n * 10 })
	last := first.Via(flow.NewFilter(func(n int) bool { return n != 20 })).Via(flow.NewFlatMap(func(n int) []any { return []any{n, nil} }))
	for _, v := range []any{1, w, 2, b, 3} {
		first.In() <- v
	}
	close(first.In())
	var got []any
	for v := range last.Out() {
		got = append(got, v)
	}
	require.Equal(t, []any{10, nil, w, b, 30, nil}, got)
}

func TestArguments(t *testing.T) {
	require.PanicsWithValue(t, "flow: NewMap: nil function", func() { flow.NewMap[int, int](nil) })
	require.PanicsWithValue(t, "flow: NewFilter: nil function", func() { flow.NewFilter[int](nil) })
	require.PanicsWithValue(t, "flow: NewFlatMap: nil function", func() { flow.NewFlatMap[int, int](nil) })
}

// run is a coordinator's run for tests.
type run struct{ failed chan error }

func (r run) Report(uint64, string, participant.State, error) {}
func (r run) Fail(name string, reason error)                  { r.failed <- reason }

// A flow that fails also fails the run whose barriers it passes, with the same error.
func TestFlowErr_FailureEndsTheRun(t *testing.T) {
	r := run{make(chan error, 1)}
	f := flow.NewMap(func(n int) int { return 10 / n })
	go func() {
		f.In() <- participant.NewBarrier(1, participant.Periodic, r)
		f.In() <- 0
		close(f.In())
	}()
	for range f.Out() {
	}
	require.ErrorContains(t, f.Err(), "flow: Map: panic in user code: runtime error: integer divide by zero")
	require.Equal(t, f.Err(), <-r.failed)
}
