//go:build darwin || dragonfly || freebsd || illumos || linux || netbsd || openbsd

package vfs

import (
	"errors"
	"os"
	"syscall"
)

// lockFile uses flock rather than fcntl: a flock belongs to the open file, so it also
// excludes other openings in this process, and closing another descriptor does not
// release it.
func lockFile(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := flock(f); err != nil {
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, errors.Join(holder(name), f.Close())
		}
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// lockDir locks a directory itself. The error matches errors.ErrUnsupported if the file
// system cannot: NFS on Linux maps flock to a write lock, for which a directory cannot be
// opened (EBADF).
func lockDir(name string) (*os.File, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	if err := flock(f); err != nil {
		switch {
		case errors.Is(err, syscall.EWOULDBLOCK):
			err = &HeldError{}
		case errors.Is(err, syscall.EBADF), errors.Is(err, syscall.EINVAL):
			err = errors.ErrUnsupported
		}
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// flock locks an open file without waiting.
func flock(f *os.File) error {
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil {
			return &os.PathError{Op: "flock", Path: f.Name(), Err: err}
		}
		return nil
	}
}
