package asyncop

import (
	"fmt"

	"github.com/weirflow/weir/asyncop/observe"
)

// Observer is called with what happens to the elements of an operator: see [observe.Observer] and [WithObserver].
type Observer = observe.Observer

// Gate is an [Observer] that may hold the input back: see [observe.Gate].
type Gate = observe.Gate

// CheckpointedObserver is an [Observer] with a state that goes into the checkpoints of its operator: see [observe.CheckpointedObserver].
type CheckpointedObserver = observe.CheckpointedObserver

// Outcome is how an attempt has ended: see [observe.Outcome].
type Outcome = observe.Outcome

// Ending is how an element has ended: see [observe.Ending].
type Ending = observe.Ending

// EndKind is what became of an element: see [observe.EndKind].
type EndKind = observe.EndKind

// How elements end.
const (
	Emitted    = observe.Emitted
	Empty      = observe.Empty
	HandedOver = observe.HandedOver
	Dropped    = observe.Dropped
	Failed     = observe.Failed
	Abandoned  = observe.Abandoned
	Kept       = observe.Kept
	Discarded  = observe.Discarded
)

// Stats are the counts of an operator at one moment: see [observe.Stats].
type Stats = observe.Stats

// checkpointedOf returns the one observer that has a state, or nil.
func checkpointedOf(constructor string, observers []Observer) (found CheckpointedObserver) {
	for _, o := range observers {
		c, ok := o.(CheckpointedObserver)
		switch {
		case !ok:
		case found != nil:
			panic(fmt.Sprintf("asyncop: %s: two observers with a state in checkpoints, a %T and a %T", constructor, found, c))
		default:
			found = c
		}
	}
	return found
}
