package leases

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/wait"
)

const (
	listenAgain = time.Second // after it has failed
	logAgain    = time.Minute
)

// Listen lets a store that can do so wake a consumer of a queue, until ctx ends. If it
// fails, it begins again after a second, and logs that once a minute. If misses is true,
// the consumer has to poll: the store may miss events, or has failed.
func Listen(ctx context.Context, s store.Store, queue string, c clock.Clock, l *slog.Logger, wake func(misses bool)) {
	waker, ok := s.(store.Waker)
	if !ok {
		return
	}
	var logged time.Time
	for ctx.Err() == nil {
		err := waker.Wake(ctx, queue, wake)
		wake(true)
		if now := c.Now(); ctx.Err() == nil && !errors.Is(err, store.ErrClosed) && (logged.IsZero() || now.Sub(logged) >= logAgain) {
			logged = now
			l.Warn("weir: the store does not say when messages are due; the queue is polled meanwhile", "queue", queue, "error", err)
		}
		_ = wait.For(ctx, c, listenAgain)
	}
}
