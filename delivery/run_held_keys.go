package delivery

import (
	"log/slog"
	"sync/atomic"

	"github.com/weirflow/weir/delivery/jobs"
)

// heldKeys are the keys of a worker's queue that people hold (jobs.HoldKey).
type heldKeys struct {
	canHold bool                            // the source can leave out keys; written before the worker receives
	now     atomic.Pointer[map[string]bool] // as of the last read; the map does not change
}

// holdsKey reports whether people hold a key of the queue.
func (w *worker[IN, OUT]) holdsKey(key string) bool {
	held := w.held.now.Load()
	return held != nil && (*held)[key]
}

// takeHeldKeys passes the keys that people hold to the source, and logs the changes. With
// an error the last orders hold.
func (w *worker[IN, OUT]) takeHeldKeys(queue string, orders []jobs.KeyOrder, err error) {
	if err != nil {
		return
	}
	held := map[string]bool{}
	for _, o := range orders {
		if o.Queue != queue {
			continue
		}
		held[o.Key] = true
		if !w.holdsKey(o.Key) {
			w.logger.Warn("delivery: people hold a key: the worker leaves out its messages until it is resumed",
				slog.String("queue", queue), slog.String("key", o.Key), slog.String("by", o.By), slog.String("why", o.Why))
		}
	}
	before := w.held.now.Swap(&held)
	if before != nil {
		for key := range *before {
			if !held[key] {
				w.logger.Info("delivery: a key was resumed: the worker takes its messages again", slog.String("queue", queue), slog.String("key", key))
			}
		}
	}
	w.keys.HoldKeys(held)
}
