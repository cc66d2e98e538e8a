package crashfs

import (
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/internal/vfs"
)

func create(t *testing.T, f *FS, name, content string) vfs.File {
	t.Helper()
	file, err := f.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	require.NoError(t, err)
	_, err = file.Write([]byte(content))
	require.NoError(t, err)
	return file
}

// images returns the possible disks after a power cut, as text.
func images(f *FS) []string {
	seen := map[string]bool{}
	for image := range f.Images() {
		var parts []string
		for _, path := range slices.Sorted(maps.Keys(image.Files())) {
			parts = append(parts, path+"="+image.Files()[path])
		}
		seen[strings.Join(parts, " ")] = true
	}
	return slices.Sorted(maps.Keys(seen))
}

func TestFS_WithoutSync(t *testing.T) {
	f := New()
	file := create(t, f, "/a", "xy")
	assert.Equal(t, []string{"", "/a=", "/a=\x00\x00", "/a=\x00y", "/a=x", "/a=x\x00", "/a=xy"}, images(f))
	require.NoError(t, file.Sync())
	assert.Equal(t, []string{"", "/a=xy"}, images(f), "the content is sure, the name is not")
	require.NoError(t, f.SyncDir("/"))
	assert.Equal(t, []string{"/a=xy"}, images(f))

	_, err := file.Write([]byte("z"))
	require.NoError(t, err)
	assert.Equal(t, []string{"/a=xy", "/a=xy\x00", "/a=xyz"}, images(f))
	require.NoError(t, file.Truncate(1))
	assert.Contains(t, images(f), "/a=x")
	assert.Contains(t, images(f), "/a=xyz")
	f.Settle()
	assert.Equal(t, []string{"/a=x"}, images(f))
}

func TestNamesArePersistedInAnyOrder(t *testing.T) {
	f := New()
	require.NoError(t, create(t, f, "/a", "A").Sync())
	require.NoError(t, create(t, f, "/b", "B").Sync())
	assert.Equal(t, []string{"", "/a=A", "/a=A /b=B", "/b=B"}, images(f))
	f.Settle()

	require.NoError(t, f.Rename("/a", "/c"))
	require.NoError(t, f.Remove("/b"))
	assert.Equal(t, []string{"/a=A", "/a=A /b=B", "/b=B /c=A", "/c=A"}, images(f))
	split := f.Clone()
	split.SplitRenames()
	require.NoError(t, split.Rename("/c", "/d"))
	assert.Contains(t, images(split), "/c=A /d=A")
	assert.Contains(t, images(split), "", "an old name that is gone, a new one that has not come")

	require.NoError(t, f.SyncDir("/"))
	assert.Equal(t, []string{"/c=A"}, images(f))
	require.NoError(t, create(t, f, "/n", "N").Sync())
	require.NoError(t, f.Rename("/n", "/c"))
	assert.Equal(t, []string{"/c=A", "/c=A /n=N", "/c=N"}, images(f), "a rename replaces in one step")
}

func TestDirectoriesNeedTheirParents(t *testing.T) {
	f := New()
	require.NoError(t, f.Mkdir("/d", 0o700))
	require.NoError(t, create(t, f, "/d/a", "A").Sync())
	require.NoError(t, f.SyncDir("/d"))
	assert.Equal(t, []string{"", "/d/= /d/a=A"}, images(f))
	require.NoError(t, f.SyncDir("/"))
	assert.Equal(t, []string{"/d/= /d/a=A"}, images(f))
}

// If the contents of two files are uncertain, each is torn while the other is old or new.
func TestFS_TwoFilesAreTornInTurn(t *testing.T) {
	f := New()
	create(t, f, "/a", "ab")
	create(t, f, "/b", "cd")
	require.NoError(t, f.SyncDir("/"))
	got := images(f)
	for _, want := range []string{"/a= /b=", "/a=ab /b=c", "/a=a /b=cd", "/a=ab /b=cd", "/a=a /b="} {
		assert.Contains(t, got, want)
	}
	assert.NotContains(t, got, "/a=a /b=c")
}

func TestCloneIsAKilledProcess(t *testing.T) {
	f := New()
	create(t, f, "/a", "A")
	lock, err := f.Lock("/LOCK")
	require.NoError(t, err)
	c := f.Clone()
	assert.Equal(t, map[string]string{"/a": "A", "/LOCK": ""}, c.Files())
	assert.Equal(t, images(f), images(c))
	_, err = c.Lock("/LOCK")
	require.NoError(t, err, "the dead hold no locks")
	require.NoError(t, c.Remove("/a"))
	assert.Equal(t, map[string]string{"/a": "A", "/LOCK": ""}, f.Files())
	require.NoError(t, lock.Close())
}

