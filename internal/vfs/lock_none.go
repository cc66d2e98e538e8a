//go:build !(darwin || dragonfly || freebsd || illumos || linux || netbsd || openbsd || windows)

package vfs

import (
	"errors"
	"os"
)

// lockFile returns an error: fcntl locks do not exclude the same process, and closing any
// descriptor of the file releases them.
func lockFile(name string) (*os.File, error) {
	return nil, &os.PathError{Op: "lock", Path: name, Err: errors.ErrUnsupported}
}

func lockDir(string) (*os.File, error) { return nil, errors.ErrUnsupported }
