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
	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/files"
)

// A run that is stopped by a Drain finishes its calls. The next run continues after the
// last element and repeats no call.
func TestFinish_DrainRepeatsNoCall(t *testing.T) {
	dir := t.TempDir()
	in, out := filepath.Join(dir, "in.txt"), filepath.Join(dir, "out.txt")
	var lines strings.Builder
	for i := range 300 {
		fmt.Fprintln(&lines, i)
	}
	require.NoError(t, os.WriteFile(in, []byte(lines.String()), 0o600))
	silent := slog.New(slog.DiscardHandler)
	var calls atomic.Int64
	run := func(stopAfter int64) {
		store, err := files.OpenDir(filepath.Join(dir, "checkpoints"))
		require.NoError(t, err)
		c, err := checkpoint.NewCoordinator(store, checkpoint.WithInterval(time.Hour), checkpoint.WithLogger(silent))
		require.NoError(t, err)
		input, err := files.OpenLines(in)
		require.NoError(t, err)
		source := checkpoint.NewSource(c, "in", input)
		reached := make(chan struct{})
		fn := asyncop.Blocking(func(_ context.Context, line string) (string, error) {
			n := calls.Add(1)
			if n == stopAfter {
				close(reached)
			}
			time.Sleep(time.Duration(n%5) * time.Millisecond)
			return line, nil
		})
		op := asyncop.OrderedWait(fn, time.Minute, 10, asyncop.WithName("op"), asyncop.WithMaxConcurrentCalls(4), asyncop.WithLogger(silent),
			asyncop.WithCheckpoints(c))
		sink := checkpoint.NewSink(c, "out", files.NewLineOutput(out))
		require.NoError(t, c.Start())
		go source.Via(op).To(sink)
		select {
		case <-reached:
			require.NoError(t, c.Finish(t.Context(), checkpoint.Drain))
		case <-c.Ended():
		}
		require.NoError(t, c.Wait())
		<-op.Done()
		require.NoError(t, c.Close())
	}
	run(50)
	require.Less(t, calls.Load(), int64(300))
	run(120)
	run(0)
	require.EqualValues(t, 300, calls.Load())
	text, err := os.ReadFile(out)
	require.NoError(t, err)
	require.Equal(t, lines.String(), string(text))
}
