package checkpoint

import (
	"fmt"
	"maps"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/weirflow/weir/checkpoint/participant"
)

const maxNameLength = 1024

// Snapshot is a checkpoint: the states of all participants at a barrier. It may be read
// concurrently.
type Snapshot struct {
	// ID is the number of the checkpoint. Numbers begin at 1 and grow, perhaps with gaps.
	ID uint64
	// Kind is the purpose of the checkpoint.
	Kind Kind
	// Time is when the checkpoint was taken, by the wall clock. Stores keep nanoseconds,
	// and return it in UTC.
	Time time.Time
	// States holds the states by participant. Stores write them in the order of names, so
	// equal snapshots have equal files.
	States map[string]participant.State
}

// Names returns the names of the participants, sorted.
func (s *Snapshot) Names() []string { return slices.Sorted(maps.Keys(s.States)) }

// State returns the state of a participant; ok is false if it has none.
func (s *Snapshot) State(name string) (state participant.State, ok bool) {
	state, ok = s.States[name]
	return state, ok
}

// Size returns the number of bytes of all states.
func (s *Snapshot) Size() int64 {
	var n int64
	for _, state := range s.States {
		n += state.Size()
	}
	return n
}

// Validate returns an error if stores must refuse s: its number is 0, its kind unknown,
// or a name is empty, longer than 1024 bytes, or not UTF-8.
func (s *Snapshot) Validate() error {
	if s == nil {
		return fmt.Errorf("%w: it is nil", errInvalidSnapshot)
	}
	if s.ID == 0 {
		return fmt.Errorf("%w: its number is 0, the first one is 1", errInvalidSnapshot)
	}
	if s.Kind > Suspend {
		return fmt.Errorf("%w: checkpoint %d is of an unknown kind: %v", errInvalidSnapshot, s.ID, s.Kind)
	}
	for name := range s.States {
		switch {
		case name == "":
			return fmt.Errorf("%w: checkpoint %d has a participant without a name", errInvalidSnapshot, s.ID)
		case len(name) > maxNameLength:
			return fmt.Errorf("%w: checkpoint %d: a participant's name is %d bytes long, at most %d are possible: %.64q…",
				errInvalidSnapshot, s.ID, len(name), maxNameLength, name)
		case !utf8.ValidString(name):
			return fmt.Errorf("%w: checkpoint %d: the participant's name %q is not UTF-8", errInvalidSnapshot, s.ID, name)
		}
	}
	return nil
}
