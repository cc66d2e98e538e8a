package checkpoint

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/wiring"
)

var (
	// ErrNotFound reports that a store does not have the checkpoint, or is empty.
	ErrNotFound = errors.New("checkpoint: not found")

	// ErrFenced is returned by a [Store] or an [Output] that another run has taken over.
	// The losing run gets it for every number, and ends: it stops storing, publishing and
	// retrying. The coordinator also returns it if another run has stored a checkpoint
	// with its number, and a file output if another program writes to the file.
	ErrFenced = errors.New("checkpoint: another run has taken over")

	// ErrClosed reports that a [Store] is closed, or a [Coordinator] without a final
	// checkpoint.
	ErrClosed = wiring.ErrClosed

	// ErrEnded reports a checkpoint asked for after the final checkpoint.
	ErrEnded = errors.New("checkpoint: the stream has ended")

	errInvalidSnapshot = errors.New("checkpoint: invalid snapshot")
)

// CorruptError reports that a stored checkpoint is damaged: torn, truncated, overwritten,
// or not a checkpoint.
type CorruptError struct {
	Path       string // where it is stored; "" if unknown
	Checkpoint uint64 // its number; 0 if unknown
	Reason     string
}

func (e *CorruptError) Error() string {
	return "checkpoint: " + stored(e.Checkpoint, e.Path) + " is damaged: " + e.Reason
}

// VersionError reports a stored checkpoint in a format that this weir cannot read. It is
// not skipped for an older checkpoint, because a newer weir can resume from it.
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
// same or a higher number.
type NumberError struct {
	Checkpoint uint64 // of the snapshot
	Newest     uint64 // the highest number that the store has seen
}

func (e *NumberError) Error() string {
	return fmt.Sprintf("checkpoint: cannot save checkpoint %d: the store has seen %d, numbers only grow",
		e.Checkpoint, e.Newest)
}

func newPanicError(recovered any) error { return guard.Recovered("checkpoint", recovered) }

// protect calls user code on its own goroutine and returns its panic or runtime.Goexit as
// an error (law A6). An error whose Unwrap, Is or As panics is replaced.
func protect(f func() error) error {
	return guard.Call(func() error {
		err := f()
		_, _ = errors.AsType[*probe](err)
		_ = errors.Is(err, (*probe)(nil))
		return err
	}, newPanicError)
}

func sane(err error) error { return protect(func() error { return err }) }

// probe is an error that is never wrapped. Searching for it calls Unwrap, Is and As.
type probe struct{}

func (*probe) Error() string { return "" }
