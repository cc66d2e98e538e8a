package checkpoint

import "github.com/weirflow/weir/checkpoint/participant"

// Kind is the purpose of a checkpoint.
type Kind uint8

// Kinds of checkpoints.
const (
	// Periodic is an ordinary checkpoint: the stream continued.
	Periodic = Kind(participant.Periodic)
	// Drain is the final checkpoint of a stream that came to its end. Elements in flight
	// were finished first.
	Drain = Kind(participant.Drain)
	// Suspend is the final checkpoint of a stopped stream, with its elements in flight.
	Suspend = Kind(participant.Suspend)
)

func (k Kind) String() string { return participant.Kind(k).String() }
