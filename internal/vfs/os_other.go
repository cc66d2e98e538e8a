//go:build !unix && !windows

package vfs

import "os"

func rename(from, to string) error { return os.Rename(from, to) }

func syncDir(string) error { return nil }
