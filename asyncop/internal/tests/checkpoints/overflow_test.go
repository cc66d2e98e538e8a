package checkpoints_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reugn/go-streams"
	"github.com/reugn/go-streams/flow"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/internal/optest"
	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
	weirflow "github.com/weirflow/weir/flow"
)

// countingInput reports how many values were read.
type countingInput struct {
	checkpoint.Input[int]
	read atomic.Int64
}

func (in *countingInput) Next() (int, error) {
	in.read.Add(1)
	return in.Input.Next()
}

// abortsLog fails a test if a checkpoint is aborted.
type abortsLog struct {
	slog.Handler
	t *testing.T
}

func (l abortsLog) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelWarn }

func (l abortsLog) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "checkpoint aborted" {
		r.Attrs(func(a slog.Attr) bool { l.t.Errorf("%s: %v", r.Message, a); return true })
	}
	return nil
}

// A barrier passes everything that is full before it: buffers, flows, two operators. A
// series of checkpoints does not let the operators grow without bound. No call ends
// before a checkpoint is complete.
func TestBarrierPassesFullBuffers(t *testing.T) {
	const n = 40_000
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		c, err := checkpoint.NewCoordinator(checkpointtest.NewMemoryStore(), checkpoint.WithLogger(slog.New(abortsLog{slog.DiscardHandler, t})))
		require.NoError(t, err)
		in := &countingInput{Input: checkpointtest.NewSliceInput(make([]int, n))}
		source := checkpoint.NewSource[int](c, "source", in)
		var gates [2]chan struct{}
		var ops [2]*asyncop.AsyncWaitOperator[int, int]
		for i := range ops {
			gates[i] = make(chan struct{})
			ops[i] = optest.Construct[int, int](m, asyncop.Blocking(func(ctx context.Context, in int) (int, error) {
				<-gates[i]
				return in, nil
			}), 0, nil, asyncop.WithBuffer(1024), asyncop.WithName(fmt.Sprint("op", i)), asyncop.WithCheckpoints(c, asyncop.State[string, string]{Overflow: 10}))
		}
		same := func() streams.Flow { return weirflow.NewMap(func(v int) int { return v }) }
		out := &published{}
		sink := checkpoint.NewSink[int](c, "sink", out)
		require.NoError(t, c.Start())
		done := make(chan struct{})
		go func() {
			defer close(done)
			source.Via(same()).Via(flow.NewPassThrough()).Via(ops[0]).Via(same()).Via(same()).Via(ops[1]).Via(same()).To(sink)
		}()
		checkpoints := func(k int) (read int64) {
			for range k {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				_, err := c.Trigger(ctx)
				require.NoError(t, err)
				cancel()
				synctest.Wait()
			}
			return in.read.Load()
		}
		checkpoints(3) // the first operator holds the upstream elements
		require.Equal(t, checkpoints(1), checkpoints(20))
		close(gates[0]) // now the second operator holds them
		synctest.Wait()
		checkpoints(5)
		read := checkpoints(1)
		require.Equal(t, read, checkpoints(20))
		require.Less(t, read, int64(n))
		close(gates[1])
		require.NoError(t, c.Wait())
		<-done
		require.Len(t, out.all, n)
		require.NoError(t, c.Close())
	}, 3)
}

// The marker of the end of the input also passes, and ends retries.
func TestMarkerPassesFullBuffers(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		c, err := checkpoint.NewCoordinator(checkpointtest.NewMemoryStore(), checkpoint.WithLogger(slog.New(abortsLog{slog.DiscardHandler, t})))
		require.NoError(t, err)
		source := checkpoint.NewSource(c, "source", checkpointtest.NewSliceInput(make([]int, 2000)))
		fn := asyncop.Blocking(func(context.Context, int) (int, error) { return 0, asyncop.ErrNoResult })
		op := optest.Construct[int, int](m, fn, time.Hour, optest.RetryAllOf[int](1_000_000, time.Millisecond), asyncop.WithLogger(slog.New(slog.DiscardHandler)),
			asyncop.WithBuffer(1024), asyncop.WithName("op"), asyncop.WithCheckpoints(c, asyncop.State[string, string]{Overflow: -1}))
		sink := checkpoint.NewSink(c, "sink", &published{})
		require.NoError(t, c.Start())
		began := time.Now()
		go source.Via(op).To(sink)
		time.Sleep(time.Second) // all but the first ones wait in buffers
		require.NoError(t, c.Finish(t.Context(), checkpoint.Drain))
		require.Less(t, time.Since(began), 2*time.Second)
		sink.AwaitCompletion()
		require.NoError(t, c.Close())
	}, 3)
}

// Rows of operators and flows with random buffers, in which a call ends only after a
// later checkpoint: no checkpoint is aborted, and each element is published once.
func TestRandomRowsNeverHoldABarrier(t *testing.T) {
	for seed := range uint64(30) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 10))
			c, err := checkpoint.NewCoordinator(checkpointtest.NewMemoryStore(), checkpoint.WithInterval(time.Second),
				checkpoint.WithTimeout(time.Minute), checkpoint.WithLogger(slog.New(abortsLog{slog.DiscardHandler, t})))
			require.NoError(t, err)
			all := make([]int, random.IntN(400))
			for i := range all {
				all[i] = i
			}
			source := checkpoint.NewSource(c, "source", checkpointtest.NewSliceInput(all))
			held := asyncop.Blocking(func(ctx context.Context, in int) (int, error) {
				for began := c.LastComplete(); c.LastComplete() == began; {
					time.Sleep(100 * time.Millisecond)
				}
				return in, nil
			})
			out := &published{}
			sink := checkpoint.NewSink[int](c, "sink", out)
			var last streams.Flow
			for i := range 1 + random.IntN(6) {
				var next streams.Flow
				switch random.IntN(4) {
				case 0:
					next = weirflow.NewMap(func(v int) int { return v })
				case 1:
					next = flow.NewPassThrough()
				default:
					next = optest.Construct[int, int](optest.Mode{Ordered: random.IntN(2) == 0, Capacity: 1 + random.IntN(20)}, held, 0, nil,
						asyncop.WithBuffer(random.IntN(100)), asyncop.WithName(fmt.Sprint("op", i)),
						asyncop.WithCheckpoints(c, asyncop.State[string, string]{Overflow: random.IntN(20) - 1}))
				}
				if last == nil {
					last = source.Via(next)
				} else {
					last = last.Via(next)
				}
			}
			require.NoError(t, c.Start())
			var running sync.WaitGroup
			running.Go(func() { last.To(sink) })
			require.NoError(t, c.Wait(), "seed %d", seed)
			running.Wait()
			slices.Sort(out.all)
			require.Equal(t, all, out.all, "seed %d", seed)
			require.NoError(t, c.Close())
		})
	}
}
