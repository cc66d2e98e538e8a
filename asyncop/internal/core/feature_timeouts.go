package core

import "time"

// OwnTimeouts adds a feature: an element has the timeout that timeoutFor returns in place of Config.Timeout, unless it is 0; one
// for which it is negative is late already.
func OwnTimeouts[IN, OUT any](g *Machine[IN, OUT], timeoutFor func(in IN) time.Duration) {
	g.exact = true
	g.timeoutOf = func(s *Slot[IN, OUT]) time.Duration {
		g.calling(s, g.resumes.fail)
		own := timeoutFor(s.in)
		g.user.after = nil
		if own == 0 {
			return g.Timeout
		}
		return own
	}
	g.accepted = append(g.accepted, func(s *Slot[IN, OUT]) bool {
		if g.accepting.isItem {
			return true
		}
		if own := g.timeoutOf(s); own != g.Timeout {
			g.limit(s, later(s.accepted, own), own)
		}
		return true
	})
}