func TestFaults(t *testing.T) {
	f := New()
	file := create(t, f, "/a", "1")
	fault := &Fault{}
	var calls []string
	f.OnCall(func(c Call) *Fault {
		calls = append(calls, c.String())
		return fault
	})

	*fault = Fault{Err: syscall.ENOSPC, Part: 2}
	n, err := file.Write([]byte("abc"))
	assert.Equal(t, 2, n)
	require.ErrorIs(t, err, syscall.ENOSPC)
	assert.Equal(t, "1ab", f.Files()["/a"])
	require.ErrorIs(t, f.Remove("/a"), syscall.ENOSPC)
	assert.Contains(t, f.Files(), "/a")

	*fault = Fault{Err: syscall.EIO, Done: true}
	require.ErrorIs(t, f.Rename("/a", "/b"), syscall.EIO)
	assert.Contains(t, f.Files(), "/b")

	*fault = Fault{} // pretends success
	n, err = file.Write([]byte("abc"))
	assert.Equal(t, 3, n)
	require.NoError(t, err)
	require.NoError(t, file.Sync())
	require.NoError(t, f.SyncDir("/"))
	_, err = f.OpenFile("/new", os.O_CREATE|os.O_RDWR, 0)
	require.NoError(t, err)
	f.OnCall(nil)
	assert.Equal(t, map[string]string{"/b": "1ab"}, f.Files())
	assert.Contains(t, images(f), "")
	assert.Equal(t, "#2 write /a (3 bytes)", calls[0])
	assert.Equal(t, "#4 rename /a to /b", calls[2])
}

// After a failed Sync another Sync does not help, but writing again does.
func TestFS_FailedSync(t *testing.T) {
	f := New()
	file := create(t, f, "/a", "A")
	require.NoError(t, f.SyncDir("/"))
	f.OnCall(func(c Call) *Fault {
		if c.Op == "sync" {
			return &Fault{Err: syscall.EIO}
		}
		return nil
	})
	require.ErrorIs(t, file.Sync(), syscall.EIO)
	f.OnCall(nil)
	require.NoError(t, file.Sync())
	require.NoError(t, file.Sync())
	assert.Contains(t, images(f), "/a=")
	_, err := file.Write([]byte("B"))
	require.NoError(t, err)
	require.NoError(t, file.Sync())
	assert.Contains(t, images(f), "/a=\x00B")
	require.NoError(t, file.Truncate(0))
	_, err = file.Seek(0, io.SeekStart)
	require.NoError(t, err)
	_, err = file.Write([]byte("AB"))
	require.NoError(t, err)
	require.NoError(t, file.Sync())
	assert.Equal(t, []string{"/a=AB"}, images(f))
}

func TestErrors(t *testing.T) {
	f := New()
	file := create(t, f, "/a", "A")
	require.NoError(t, f.Mkdir("/d", 0))
	for want, err := range map[error]error{
		fs.ErrNotExist:    f.Remove("/b"),
		fs.ErrExist:       f.Mkdir("/a", 0),
		syscall.ENOTDIR:   f.Mkdir("/a/b", 0),
		syscall.ENOTEMPTY: func() error { create(t, f, "/d/x", ""); return f.Remove("/d") }(),
		syscall.EISDIR:    func() error { _, err := f.OpenFile("/d", os.O_RDWR, 0); return err }(),
		fs.ErrClosed:      func() error { require.NoError(t, file.Close()); return file.Sync() }(),
	} {
		require.ErrorIs(t, err, want)
		var path *fs.PathError
		require.True(t, errors.As(err, &path))
	}
	_, err := file.Write(nil)
	require.ErrorIs(t, err, fs.ErrClosed)
}

// Long files are torn only at some positions, including both ends.
func TestTearPoints(t *testing.T) {
	assert.Equal(t, []int{0, 1, 2, 3}, tearPoints(3))
	assert.Len(t, tearPoints(allTears), allTears+1)
	long := tearPoints(100_000)
	assert.Less(t, len(long), 100)
	assert.Equal(t, 0, long[0])
	assert.Equal(t, []int{99_999, 100_000}, long[len(long)-2:])
}
