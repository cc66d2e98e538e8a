package flow_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/reugn/go-streams"
	"github.com/reugn/go-streams/extension"
	streamsflow "github.com/reugn/go-streams/flow"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/flow"
)

// goStreamsFlows are flows of go-streams that assert the type of their elements, or may
// discard them.
var goStreamsFlows = map[string]func() streams.Flow{
	"Map":           func() streams.Flow { return streamsflow.NewMap(func(n int) int { return n }, 1) },
	"Filter":        func() streams.Flow { return streamsflow.NewFilter(func(int) bool { return true }, 1) },
	"FlatMap":       func() streams.Flow { return streamsflow.NewFlatMap(func(n int) []int { return []int{n} }, 1) },
	"Batch":         func() streams.Flow { return streamsflow.NewBatch[int](2, time.Hour) },
	"Throttler":     func() streams.Flow { return streamsflow.NewThrottler(100, time.Second, 100, streamsflow.Backpressure) },
	"SessionWindow": func() streams.Flow { return streamsflow.NewSessionWindow[int](time.Hour) },
	"Reduce":        func() streams.Flow { return streamsflow.NewReduce(func(a, b int) int { return a + b }) },
}

func same(n int) int { return n }

// Without checkpoints a flow may be wired to any flow and sink of go-streams.
func TestVia_FlowsOfGoStreams(t *testing.T) {
	for name, next := range goStreamsFlows {
		t.Run(name, func(t *testing.T) {
			f, last, out := flow.NewMap(same), next(), make(chan any, 9)
			f.In() <- 1
			f.In() <- 2
			close(f.In())
			f.Via(last).To(extension.NewChanSink(out))
			if _, throttles := last.(*streamsflow.Throttler); throttles {
				return // one of its goroutines runs until its period ends
			}
			require.NotNil(t, <-out)
		})
	}
}

func TestTo_SinksOfGoStreams(t *testing.T) {
	file := filepath.Join(t.TempDir(), "out")
	sink := extension.NewFileSink(file)
	f := flow.NewMap(func(string) string { return "line\n" })
	f.In() <- ""
	close(f.In())
	f.To(sink)
	written, err := os.ReadFile(file) //nolint:gosec // the test's own file
	require.NoError(t, err)
	require.Equal(t, "line\n", string(written))

	f = flow.NewMap(func(string) string { return "" })
	close(f.In())
	f.To(extension.NewStdoutSink())
}

// newSource returns the source of a stream with checkpoints that is never started.
func newSource(t *testing.T) *checkpoint.Source[int] {
	t.Helper()
	c, err := checkpoint.NewCoordinator(checkpointtest.NewMemoryStore())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return checkpoint.NewSource(c, "in", checkpointtest.NewSliceInput([]int{1}))
}

// Law C2: in a stream with checkpoints a flow refuses a step that cannot pass barriers,
// at any position and in any order of wiring.
func TestVia_StreamWithCheckpoints(t *testing.T) {
	const refused = "cannot pass checkpoint barriers; package weir/flow has flows that can"
	for name, wire := range map[string]func(source *checkpoint.Source[int], refused streams.Flow){
		"behind a flow": func(s *checkpoint.Source[int], r streams.Flow) { s.Via(flow.NewMap(same)).Via(r) },
		"behind two flows": func(s *checkpoint.Source[int], r streams.Flow) {
			s.Via(flow.NewMap(same)).Via(flow.NewMap(same)).Via(r)
		},
		"behind PassThrough": func(s *checkpoint.Source[int], r streams.Flow) { s.Via(streamsflow.NewPassThrough()).Via(r) },
		"behind both": func(s *checkpoint.Source[int], r streams.Flow) {
			s.Via(flow.NewMap(same)).Via(streamsflow.NewPassThrough()).Via(r)
		},
		"behind both, turned": func(s *checkpoint.Source[int], r streams.Flow) {
			s.Via(streamsflow.NewPassThrough()).Via(flow.NewMap(same)).Via(r)
		},
	} {
		t.Run(name, func(t *testing.T) {
			next := goStreamsFlows["Map"]()
			defer close(next.In())
			defer func() { require.Contains(t, recover(), refused) }()
			wire(newSource(t), next)
		})
	}
	t.Run("wired backwards", func(t *testing.T) {
		first, last := flow.NewMap(same), flow.NewMap(same)
		go last.Via(goStreamsFlows["Map"]()).To(extension.NewIgnoreSink())
		first.Via(last)
		defer close(first.In())
		defer func() { require.Contains(t, recover(), refused) }()
		newSource(t).Via(first)
	})
	t.Run("a sink", func(t *testing.T) {
		sink := extension.NewStdoutSink()
		defer close(sink.In())
		defer func() { require.Contains(t, recover(), "takes checkpoint barriers for elements") }()
		newSource(t).Via(streamsflow.NewPassThrough()).To(sink)
	})
}

// Law C2: if the wiring does not show the checkpoints, the flow fails at the first
// barrier, before go-streams panics.
func TestVia_CheckpointsAreNotVisible(t *testing.T) {
	r := run{make(chan error, 1)}
	f, out := flow.NewMap(same), make(chan any, 9)
	f.In() <- 1
	f.In() <- participant.NewBarrier(1, participant.Periodic, r)
	close(f.In())
	f.Via(goStreamsFlows["Map"]()).To(extension.NewChanSink(out))
	require.ErrorContains(t, <-r.failed, "cannot pass checkpoint barriers")
	require.ErrorContains(t, f.Err(), "cannot pass checkpoint barriers")
	require.Equal(t, 1, <-out)
}
