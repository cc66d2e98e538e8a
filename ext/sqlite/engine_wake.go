package sqlite

import (
	"context"
	"time"

	"github.com/weirflow/weir/delivery/store"
)

var _ store.Waker = (*Engine)(nil)

// Wake implements [store.Waker]. It misses no event, unless the engine has a clock of its
// own ([WithClock]): then consumers poll as well. Changes of this DB and the ends of
// delays are reported at once, other changes within about 100 ms.
func (s *Engine) Wake(ctx context.Context, queue string, wake func(misses bool)) error {
	c := &waiter{engine: s, wake: wake, polls: s.ownClock, ended: make(chan error, 1)}
	err := s.do(ctx, func() error {
		err := s.db.watcher.add(queue, c)
		if err == nil && c.polls {
			wake(true)
		}
		return err
	})
	if err != nil {
		return err
	}
	defer s.db.watcher.remove(queue, c)
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case err := <-c.ended:
		return err
	}
}

// dues is when messages put or released by a transaction become due, by queue.
type dues map[string]due

type due struct {
	now   bool          // a message is due
	later time.Duration // shortest delay of the others; 0 if there are no others
}

func (d dues) add(queue string, delay time.Duration) {
	of := d[queue]
	switch {
	case delay <= 0:
		of.now = true
	case of.later == 0 || delay < of.later:
		of.later = delay
	}
	d[queue] = of
}
