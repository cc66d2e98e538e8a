package lock_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/lock"
)

// holdForever is the environment variable with the file that a child process locks.
const holdForever = "WEIR_LOCK_FILE"

// holdFile locks a file until the process is killed.
func holdFile(path string) {
	_, err := lock.TryFile(path)
	fmt.Println("locked:", err)
	time.Sleep(time.Hour)
}

func TestTryFile_EndsWithItsProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "job.lock")
	child := exec.CommandContext(t.Context(), os.Args[0])
	child.Env = append(os.Environ(), holdForever+"="+path)
	out, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	lines := bufio.NewScanner(out)
	require.True(t, lines.Scan())
	require.Equal(t, "locked: <nil>", lines.Text())

	_, err = lock.TryFile(path)
	require.ErrorIs(t, err, lock.ErrHeld)
	held, ok := errors.AsType[*lock.FileHeldError](err)
	require.True(t, ok)
	require.Equal(t, lock.FileHeldError{Path: path, PID: child.Process.Pid}, *held)
	require.EqualError(t, err, fmt.Sprintf("lock: held: the file %q, by process %d", path, child.Process.Pid))

	require.NoError(t, child.Process.Kill())
	require.Error(t, child.Wait())
	l, err := lock.TryFile(path)
	require.NoError(t, err)
	_, err = lock.TryFile(path)
	require.ErrorIs(t, err, lock.ErrHeld, "a second lock of the same process")
	require.NoError(t, l.Release())
	require.NoFileExists(t, path)
}

func TestHoldFile_WaitsForHolder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "job.lock")
	first, err := lock.TryFile(path)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	err = lock.HoldFile(ctx, path, func(context.Context) error { t.Error("it is held"); return nil })
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorIs(t, err, lock.ErrHeld)

	broken := errors.New("broken")
	released := make(chan error, 1)
	time.AfterFunc(10*time.Millisecond, func() { released <- first.Release() })
	err = lock.HoldFile(t.Context(), path, func(context.Context) error {
		_, err := lock.TryFile(path)
		require.ErrorIs(t, err, lock.ErrHeld)
		return broken
	})
	require.ErrorIs(t, err, broken)
	require.NoError(t, <-released)
	require.NoError(t, lock.HoldFile(t.Context(), path, func(context.Context) error { return nil }))
}

func TestTryFile_MissingDirectory(t *testing.T) {
	_, err := lock.TryFile(filepath.Join(t.TempDir(), "missing", "job.lock"))
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, "lock: file: ")
}
