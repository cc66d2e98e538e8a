package vfs

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
)

// OS returns the operating system's file system.
//
// Directories are synced on Unix; a file system that cannot do so (some network file systems answer EINVAL) gives only
// the durability that it gives without. On Windows a rename is written through before it returns, and directories cannot
// be synced. Locks: see [FS.Lock]; they are flock's on Linux, macOS, the BSDs and illumos, share modes on Windows, and
// unsupported elsewhere (AIX, Solaris, Plan 9, WebAssembly).
func OS() FS { return osFS{} }

type osFS struct{}

type osFile struct{ *os.File }

func (f osFile) Size() (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

func (osFS) OpenFile(name string, flag int, perm fs.FileMode) (File, error) {
	f, err := os.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err // not f: a nil *os.File is no nil File
	}
	return osFile{f}, nil
}

func (osFS) Rename(from, to string) error              { return rename(from, to) }
func (osFS) Remove(name string) error                  { return os.Remove(name) }
func (osFS) Mkdir(name string, perm fs.FileMode) error { return os.Mkdir(name, perm) }
func (osFS) SyncDir(name string) error                 { return syncDir(name) }
func (osFS) Stat(name string) (Info, error)            { return info(os.Stat(name)) }
func info(i fs.FileInfo, err error) (Info, error) {
	if err != nil {
		return Info{}, err
	}
	return Info{Name: i.Name(), Size: i.Size(), Dir: i.IsDir()}, nil
}

func (osFS) ReadDir(name string) ([]Info, error) {
	entries, err := os.ReadDir(name)
	if err != nil {
		return nil, err
	}
	out := make([]Info, 0, len(entries))
	for _, e := range entries {
		i, err := info(e.Info())
		switch {
		case errors.Is(err, fs.ErrNotExist): // removed in the meantime
		case err != nil:
			return nil, err
		default:
			out = append(out, i)
		}
	}
	return out, nil
}

// Lock writes the holder's pid into the file, for whoever finds it locked. The file is never removed: a process could
// lock one that has no name any more, while another makes a new one.
func (osFS) Lock(name string) (io.Closer, error) {
	f, err := lockFile(name)
	if err != nil {
		return nil, err
	}
	l := &osLock{f}
	if err := f.Truncate(0); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if _, err := f.WriteString(strconv.Itoa(os.Getpid()) + "\n"); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return l, nil
}

type osLock struct{ f *os.File }

// Close gives the lock back: closing the only descriptor does that.
func (l *osLock) Close() error {
	return errors.Join(l.f.Truncate(0), l.f.Close()) // a pid in the file is a living holder's, but for crashes
}

// holder reads what a holder wrote. It may not have done so yet, then the pid is not known.
func holder(name string) *HeldError {
	b, err := os.ReadFile(name)
	if err != nil {
		return &HeldError{}
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || pid <= 0 {
		return &HeldError{}
	}
	return &HeldError{PID: pid}
}
