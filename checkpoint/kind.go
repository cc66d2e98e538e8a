package checkpoint

import "github.com/weirflow/weir/checkpoint/participant"

// Kind is the purpose of a checkpoint.
type Kind uint8

// The kinds of checkpoints are the kinds of barriers, without the marker.
const (
	// Periodic is an ordinary checkpoint: the pipeline continued.
	Periodic = Kind(participant.Periodic)
	// Drain is the final checkpoint of a stream that came to its end: elements in flight
	// were finished first.
	Drain = Kind(participant.Drain)
	// Suspend is the final checkpoint of a stream that was stopped: it holds the elements
	// in flight, to be resumed from.
	Suspend = Kind(participant.Suspend)
)

func (k Kind) String() string { return participant.Kind(k).String() }
