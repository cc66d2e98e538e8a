package asyncop

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/weirflow/weir/checkpoint"
)

// BenchmarkBarrier measures what a barrier costs with n elements in flight: pause-ns is the copying on the loop, encode-ns
// the encoding beside it, per checkpoint.
func BenchmarkBarrier(b *testing.B) {
	for _, n := range []int{1e3, 1e5, 1e6} {
		b.Run(fmt.Sprintf("inflight=%d", n), func(b *testing.B) {
			ctx, cancel := context.WithCancel(context.Background())
			op := OrderedWait(Func(func(context.Context, string, ResultFuture[string]) error { return nil }), 0, n, WithContext(ctx))
			for i := range n {
				op.In() <- fmt.Sprintf("element %016d", i)
			}
			for op.Stats().Accepted < int64(n) {
				time.Sleep(time.Millisecond)
			}
			inputs, err := checkpoint.DefaultCodec[string]()
			if err != nil {
				b.Fatal(err)
			}
			codec := stateCodec[string, string]{inputs: inputs}
			c := op.pump.core // the loop sleeps
			var pause, encode time.Duration
			var size int
			for b.Loop() {
				t0 := time.Now()
				items := c.items(make([]item[string, string], 0, c.queue.Len()), false)
				t1 := time.Now()
				state, err := codec.encode(items)
				if err != nil {
					b.Fatal(err)
				}
				pause, encode, size = pause+t1.Sub(t0), encode+time.Since(t1), len(state)
			}
			b.ReportMetric(float64(pause.Nanoseconds())/float64(b.N), "pause-ns/op")
			b.ReportMetric(float64(encode.Nanoseconds())/float64(b.N), "encode-ns/op")
			b.ReportMetric(float64(size), "state-B")
			cancel()
			close(op.In())
			<-op.Done()
		})
	}
}

// BenchmarkCheckpointThroughput passes elements with checkpoints every 100 ms, and with none.
func BenchmarkCheckpointThroughput(b *testing.B) {
	for _, interval := range []time.Duration{0, 100 * time.Millisecond} {
		b.Run(fmt.Sprintf("interval=%v", interval), func(b *testing.B) {
			c, err := checkpoint.NewCoordinator(checkpoint.NewMemoryStore(), checkpoint.WithInterval(interval))
			if err != nil {
				b.Fatal(err)
			}
			src := checkpoint.NewSource(c, "src", checkpoint.NewSliceInput(make([]int, b.N)))
			op := OrderedWait(Func(func(_ context.Context, v int, r ResultFuture[int]) error { r.Complete(v); return nil }),
				time.Minute, 1000, WithName("op"), WithCheckpoints(c))
			b.ResetTimer()
			if err := c.Start(); err != nil {
				b.Fatal(err)
			}
			src.Via(op)
			for v := range op.Out() {
				_ = v
			}
			if err := c.Wait(); err != nil {
				b.Fatal(err)
			}
			_ = c.Close()
		})
	}
}
