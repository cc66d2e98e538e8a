package delivery

import (
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/weirflow/weir/delivery/jobs"
)

// heldKeys are the keys that people hold (jobs.HoldKey) in the worker's queues.
type heldKeys struct {
	canHold bool                            // the source can leave out keys; written before the worker receives
	now     atomic.Pointer[map[string]bool] // keys of all queues, as of the last read; the map does not change

	// mu guards byEngine. takeHeldKeys holds it until the source has the keys. Otherwise,
	// after reads of two engines, the source might get the older keys last.
	mu       sync.Mutex
	byEngine map[int]map[heldKey]bool // by the index of the engine; the inner maps do not change
}

type heldKey struct{ queue, name string }

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
	held := map[heldKey]bool{}
	for _, o := range orders {
		if !slices.Contains(queues, o.Queue) {
			continue
		}
		key := heldKey{o.Queue, o.Key}
		held[key] = true
		if !before[key] {
			w.logger.Warn("delivery: people hold a key: the worker leaves out its messages until it is resumed",
				slog.String("queue", o.Queue), slog.String("key", o.Key), slog.String("by", o.By), slog.String("why", o.Why))
		}
	}
	if w.held.byEngine == nil {
		w.held.byEngine = map[int]map[heldKey]bool{}
	}
	w.held.byEngine[engine] = held
	all := map[string]bool{}
	for _, keys := range w.held.byEngine {
		for key := range keys {
			all[key.name] = true
		}
	}
	for key := range before {
		if held[key] {
			continue
		}
		text := "delivery: a key was resumed: the worker takes its messages again"
		if all[key.name] {
			text = "delivery: a key was resumed, and people still hold it in another queue of the worker"
		}
		w.logger.Info(text, slog.String("queue", key.queue), slog.String("key", key.name))
	}
	w.held.now.Store(&all)
	w.keys.HoldKeys(all)
}
