package vfs_test

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/weirflow/weir/internal/testing/crashfs"
	"github.com/weirflow/weir/internal/vfs"
)

// fileSystems return a file system, and a directory there.
var fileSystems = map[string]func(t *testing.T) (vfs.FS, string){
	"os":      func(t *testing.T) (vfs.FS, string) { return vfs.OS(), t.TempDir() },
	"crashfs": func(*testing.T) (vfs.FS, string) { return crashfs.New(), string(filepath.Separator) },
}

func TestLock(t *testing.T) {
	for name, in := range fileSystems {
		t.Run(name, func(t *testing.T) {
			fsys, dir := in(t)
			path := filepath.Join(dir, "LOCK")
			lock, err := fsys.Lock(path)
			require.NoError(t, err)
			_, err = fsys.Lock(path)
			var held *vfs.HeldError
			require.ErrorAs(t, err, &held)
			if name == "os" {
				assert.Equal(t, os.Getpid(), held.PID)
				assert.Equal(t, fmt.Sprintf("locked by process %d", os.Getpid()), err.Error())
			}
			require.NoError(t, lock.Close())
			lock, err = fsys.Lock(path)
			require.NoError(t, err)
			require.NoError(t, lock.Close())

			_, err = fsys.Lock(filepath.Join(path, "nowhere"))
			require.Error(t, err)
			assert.False(t, errors.As(err, &held))
		})
	}
	assert.Equal(t, "locked by another process", (&vfs.HeldError{}).Error())
}

// The file of a lock is removed when the lock is released, and two holders never have the
// lock at the same time.
func TestLockFile(t *testing.T) {
	for name, in := range fileSystems {
		t.Run(name, func(t *testing.T) {
			fsys, dir := in(t)
			path := filepath.Join(dir, "lock")
			lock, err := fsys.LockFile(path)
			require.NoError(t, err)
			_, err = fsys.LockFile(path)
			var held *vfs.HeldError
			require.ErrorAs(t, err, &held)
			other, err := fsys.LockFile(path + "2")
			require.NoError(t, err, "the directory is not locked")
			require.NoError(t, other.Close())
			require.NoError(t, lock.Close())
			_, err = fsys.Stat(path)
			require.ErrorIs(t, err, fs.ErrNotExist)

			var holders atomic.Int32
			var wg sync.WaitGroup
			for range 4 {
				wg.Go(func() {
					for range 500 {
						lock, err := fsys.LockFile(path)
						if errors.As(err, new(*vfs.HeldError)) {
							runtime.Gosched()
							continue
						}
						if !assert.NoError(t, err) || !assert.EqualValues(t, 1, holders.Add(1)) {
							return
						}
						runtime.Gosched()
						holders.Add(-1)
						assert.NoError(t, lock.Close())
					}
				})
			}
			wg.Wait()
		})
	}
}

// Whoever removes a lock's file lets others in; the end of the first lock then leaves
// theirs alone.
func TestLockFileIsRemoved(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows does not remove an open file")
	}
	path := filepath.Join(t.TempDir(), "lock")
	first, err := vfs.OS().LockFile(path)
	require.NoError(t, err)
	require.NoError(t, os.Remove(path))
	second, err := vfs.OS().LockFile(path)
	require.NoError(t, err)
	require.NoError(t, first.Close())
	require.FileExists(t, path)
	require.NoError(t, second.Close())
	require.NoFileExists(t, path)
}

func TestSyncDir(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, vfs.OS().SyncDir(dir))
	if runtime.GOOS != "windows" {
		require.ErrorIs(t, vfs.OS().SyncDir(filepath.Join(dir, "no")), fs.ErrNotExist)
	}
}

