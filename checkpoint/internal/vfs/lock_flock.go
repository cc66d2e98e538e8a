//go:build darwin || dragonfly || freebsd || illumos || linux || netbsd || openbsd

package vfs

import (
	"errors"
	"os"
	"syscall"
)

// lockFile uses flock and not fcntl: its locks belong to the open file, so two openings in one process exclude each
// other too, and closing another descriptor of the file does not drop them.
func lockFile(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err == nil {
		return f, nil
	}
	_ = f.Close() // nothing was written
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, holder(name)
	}
	return nil, &os.PathError{Op: "flock", Path: name, Err: err}
}
