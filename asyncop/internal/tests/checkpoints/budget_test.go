package checkpoints_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/backend"
	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/files"
	"github.com/weirflow/weir/codec"
)

// A run that ends because its budget is spent leaves a checkpoint with the sum. A run
// with the same budget ends at once, and a run with a larger one continues and repeats no
// call.
func TestBudget_Continues(t *testing.T) {
	dir := t.TempDir()
	in, out := filepath.Join(dir, "in.txt"), filepath.Join(dir, "out.txt")
	var lines strings.Builder
	for i := range 100 {
		fmt.Fprintln(&lines, i)
	}
	require.NoError(t, os.WriteFile(in, []byte(lines.String()), 0o600))
	silent := slog.New(slog.DiscardHandler)
	var calls atomic.Int64
	run := func(budget float64) error {
		store, err := files.OpenDir(filepath.Join(dir, "checkpoints"))
		require.NoError(t, err)
		c, err := checkpoint.NewCoordinator(store, checkpoint.WithInterval(time.Hour), checkpoint.WithLogger(silent))
		require.NoError(t, err)
		input, err := files.OpenLines(in)
		require.NoError(t, err)
		source := checkpoint.NewSource(c, "in", input)
		fn := asyncop.Blocking(func(ctx context.Context, line string) (string, error) {
			calls.Add(1)
			time.Sleep(time.Duration(calls.Load()%3) * time.Millisecond)
			asyncop.ReportCost(ctx, 2)
			return line, nil
		})
		op := asyncop.OrderedWait(fn, time.Minute, 10, asyncop.WithName("op"), asyncop.WithMaxConcurrentCalls(4), asyncop.WithLogger(silent),
			asyncop.WithCheckpoints(c, asyncop.State[string, string]{Results: codec.JSON[string]()}),
			asyncop.WithBackend(backend.New("service", backend.WithLogger(silent)), asyncop.Budget(budget)))
		sink := checkpoint.NewSink(c, "out", files.NewLineOutput(out))
		require.NoError(t, c.Start())
		source.Via(op).To(sink)
		err = c.Wait()
		_ = c.Close()
		return err
	}
	for range 2 {
		require.ErrorIs(t, run(60), asyncop.ErrBudgetSpent)
		require.GreaterOrEqual(t, calls.Load(), int64(30))
		require.LessOrEqual(t, calls.Load(), int64(33), "never exceeded by more than the calls in flight")
	}
	first := calls.Load()
	require.NoError(t, run(1000))
	require.EqualValues(t, 100, calls.Load(), "%d calls in the first runs", first)
	text, err := os.ReadFile(out)
	require.NoError(t, err)
	require.Equal(t, lines.String(), string(text))
}
