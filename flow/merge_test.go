package flow_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/reugn/go-streams"
	"github.com/reugn/go-streams/extension"
	streamsflow "github.com/reugn/go-streams/flow"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/flow"
	"github.com/weirflow/weir/queue"
)

func mark(n int64) queue.Watermark { return queue.Watermark{Timestamp: time.Unix(n, 0)} }

// Merge emits a watermark once all inputs have reached it. An input that has ended does
// not hold watermarks back.
func TestMerge_LowestWatermark(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := make(chan any), make(chan any)
		merged := flow.Merge(extension.NewChanSource(a), extension.NewChanSource(b))
		require.Nil(t, merged.Err())
		send := func(input chan any, v any) {
			input <- v
			synctest.Wait()
		}
		var got []any
		done := make(chan struct{})
		go func() {
			defer close(done)
			for v := range merged.Out() {
				got = append(got, v)
			}
		}()
		send(a, "a1")
		send(a, mark(5))
		send(b, "b1") // slower, so the mark must not overtake it
		require.Equal(t, []any{"a1", "b1"}, got)
		send(b, mark(3))
		send(b, mark(4))
		send(b, mark(7))
		send(a, mark(5))
		send(a, "a2")
		require.Equal(t, []any{"a1", "b1", mark(3), mark(4), mark(5), "a2"}, got)
		close(a)
		synctest.Wait()
		require.Equal(t, mark(7), got[len(got)-1], "the input that has ended does not hold it back")
		send(b, mark(9))
		send(b, "b2")
		close(b)
		<-done
		require.Equal(t, []any{"a1", "b1", mark(3), mark(4), mark(5), "a2", mark(7), mark(9), "b2"}, got)
	})
}

// An input without watermarks holds all watermarks back.
func TestMerge_InputWithoutWatermarks(t *testing.T) {
	a, b := make(chan any, 9), make(chan any)
	a <- mark(1)
	a <- "a"
	close(a)
	merged := flow.Merge(extension.NewChanSource(a), extension.NewChanSource(b))
	require.Equal(t, "a", <-merged.Out())
	b <- "b"
	require.Equal(t, "b", <-merged.Out())
	close(b)
	_, more := <-merged.Out()
	require.False(t, more)
}

// Merge respects a throttler. go-streams' Merge does not, because it reads Out of its
// inputs.
func TestMerge_Throttler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := make(chan any, 9)
		for n := range 4 {
			in <- n
		}
		close(in)
		throttled := extension.NewChanSource(in).Via(streamsflow.NewThrottler(2, 100*time.Millisecond, 9, streamsflow.Backpressure))
		began := time.Now()
		merged := flow.Merge(throttled)
		for range 4 {
			<-merged.Out()
		}
		require.Equal(t, 100*time.Millisecond, time.Since(began))
		for range merged.Out() {
		}
		time.Sleep(100 * time.Millisecond) // the throttler ends with its period
	})
}

// A failed input fails the merged flow, which ends the other inputs, because they may be
// endless.
func TestMerge_InputFails(t *testing.T) {
	good, bad := flow.NewMap(same), flow.NewMap(func(n int) int { return 1 / n })
	merged := flow.Merge(good, bad)
	done := make(chan struct{})
	go func() {
		defer close(done)
		merged.To(extension.NewIgnoreSink())
	}()
	bad.In() <- 0
	close(bad.In())
	require.Eventually(t, func() bool { return good.Err() != nil }, time.Minute, time.Millisecond)
	require.ErrorContains(t, good.Err(), "a later step has failed: flow Merge of int: flow: Merge: upstream: flow: Map: panic")
	require.ErrorContains(t, merged.Err(), "integer divide by zero")
	close(good.In())
	<-done
}

// A failure after the merged flow ends all inputs.
func TestMerge_LaterStepFails(t *testing.T) {
	a, b := flow.NewMap(same), flow.NewMap(same)
	last := flow.NewMap(func(n int) int { return 1 / n })
	done := make(chan struct{})
	go func() {
		defer close(done)
		flow.Merge(a, b).Via(last).To(extension.NewIgnoreSink())
	}()
	a.In() <- 0
	require.Eventually(t, func() bool { return a.Err() != nil && b.Err() != nil }, time.Minute, time.Millisecond)
	require.ErrorContains(t, b.Err(), "a later step has failed: flow Map from int to int: ")
	close(a.In())
	close(b.In())
	<-done
}

// Law C2: branches of a stream with checkpoints must not meet again.
func TestMerge_Checkpoints(t *testing.T) {
	branch := flow.NewMap(same)
	newSource(t).Via(branch)
	other := make(chan any)
	close(other)
	defer func() { require.Contains(t, recover(), "must not meet again") }()
	flow.Merge(extension.NewChanSource(other), branch)
}

// Law C2: if the wiring does not show the checkpoints, the run fails at the first
// barrier.
func TestMerge_Barrier(t *testing.T) {
	r := run{make(chan error, 9)}
	in := make(chan any, 9)
	in <- participant.NewBarrier(1, participant.Periodic, r)
	close(in)
	merged := flow.Merge(extension.NewChanSource(in))
	for range merged.Out() {
	}
	require.ErrorContains(t, <-r.failed, "must not meet again")
	require.ErrorContains(t, merged.Err(), "must not meet again")
}

func TestMerge_Arguments(t *testing.T) {
	require.PanicsWithValue(t, "flow: Merge: no inputs", func() { flow.Merge() })
	require.PanicsWithValue(t, "flow: Merge: nil input", func() { flow.Merge(nil) })
	a, b := flow.NewMap(func(n int) string { return "" }), flow.NewMap(same)
	merged := flow.Merge(a, b)
	var next streams.Flow = flow.NewMap(same)
	require.NotPanics(t, func() { go merged.Via(next).To(extension.NewIgnoreSink()) }, "elements of several types")
	close(a.In())
	close(b.In())
}