// The file system that can crash behaves like the real file system as long as it does not
// crash.
func TestCrashFSIsAFileSystem(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows differs in what it allows with open files")
	}
	rapid.Check(t, func(t *rapid.T) {
		root, err := os.MkdirTemp("", "vfs")
		require.NoError(t, err)
		defer os.RemoveAll(root)
		model := crashfs.New()
		mkdirs(t, model, root)
		systems := []vfs.FS{vfs.OS(), model}
		var files [][2]vfs.File
		paths := rapid.SampledFrom([]string{"a", "b", "d", "d/a", "d/b", "d/e", "x/y"})
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			op := rapid.SampledFrom([]string{"open", "write", "read", "seek", "truncate", "sync", "close", "rename", "remove", "mkdir", "readdir", "stat", "syncdir"}).Draw(t, "op")
			path := filepath.Join(root, paths.Draw(t, "path"))
			to := filepath.Join(root, paths.Draw(t, "to"))
			flag := rapid.SampledFrom([]int{
				os.O_RDONLY, os.O_RDWR | os.O_CREATE, os.O_RDWR | os.O_CREATE | os.O_TRUNC, os.O_RDWR | os.O_CREATE | os.O_EXCL,
				os.O_RDWR | os.O_CREATE | os.O_APPEND,
			}).Draw(t, "flag")
			n := rapid.IntRange(0, 9).Draw(t, "n")
			i := rapid.IntRange(0, 9).Draw(t, "file")
			var got [2]string
			var opened [2]vfs.File
			for s, fsys := range systems {
				switch op {
				case "open":
					f, err := fsys.OpenFile(path, flag, 0o600)
					if err == nil {
						if info, statErr := fsys.Stat(path); statErr == nil && info.Dir { // the real one opens directories, too
							err = f.Close()
							got[s] = "directory"
							break
						}
						opened[s] = f
					}
					got[s] = class(err)
				case "rename":
					got[s] = class(fsys.Rename(path, to))
				case "remove":
					got[s] = class(fsys.Remove(path))
				case "mkdir":
					got[s] = class(fsys.Mkdir(path, 0o700))
				case "readdir":
					infos, err := fsys.ReadDir(root)
					for i := range infos {
						if infos[i].Dir {
							infos[i].Size = 0
						}
					}
					got[s] = fmt.Sprint(infos, class(err))
				case "stat":
					info, err := fsys.Stat(path)
					if info.Dir {
						info.Size = 0
					}
					got[s] = fmt.Sprint(info, class(err))
				case "syncdir":
					got[s] = class(fsys.SyncDir(root))
				default:
					if len(files) > 0 {
						got[s] = onFile(files[i%len(files)][s], op, n)
					}
				}
			}
			if got[0] == "directory" || got[1] == "directory" {
				continue
			}
			require.Equal(t, got[0], got[1], "%s %s %s", op, path, to)
			if opened[0] != nil {
				files = append(files, opened)
			}
		}
		for _, pair := range files {
			for s := range systems {
				_ = pair[s].Close() // it may be closed
			}
		}
		want := map[string]string{}
		require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			b, err := os.ReadFile(path)
			want[path] = string(b)
			return err
		}))
		for path, content := range model.Files() {
			if path[len(path)-1] != '/' {
				require.Equal(t, want[path], content, path)
				delete(want, path)
			}
		}
		require.Empty(t, want)
	})
}

func mkdirs(t *rapid.T, fsys vfs.FS, dir string) {
	if parent := filepath.Dir(dir); parent != dir {
		mkdirs(t, fsys, parent)
		require.NoError(t, fsys.Mkdir(dir, 0o700))
	}
}

func onFile(f vfs.File, op string, n int) string {
	switch op {
	case "write":
		n, err := f.Write(slices.Repeat([]byte{'0' + byte(n)}, n))
		return fmt.Sprint(n, class(err))
	case "read":
		b := make([]byte, n)
		m, err := io.ReadFull(f, b)
		return fmt.Sprint(b[:m], class(err))
	case "seek":
		m, err := f.Seek(int64(n), io.SeekStart)
		if err != nil {
			m = 0
		}
		return fmt.Sprint(m, class(err))
	case "truncate":
		return class(f.Truncate(int64(n)))
	case "sync":
		return class(f.Sync())
	default:
		return class(f.Close())
	}
}

// class returns the class of an error, as far as callers may distinguish it.
func class(err error) string {
	for _, c := range []error{fs.ErrNotExist, fs.ErrExist, fs.ErrClosed, io.EOF, io.ErrUnexpectedEOF} {
		if errors.Is(err, c) {
			return c.Error()
		}
	}
	if err != nil {
		return "some error"
	}
	return "ok"
}
