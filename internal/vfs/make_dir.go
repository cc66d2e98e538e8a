package vfs

import (
	"errors"
	"io/fs"
	"path/filepath"
)

// MakeDir makes a directory and its parents, and makes their names durable. It also syncs
// existing directories, since a process may have been killed just after making them.
func MakeDir(fsys FS, dir string, perm fs.FileMode) error {
	parent := filepath.Dir(dir)
	if parent == dir {
		return nil
	}
	if err := MakeDir(fsys, parent, perm); err != nil {
		return err
	}
	info, err := fsys.Stat(dir)
	switch {
	case err == nil && !info.Dir:
		return &fs.PathError{Op: "open", Path: dir, Err: errors.New("it is not a directory")}
	case err == nil:
		err = fsys.SyncDir(parent)
		if errors.Is(err, fs.ErrPermission) {
			err = nil // the parent belongs to another user, so weir has not made dir
		}
		return err
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if err := fsys.Mkdir(dir, perm); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return fsys.SyncDir(parent)
}
