package delivery

import (
	"context"
	"fmt"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

// recount is how old a count of a bounded queue may be.
const recount = time.Second

// depth bounds a queue without counting it for each message.
type depth struct {
	engine store.Inspector
	queue  string
	limit  int
	clock  clock.Clock

	// lock has capacity 1 and guards the fields below. A call holds it while it counts,
	// because others would count the same.
	lock    chan struct{}
	free    int // messages that this process may still put
	counted time.Time
}

func newDepth(engine store.Inspector, queue string, limit int, c clock.Clock) *depth {
	return &depth{engine: engine, queue: queue, limit: limit, clock: c, lock: make(chan struct{}, 1)}
}

// admit returns an error if there is no room for n messages: it matches [store.ErrFull],
// or [message.ErrRefused] if there will never be.
func (d *depth) admit(ctx context.Context, n int) error {
	if n > d.limit {
		return fmt.Errorf("%w: %d messages at once never fit: at most %d are allowed (WithMaxDepth)", message.ErrRefused, n, d.limit)
	}
	select {
	case d.lock <- struct{}{}:
		defer func() { <-d.lock }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if d.counted.IsZero() || d.clock.Since(d.counted) >= recount {
		c, err := d.engine.Count(ctx, d.queue, store.Filter{})
		if err != nil {
			return err
		}
		d.free, d.counted = d.limit-c.Messages, d.clock.Now()
	}
	if n > d.free {
		return fmt.Errorf("%w: it has %d of the %d messages that are allowed (WithMaxDepth)", store.ErrFull, d.limit-d.free, d.limit)
	}
	d.free -= n
	return nil
}
