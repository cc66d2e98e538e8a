package vfs

import (
	"errors"
	"os"
	"syscall"
	"unsafe"
)

var moveFileEx = syscall.NewLazyDLL("kernel32.dll").NewProc("MoveFileExW")

const (
	moveFileReplaceExisting = 0x1
	moveFileWriteThrough    = 0x8

	errorSharingViolation syscall.Errno = 32
)

// rename is os.Rename, but writes through to the disk, since directories cannot be
// synced.
func rename(from, to string) error {
	oldName, err := syscall.UTF16PtrFromString(from)
	if err == nil {
		var newName *uint16
		newName, err = syscall.UTF16PtrFromString(to)
		if err == nil {
			ok, _, callErr := moveFileEx.Call(uintptr(unsafe.Pointer(oldName)), uintptr(unsafe.Pointer(newName)),
				moveFileReplaceExisting|moveFileWriteThrough)
			if ok != 0 {
				return nil
			}
			err = callErr
		}
	}
	return &os.LinkError{Op: "rename", Old: from, New: to, Err: err}
}

func syncDir(string) error { return nil }

// lockFile opens the file so that it cannot be opened for writing or removed. The system
// closes it when the process dies.
func lockFile(name string) (*os.File, error) {
	p, err := syscall.UTF16PtrFromString(name)
	if err != nil {
		return nil, &os.PathError{Op: "lock", Path: name, Err: err}
	}
	h, err := syscall.CreateFile(p, syscall.GENERIC_READ|syscall.GENERIC_WRITE, syscall.FILE_SHARE_READ, nil,
		syscall.OPEN_ALWAYS, syscall.FILE_ATTRIBUTE_NORMAL, 0)
	switch {
	case errors.Is(err, errorSharingViolation):
		return nil, holder(name)
	case err != nil:
		return nil, &os.PathError{Op: "lock", Path: name, Err: err}
	}
	return os.NewFile(uintptr(h), name), nil
}

func lockDir(string) (*os.File, error) { return nil, errors.ErrUnsupported }
