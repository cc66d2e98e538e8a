package wait

import (
	"sync"
	"time"

	"github.com/benbjohnson/clock"
)

// Forward is a clock that goes on where it was when the machine's clock is set back. It goes as fast as that one, and a real
// clock's steps forward do not reach it either: it reads monotonic time. Safe for concurrent use.
type Forward struct {
	clock clock.Clock

	mu    sync.Mutex
	start time.Time     // a reading of clock
	last  time.Duration // the highest time since start that was read
	base  time.Time     // what Now returned at start, or would have
}

// NewForward returns a clock that begins at what c shows.
func NewForward(c clock.Clock) *Forward {
	now := c.Now()
	return &Forward{clock: c, start: now, base: now.Round(0)}
}

// Now returns the time. It is never earlier than what Now has returned before.
func (c *Forward) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now()
}

// AtLeast sets the clock forward to t, if it shows less, and returns the time.
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
