package checkpoint

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/wiring"
)

var (
	// ErrNotFound reports that a store does not have the checkpoint, or any checkpoint.
	ErrNotFound = errors.New("checkpoint: not found")

	// ErrFenced is returned by a [Store] or an [Output] that another run has taken over.
	// The run that has lost it gets this error for every number, and ends: it stops
	// storing, publishing and retrying. The coordinator also returns it if another run
	// has stored a checkpoint with its number. A file output that another program writes
	// to returns an error that matches it, too.
	ErrFenced = errors.New("checkpoint: another run has taken over")

	// ErrClosed reports that a [Store] is closed. It is also the Err of a [Coordinator]
	// that was closed without a final checkpoint.
	ErrClosed = wiring.ErrClosed

	// ErrEnded reports that a checkpoint was asked for after the final checkpoint.
	ErrEnded = errors.New("checkpoint: the stream has ended")

	// errInvalidSnapshot is the error of [Snapshot.Validate].
	errInvalidSnapshot = errors.New("checkpoint: invalid snapshot")
)

// CorruptError reports that a stored checkpoint is damaged: torn, truncated, overwritten,
// or not a checkpoint at all. Its content is not used.
type CorruptError struct {
	Path       string // where it is stored; "" if unknown
	Checkpoint uint64 // its number; 0 if unknown
	Reason     string
}

func (e *CorruptError) Error() string {
	return "checkpoint: " + stored(e.Checkpoint, e.Path) + " is damaged: " + e.Reason
}

// VersionError reports that a stored checkpoint is whole, but in a format that this
// version of weir cannot read. It is not skipped for an older checkpoint: a newer weir
// wrote it and can resume from it.
type VersionError struct {
	Path       string // where it is stored; "" if unknown
	Checkpoint uint64 // its number; 0 if unknown
	Version    uint32 // of the format
	Supported  uint32 // newest version that this weir can read
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

// NumberError reports that a [Store] refused to save a snapshot, because it has seen the
// same or a higher number: the numbers of checkpoints only grow.
type NumberError struct {
	Checkpoint uint64 // of the snapshot
	Newest     uint64 // the highest number that the store has seen
}

func (e *NumberError) Error() string {
	return fmt.Sprintf("checkpoint: cannot save checkpoint %d: the store has seen %d, numbers only grow",
		e.Checkpoint, e.Newest)
}

// newPanicError wraps the result of recover, which is nil if runtime.Goexit ends the
// goroutine.
func newPanicError(recovered any) error { return guard.Recovered("checkpoint", recovered) }

// protect calls user code on a goroutine of its own and returns its panic or
// runtime.Goexit as an error (law A6). The methods of an error are user code, too: an
// error whose Unwrap, Is or As panics, such as a typed nil, is replaced.
func protect(f func() error) error {
	return guard.Call(func() error {
		err := f()
		_, _ = errors.AsType[*probe](err)
		_ = errors.Is(err, (*probe)(nil))
		return err
	}, newPanicError)
}

// sane returns err, or an error in its place if its Unwrap, Is or As panics.
func sane(err error) error { return protect(func() error { return err }) }

// probe is an error that no other error wraps. Searching for it calls Unwrap, Is and As.
type probe struct{}

func (*probe) Error() string { return "" }
