package asyncop_test

import (
	"context"
	"testing"
	"time"

	"github.com/reugn/go-streams"
	ext "github.com/reugn/go-streams/extension"
	"github.com/reugn/go-streams/flow"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

func TestSmoke(t *testing.T) {
	fn := asyncop.Blocking(func(ctx context.Context, in int) (int, error) { time.Sleep(time.Millisecond); return in * 2, nil })
	op := asyncop.OrderedWait(fn, time.Second, 100)
	go func() {
		for i := range 1000 {
			op.In() <- i
		}
		close(op.In())
	}()
	i := 0
	for v := range op.Out() {
		require.Equal(t, i*2, v)
		i++
	}
	require.NoError(t, op.Wait())
	t.Logf("%+v", op.Stats())
}

func bench(b *testing.B, f func() streams.Flow) {
	b.ReportAllocs()
	src := make(chan any)
	e := new(int)
	n := b.N
	b.ResetTimer()
	go func() {
		for range n {
			src <- e
		}
		close(src)
	}()
	sink := make(chan any)
	go ext.NewChanSource(src).Via(f()).To(ext.NewChanSink(sink))
	m := 0
	for range sink {
		m++
	}
	if m != n {
		b.Fatal(m)
	}
}

func BenchmarkX(b *testing.B) {
	b.Run("passthrough", func(b *testing.B) { bench(b, func() streams.Flow { return flow.NewPassThrough() }) })
	fn := asyncop.Func(func(_ context.Context, in *int, r asyncop.ResultFuture[*int]) error { r.Complete(in); return nil })
	st := strategies.FixedDelay[*int](3, time.Second).RetryIfResult(predicates.EmptyResult).RetryIfException(predicates.HasException)
	b.Run("ordered", func(b *testing.B) {
		bench(b, func() streams.Flow { return asyncop.OrderedWaitWithRetry(fn, time.Second, 1000, st) })
	})
	b.Run("unordered", func(b *testing.B) {
		bench(b, func() streams.Flow { return asyncop.UnorderedWaitWithRetry(fn, time.Second, 1000, st) })
	})
	bl := asyncop.Blocking(func(ctx context.Context, in *int) (*int, error) { return in, nil })
	b.Run("blocking64", func(b *testing.B) {
		bench(b, func() streams.Flow {
			return asyncop.OrderedWaitWithRetry(bl, time.Second, 1000, st, asyncop.WithMaxConcurrentCalls(64))
		})
	})
}
