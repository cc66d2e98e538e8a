package asyncop_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestCheckpointSmoke(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			dir := t.TempDir()
			out := filepath.Join(dir, "out.txt")
			var in []string
			var want strings.Builder
			for i := range 2000 {
				in = append(in, strconv.Itoa(i))
				fmt.Fprintf(&want, "%d!\n", i)
			}
			rnd := rand.New(rand.NewPCG(seed, 1))
			runs := 0
			for done := false; !done; runs++ {
				store, err := checkpoint.OpenDir(filepath.Join(dir, "cp"))
				require.NoError(t, err)
				c, err := checkpoint.NewCoordinator(store, checkpoint.WithInterval(2*time.Millisecond))
				require.NoError(t, err)
				ctx, cancel := context.WithCancelCause(context.Background())
				src := checkpoint.NewSource(c, "src", checkpoint.NewSliceInput(in))
				fn := asyncop.Func(func(ctx context.Context, s string, r asyncop.ResultFuture[string]) error {
					time.AfterFunc(time.Duration(rand.IntN(3000))*time.Microsecond, func() {
						if rand.IntN(10) == 0 {
							r.CompleteExceptionally(errors.New("x"))
							return
						}
						r.Complete(s + "!")
					})
					return nil
				})
				op := asyncop.OrderedWaitWithRetry(fn, 5*time.Second, 50, strategies.FixedDelay[string](100, time.Millisecond).RetryIfException(predicates.HasException),
					asyncop.WithName("op"), asyncop.WithCheckpoints(c), asyncop.WithResultCodec(must(checkpoint.DefaultCodec[string]())), asyncop.WithContext(ctx), asyncop.WithDrainRetries())
				sink := checkpoint.NewSink(c, "sink", checkpoint.NewLineOutput(out))
				require.NoError(t, c.Start())
				if runs < 10 {
					time.AfterFunc(time.Duration(rnd.IntN(60))*time.Millisecond, func() { cancel(errors.New("killed")) })
				}
				src.Via(op).To(sink)
				err = c.Wait()
				done = err == nil
				id, ok := c.Restored()
				t.Log(runs, err, op.Err(), sink.Err(), id, ok, op.Stats().Accepted)
				require.NoError(t, c.Close())
				<-op.Done()
				cancel(nil)
				got, _ := os.ReadFile(out)
				require.True(t, strings.HasPrefix(want.String(), string(got)))
			}
			got, err := os.ReadFile(out)
			require.NoError(t, err)
			require.Equal(t, want.String(), string(got))
		})
	}
}
