package delivery

import (
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/weirflow/weir/delivery/jobs"
)

// heldKeys are the keys that people hold (jobs.HoldKey) in the worker's queues.
type heldKeys struct {
	canHold bool                            // the source can leave out keys; written before the worker receives
	now     atomic.Pointer[map[string]bool] // as of the last read; the map does not change

	// mu guards byEngine. It is held while the source takes the keys, so that reads of
	// two engines do not overtake each other.
	mu       sync.Mutex
	byEngine map[int]map[string]bool // by index; the maps do not change
}

func (w *worker[IN, OUT]) holdsKey(key string) bool {
	held := w.held.now.Load()
	return held != nil && (*held)[key]
}

// takeHeldKeys passes the keys that people hold in an engine's queues to the source, and
// logs the changes. After an error the last orders hold.
func (w *worker[IN, OUT]) takeHeldKeys(engine int, queues []string, orders []jobs.KeyOrder, err error) {
	if err != nil {
		return
	}
	w.held.mu.Lock()
	defer w.held.mu.Unlock()
	before := w.held.byEngine[engine]
	held := map[string]bool{}
	for _, o := range orders {
		if !slices.Contains(queues, o.Queue) {
			continue
		}
		held[o.Key] = true
		if !before[o.Key] {
			w.logger.Warn("delivery: people hold a key: the worker leaves out its messages until it is resumed",
				slog.String("queue", o.Queue), slog.String("key", o.Key), slog.String("by", o.By), slog.String("why", o.Why))
		}
	}
	for key := range before {
		if !held[key] {
			w.logger.Info("delivery: a key was resumed: the worker takes its messages again", slog.String("queue", queues[0]), slog.String("key", key))
		}
	}
	if w.held.byEngine == nil {
		w.held.byEngine = map[int]map[string]bool{}
	}
	w.held.byEngine[engine] = held
	all := map[string]bool{}
	for _, keys := range w.held.byEngine {
		maps.Copy(all, keys)
	}
	w.held.now.Store(&all)
	w.keys.HoldKeys(all)
}
