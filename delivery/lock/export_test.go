package lock

// Names returns how many names are known.
func Names(m *Memory) int { return len(m.locks) }
