package server

// Remnants returns how many places the queue of forgotten clients has taken.
func (r *Results) Remnants() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.left.Len()
}
