package checkpoint

import "github.com/weirflow/weir/checkpoint/participant"

// Kind is what a checkpoint was taken for.
type Kind uint8

// The kinds of checkpoints are those of barriers that are not markers.
const (
	// Periodic is an ordinary checkpoint: the pipeline went on.
	Periodic = Kind(participant.Periodic)
	// Drain is the final checkpoint of a stream that came to its end: what was in flight was finished first.
	Drain = Kind(participant.Drain)
	// Suspend is the final checkpoint of a stream that was stopped: it holds what was in flight, to be resumed from.
	Suspend = Kind(participant.Suspend)
)

func (k Kind) String() string { return participant.Kind(k).String() }
