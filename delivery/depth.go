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

	// turn has room for one: the call that has it owns what follows. It is held while that counts, as others would do the same.
	turn    chan struct{}
	room    int // for messages of this process
	counted time.Time
}

func newDepth(engine store.Inspector, queue string, limit int, c clock.Clock) *depth {
	return &depth{engine: engine, queue: queue, limit: limit, clock: c, turn: make(chan struct{}, 1)}
}

// admit returns an error if there is no room for n messages: it matches [store.ErrFull], or [message.ErrRefused] if there will never be.
func (d *depth) admit(ctx context.Context, n int) error {
	if n > d.limit {
		return fmt.Errorf("%w: %d messages at once never fit: at most %d are allowed (MaxDepth)", message.ErrRefused, n, d.limit)
	}
	select {
	case d.turn <- struct{}{}:
		defer func() { <-d.turn }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if d.counted.IsZero() || d.clock.Since(d.counted) >= recount {
		c, err := d.engine.Count(ctx, d.queue, store.Filter{})
		if err != nil {
			return err
		}
		d.room, d.counted = d.limit-c.Messages, d.clock.Now()
	}
	if n > d.room {
		return fmt.Errorf("%w: it has %d of the %d messages that are allowed (MaxDepth)", store.ErrFull, d.limit-d.room, d.limit)
	}
	d.room -= n
	return nil
}
