package vfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
)

// OS returns the operating system's file system.
//
// On Unix, directories are synced, unless the file system returns EINVAL, as some network
// file systems do. Windows cannot sync directories, but Rename writes through to the
// disk.
//
// [FS.Lock] uses flock on Linux, macOS, the BSDs and illumos, and share modes on Windows,
// where an open file cannot be removed. Other systems (AIX, Solaris, Plan 9, WebAssembly)
// do not have locks.
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
		return nil, err // not f: a nil *os.File is not a nil File
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
		case errors.Is(err, fs.ErrNotExist): // removed meanwhile
		case err != nil:
			return nil, err
		default:
			out = append(out, i)
		}
	}
	return out, nil
}

// Lock locks the directory and the file. The directory's lock survives the removal of the
// file. The file's lock works where directories cannot be locked, and the file has the
// pid for other processes.
func (osFS) Lock(name string) (Lock, error) { return lock(name, lockDir) }

func lock(name string, lockDir func(string) (*os.File, error)) (Lock, error) {
	f, err := lockFile(name)
	if err != nil {
		return nil, explainLock(name, err)
	}
	l := &osLock{file: f, held: f, name: name}
	dir, err := lockDir(filepath.Dir(name))
	switch {
	case err == nil:
		l.held, l.name = dir, filepath.Dir(name)
	case !errors.Is(err, errors.ErrUnsupported):
		return nil, errors.Join(err, f.Close())
	}
	if err := l.writePID(); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// explainLock adds the remedy if this user may not open the lock file, such as one of
// another user's killed run.
func explainLock(name string, err error) error {
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	if _, statErr := os.Lstat(name); statErr != nil {
		return err // this user may not enter the directory, or create files there
	}
	return fmt.Errorf("the lock file %s belongs to another user, whose run is under way or was killed: "+
		"if no run uses it, remove the file, or run as its owner: %w", name, err)
}

// LockFile implements FS.
func (osFS) LockFile(name string) (io.Closer, error) { return passing(name, lockFile) }

// passing locks a file that still has the name once it is locked: lockFile may return a
// file that was removed between opening and locking.
func passing(name string, lockFile func(string) (*os.File, error)) (io.Closer, error) {
	for {
		f, err := lockFile(name)
		if err != nil {
			return nil, explainLock(name, err)
		}
		l := &osLock{file: f, held: f, name: name}
		err = l.Check()
		if err == nil {
			err = l.writePID()
		}
		if err == nil {
			return passingLock{l}, nil
		}
		if err := errors.Join(err, f.Close()); !errors.Is(err, ErrLost) {
			return nil, err
		}
	}
}

// passingLock removes its file when it is closed.
type passingLock struct{ *osLock }

// Close removes the file while it is locked, so that it cannot be another holder's.
// Windows does not remove open files, so there it is removed afterwards. A file that
// stays does no harm.
func (l passingLock) Close() error {
	if runtime.GOOS != "windows" && l.Check() == nil {
		_ = os.Remove(l.name)
	}
	err := l.osLock.Close()
	if runtime.GOOS == "windows" {
		_ = os.Remove(l.name)
	}
	return err
}

type osLock struct {
	file *os.File // the locked file with the pid
	held *os.File // the locked directory, or file if directories cannot be locked
	name string   // of held; Check detects that it was replaced
}

func (l *osLock) writePID() error {
	if err := l.file.Truncate(0); err != nil {
		return err
	}
	_, err := l.file.WriteString(strconv.Itoa(os.Getpid()) + "\n")
	return err
}

// Check returns an error that matches ErrLost if the name is missing, or has another file
// or directory.
func (l *osLock) Check() error {
	held, err := l.held.Stat()
	if err != nil {
		return err
	}
	now, err := os.Stat(l.name)
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && !os.SameFile(held, now):
		return fmt.Errorf("%s %w", l.name, ErrLost)
	default:
		return err
	}
}

func (l *osLock) Close() error {
	err := errors.Join(l.file.Truncate(0), l.file.Close()) // a pid stays in the file only after a crash
	if l.held != l.file {
		err = errors.Join(err, l.held.Close())
	}
	return err
}

// holder returns an error with the pid in the lock file, 0 if it is not written yet.
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
