package server

// Tombstones returns how many entries the queue of forgotten clients has.
func (r *Results) Tombstones() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.tombQueue.Len()
}

// Principals returns the number of principals in memory.
func (r *Results) Principals() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.principals)
}

// Silent returns the length of the list of principals with clients.
func (r *Results) Silent() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for p := r.silent.first; p != nil; p = p.at.next {
		n++
	}
	return n
}

// State returns what the attempt has found.
func (c *Call) State() string {
	switch {
	case c.IsNew():
		return "NEW"
	case c.IsCompleted():
		return "COMPLETED"
	}
	return "IN_PROGRESS"
}
