package sqliteanswers

import "github.com/benbjohnson/clock"

// WithClock sets the clock of c, and returns c.
func (c *Cache) WithClock(other clock.Clock) *Cache {
	c.clock = other
	return c
}
