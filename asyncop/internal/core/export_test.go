package core

import (
	"time"

	"github.com/weirflow/weir/asyncop/observe"
)

// Fields of State that tests read.

func (g *Machine[IN, OUT]) Len() int     { return g.State().Len }
func (g *Machine[IN, OUT]) Running() int { return g.State().Running }

func (g *Machine[IN, OUT]) Failed() bool { return g.State().Failure != nil }

func (g *Machine[IN, OUT]) Failure() (by EndedBy, err error) {
	return g.State().EndedBy, g.State().Failure
}

func (g *Machine[IN, OUT]) AcceptControl(element any, kept bool) {
	it := Item[IN, OUT]{Kind: Control, Rest: element}
	if !kept {
		it = Marker[IN, OUT](element)
	}
	g.Restore(it, 0)
}

func (g *Machine[IN, OUT]) Counts() (c observe.Stats, oldest time.Duration) {
	s := g.State()
	return s.Counts(), s.Oldest
}

func (g *Machine[IN, OUT]) Attempts() (begun, failed int64) {
	return g.State().Stats.Attempts, g.State().FailedAttempts
}

func (g *Machine[IN, OUT]) FreePermits() int       { return Look(g).FreePermits }
func (g *Machine[IN, OUT]) Oldest() string         { return Look(g).Oldest }
func (g *Machine[IN, OUT]) Present() time.Duration { return g.State().Now }

func (g *Machine[IN, OUT]) Describe(s *Slot[IN, OUT]) Report[IN] { return g.report(s) }
