//go:build !(darwin || dragonfly || freebsd || illumos || linux || netbsd || openbsd || windows)

package vfs

import (
	"errors"
	"os"
)

// lockFile has nothing to offer here: fcntl's locks, where they exist, do not exclude a second opening in the same
// process, and are dropped when any descriptor of the file is closed.
func lockFile(name string) (*os.File, error) {
	return nil, &os.PathError{Op: "lock", Path: name, Err: errors.ErrUnsupported}
}

func lockDir(string) (*os.File, error) { return nil, errors.ErrUnsupported }
