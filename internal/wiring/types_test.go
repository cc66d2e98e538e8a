package wiring_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	streamsflow "github.com/reugn/go-streams/flow"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
	"github.com/weirflow/weir/checkpoint/files"
	"github.com/weirflow/weir/flow"
	"github.com/weirflow/weir/internal/wiring"
	"github.com/weirflow/weir/message"
)

type row []string

// elements is an operator on elements of a type.
func elements[T any](t *testing.T) *asyncop.AsyncWaitOperator[T, T] {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	op := asyncop.OrderedWait(asyncop.Blocking(func(_ context.Context, in T) (T, error) { return in, nil }), time.Second, 1, asyncop.WithContext(ctx))
	t.Cleanup(cancel)
	return op
}

// Wiring of two ends whose types do not match panics, and names both; it was an error of
// the first element.
func TestTypesOfWiring(t *testing.T) {
	const refused = "%s: the elements of %s are of type []string, and %s takes elements of type wiring_test.row"
	const strings, rows = "operator from []string to []string", "operator from wiring_test.row to wiring_test.row"
	identity := func(s []string) []string { return s }
	mapped := flow.NewMap(identity)
	defer close(mapped.In())
	c, err := checkpoint.NewCoordinator(checkpointtest.NewMemoryStore())
	require.NoError(t, err)
	source := checkpoint.NewSource(c, "in", checkpointtest.NewSliceInput([][]string{{"a"}}))
	sink := checkpoint.NewSink[row](c, "out", files.NewOutput(t.TempDir()+"/out", func(b []byte, _ row) ([]byte, error) { return b, nil }))
	require.PanicsWithValue(t, fmt.Sprintf(refused, "asyncop: Via", strings, rows), func() { elements[[]string](t).Via(elements[row](t)) })
	require.PanicsWithValue(t, fmt.Sprintf(refused, "asyncop: To", strings, `sink "out"`), func() { elements[[]string](t).To(sink) })
	require.PanicsWithValue(t, fmt.Sprintf(refused, "flow: Via", "flow Map from []string to []string", rows), func() { mapped.Via(elements[row](t)) })
	named := asyncop.OrderedWait(asyncop.Blocking(func(_ context.Context, in row) (row, error) { return in, nil }), 0, 1,
		asyncop.WithName("routes"), asyncop.WithContext(t.Context()))
	require.PanicsWithValue(t, fmt.Sprintf(refused, "flow: Via", "flow Map from []string to []string", `operator "routes"`), func() { mapped.Via(named) })
	require.PanicsWithValue(t, fmt.Sprintf(refused, "checkpoint: Via", `source "in"`, rows), func() { source.Via(elements[row](t)) })
	close(sink.In())
	require.NoError(t, c.Close())

	for name, wire := range map[string]func(){
		"the same":                   func() { elements[row](t).Via(elements[row](t)) },
		"any type":                   func() { elements[row](t).Via(elements[any](t)) },
		"what an interface holds":    func() { elements[any](t).Via(elements[row](t)) },
		"an interface that it has":   func() { elements[time.Time](t).Via(elements[fmt.Stringer](t)) },
		"messages":                   func() { flow.NewFilter(func(message.Message[row]) bool { return true }).Via(elements[row](t)) },
		"a flow that takes them":     func() { elements[[]string](t).Via(flow.NewFilter(func([]string) bool { return true })) },
		"a flow that takes messages": func() { elements[row](t).Via(flow.NewMap(func(m message.Message[row]) row { return m.Value })) },
	} {
		require.NotPanics(t, wire, name)
	}
}

type passer bool

func (p passer) PassesBarriers() bool { return bool(p) }

// A failure goes to steps of weir, and to other steps whose PassesBarriers returns true.
func TestTakesFailures(t *testing.T) {
	require.True(t, wiring.TakesFailures(passer(true)))
	require.False(t, wiring.TakesFailures(passer(false)))
	require.False(t, wiring.TakesFailures(streamsflow.NewPassThrough()))
	f := flow.NewMap(func(v int) int { return v })
	close(f.In())
	require.True(t, wiring.TakesFailures(f))
}
