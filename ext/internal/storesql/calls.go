package storesql

import "sync"

// Calls counts a store's running calls. It holds no lock during a call: a call may begin
// within another while Close waits.
type Calls struct {
	mu     sync.Mutex
	closed bool
	inside sync.WaitGroup
}

// Begin reports whether a call may begin. If so, End must follow.
func (c *Calls) Begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.inside.Add(1)
	return true
}

// End ends a call.
func (c *Calls) End() { c.inside.Done() }

// Close prevents further calls, waits for running ones, and reports whether it is the
// first.
func (c *Calls) Close() (first bool) {
	c.mu.Lock()
	first = !c.closed
	c.closed = true
	c.mu.Unlock()
	c.inside.Wait()
	return first
}
