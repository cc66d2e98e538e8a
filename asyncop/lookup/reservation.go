package lookup

import (
	"context"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/predicates"
)

// reservation promises an outcome to a lookup that has not begun: an entry of the cache,
// or the outcome of a running load. It is used by one goroutine.
type reservation[K comparable, V any] struct {
	f      *Function[K, V]
	key    K
	entry  Entry[V]
	load   *load[K, V] // nil if the entry is the outcome
	isUsed bool        // or released
}

// Joins implements call.Reservation.
func (r *reservation[K, V]) Joins() bool { return r.load != nil }

// Release implements call.Reservation.
func (r *reservation[K, V]) Release() {
	if r.isUsed {
		return
	}
	r.isUsed = true
	if r.load != nil {
		r.load.release()
	}
}

// sharing lets operators find the lookups.
type sharing[IN any] = call.Sharing[IN]

// lookups is a Function for an operator.
type lookups[K comparable, V any] struct{ f *Function[K, V] }

// Reserve implements call.Lookups.
func (l lookups[K, V]) Reserve(key K, number int) call.Reservation { return l.f.reserve(key, number) }

// LookupKey implements call.Lookups. A key that is not equal to itself, such as NaN, is
// not shared.
func (lookups[K, V]) LookupKey(key K) (any, bool) { return key, same(key, key) }

// Changes implements call.Lookups.
func (l lookups[K, V]) Changes() int64 { return l.f.loads.Load() + l.f.stored.Load() }

// reserve returns the outcome for a lookup of key that needs no load, or nil. number is
// the number of the attempt.
func (f *Function[K, V]) reserve(key K, number int) call.Reservation {
	if f.cache != nil {
		entry, ok := f.cache.Get(key)
		if ok && answers(&entry, number) {
			return &reservation[K, V]{f: f, key: key, entry: entry}
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock() // even if the key cannot be hashed
	l := f.current[key]
	if l == nil {
		return nil
	}
	l.reserved++
	return &reservation[K, V]{f: f, key: key, load: l}
}

// use completes a lookup with the entry, or makes it wait for the load.
func (r *reservation[K, V]) use(ctx context.Context, result asyncop.ResultFuture[V]) {
	r.isUsed = true
	if r.load == nil {
		r.f.hit(ctx, &r.entry, result)
		return
	}
	r.f.misses.Add(1)
	r.f.shared.Add(1)
	borrow(result)
	w := &waiter[V]{ctx: ctx, result: result}
	if r.load.addReserved(w) {
		r.load.watch(w)
		return
	}
	r.load.deliver([]*waiter[V]{w}, r.load.results, r.load.err)
}

// reserved returns the reservation of a lookup of key, or nil.
func (f *Function[K, V]) reserved(ctx context.Context, key K) *reservation[K, V] {
	r, ok := ctx.Value(call.ReservationKey{}).(*reservation[K, V])
	if !ok || r.f != f || r.key != key || r.isUsed {
		return nil
	}
	return r
}

// hit completes a lookup with an entry of the cache.
func (f *Function[K, V]) hit(ctx context.Context, entry *Entry[V], result asyncop.ResultFuture[V]) {
	f.hits.Add(1)
	borrow(result)
	if entry.Err != nil {
		predicates.ReportStage(ctx, predicates.ClientDispatch) // not sent
	}
	complete(result, entry.Results, entry.Err)
}

// answers reports whether an entry answers an attempt. Negative entries and errors do not
// answer a retry.
func answers[V any](entry *Entry[V], number int) bool { return entry.found() || number <= 1 }

// addReserved makes w wait for l in place of a reservation. It returns false if l has the
// outcome.
func (l *load[K, V]) addReserved(w *waiter[V]) bool {
	l.f.mu.Lock()
	defer l.f.mu.Unlock()
	l.reserved--
	if l.settled {
		w.settled = true
		return false
	}
	l.add(w)
	return true
}

// release ends an unused reservation. The load ends with its last lookup.
func (l *load[K, V]) release() {
	l.f.mu.Lock()
	l.reserved--
	isLast := l.waiting == 0 && l.reserved == 0
	if isLast && !l.ended {
		l.f.detach(l)
	}
	l.f.mu.Unlock()
	if isLast {
		l.cancel()
	}
}
