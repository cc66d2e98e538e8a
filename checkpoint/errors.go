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
	// storing, publishing and retrying. The coordinator also returns it for a number that
	// was taken by another run. The error of a file output that something else writes to
	// matches it, too.
	ErrFenced = errors.New("checkpoint: another run has taken over")

	// ErrClosed reports that a [Store] is closed. It is also the Err of a [Coordinator]
	// that was closed without a final checkpoint.
	ErrClosed = wiring.ErrClosed

	// ErrEnded reports that a checkpoint was asked for after the final checkpoint.
	ErrEnded = errors.New("checkpoint: the stream has ended")

	// errInvalidSnapshot is the error of a snapshot that is not fit to be saved: see
	// [Snapshot.Validate].
	errInvalidSnapshot = errors.New("checkpoint: invalid snapshot")
)

// CorruptError reports that a stored checkpoint is damaged: torn, truncated, overwritten,
// or not a checkpoint at all. Its content is not used.
type CorruptError struct {
	Path       string // where it is stored; "" if that is not known
	Checkpoint uint64 // its number; 0 if that is not known
	Reason     string
}

func (e *CorruptError) Error() string {
	return "checkpoint: " + stored(e.Checkpoint, e.Path) + " is damaged: " + e.Reason
}

// VersionError reports that a stored checkpoint is whole, but in a format that this
// version of weir does not know. It is not skipped for an older checkpoint: a newer weir
// wrote it and can resume from it.
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

// newPanicError wraps what recover returned; nil means that runtime.Goexit ends the
// goroutine.
func newPanicError(recovered any) error { return guard.Recovered("checkpoint", recovered) }

// protect calls user code on a goroutine of its own and returns its panic or
// runtime.Goexit as an error (law A6). The methods of an error are user code, too: one
// whose Unwrap, Is or As breaks, as that of a typed nil may, is replaced.
func protect(f func() error) error {
	return guard.Call(func() error {
		err := f()
		_, _ = errors.AsType[*probe](err)
		_ = errors.Is(err, (*probe)(nil))
		return err
	}, newPanicError)
}

// sane returns an error of a user's that may be looked into.
func sane(err error) error { return protect(func() error { return err }) }

// probe is an error that none wraps.
type probe struct{}

func (*probe) Error() string { return "" }
