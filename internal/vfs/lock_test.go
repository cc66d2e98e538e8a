package vfs

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func cannotLock(err error) func(string) (*os.File, error) {
	return func(string) (*os.File, error) { return nil, err }
}

// Where directories cannot be locked, as on NFS, the file's lock is all there is: who
// loses the file finds out.
func TestLockWhereDirectoriesCannotBeLocked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "LOCK")
	first, err := lock(path, cannotLock(errors.ErrUnsupported))
	require.NoError(t, err)
	require.NoError(t, first.Check())
	_, err = lock(path, cannotLock(errors.ErrUnsupported))
	var held *HeldError
	require.ErrorAs(t, err, &held)
	assert.Equal(t, os.Getpid(), held.PID)
	if runtime.GOOS == "windows" {
		require.Error(t, os.Remove(path), "Windows does not remove an open file")
		require.NoError(t, first.Close())
		return
	}

	require.NoError(t, os.Remove(path))
	removed := first.Check()
	require.ErrorContains(t, removed, path+" was removed or replaced")
	second, err := lock(path, cannotLock(errors.ErrUnsupported))
	require.NoError(t, err)
	assert.Equal(t, removed, first.Check())
	require.NoError(t, second.Check())
	require.NoError(t, first.Close())
	require.NoError(t, second.Check(), "the end of a lost lock does no harm to its successor")
	_, err = lock(path, cannotLock(errors.ErrUnsupported))
	require.ErrorAs(t, err, &held)
	require.NoError(t, second.Close())
}

func TestLockGivesTheFileBackAfterAnError(t *testing.T) {
	path := filepath.Join(t.TempDir(), "LOCK")
	trouble := errors.New("no more locks")
	_, err := lock(path, cannotLock(trouble))
	require.ErrorIs(t, err, trouble)
	l, err := OS().Lock(path)
	require.NoError(t, err)
	require.NoError(t, l.Close())
}

// The holder removes the file and ends after the next process has opened the file and
// before that process locks it. This lock is on a file that is no longer in the
// directory.
func TestLockFileThatWasJustRemoved(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows does not remove an open file")
	}
	path := filepath.Join(t.TempDir(), "lock")
	tries := 0
	l, err := passing(path, func(name string) (*os.File, error) {
		f, err := lockFile(name)
		if tries++; tries == 1 {
			require.NoError(t, os.Remove(name))
		}
		return f, err
	})
	require.NoError(t, err)
	require.Equal(t, 2, tries)
	_, err = OS().LockFile(path)
	require.ErrorAs(t, err, new(*HeldError))
	require.NoError(t, l.Close())
	require.NoFileExists(t, path)
}

// A lock file that a killed run of another user has left is named with the remedy.
func TestLock_FileOfAnotherUser(t *testing.T) {
	name := filepath.Join(t.TempDir(), "lock")
	require.NoError(t, os.WriteFile(name, nil, 0o600))
	refuse := func(name string) (*os.File, error) {
		return nil, &os.PathError{Op: "open", Path: name, Err: os.ErrPermission}
	}
	_, err := passing(name, refuse)
	require.ErrorIs(t, err, os.ErrPermission)
	require.ErrorContains(t, err, "the lock file "+name+" belongs to another user")
	require.ErrorContains(t, err, "remove the file")

	missing := filepath.Join(t.TempDir(), "missing")
	_, err = passing(missing, refuse)
	require.EqualError(t, err, "open "+missing+": permission denied", "the directory is the problem")

	if os.Getuid() == 0 {
		return // root may open every file
	}
	require.NoError(t, os.Chmod(name, 0))
	_, err = OS().Lock(name)
	require.ErrorContains(t, err, "belongs to another user")
}
