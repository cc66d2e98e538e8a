package jobs

import (
	"cmp"
	"slices"
	"time"
)

// KeyDown is a worker's report that it starts no calls of a key, except for a probe: the
// service of the key is down, or the program holds the key (backend.TenantBreaker).
type KeyDown struct {
	Key   string    `json:"key"`
	State string    `json:"state"`         // down, probing, held (by the program: backend.Backend.HoldTenant)
	Why   string    `json:"why,omitempty"` // the reason for State
	Since time.Time `json:"since"`         // start of the outage or hold, by the worker's clock

	// Of [KeysDown].
	Queue   string `json:"queue,omitempty"`   // of the worker
	In      int    `json:"in,omitempty"`      // workers of the queue that report the key
	Workers int    `json:"workers,omitempty"` // workers of the queue
}

// KeysDown returns the keys that workers report to be down, by queue, the longest outage
// first. Workers that are silent at now do not count ([SilentAfter]). If several workers
// report a key, State is the worst of their states, and Since the earliest start.
func KeysDown(workers []Worker, now time.Time) []KeyDown {
	type name struct{ queue, key string }
	readers := map[string]int{} // by queue
	down := map[name]KeyDown{}
	for _, w := range workers {
		if now.Sub(w.Seen) > SilentAfter || w.Reads == "" {
			continue
		}
		for _, queue := range append([]string{w.Reads}, w.ReadsFirst...) {
			readers[queue]++
			for _, k := range w.KeysDown {
				n := name{queue, k.Key}
				k.Queue = queue
				k.In = 1
				before, isKnown := down[n]
				if isKnown {
					k = before.and(k)
				}
				down[n] = k
			}
		}
	}
	list := make([]KeyDown, 0, len(down))
	for _, k := range down {
		k.Workers = readers[k.Queue]
		list = append(list, k)
	}
	slices.SortFunc(list, func(a, b KeyDown) int {
		return cmp.Or(cmp.Compare(a.Queue, b.Queue), a.Since.Compare(b.Since), cmp.Compare(a.Key, b.Key))
	})
	return list
}

func (k KeyDown) and(other KeyDown) KeyDown {
	if slices.Index(worst, other.State) < slices.Index(worst, k.State) {
		k.State = other.State
		k.Why = other.Why
	}
	if other.Since.Before(k.Since) {
		k.Since = other.Since
	}
	k.In += other.In
	return k
}
