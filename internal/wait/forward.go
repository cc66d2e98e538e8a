package wait

import (
	"sync"
	"time"

	"github.com/benbjohnson/clock"
)

// Forward is a clock that never goes back: it continues when the machine's clock is set
// back. It runs at the speed of that clock. Since it reads monotonic time, steps forward
// of a real clock do not affect it, either. It is safe for concurrent use.
type Forward struct {
	clock clock.Clock

	mu    sync.Mutex    // guards the fields below
	start time.Time     // the time of clock when Forward was made
	last  time.Duration // time since start at the last reading
	base  time.Time     // Now returns base plus the time since start
}

// NewForward returns a clock that begins at the time of c.
func NewForward(c clock.Clock) *Forward {
	now := c.Now()
	return &Forward{clock: c, start: now, base: now.Round(0)}
}

// Now returns the time. It is never earlier than an earlier result.
func (c *Forward) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now()
}

// AtLeast sets the clock forward to t if it is behind t, and returns the time.
func (c *Forward) AtLeast(t time.Time) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	if behind := t.Sub(now); behind > 0 {
		c.base = c.base.Add(behind)
		now = now.Add(behind)
	}
	return now
}

func (c *Forward) now() time.Time {
	since := c.clock.Now().Sub(c.start)
	if since < c.last {
		c.base = c.base.Add(c.last - since)
	}
	c.last = since
	return c.base.Add(since)
}
