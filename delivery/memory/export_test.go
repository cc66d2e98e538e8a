package memory

// Names returns how many names of locks are known.
func (m *Engine) Names() int { return len(m.locks.locks) }
