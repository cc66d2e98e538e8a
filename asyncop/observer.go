package asyncop

import "github.com/weirflow/weir/asyncop/observe"

// Stats are the counts of an operator at a moment: see [observe.Stats].
type Stats = observe.Stats

// checkpointedOf returns the one observer that has a state, or nil.
func checkpointedOf(constructor string, observers []observe.Observer) (found observe.CheckpointedObserver) {
	for _, o := range observers {
		if c, ok := o.(observe.CheckpointedObserver); ok {
			refuseIf(found != nil, "%s: two observers with a state in checkpoints, a %T and a %T", constructor, found, c)
			found = c
		}
	}
	return found
}
