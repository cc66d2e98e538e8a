package ottercache

import (
	"errors"
	"time"

	"github.com/maypok86/otter/v2"

	"github.com/weirflow/weir/asyncop/lookup"
)

// Cache is a lookup.Cache in a cache of otter. It is safe for concurrent use.
type Cache[K comparable, OUT any] struct {
	cache *otter.Cache[K, lookup.Entry[OUT]]
}

// New returns an empty cache. It does not change options, and returns an error if they
// are nil, or if otter refuses them. A cache without a MaximumSize or MaximumWeight grows
// with the number of keys.
//
// otter's goroutine for each cache ends with Otter().StopAllGoroutines, or some time
// after the cache has become garbage.
func New[K comparable, OUT any](options *otter.Options[K, lookup.Entry[OUT]]) (*Cache[K, OUT], error) {
	if options == nil {
		return nil, errors.New("ottercache: New: nil options")
	}
	o := *options
	if o.ExpiryCalculator == nil {
		o.ExpiryCalculator = otter.ExpiryCreating[K, lookup.Entry[OUT]](forEver)
	}
	o.ExpiryCalculator = expiry[K, OUT]{o.ExpiryCalculator}
	c, err := otter.New(&o)
	if err != nil {
		return nil, err
	}
	return &Cache[K, OUT]{c}, nil
}

// Otter returns the cache of otter, for its size and statistics, and to invalidate all of
// it. To invalidate a key use the lookup's Forget, which includes running loads.
func (c *Cache[K, OUT]) Otter() *otter.Cache[K, lookup.Entry[OUT]] { return c.cache }

// Get implements lookup.Cache.
func (c *Cache[K, OUT]) Get(key K) (lookup.Entry[OUT], bool) { return c.cache.GetIfPresent(key) }

// Put implements lookup.Cache.
func (c *Cache[K, OUT]) Put(key K, entry lookup.Entry[OUT]) { c.cache.Set(key, entry) }

// Delete implements lookup.Cache.
func (c *Cache[K, OUT]) Delete(key K) { c.cache.Invalidate(key) }

// forEver is as long as otter can add to a present time.
const forEver = 100 * 365 * 24 * time.Hour

// expiry is the user's, except for entries with their own time.
type expiry[K comparable, OUT any] struct {
	users otter.ExpiryCalculator[K, lookup.Entry[OUT]]
}

func (e expiry[K, OUT]) ExpireAfterCreate(entry otter.Entry[K, lookup.Entry[OUT]]) time.Duration {
	if ttl := entry.Value.TTL; ttl > 0 {
		return min(ttl, forEver)
	}
	return e.users.ExpireAfterCreate(entry)
}

// ExpireAfterUpdate implements otter.ExpiryCalculator. An entry that replaces an entry
// with its own time counts as new for the user's calculator, which might otherwise keep
// that time.
func (e expiry[K, OUT]) ExpireAfterUpdate(
	entry otter.Entry[K, lookup.Entry[OUT]], old lookup.Entry[OUT],
) time.Duration {
	if entry.Value.TTL > 0 || old.TTL > 0 {
		return e.ExpireAfterCreate(entry)
	}
	return e.users.ExpireAfterUpdate(entry, old)
}

func (e expiry[K, OUT]) ExpireAfterRead(entry otter.Entry[K, lookup.Entry[OUT]]) time.Duration {
	if entry.Value.TTL > 0 {
		return entry.ExpiresAfter() // as it was
	}
	return e.users.ExpireAfterRead(entry)
}
