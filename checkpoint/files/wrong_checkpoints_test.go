package files_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	. "github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
	"github.com/weirflow/weir/checkpoint/files"
)

// Checkpoints of another job with the same names, or that do not fit the input, are
// refused, and the output stays unchanged.
func TestOutput_WrongCheckpoints(t *testing.T) {
	lines := func(word string, n int) (s string) {
		for i := range n {
			s += fmt.Sprintf("%s %d\n", word, i)
		}
		return s
	}
	run := func(dir, checkpoints, input string) error {
		in, out := filepath.Join(dir, "in"), filepath.Join(dir, "out")
		require.NoError(t, os.WriteFile(in, []byte(input), 0o600))
		c := must(NewCoordinator(must(files.OpenDir(checkpoints)), WithLogger(quiet())))
		output := files.NewLineOutput(out)
		sink := NewSink(c, "out", output) // before the source, to show that the order does not matter
		source := NewSource(c, "in", must(files.OpenLines(in)))
		err := c.Start()
		go func() {
			for v := range source.Out() {
				sink.In() <- v
			}
			close(sink.In())
		}()
		sink.AwaitCompletion()
		return errors.Join(err, c.Wait(), c.Close())
	}
	for name, wrong := range map[string]struct {
		input string // of the run with the wrong checkpoints
		want  string
	}{
		"another output": {lines("a", 400), `state of "out" in checkpoint`},
		"another input":  {lines("b", 2000), `state of "in" in checkpoint`},
		"a shorter one":  {"a", "is it another file?"},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := t.TempDir(), t.TempDir()
			require.NoError(t, run(a, a+"/checkpoints", lines("a", 40)))
			require.NoError(t, run(b, b+"/checkpoints", lines("b", 2000)))
			err := run(b, a+"/checkpoints", wrong.input)
			require.ErrorContains(t, err, wrong.want)
			require.Equal(t, lines("b", 2000), string(must(os.ReadFile(b+"/out"))))
			require.Empty(t, must(filepath.Glob(b+"/out.*")))
		})
	}
	same := t.TempDir() // the right checkpoints are accepted
	require.NoError(t, run(same, same+"/checkpoints", lines("a", 40)))
	require.NoError(t, run(same, same+"/checkpoints", lines("a", 90)))
	require.Equal(t, lines("a", 90), string(must(os.ReadFile(same+"/out"))))
}

// All outputs are checked before any is changed.
func TestOutput_NoneIsChangedIfOneIsRefused(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(dir+"/in", []byte("one\n"), 0o600))
	store := checkpointtest.NewMemoryStore()
	run := func() error {
		c := must(NewCoordinator(store, WithLogger(quiet())))
		a, b := NewSink(c, "a", files.NewLineOutput(dir+"/a")), NewSink(c, "b", files.NewLineOutput(dir+"/b"))
		source := NewSource(c, "in", must(files.OpenLines(dir+"/in")))
		err := c.Start()
		for v := range source.Out() { // both get each line and each barrier
			a.In() <- v
			b.In() <- v
		}
		close(a.In())
		close(b.In())
		return errors.Join(err, c.Wait(), c.Close())
	}
	require.NoError(t, run())
	require.NoError(t, os.WriteFile(dir+"/a", []byte("one\nmore\n"), 0o600))
	require.NoError(t, os.WriteFile(dir+"/b", []byte("other\n"), 0o600))
	store = store.Reopen()
	require.ErrorContains(t, run(), `state of "b" in checkpoint`)
	require.Equal(t, "one\nmore\n", string(must(os.ReadFile(dir+"/a"))))
}

// The same at a fresh start: if one output refuses, the others are not emptied.
func TestOutput_NoneIsEmptiedIfOneIsRefused(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(dir+"/a", []byte("of a\n"), 0o600))
	require.NoError(t, os.WriteFile(dir+"/b", []byte("of b\n"), 0o600))
	c := must(NewCoordinator(checkpointtest.NewMemoryStore(), WithLogger(quiet())))
	close(NewSink(c, "a", files.NewLineOutput(dir+"/a").WithOverwrite()).In())
	close(NewSink(c, "b", files.NewLineOutput(dir+"/b")).In())
	require.ErrorContains(t, c.Start(), "there is no checkpoint to resume from")
	require.NoError(t, c.Close())
	require.Equal(t, "of a\n", string(must(os.ReadFile(dir+"/a"))))
}
