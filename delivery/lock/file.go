package lock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/vfs"
)

const filePoll = 100 * time.Millisecond

// FileLock is a lock for the processes of one machine: see [TryFile].
type FileLock struct{ held io.Closer }

// TryFile locks the file at path for this process. It makes the file if it is missing,
// and does not wait: if another FileLock holds the file, in this process or another one,
// the error is a [*FileHeldError], which matches [ErrHeld].
//
// The operating system releases the lock when the process ends, even after kill -9, so
// there is no lease and no fencing number. The lock does not reach other machines, not
// even on a network file system, where some systems ignore it. Systems without such locks
// (AIX, Solaris, Plan 9, WebAssembly) return an error that matches errors.ErrUnsupported.
func TryFile(path string) (*FileLock, error) {
	held, err := vfs.OS().LockFile(path)
	if other, ok := errors.AsType[*vfs.HeldError](err); ok {
		return nil, &FileHeldError{Path: path, PID: other.PID}
	}
	if err != nil {
		return nil, guard.Wrap("lock: file", err)
	}
	return &FileLock{held}, nil
}

// Release releases the lock and removes the file.
func (l *FileLock) Release() error {
	err := l.held.Close()
	if err != nil {
		return guard.Wrap("lock: file", err)
	}
	return nil
}

// HoldFile waits for the lock of [TryFile], runs f while it holds the lock, and releases
// it. It tries ten times a second. It returns the error of f, or why it could not get the
// lock: the cause of ctx with the holder, or an error of TryFile that does not match
// [ErrHeld].
func HoldFile(ctx context.Context, path string, f func(ctx context.Context) error) (err error) {
	l, err := TryFile(path)
	if guard.Is(err, ErrHeld) {
		l, err = awaitFile(ctx, path, err)
	}
	if err != nil {
		return err
	}
	defer func() {
		released := l.Release()
		if err == nil {
			err = released
		}
	}()
	return f(ctx)
}

// awaitFile tries to lock the file until ctx ends. held is the error of the first try.
func awaitFile(ctx context.Context, path string, held error) (*FileLock, error) {
	again := time.NewTicker(filePoll) //nolint:forbidigo // another process releases the file, in real time
	defer again.Stop()
	for {
		select {
		case <-again.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", context.Cause(ctx), held)
		}
		l, err := TryFile(path)
		if !guard.Is(err, ErrHeld) {
			return l, err
		}
		held = err
	}
}

// FileHeldError is the error of [TryFile] for a file that is locked.
type FileHeldError struct {
	Path string
	PID  int // holder of the lock; 0 if unknown
}

func (e *FileHeldError) Error() string {
	holder := "another process"
	if e.PID != 0 {
		holder = fmt.Sprintf("process %d", e.PID)
	}
	return fmt.Sprintf("%v: the file %q, by %s", ErrHeld, e.Path, holder)
}

// Unwrap returns [ErrHeld].
func (*FileHeldError) Unwrap() error { return ErrHeld }
