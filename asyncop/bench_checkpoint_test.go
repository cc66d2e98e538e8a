package asyncop

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
	"github.com/weirflow/weir/checkpoint/files"
	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/internal/fifo"
)

// BenchmarkCheckpoint takes checkpoints with n elements in flight, into a directory.
// ns/op is the time from the trigger until the checkpoint is complete. pause-ns is the
// part of it that the loop spends on copying, and file-B the size of the file.
//
//	go test ./asyncop -run '^$' -bench Checkpoint -benchtime 10x
func BenchmarkCheckpoint(b *testing.B) {
	for _, n := range []int{1e3, 1e5, 1e6} {
		b.Run(fmt.Sprintf("inflight=%d", n), func(b *testing.B) {
			store, err := files.OpenDir(b.TempDir())
			if err != nil {
				b.Fatal(err)
			}
			c, err := checkpoint.NewCoordinator(store)
			if err != nil {
				b.Fatal(err)
			}
			ctx, cancel := context.WithCancel(b.Context())
			feed := make(barriers, 1)
			c.Host().Register("feed", feed)
			op := OrderedWait(Func(func(context.Context, string, ResultFuture[string]) error { return nil }), 0, n,
				WithContext(ctx), WithName("op"), WithCheckpoints(c))
			if err := c.Start(); err != nil {
				b.Fatal(err)
			}
			done := make(chan struct{})
			go func() {
				defer close(done)
				for range op.Out() {
				}
			}()
			for i := range n {
				op.In() <- fmt.Sprintf("element %016d", i)
			}
			for op.Stats().Accepted < int64(n) {
				time.Sleep(time.Millisecond)
			}
			runtime.GC()
			var pause, longest time.Duration
			for b.Loop() {
				go func() { op.In() <- <-feed }()
				if _, err := c.Trigger(ctx); err != nil {
					b.Fatal(err)
				}
				last := op.driver.Pause() // reported since, so it is not being written
				pause, longest = pause+last, max(longest, last)
			}
			entries, err := store.List(ctx)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(pause.Nanoseconds())/float64(b.N), "pause-ns/op")
			b.ReportMetric(float64(longest.Nanoseconds()), "longest-pause-ns")
			b.ReportMetric(float64(entries[len(entries)-1].Size), "file-B")
			cancel()
			close(op.In())
			<-op.Done()
			<-done
			_ = c.Close()
		})
	}
}

// barriers is a source that passes its barriers to the benchmark.
type barriers chan participant.Barrier

func (f barriers) Pending(b participant.Barrier) { b.Report("feed", participant.State{}, nil); f <- b }
func (f barriers) Completed(uint64)              {}
func (f barriers) Aborted(uint64, error)         {}

// BenchmarkCheckpointThroughput passes a million elements, with half of the 10,000 slots
// always taken. It alternates runs with checkpoints into a directory every 100 ms and
// runs without checkpoints, because machines are noisy. lost-% compares the medians.
//
//	go test ./asyncop -run '^$' -bench CheckpointThroughput -benchtime 15x
func BenchmarkCheckpointThroughput(b *testing.B) {
	const elements, capacity = 1_000_000, 10_000
	var none, some []time.Duration
	checkpoints := 0
	run := func(interval time.Duration) time.Duration {
		began := time.Now()
		n := passWithCheckpoints(b, interval, elements, capacity)
		if interval > 0 {
			checkpoints += n
		}
		return time.Since(began)
	}
	for b.Loop() {
		none = append(none, run(0))
		some = append(some, run(100*time.Millisecond))
	}
	median := func(d []time.Duration) float64 { slices.Sort(d); return float64(d[len(d)/2]) }
	b.ReportMetric(median(none)/elements, "none-ns/element")
	b.ReportMetric(median(some)/elements, "100ms-ns/element")
	b.ReportMetric(100*(1-median(none)/median(some)), "lost-%")
	b.ReportMetric(float64(checkpoints)/float64(b.N), "checkpoints/op")
}

func passWithCheckpoints(b *testing.B, interval time.Duration, elements, capacity int) (checkpoints int) {
	b.Helper()
	store, err := files.OpenDir(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	c, err := checkpoint.NewCoordinator(store, checkpoint.WithInterval(interval))
	if err != nil {
		b.Fatal(err)
	}
	src := checkpoint.NewSource(c, "src", checkpointtest.NewSliceInput(make([]int, elements)))
	calls := 0
	var running fifo.Queue[ResultFuture[int]] // owned by the loop, like the calls
	op := OrderedWait(Func(func(_ context.Context, v int, r ResultFuture[int]) error {
		running.Push(r)
		for calls++; running.Len() > capacity/2 || calls == elements && running.Len() > 0; {
			running.Pop().Complete(v)
		}
		return nil
	}), time.Hour, capacity, WithName("op"), WithCheckpoints(c))
	if err := c.Start(); err != nil {
		b.Fatal(err)
	}
	src.Via(op)
	for v := range op.Out() {
		if _, ok := v.(participant.Barrier); ok {
			checkpoints++
		}
	}
	if err := c.Wait(); err != nil {
		b.Fatal(err)
	}
	if err := c.Close(); err != nil {
		b.Fatal(err)
	}
	return checkpoints
}
