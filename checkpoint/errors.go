package checkpoint

import (
	"errors"
	"fmt"
	"reflect"
	"runtime/debug"
	"strconv"

	"github.com/weirflow/weir/checkpoint/internal/wire"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/panics"
)

var (
	// ErrNotFound tells that a store does not have the checkpoint, or has none at all.
	ErrNotFound = errors.New("checkpoint: not found")

	// ErrFenced is returned by a [Store] or an [Output] that another run has taken over, to the run that has lost it: for
	// good, whatever number that asks for. It ends the run: nothing of it is stored, published or tried again. The
	// coordinator also returns it for a number that was taken by another run.
	ErrFenced = errors.New("checkpoint: another run has taken over")

	// ErrStoreClosed is returned by a [Store] that was closed.
	ErrStoreClosed = errors.New("checkpoint: the store is closed")

	// ErrInvalidSnapshot tells that a snapshot is not fit to be saved: see [Snapshot.Validate].
	ErrInvalidSnapshot = errors.New("checkpoint: invalid snapshot")
)

// CorruptError tells that a stored checkpoint is damaged: torn, truncated, overwritten, or never one. Its content is not
// used.
type CorruptError struct {
	Path       string // where it is stored; "" if that is not known
	Checkpoint uint64 // its number; 0 if that is not known
	Reason     string
}

func (e *CorruptError) Error() string {
	return "checkpoint: " + stored(e.Checkpoint, e.Path) + " is damaged: " + e.Reason
}

// VersionError tells that a stored checkpoint is whole, but in a format that this version of weir does not know. It is
// not skipped for an older one: a newer weir wrote it and can go on from there.
type VersionError struct {
	Path       string // where it is stored; "" if that is not known
	Checkpoint uint64 // its number; 0 if that is not known
	Version    uint32 // of the format
	Supported  uint32 // the newest version that is known here
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("checkpoint: %s has format version %d, this version of weir knows formats up to %d",
		stored(e.Checkpoint, e.Path), e.Version, e.Supported)
}

func stored(id uint64, path string) string {
	s := "checkpoint"
	if id != 0 {
		s += " " + strconv.FormatUint(id, 10)
	}
	if path != "" {
		s += " (" + path + ")"
	}
	return s
}

// NumberError tells that a snapshot was not saved because its number is taken: numbers only grow.
type NumberError struct {
	Checkpoint uint64 // of the snapshot
	Newest     uint64 // the highest number that the store has seen
}

func (e *NumberError) Error() string {
	return fmt.Sprintf("checkpoint: cannot save checkpoint %d: the store has seen %d, numbers only grow",
		e.Checkpoint, e.Newest)
}

// LockedError tells that a directory of checkpoints is open elsewhere, in this process or another one.
type LockedError struct {
	Dir string
	PID int // the process that has it open; 0 if that is not known
}

func (e *LockedError) Error() string {
	by := "another process"
	if e.PID != 0 {
		by = "process " + strconv.Itoa(e.PID)
	}
	return fmt.Sprintf("checkpoint: directory %s is in use by %s: a pipeline needs one of its own", e.Dir, by)
}

// CodecError tells that a type, a value or stored bytes are not fit for a codec.
type CodecError struct {
	Type   reflect.Type // of the codec's values
	Path   string       // to the culprit inside of a value: .Tags[].Cache; "" for the value itself, or if not known
	Reason string
	Err    error // the cause, or nil
}

func codecError[T any](what string, err error) *CodecError {
	e := &CodecError{Type: reflect.TypeFor[T](), Reason: what}
	w, ok := err.(*wire.Error) //nolint:errorlint // it is wire's own, not wrapped
	if !ok {
		e.Err = err
		return e
	}
	e.Path, e.Err = w.Path, w.Err
	if what != "" {
		e.Reason += ": "
	}
	e.Reason += w.Reason
	return e
}

func (e *CodecError) Error() string {
	s := fmt.Sprintf("checkpoint: codec of %v: ", e.Type)
	if e.Path != "" {
		s += e.Path + ": "
	}
	switch {
	case e.Err == nil:
		return s + e.Reason
	case e.Reason == "":
		return s + fmt.Sprint(e.Err) // fmt recovers panics of users' errors
	default:
		return s + fmt.Sprintf("%s: %v", e.Reason, e.Err)
	}
}

// Unwrap returns Err.
func (e *CodecError) Unwrap() error { return e.Err }

// PanicError is a panic of user code, or its call of runtime.Goexit.
type PanicError struct {
	Value any    // what was passed to panic
	Stack []byte // of the goroutine that panicked, as runtime/debug.Stack formats it
}

// Error returns a message with the place of the panic: the top frame of the user's code.
func (e *PanicError) Error() string { return "checkpoint: " + panics.Message(e.Value, e.Stack) }

// Format implements fmt.Formatter: %+v adds the stack.
func (e *PanicError) Format(f fmt.State, verb rune) { panics.Format(f, verb, e.Error(), e.Stack) }

// Unwrap returns the value if it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// errGoexit is the value of the PanicError of a call of runtime.Goexit.
var errGoexit = errors.New("runtime.Goexit was called")

// newPanicError wraps what recover returned; nil means that runtime.Goexit ends the goroutine.
func newPanicError(recovered any) error {
	if recovered == nil {
		recovered = errGoexit
	}
	return &PanicError{Value: recovered, Stack: debug.Stack()}
}

// protect calls user code on a goroutine of its own and returns its panic or runtime.Goexit as an error (law A6).
func protect(f func() error) error { return guard.Call(f, newPanicError) }

// recoverTo turns a panic into an error. It is deferred by functions that call user code.
func recoverTo(err *error) {
	if r := recover(); r != nil {
		*err = newPanicError(r)
	}
}
