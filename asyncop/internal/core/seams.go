package core

// FreePermits is for tests: it returns how many permits are free.
func (g *Machine[IN, OUT]) FreePermits() int { return g.permits + int(g.Host.Freed()) }

// WaitingBeside is for tests: it returns how many pieces of user code wait for their turn.
func (g *Machine[IN, OUT]) WaitingBeside() (n int) {
	for _, f := range g.waitingBeside {
		n += f()
	}
	return n
}

// Oldest is for tests: it returns the phase of the oldest element.
func (g *Machine[IN, OUT]) Oldest() string { return g.first().phase.String() }
