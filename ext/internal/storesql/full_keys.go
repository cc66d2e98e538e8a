package storesql

import (
	"sync"
	"time"
)

// fullFor is how long the search for due keys counts leases after it was useful.
const fullFor = time.Second

// FullKeys notes in which queues takes have found keys at [store.KeyRound].Limit lately.
// Workers leave out the keys that they have filled themselves, so a take finds such keys
// only if several workers share a slow key. A take always counts the leases of its keys.
// The search for these keys counts them as well only if keys are likely to be full: it
// leaves the full keys out then. The zero value is ready for use, and safe for concurrent
// use.
type FullKeys struct {
	mu   sync.Mutex
	seen map[string]time.Time // by queue
}

// Note notes that a take has found keys at their limit.
func (f *FullKeys) Note(queue string, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.seen == nil {
		f.seen = map[string]time.Time{}
	}
	f.seen[queue] = now
}

// AreLikely reports whether a take has found keys at their limit lately.
func (f *FullKeys) AreLikely(queue string, now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	seen, ok := f.seen[queue]
	return ok && now.Sub(seen) < fullFor
}
