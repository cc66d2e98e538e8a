package checkpoint

import (
	"context"
	"log/slog"

	"github.com/weirflow/weir/checkpoint/participant"
)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// clone returns a copy that shares no memory with s, with every state in one piece, as a
// store returns it.
func (s *Snapshot) clone() *Snapshot {
	out := &Snapshot{ID: s.ID, Kind: s.Kind, Time: s.Time.Round(0).UTC(), States: make(map[string]participant.State, len(s.States))}
	for name, state := range s.States {
		whole := make([]byte, 0, state.Size()) // not nil, like a state that was read
		for _, piece := range state {
			whole = append(whole, piece...)
		}
		out.States[name] = participant.State{whole}
	}
	return out
}

// Constants for the tests in package checkpoint_test.
const (
	ClosePatience  = closePatience
	ReportPatience = reportPatience
	StartPatience  = startPatience
	Buffer         = buffer
	MaxNameLength  = maxNameLength
)

var (
	ErrNoState         = errNoState
	ErrInvalidSnapshot = errInvalidSnapshot
)

// Reporter returns the Reporter of the coordinator's barriers.
func (c *Coordinator) Reporter() participant.Reporter { return (*host)(c) }

// Take takes one checkpoint.
func (c *Coordinator) Take(ctx context.Context, kind participant.Kind) (uint64, error) {
	return c.take(ctx, kind)
}

// DrainID is the number of the marker of the end of the input.
func (c *Coordinator) DrainID() uint64 { return c.drain.barrier.ID }

// Kept is the checkpoint that the source keeps a position for, or 0.
func (s *Source[T]) Kept() uint64 { return s.position.id }

// Kept is the checkpoint that the sink keeps a state for, or 0.
func (s *Sink[T]) Kept() uint64 { return s.prepared.id }
