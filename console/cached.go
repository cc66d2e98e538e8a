package console

import (
	"context"
	"sync"
	"time"

	"github.com/benbjohnson/clock"
)

const (
	freshFor = 2 * time.Second // a look at all queues
	share    = 10              // all reads together take at most one part in so many of the time
	slowLoad = 100 * time.Millisecond
	loadTime = time.Minute // at most
)

// cached is a value that takes long to find: people see the last one meanwhile. One load
// runs at a time, for a twentieth of the time at most. Its zero value is ready.
type cached[T any] struct {
	// reserve waits until a load may begin, and returns a function to call after it. This
	// wait is not part of the load and its loadTime. reserve may be nil.
	reserve func(ctx context.Context) (release func(), err error)

	mu    sync.Mutex
	value T
	err   error
	at    time.Time     // zero if there is no value
	took  time.Duration // by the last load
	next  time.Time     // earliest time of the next load
	done  chan struct{} // closed at the end of the load; nil while no load runs
}

// get returns the value and when it was loaded, and waits up to patience for a new value
// if it is old. The time is zero without a value. A load continues after ctx, until life
// ends.
func (c *cached[T]) get(ctx, life context.Context, cl clock.Clock, patience time.Duration, load func(context.Context) (T, error)) (T, time.Time, error) {
	c.mu.Lock()
	if c.done == nil && !cl.Now().Before(c.next) {
		c.done = make(chan struct{})
		go c.load(life, cl, load) // ends with load
	}
	done := c.done
	c.mu.Unlock()
	if done != nil && patience > 0 {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		select {
		case <-done:
		case <-ctx.Done():
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.value, c.at, c.err
}

func (c *cached[T]) load(ctx context.Context, cl clock.Clock, load func(context.Context) (T, error)) {
	if c.reserve != nil {
		release, err := c.reserve(ctx)
		if err != nil { // ctx has ended: the next get waits again
			c.mu.Lock()
			defer c.mu.Unlock()
			close(c.done)
			c.done = nil
			return
		}
		defer release()
	}
	ctx, cancel := context.WithTimeout(ctx, loadTime)
	defer cancel()
	begun := cl.Now()
	v, err := load(ctx)
	now := cl.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = err
	if err == nil {
		c.value, c.at = v, now
	}
	c.took = now.Sub(begun)
	c.next = now.Add(max(freshFor, 2*share*c.took))
	close(c.done)
	c.done = nil
}

func (c *cached[T]) peek() (T, time.Time, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.value, c.at, c.err
}

func (c *cached[T]) isSlow() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.took > slowLoad
}

// stale makes the next get load a new value, after a change.
func (c *cached[T]) stale() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.next = time.Time{}
}
