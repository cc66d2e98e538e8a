package exactlyonce

// EvictedQueue returns how many places the queue of evicted clients has taken.
func (r *Results) EvictedQueue() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.order.Len()
}
