// Package vfs is the file system under weir's durable files, with the operations that a
// protocol of writes, syncs and renames needs. [OS] is the real one; package crashfs
// simulates power cuts.
package vfs

import (
	"errors"
	"io"
	"io/fs"
	"strconv"
)

// FS is a file system. Names are paths of package path/filepath. Errors name the call and
// the path, and match [fs.ErrNotExist] and the like. It is safe for concurrent use.
type FS interface {
	// OpenFile opens a file with the flags of package os.
	OpenFile(name string, flag int, perm fs.FileMode) (File, error)
	// Rename renames a file, atomically replacing an existing one. It is durable after
	// SyncDir.
	Rename(from, to string) error
	// Remove removes a file or an empty directory. It is durable after SyncDir.
	Remove(name string) error
	// Mkdir makes one directory. It is durable after SyncDir of its parent.
	Mkdir(name string, perm fs.FileMode) error
	// ReadDir lists a directory by name.
	ReadDir(name string) ([]Info, error)
	// Stat describes a file or directory.
	Stat(name string) (Info, error)
	// SyncDir makes created, renamed and removed names in a directory durable.
	SyncDir(name string) error
	// Lock locks a directory with a lock file: name is its path, and Lock creates it and
	// leaves it there. The lock excludes other processes and other calls in this process,
	// even if the file is removed. It ends when the process dies. The error is a
	// *HeldError if the lock is held, and matches errors.ErrUnsupported on systems
	// without locks.
	Lock(name string) (Lock, error)
	// LockFile locks the file name, which it creates and Close removes. The lock excludes
	// others as the lock of Lock does, but only until the file is removed. It ends when
	// the process dies, which leaves the file. The errors are as for Lock.
	LockFile(name string) (io.Closer, error)
}

// ErrLost is the error of Check of a [Lock] that is lost for good.
var ErrLost = errors.New("was removed or replaced: another process may have the directory")

// Lock is a lock that is held. Close releases it.
type Lock interface {
	io.Closer
	// Check returns an error that matches ErrLost if the directory was removed or
	// replaced since it was locked: another process may have locked the new one. Where
	// directories cannot be locked, it checks the file instead.
	Check() error
}

// File is an open file. It is not safe for concurrent use.
type File interface {
	io.Reader
	io.Writer
	io.Seeker
	io.Closer
	// Truncate changes the file's length.
	Truncate(size int64) error
	// Sync makes the contents durable, but not the name. After an error, write the
	// contents again: systems drop data that they failed to write, and a second Sync
	// would succeed.
	Sync() error
	// Size returns the file's length.
	Size() (int64, error)
}

// Info describes a file.
type Info struct {
	Name string // without directory
	Size int64  // in bytes; undefined for a directory
	Dir  bool
}

// HeldError reports that a lock is held elsewhere.
type HeldError struct {
	PID int // of the holder; 0 if unknown
}

func (e *HeldError) Error() string {
	if e.PID == 0 {
		return "locked by another process"
	}
	return "locked by process " + strconv.Itoa(e.PID)
}
