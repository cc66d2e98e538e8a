package server

// Remnants returns how many places the queues of forgotten clients have taken.
func (r *Results) Remnants() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.principals {
		n += p.left.Len()
	}
	return n
}
