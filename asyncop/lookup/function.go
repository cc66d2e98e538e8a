package lookup

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/internal/guard"
)

// Function looks up values by keys. [New] makes one. It is an asyncop.AsyncFunction of
// keys; [Join] makes a function of elements. It is safe for concurrent use.
type Function[K comparable, V any] struct {
	// Written once, then read-only.
	sharing[K]
	fn    asyncop.AsyncFunction[K, V]
	cache Cache[K, V] // may be nil
	rules rules

	hits, misses, shared, loads, loadErrors atomic.Int64
	stored                                  atomic.Int64 // loads that have ended and were stored

	mu      sync.Mutex            // a leaf: user code does not run under it
	current map[K]*load[K, V]     // guarded by mu; loads to join
	leaving map[K][]chan struct{} // guarded by mu; loads that were forgotten while they were stored: their field stored
	running int                   // guarded by mu; loads that have not ended
}

// New wraps fn so that one call per key runs at a time, for all elements that ask for the
// key meanwhile, and puts cache in front of it. cache may be nil.
//
// The optional interfaces of fn stay reachable. New panics if fn is nil.
func New[K comparable, V any](fn asyncop.AsyncFunction[K, V], cache Cache[K, V], opts ...Option) *Function[K, V] {
	if guard.IsNil(fn) {
		panic("lookup: New: nil function")
	}
	f := &Function[K, V]{fn: fn, rules: rules{missing: alike}, current: make(map[K]*load[K, V]), leaving: make(map[K][]chan struct{})}
	if !guard.IsNil(cache) {
		f.cache = cache
	}
	for _, opt := range opts {
		opt(&f.rules)
	}
	f.sharing = call.SharedBy[K](f, lookups[K, V]{f})
	return f
}

// AsyncInvoke implements asyncop.AsyncFunction.
func (f *Function[K, V]) AsyncInvoke(ctx context.Context, key K, result asyncop.ResultFuture[V]) error {
	r := f.reserved(ctx, key)
	if r != nil {
		r.use(ctx, result)
		return nil
	}
	stored := f.stored.Load()
	entry, ok := f.get(ctx, key)
	w := &waiter[V]{ctx: ctx, result: result}
	var l *load[K, V]
	var isNew bool
	if !ok {
		l, isNew = f.join(key, w, stored)
		if l == nil { // the load may have stored its outcome meanwhile
			entry, ok = f.get(ctx, key)
		}
	}
	if ok {
		f.hit(ctx, &entry, result)
		return nil
	}
	if l == nil {
		l, isNew = f.join(key, w, anyStored)
	}
	f.misses.Add(1)
	if !isNew {
		borrow(result)
	}
	l.watch(w)
	if isNew {
		l.start()
	}
	return nil
}

// borrower is an attempt, or a future of Join.
type borrower interface{ Borrow() }

var (
	_ borrower = (*call.Attempt[int])(nil)
	_ borrower = (*joining[int, int, int])(nil)
)

// borrow reports that the outcome is from another element's call or the cache, if result
// supports this.
func borrow(result any) {
	if b, ok := result.(borrower); ok {
		b.Borrow()
	}
}

var _ call.Wrapper = (*Function[int, any])(nil)

// Unwrap returns the wrapped function.
func (f *Function[K, V]) Unwrap() any { return f.fn }

// get returns the entry for a lookup.
func (f *Function[K, V]) get(ctx context.Context, key K) (entry Entry[V], ok bool) {
	if f.cache == nil {
		return entry, false
	}
	entry, ok = f.cache.Get(key)
	return entry, ok && answers(&entry, asyncop.AttemptFromContext(ctx))
}

// anyStored lets join accept any number of stored loads.
const anyStored = -1

// join adds w to the load of key, or to a new load. It returns nil instead of a new load
// if outcomes were stored since f.stored was stored: see the cache first.
func (f *Function[K, V]) join(key K, w *waiter[V], stored int64) (l *load[K, V], isNew bool) {
	f.mu.Lock()
	defer f.mu.Unlock() // even if the key cannot be hashed
	l = f.current[key]
	if l != nil && l.settled {
		l = nil
	}
	if l == nil && stored != anyStored && f.stored.Load() != stored {
		return nil, false
	}
	if l == nil {
		l, isNew = newLoad(w.ctx, f, key), true
		if same(key, key) { // a map neither finds nor removes a NaN
			f.current[key] = l
		}
		f.running++
		f.loads.Add(1)
	} else {
		f.shared.Add(1)
	}
	l.add(w)
	return l, isNew
}

func same[K comparable](a, b K) bool { return a == b }

// detach prevents further lookups from joining l. The caller holds mu.
func (f *Function[K, V]) detach(l *load[K, V]) {
	if f.current[l.key] == l {
		delete(f.current, l.key)
	}
}

// Forget removes the entry of key from the cache. Call it when the value has changed. A
// running load answers its waiters, but is not stored, and the next lookup begins a new
// load. The cache must not call Forget.
func (f *Function[K, V]) Forget(key K) {
	f.mu.Lock()
	if l := f.current[key]; l != nil {
		if l.storing {
			l.stored = make(chan struct{})
			f.leaving[key] = append(f.leaving[key], l.stored)
		}
		f.detach(l)
	}
	leaving := slices.Clone(f.leaving[key])
	f.mu.Unlock()
	for _, stored := range leaving {
		<-stored
	}
	if f.cache != nil {
		f.cache.Delete(key)
	}
}

// ttl returns whether and how long an outcome is kept; 0 means that the cache decides.
func (f *Function[K, V]) ttl(results []V, err error) (d time.Duration, keep bool) {
	switch r := &f.rules; {
	case err != nil:
		return r.errs, r.errs > 0 && !isPanic(err) && r.which(err)
	case len(results) > 0 || r.missing == alike:
		return r.found, true
	default:
		return r.missing, r.missing > 0
	}
}

// Stats are the counts of a [Function].
type Stats struct {
	Hits       int64 // lookups that the cache has answered
	Misses     int64 // other lookups: Loads + Shared
	Shared     int64 // misses that joined a load
	Loads      int64 // calls of the function
	LoadErrors int64 // loads that ended with an error or panic, or after the last lookup left
	Loading    int   // loads that have not ended
}

// Stats returns the counts so far, not atomically.
func (f *Function[K, V]) Stats() Stats {
	f.mu.Lock()
	running := f.running
	f.mu.Unlock()
	return Stats{
		Hits: f.hits.Load(), Misses: f.misses.Load(), Shared: f.shared.Load(), Loads: f.loads.Load(),
		LoadErrors: f.loadErrors.Load(), Loading: running,
	}
}

// complete completes a lookup with a copy of the slice.
func complete[V any](result asyncop.ResultFuture[V], results []V, err error) {
	switch {
	case err != nil:
		result.CompleteExceptionally(err)
	case len(results) == 1:
		result.Complete(results[0])
	default:
		result.Complete(slices.Clone(results)...)
	}
}
