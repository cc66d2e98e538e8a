package leases

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/counting"
	"github.com/weirflow/weir/internal/wait"
)

const listenAgain = time.Second // after Wake has failed

// Listen lets a store that is a [store.Waker] wake a consumer of a queue, until ctx ends.
// It returns at once for other stores. misses reports that the consumer has to poll,
// because the store may miss events, or has failed.
//
// Listen begins again a second after a failure. Similar failures are logged once a
// minute, with their number. If the store works again within the minute, their number is
// logged at the next failure, or at the end.
func Listen(ctx context.Context, s store.Store, queue string, c clock.Clock, l *slog.Logger, wake func(misses bool)) {
	waker, ok := s.(store.Waker)
	if !ok {
		return
	}
	failures := counting.NewFailureLog(l, c, "weir: the store does not say when messages are due; the queue is polled meanwhile", "queue", queue)
	defer failures.Flush()
	for ctx.Err() == nil {
		err := waker.Wake(ctx, queue, wake)
		wake(true)
		if ctx.Err() == nil && !errors.Is(err, store.ErrClosed) {
			failures.Add(err)
		}
		_ = wait.For(ctx, c, listenAgain)
	}
}
