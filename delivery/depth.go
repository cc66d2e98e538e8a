package delivery

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/delivery/store"
)

// recount is how old a count of a bounded queue may be.
const recount = time.Second

// depth bounds a queue without counting it for each message.
type depth struct {
	limit int
	clock clock.Clock

	mu      sync.Mutex // held while it counts: others would do the same
	room    int        // for messages of this process
	counted time.Time
}

func newDepth(limit int, c clock.Clock) *depth { return &depth{limit: limit, clock: c} }

// admit returns an error that matches [ErrFull] if there is no room for n messages.
func (d *depth) admit(ctx context.Context, s store.Store, queue string, n int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.counted.IsZero() || d.clock.Since(d.counted) >= recount {
		looks, ok := s.(store.Inspector)
		if !ok {
			return fmt.Errorf("WithMaxDepth: a %T cannot count messages: it is no store.Inspector", s)
		}
		c, err := looks.Count(ctx, queue, store.Filter{})
		if err != nil {
			return err
		}
		d.room, d.counted = d.limit-c.Messages, d.clock.Now()
	}
	if n > d.room {
		return fmt.Errorf("%w: it has %d messages, at most %d are allowed (WithMaxDepth)", ErrFull, d.limit-d.room, d.limit)
	}
	d.room -= n
	return nil
}
