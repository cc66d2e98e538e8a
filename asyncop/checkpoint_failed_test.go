package asyncop_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
)

// Law C3: one failing element ends the run at any moment of a checkpoint. The next run resumes, and the output is complete.
func TestFailedRunsCanBeRestarted(t *testing.T) {
	for run := range 25 {
		dir := t.TempDir()
		in, fails := make([]string, 200), fmt.Sprint(7*run%200)
		for i := range in {
			in[i] = fmt.Sprint(i)
		}
		for _, broken := range []bool{true, false} {
			lookup := asyncop.Blocking(func(_ context.Context, s string) (string, error) {
				if broken && s == fails {
					return "", errors.New("no such row")
				}
				return s, nil
			})
			store := must(checkpoint.OpenDir(filepath.Join(dir, "checkpoints")))
			c := must(checkpoint.NewCoordinator(store, checkpoint.WithInterval(50*time.Microsecond),
				checkpoint.WithLogger(slog.New(slog.DiscardHandler))))
			source := checkpoint.NewSource(c, "in", checkpointtest.NewSliceInput(in))
			op := asyncop.OrderedWait(lookup, time.Minute, 16, asyncop.WithName("lookup"), asyncop.WithCheckpoints(c),
				asyncop.WithLogger(slog.New(slog.DiscardHandler)))
			sink := checkpoint.NewSink(c, "out", checkpoint.NewLineOutput(filepath.Join(dir, "out")))
			require.NoError(t, c.Start(), "run %d", run)
			source.Via(op).To(sink)
			require.Equal(t, broken, c.Wait() != nil, "run %d", run)
			require.NoError(t, c.Close())
		}
		require.Equal(t, strings.Join(in, "\n")+"\n", string(must(os.ReadFile(filepath.Join(dir, "out")))), "run %d", run)
	}
}
