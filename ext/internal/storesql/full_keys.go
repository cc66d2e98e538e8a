package storesql

import (
	"sync"
	"time"
)

// fullFor is how long the search for keys counts leases after a take has found a full
// key.
const fullFor = time.Second

// FullKeys notes in which queues takes have found full keys lately. A key is full if it
// is at [store.KeyRound].Limit.
//
// A take first searches keys with due messages, and then leases messages of these keys.
// The second step always counts the leases of the keys, so that they keep their limit.
// The search usually does not count leases, since full keys are rare: a worker leaves out
// the keys that it has filled itself.
//
// But several workers may share a slow key, and fill it together. When a take has found a
// full key, the search also counts leases for a while. It leaves out the full keys then,
// so that the take finds other keys in their place.
//
// The zero value is ready for use, and safe for concurrent use.
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
