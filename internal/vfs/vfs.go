// Package vfs is the thin layer between weir's durable files and the operating system: what a protocol of writes,
// syncs and renames needs, and nothing else. [OS] is the real one; package crashfs is one that can lose its power.
package vfs

import (
	"errors"
	"io"
	"io/fs"
	"strconv"
)

// FS is a file system. Names are paths as package path/filepath makes them. Errors are those of package os: they name
// the call and the path, and match [fs.ErrNotExist] and its like. Safe for concurrent use.
type FS interface {
	// OpenFile opens a file with the flags of package os.
	OpenFile(name string, flag int, perm fs.FileMode) (File, error)
	// Rename gives a file another name and replaces the file that had it, in one step. It is durable after SyncDir.
	Rename(from, to string) error
	// Remove removes a file or an empty directory. It is durable after SyncDir.
	Remove(name string) error
	// Mkdir makes one directory. It is durable after SyncDir of the directory around it.
	Mkdir(name string, perm fs.FileMode) error
	// ReadDir lists a directory in the order of names.
	ReadDir(name string) ([]Info, error)
	// Stat describes a file or directory.
	Stat(name string) (Info, error)
	// SyncDir makes the names in a directory durable: what was created, renamed and removed there.
	SyncDir(name string) error
	// Lock takes the lock on a directory by the file of this name in it: no other process, and no other opening in this one,
	// holds it at the same time, also if the file is removed. A process that dies loses its locks. The file is made if need be
	// and stays. The error is a *HeldError if the lock is held, and matches errors.ErrUnsupported where there are no locks.
	Lock(name string) (Lock, error)
	// LockFile takes the lock on a file, which it makes and Close removes: no other process, and no other opening in this one,
	// holds it at the same time, unless the file is removed. A process that dies loses its locks, and leaves the file. The
	// error is a *HeldError if the lock is held, and matches errors.ErrUnsupported where there are no locks.
	LockFile(name string) (io.Closer, error)
}

// ErrLost is what Check of a [Lock] returns when the lock is lost for good.
var ErrLost = errors.New("was removed or replaced: another process may have the directory")

// Lock is a lock that is held. Close gives it back.
type Lock interface {
	io.Closer
	// Check returns an error that matches ErrLost if the directory was removed or replaced since it was locked: another process
	// may hold the new one. Where directories cannot be locked, the file must not have been removed or replaced.
	Check() error
}

// File is an open file. Not safe for concurrent use.
type File interface {
	io.Reader
	io.Writer
	io.Seeker
	io.Closer
	// Truncate changes the file's length.
	Truncate(size int64) error
	// Sync makes the contents durable, not the name. After an error the contents are in doubt until they are written
	// again: systems forget what they failed to write, and a second Sync would report success.
	Sync() error
	// Size returns the file's length.
	Size() (int64, error)
}

// Info describes a file.
type Info struct {
	Name string // without directory
	Size int64  // bytes; of a directory: undefined
	Dir  bool
}

// HeldError reports that a lock is held elsewhere.
type HeldError struct {
	PID int // of the holder; 0: not known
}

func (e *HeldError) Error() string {
	if e.PID == 0 {
		return "locked by another process"
	}
	return "locked by process " + strconv.Itoa(e.PID)
}
