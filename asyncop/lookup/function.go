package lookup

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/internal/nils"
	"github.com/weirflow/weir/predicates"
)

// Function is an asyncop.AsyncFunction that shares its calls, and keeps their outcomes in a cache. [Cached] and [Shared]
// make one. It is safe for concurrent use.
type Function[K comparable, IN, OUT any] struct {
	// Written once, then read-only.
	fn    asyncop.AsyncFunction[IN, OUT]
	key   func(in IN) K
	cache Cache[K, OUT] // nil: none
	rules rules
	skip  func(results []OUT) bool // of rules.notThese; nil: none

	hits, misses, shared, loads, loadErrors atomic.Int64

	mu      sync.Mutex              // a leaf: no user code runs under it
	current map[K]*load[K, IN, OUT] // guarded by mu; the loads that more lookups may join
	running int                     // guarded by mu; loads that have not ended
}

// Cached returns fn with a cache in front of it, and with one call per key at a time. key returns what an element asks for;
// it must not block, and must be safe for concurrent use if the function serves several operators. With a nil cache it is
// [Shared].
//
// fn may be of any kind, asyncop.Blocking included; its optional interfaces stay reachable. Cached panics if fn or key is
// nil, or if an option is for another type.
func Cached[K comparable, IN, OUT any](
	fn asyncop.AsyncFunction[IN, OUT], key func(in IN) K, cache Cache[K, OUT], opts ...Option,
) *Function[K, IN, OUT] {
	if nils.Is(fn) {
		panic("lookup: Cached: nil function")
	}
	if key == nil {
		panic("lookup: Cached: nil key")
	}
	f := &Function[K, IN, OUT]{
		fn: fn, key: key, rules: rules{missing: alike}, current: make(map[K]*load[K, IN, OUT]),
	}
	if !nils.Is(cache) {
		f.cache = cache
	}
	for _, opt := range opts {
		opt(&f.rules)
	}
	if p := f.rules.notThese; p != nil {
		var ok bool
		if f.skip, ok = p.(func(results []OUT) bool); !ok {
			panic(fmt.Sprintf("lookup: WithKeepUnless: got a %T, want a %T", p, f.skip))
		}
	}
	return f
}

// Shared returns fn with one call per key at a time, which serves all elements that ask for the key meanwhile. It panics if
// fn or key is nil.
func Shared[K comparable, IN, OUT any](fn asyncop.AsyncFunction[IN, OUT], key func(in IN) K) *Function[K, IN, OUT] {
	return Cached(fn, key, nil)
}

// AsyncInvoke implements asyncop.AsyncFunction.
func (f *Function[K, IN, OUT]) AsyncInvoke(ctx context.Context, in IN, result asyncop.ResultFuture[OUT]) error {
	key := f.key(in)
	if entry, ok := f.get(ctx, key); ok {
		f.hits.Add(1)
		if entry.Err != nil {
			predicates.ReportStage(ctx, predicates.ClientDispatch) // nothing was sent
		}
		complete(result, entry.Results, entry.Err)
		return nil
	}
	f.misses.Add(1)
	w := &waiter[OUT]{ctx: ctx, result: result}
	l, isNew := f.join(key, w)
	l.watch(w)
	if isNew {
		l.start(in)
	}
	return nil
}

// Unwrap returns the function, whose optional interfaces are those of f.
func (f *Function[K, IN, OUT]) Unwrap() any { return f.fn }

// get returns what the cache has for a lookup. A retry asks again for what was not there.
func (f *Function[K, IN, OUT]) get(ctx context.Context, key K) (entry Entry[OUT], ok bool) {
	if f.cache == nil {
		return entry, false
	}
	entry, ok = f.cache.Get(key)
	return entry, ok && (entry.found() || asyncop.AttemptFromContext(ctx) <= 1)
}

// join adds w to the load of key, which is a new one if there is none to join.
func (f *Function[K, IN, OUT]) join(key K, w *waiter[OUT]) (l *load[K, IN, OUT], isNew bool) {
	f.mu.Lock()
	defer f.mu.Unlock() // also if the key cannot be hashed
	l = f.current[key]
	if l == nil {
		l, isNew = newLoad(w.ctx, f, key), true
		if same(key, key) { // a NaN would never be found, nor removed
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

// detach lets no further lookup join l. Called with mu.
func (f *Function[K, IN, OUT]) detach(l *load[K, IN, OUT]) {
	if f.current[l.key] == l {
		delete(f.current, l.key)
	}
}

// Forget removes what the cache has for key, since it has changed. A load that runs answers those who wait for it, and is not
// kept; the next lookup begins a new one. Forget must not be called by the cache.
func (f *Function[K, IN, OUT]) Forget(key K) {
	f.mu.Lock()
	var stored chan struct{}
	if l := f.current[key]; l != nil {
		if l.storing {
			if l.stored == nil {
				l.stored = make(chan struct{})
			}
			stored = l.stored
		}
		f.detach(l)
	}
	f.mu.Unlock()
	if stored != nil {
		<-stored
	}
	if f.cache != nil {
		f.cache.Delete(key)
	}
}

// ttl returns for how long an outcome is kept, if it is. 0: as long as the cache likes.
func (f *Function[K, IN, OUT]) ttl(results []OUT, err error) (d time.Duration, keep bool) {
	switch r := &f.rules; {
	case err != nil:
		return r.errs, r.errs > 0 && !isPanic(err) && r.which(err)
	case f.skip != nil && f.skip(results):
		return 0, false
	case len(results) > 0 || r.missing == alike:
		return r.found, true
	default:
		return r.missing, r.missing > 0
	}
}

// Stats counts what a [Function] has done.
type Stats struct {
	Hits       int64 // lookups that the cache has answered
	Misses     int64 // the others: Loads + Shared
	Shared     int64 // those of them that joined a load
	Loads      int64 // calls of the function that have begun
	LoadErrors int64 // loads that ended with an error or panic, or after the last lookup had left
	Loading    int   // loads that have not ended
}

// Stats returns the counts since the beginning. They are read one after the other.
func (f *Function[K, IN, OUT]) Stats() Stats {
	f.mu.Lock()
	running := f.running
	f.mu.Unlock()
	return Stats{
		Hits: f.hits.Load(), Misses: f.misses.Load(), Shared: f.shared.Load(), Loads: f.loads.Load(),
		LoadErrors: f.loadErrors.Load(), Loading: running,
	}
}

// complete hands an outcome to a lookup. The operator owns the slice that it gets, so each lookup gets one of its own.
func complete[OUT any](result asyncop.ResultFuture[OUT], results []OUT, err error) {
	switch {
	case err != nil:
		result.CompleteExceptionally(err)
	case len(results) == 1:
		result.Complete(results[0])
	default:
		result.Complete(slices.Clone(results)...)
	}
}
