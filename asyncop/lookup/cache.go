package lookup

import "time"

// Cache keeps the results of loads. See ottercache of ext/otter, and lookuptest for your
// own.
//
// Its methods are called on the loops of operators and on goroutines of clients. They
// must not block or call the [Function], and must be safe for concurrent use. A cache may
// drop entries at any time, and belongs to one Function.
type Cache[K comparable, V any] interface {
	// Get returns the entry of key, unless it is missing or has expired.
	Get(key K) (entry Entry[V], ok bool)
	// Put sets or replaces the entry of key.
	Put(key K, entry Entry[V])
	// Delete removes the entry of key.
	Delete(key K)
}

// Entry is the value of a key. Elements share its results, which must not be changed.
type Entry[V any] struct {
	Results []V   // empty in a negative entry
	Err     error // of a failed load; usually nil, see [WithErrorTTL]
	// TTL limits the use of the entry, from Put on, however often it is read. 0 means
	// that the cache decides.
	TTL time.Duration
}

func (e *Entry[V]) found() bool { return e.Err == nil && len(e.Results) > 0 }
