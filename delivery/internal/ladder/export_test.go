package ladder

// Keys returns how many keys are known.
func (l *Ladder[T]) Keys() int {
	k := l.keys.Load()
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.of)
}

// Size returns how many messages count for Config.MaxBlocked.
func (l *Ladder[T]) Size() int {
	k := l.keys.Load()
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.size
}
