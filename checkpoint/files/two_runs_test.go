package files_test

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	. "github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
	"github.com/weirflow/weir/checkpoint/files"
)

// copier is a run that copies lines to a file.
type copier struct {
	*Coordinator
	store *checkpointtest.MemoryStore
	lines chan string
	ended chan struct{}
}

func newCopier(store *checkpointtest.MemoryStore, path string, lines chan string) *copier {
	c := &copier{must(NewCoordinator(store, WithLogger(quiet()))), store, lines, make(chan struct{})}
	source := NewSource(c.Coordinator, "in", checkpointtest.NewChannelInput(c.lines))
	sink := NewSink(c.Coordinator, "out", files.NewLineOutput(path))
	go func() {
		defer close(c.ended)
		for v := range source.Out() {
			sink.In() <- v
		}
		close(sink.In())
		sink.AwaitCompletion()
	}()
	return c
}

// linesOf returns a closed channel.
func linesOf(lines ...string) chan string {
	c := make(chan string, len(lines))
	defer close(c)
	for _, line := range lines {
		c <- line
	}
	return c
}

func (c *copier) close(t *testing.T) {
	t.Helper()
	require.NoError(t, c.Close())
	<-c.ended
}

// If two runs with different checkpoints have the same output, the second is refused
// until the first has ended, and does not change the output.
func TestOutput_TwoRuns(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out")
	first := newCopier(checkpointtest.NewMemoryStore(), path, make(chan string))
	require.NoError(t, first.Start())
	for range 2 {
		second := newCopier(checkpointtest.NewMemoryStore(), path, make(chan string))
		err := second.Start()
		require.ErrorContains(t, err, path+" is the output of another sink or run: locked by process")
		require.ErrorContains(t, err, `state of "out"`)
		require.Equal(t, err, second.Wait())
		second.close(t) // does not release the lock of the first
	}
	first.lines <- "one"
	must(first.Trigger(t.Context()))
	close(first.lines)
	require.NoError(t, first.Wait())
	<-first.ended
	require.Equal(t, "one\n", string(must(os.ReadFile(path))))
	require.Equal(t, []string{path}, must(filepath.Glob(path+"*")), "the sink has ended, although the coordinator is not closed")
	first.close(t)

	again := newCopier(first.store.Reopen(), path, linesOf("one"))
	require.NoError(t, again.Start())
	again.close(t)
}

// Close of the coordinator releases the output for another run, even if the input of the
// sink is still open, and after a failed Start.
func TestOutputIsFreeWhenCloseReturns(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out")
	for _, fails := range []bool{false, true, false} {
		c := must(NewCoordinator(checkpointtest.NewMemoryStore(), WithLogger(quiet())))
		sink := NewSink(c, "out", files.NewLineOutput(path))
		if fails {
			require.NoError(t, os.WriteFile(path, []byte("precious\n"), 0o600))
			require.ErrorContains(t, c.Start(), "there is no checkpoint to resume from")
			require.NoError(t, os.Truncate(path, 0))
		} else {
			require.NoError(t, c.Start())
			require.FileExists(t, path+".weir-lock")
		}
		require.NoError(t, c.Close())
		require.NoFileExists(t, path+".weir-lock")
		defer sink.AwaitCompletion()
		defer close(sink.In())
	}
}

// If two sinks of a run have the same output, Start refuses the second and does not
// change the file.
func TestOutput_TwoSinks(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "out")
	t.Chdir(dir)
	require.NoError(t, os.WriteFile(path, []byte("precious\n"), 0o600))
	start := func(a, b string) error {
		c := must(NewCoordinator(checkpointtest.NewMemoryStore(), WithLogger(quiet())))
		for name, path := range map[string]string{"a": a, "b": b} {
			sink := NewSink(c, name, files.NewLineOutput(path).WithOverwrite())
			defer sink.AwaitCompletion()
			defer close(sink.In())
		}
		err := c.Start()
		require.NoError(t, c.Close())
		return err
	}
	same := []string{path, "out", "./out"}
	if runtime.GOOS != "windows" { // where links require a privilege
		require.NoError(t, os.Symlink(dir, filepath.Join(dir, "link")))
		require.NoError(t, os.Symlink("out", filepath.Join(dir, "name")))
		same = append(same, "link/out", "name", "link/name")
	}
	for _, other := range same {
		require.ErrorContains(t, start(path, other), "is the output of another sink or run", other)
	}
	require.Equal(t, "precious\n", string(must(os.ReadFile(path))))
	require.NoError(t, start(path, "other"))
	require.Empty(t, must(os.ReadFile(path)))
}

// If another program writes to the output, the run fails at once and does not cut off any
// bytes. A restart keeps the other bytes beside the file, and continues.
func TestAppendedByOthers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out")
	c := newCopier(checkpointtest.NewMemoryStore(), path, make(chan string))
	require.NoError(t, c.Start())
	c.lines <- "one"
	must(c.Trigger(t.Context()))
	f := must(os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0))
	must(f.WriteString("by hand\n"))
	require.NoError(t, f.Close())
	c.lines <- "two"
	must(c.Trigger(t.Context())) // the checkpoint itself is stored
	err := c.Wait()
	require.ErrorIs(t, err, ErrFenced)
	require.ErrorContains(t, err, path+" has 12 bytes, but this run has left it with 4: something else writes to it")
	c.close(t)
	require.Equal(t, "one\nby hand\n", string(must(os.ReadFile(path))))

	c = newCopier(c.store.Reopen(), path, linesOf("one", "two"))
	require.NoError(t, c.Start())
	require.NoError(t, c.Wait())
	c.close(t)
	require.Equal(t, "one\ntwo\n", string(must(os.ReadFile(path))))
	require.Equal(t, "by hand\n", string(must(os.ReadFile(path+".cut-1"))))
}
