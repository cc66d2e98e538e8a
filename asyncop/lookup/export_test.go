package lookup

// Joinable returns the number of loads that lookups may join.
func (f *Function[K, V]) Joinable() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.current)
}
