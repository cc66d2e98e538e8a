package core

// TestView is for tests of other packages.
type TestView struct {
	FreePermits int    // including freed permits that were not taken yet
	Oldest      string // phase of the oldest element
}

// Look returns a view for tests.
func Look[IN, OUT any](g *Machine[IN, OUT]) (s TestView) {
	s.FreePermits = g.freePermits + int(g.Host.Freed())
	if g.oldest != nil {
		s.Oldest = g.oldest.phase.String()
	}
	return s
}
