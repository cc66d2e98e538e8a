// Package wiring finds out when a stream with checkpoint barriers is not the line or tree
// that it has to be (law C2).
package wiring

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
)

// ErrClosed is checkpoint.ErrClosed, which operators need without the coordinator.
var ErrClosed = errors.New("checkpoint: closed")

// ErrAcknowledged is the error of a stream with checkpoints that carries a message with
// an acknowledgement of its own.
var ErrAcknowledged = errors.New("the stream has checkpoints, and a message with an acknowledgement of its own: " +
	"a position in the source can be released by one of them only")

// ErrAfterFinal is the error of an element behind a final barrier.
var ErrAfterFinal = errors.New("an element came after the final barrier, which has overtaken it on another branch: " + advice)

// ErrBranchesMeet is the error of a step that joins branches of a stream with
// checkpoints.
var ErrBranchesMeet = errors.New(advice)

const advice = "branches of a stream with checkpoints must not meet again (see Topologies in package checkpoint)"

// Barriers are those that have come to one place of a stream.
type Barriers struct {
	last   uint64
	marked bool
}

// Any reports whether one has come: the stream has checkpoints.
func (b *Barriers) Any() bool { return b.last > 0 || b.marked }

// Add takes note of a barrier, or of the marker of the end of the input. It returns an
// error for one that has come before, or that a later one has overtaken.
func (b *Barriers) Add(id uint64, marker bool) error {
	switch {
	case marker && b.marked:
		return fmt.Errorf("the marker of the end of the input has come twice: %s", advice)
	case marker:
		b.marked = true
	case id <= b.last:
		return fmt.Errorf("barrier %d has come after barrier %d: %s", id, b.last, advice)
	default:
		b.last = id
	}
	return nil
}

// frames is how far above an Out its reader may be: compilers put wrappers between.
const frames = 4

// Reader returns an error if the caller, a method Out, is called by a function of
// go-streams that gives elements and barriers to different branches, or joins branches.
func Reader() error {
	var pcs [frames]uintptr
	callers := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs[:])])
	for {
		frame, more := callers.Next()
		if name, ok := strings.CutPrefix(frame.Function, "github.com/reugn/go-streams/flow."); ok {
			name = name[:strings.IndexAny(name+".", ".[")]
			switch name {
			case "Merge", "RoundRobin", "Split", "ZipWith":
				return fmt.Errorf("flow.%s reads its output, and barriers would overtake elements: %s", name, advice)
			}
		}
		if !more {
			return nil
		}
	}
}

// Taken reports whether something takes the elements of a stream.
type Taken struct{ taken atomic.Bool }

// Take panics if something takes them already: each would get a part of the elements, and
// of the barriers.
func (t *Taken) Take(method string) {
	if t.taken.Swap(true) {
		panic(method + ": Via or To takes the elements already; several branches need flow.FanOut")
	}
}
