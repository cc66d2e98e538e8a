package core

// TestView is the view of a core for tests of other packages.
type TestView struct {
	FreePermits int    // including permits that were freed and not taken yet
	Oldest      string // phase of the oldest element
}

// Look is for tests.
func Look[IN, OUT any](g *Machine[IN, OUT]) (s TestView) {
	s.FreePermits = g.permits + int(g.Host.Freed())
	if g.oldest != nil {
		s.Oldest = g.oldest.phase.String()
	}
	return s
}
