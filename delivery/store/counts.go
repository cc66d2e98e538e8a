package store

import "time"

// Add counts n messages with the same cause and reasons. oldest is when the first of them
// arrived. next is when the first of them can be taken, or zero if they cannot be taken.
// last is their highest position.
func (c *Counts) Add(cause Cause, reasons []string, n int, oldest, next time.Time, last int64) {
	if c.Messages == 0 || oldest.Before(c.Oldest) {
		c.Oldest = oldest
	}
	if c.Next.IsZero() || !next.IsZero() && next.Before(c.Next) {
		c.Next = next
	}
	c.Messages += n
	c.Last = max(c.Last, last)
	if cause != "" {
		if c.Causes == nil {
			c.Causes = map[Cause]int{}
		}
		c.Causes[cause] += n
	}
	if len(reasons) > 0 && c.Reasons == nil {
		c.Reasons = map[string]int{}
	}
	seen := map[string]bool{}
	for _, r := range reasons {
		if !seen[r] {
			c.Reasons[r] += n
		}
		seen[r] = true
	}
}

// SetAge sets the age by the time of the store.
func (c *Counts) SetAge(now time.Time) {
	if c.Messages > 0 {
		c.Age = max(0, now.Sub(c.Oldest))
	}
}
