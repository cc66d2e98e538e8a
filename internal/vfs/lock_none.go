//go:build !(darwin || dragonfly || freebsd || illumos || linux || netbsd || openbsd || windows)

package vfs

import (
	"errors"
	"os"
)

// lockFile returns an error: on these systems, fcntl may have locks, but they do not
// exclude a second opening in the same process, and are released when any descriptor of
// the file is closed.
func lockFile(name string) (*os.File, error) {
	return nil, &os.PathError{Op: "lock", Path: name, Err: errors.ErrUnsupported}
}

func lockDir(string) (*os.File, error) { return nil, errors.ErrUnsupported }
