// Package wiring links the steps of a pipeline, and detects a stream with checkpoint
// barriers that is not a line or a tree (law C2).
package wiring

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
)

// ErrClosed is checkpoint.ErrClosed, for operators, which do not import package
// checkpoint.
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

// Barriers checks the order of the barriers that a step receives.
type Barriers struct {
	last   uint64 // the newest barrier, or 0
	marked bool   // the marker of the end of the input has arrived
}

// Any reports whether a barrier or the marker has arrived, so the stream has checkpoints.
func (b *Barriers) Any() bool { return b.last > 0 || b.marked }

// Add adds a barrier, or the marker of the end of the input. It returns an error if the
// barrier or marker is a duplicate, or a later barrier has overtaken the barrier.
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

// frames is how many frames above Out are searched for its reader: the compiler may put
// wrappers in between.
const frames = 4

// Reader returns an error if a function of go-streams that splits or joins streams calls
// the caller of Reader, a method Out: it would pass elements and barriers to different
// branches.
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

// Taken ensures that a stream has a single reader.
type Taken struct{ taken atomic.Bool }

// Take panics if it was called before: two readers would each get a part of the elements
// and barriers.
func (t *Taken) Take(method string) {
	if t.taken.Swap(true) {
		panic(method + ": Via or To takes the elements already; several branches need flow.FanOut")
	}
}
