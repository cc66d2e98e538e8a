package lookup

// Joinable returns how many loads there are that lookups may join.
func (f *Function[K, V]) Joinable() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.current)
}
