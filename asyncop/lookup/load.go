package lookup

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/internal/ctxkey"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/predicates"
)

// load is one call of the function, and the lookups that wait for it. It is the call's ResultFuture.
type load[K comparable, V any] struct {
	f      *Function[K, V]
	key    K
	ctx    context.Context //nolint:containedctx // of the call; ends with the last lookup
	cancel context.CancelFunc
	report report

	// Guarded by f.mu.
	waiters []*waiter[V]  // some of those that have left included; never changed in place
	waiting int           // those that have not left
	joined  int           // all that ever have
	ended   bool          // an outcome was handed in, or there will be none
	storing bool          // it is being put into the cache
	stored  chan struct{} // closed when it has been; nil if nothing waits for that
}

// waiter is a lookup that waits for a load.
type waiter[V any] struct {
	ctx    context.Context //nolint:containedctx // of the attempt
	result asyncop.ResultFuture[V]

	// Guarded by the function's mu.
	settled bool
	stop    func() bool // ends the watch over ctx; nil until there is one, and does not change once it is settled
}

// newLoad returns the load that a lookup with this context begins.
func newLoad[K comparable, V any](leader context.Context, f *Function[K, V], key K) *load[K, V] {
	l := &load[K, V]{f: f, key: key}
	l.ctx, l.cancel = context.WithCancel(loadContext[K, V]{context.WithoutCancel(leader), l})
	return l
}

// start makes the call, on the goroutine of the lookup that has begun the load.
func (l *load[K, V]) start() {
	var g guard.Guard
	defer g.Close(func(recovered any) { l.CompleteExceptionally(guard.Recovered("asyncop", recovered)) })
	err := l.f.fn.AsyncInvoke(l.ctx, l.key, l)
	g.Returned()
	if err != nil {
		l.CompleteExceptionally(err)
	}
}

// watch lets w leave when its context ends.
func (l *load[K, V]) watch(w *waiter[V]) {
	stop := context.AfterFunc(w.ctx, func() { l.leave(w) })
	l.f.mu.Lock()
	settled := w.settled
	if !settled {
		w.stop = stop
	}
	l.f.mu.Unlock()
	if settled {
		stop()
	}
}

// leave ends the wait of w. The load ends with the last one; and one that was too slow for w takes no others, or a call that
// hangs would be joined for ever.
func (l *load[K, V]) leave(w *waiter[V]) {
	err := w.ctx.Err()
	l.f.mu.Lock()
	if w.settled {
		l.f.mu.Unlock()
		return
	}
	w.settled = true
	l.waiting--
	last := l.waiting == 0
	if !l.ended && (last || err == context.DeadlineExceeded) {
		l.f.detach(l)
	}
	l.f.mu.Unlock()
	if last {
		l.cancel()
	}
	l.report.to(w.ctx) // w is over, but the calls around it are not
	w.result.CompleteExceptionally(err)
}

// Complete implements asyncop.ResultFuture.
func (l *load[K, V]) Complete(results ...V) { l.end(results, nil) }

// CompleteExceptionally implements asyncop.ResultFuture.
func (l *load[K, V]) CompleteExceptionally(err error) {
	if err == nil {
		err = errNil
	}
	l.end(nil, err)
}

// end keeps the outcome, and hands it to those who wait. The first one counts. It is kept before the load leaves the map, so
// that no lookup in between begins another.
func (l *load[K, V]) end(results []V, err error) {
	f := l.f
	f.mu.Lock()
	if l.ended {
		f.mu.Unlock()
		return
	}
	l.ended = true
	l.storing = f.cache != nil && f.current[l.key] == l // a forgotten load, or one that another has followed, is not kept
	storing := l.storing
	f.mu.Unlock()

	if storing {
		l.store(results, err)
		return
	}
	l.settle(results, err)
}

// settle hands an outcome that is kept, if it is to be, to those who wait.
func (l *load[K, V]) settle(results []V, err error) {
	f := l.f
	if err != nil {
		f.loadErrors.Add(1)
	}

	f.mu.Lock()
	l.storing = false
	if l.stored != nil {
		close(l.stored)
		f.leaving[l.key] = slices.DeleteFunc(f.leaving[l.key], func(c chan struct{}) bool { return c == l.stored })
		if len(f.leaving[l.key]) == 0 {
			delete(f.leaving, l.key)
		}
	}
	f.detach(l)
	f.running--
	waiters := make([]*waiter[V], 0, l.waiting)
	for _, w := range l.waiters {
		if !w.settled {
			w.settled = true
			waiters = append(waiters, w)
		}
	}
	l.waiters, l.waiting = nil, 0
	f.mu.Unlock()
	l.cancel()
	l.deliver(waiters, results, err)
}

// store keeps the outcome if the rules say so, and settles the load. If they or the cache break, that is the outcome (law A6).
func (l *load[K, V]) store(results []V, err error) {
	var g guard.Guard
	defer g.Close(func(recovered any) { l.settle(nil, guard.Recovered("asyncop", recovered)) })
	if ttl, keep := l.f.ttl(results, err); keep {
		l.f.cache.Put(l.key, Entry[V]{Results: results, Err: err, TTL: ttl})
	}
	g.Returned()
	l.settle(results, err)
}

// deliver hands the outcome to all that wait. A future that breaks, as that of a user's wrapper may, does not keep it from the
// others else.
func (l *load[K, V]) deliver(waiters []*waiter[V], results []V, err error) {
	for i, w := range waiters {
		func() {
			var g guard.Guard
			defer g.Close(func(recovered any) {
				if recovered == nil { // this goroutine ends
					l.deliver(waiters[i+1:], results, err)
				}
				w.result.CompleteExceptionally(guard.Recovered("asyncop", recovered))
			})
			if w.stop != nil { // if not, the watch has yet to begin, and sees that w is settled
				w.stop()
			}
			l.report.to(w.ctx)
			complete(w.result, results, err)
			g.Returned()
		}()
	}
}

// loadContext has the values of the lookup that has begun the load, except for what belongs to its attempt alone.
type loadContext[K comparable, V any] struct {
	context.Context //nolint:containedctx // it is one

	load *load[K, V]
}

// Value implements context.Context.
func (c loadContext[K, V]) Value(key any) any {
	switch key.(type) {
	case ctxkey.Stage:
		return &c.load.report
	case call.HostKey:
		if h, ok := c.Context.Value(key).(blockingHost); ok {
			return loadHost[K, V]{h, c.load}
		}
		return nil
	}
	return c.Context.Value(key)
}

// blockingHost is what runs the blocking calls of an attempt: see asyncop.Blocking.
type blockingHost interface {
	RunBlocking(task func(late error))
}

// loadHost runs the blocking call of a load where the lookup that has begun it would.
type loadHost[K comparable, V any] struct {
	host blockingHost
	load *load[K, V]
}

// RunBlocking runs task unless it is too late for all waiting lookups (law A5). In that case the load does not have an outcome: each of them
// ends by its timeout, or with its operator.
func (h loadHost[K, V]) RunBlocking(task func(late error)) {
	h.host.RunBlocking(func(late error) {
		if late == nil || !h.load.giveUp() {
			task(nil)
		}
	})
}

// Begin returns the reason why the load must not become part of a call for many elements, or nil.
func (h loadHost[K, V]) Begin() error {
	if late := h.Late(); late != nil && h.load.giveUp() {
		return late
	}
	return nil
}

// Late returns the reason why it is too late to call for the load, or nil.
func (h loadHost[K, V]) Late() error {
	waiters, _ := h.load.present()
	err := context.Canceled
	for _, w := range waiters {
		if err = w.late(); err == nil {
			return nil
		}
	}
	return err
}

// giveUp reports whether it is too late for all that wait; no element joins the load from then on.
func (l *load[K, V]) giveUp() bool {
	for {
		waiters, joined := l.present()
		for _, w := range waiters {
			if w.late() == nil {
				return false
			}
		}
		if l.endWithout(joined) {
			return true
		}
	}
}

// endWithout ends the load without an outcome, unless more than so many have joined it.
func (l *load[K, V]) endWithout(joined int) bool {
	l.f.mu.Lock()
	defer l.f.mu.Unlock()
	if l.joined > joined {
		return false
	}
	if !l.ended {
		l.ended = true
		l.f.detach(l)
		l.f.running--
	}
	return true
}

// add lets w wait for the load. Called with f.mu.
func (l *load[K, V]) add(w *waiter[V]) {
	if len(l.waiters) > 2*l.waiting+16 { // most of them have left
		left := func(w *waiter[V]) bool { return w.settled }
		l.waiters = slices.DeleteFunc(slices.Clone(l.waiters), left)
	}
	l.waiters = append(l.waiters, w)
	l.waiting++
	l.joined++
}

// present returns those who wait, and some who have left, and how many have ever joined.
func (l *load[K, V]) present() (waiters []*waiter[V], joined int) {
	l.f.mu.Lock()
	defer l.f.mu.Unlock()
	return l.waiters, l.joined
}

// late returns why no call must begin for w: its context has ended, or is about to.
func (w *waiter[V]) late() error {
	if h, ok := w.ctx.Value(call.HostKey{}).(interface{ Late() error }); ok {
		if err := h.Late(); err != nil {
			return err
		}
	}
	return w.ctx.Err()
}

// report is what a load has reported of how far it has come. Package predicates finds it through the context of the load.
type report struct {
	mu    sync.Mutex
	stage predicates.Stage // guarded by mu; the latest
	sent  int              // guarded by mu; requests that are not taken back
}

// ReportStage receives the reports of package predicates.
func (r *report) ReportStage(stage predicates.Stage) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stage = max(r.stage, stage)
}

// ReportSent counts a request. A deduplicated request carries the identity of the lookup that has begun the load, so the retry of another lookup
// would not be recognised. So it counts like any other.
func (r *report) ReportSent(bool) (counted bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sent++
	return true
}

// ReportRefused takes a request back.
func (r *report) ReportRefused(bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sent--
}

// to reports to a lookup what was reported to the load. What it shares of a request is in doubt like the request itself.
func (r *report) to(ctx context.Context) {
	r.mu.Lock()
	stage, sent := r.stage, r.sent
	r.mu.Unlock()
	if stage != predicates.Unreported {
		predicates.ReportStage(ctx, stage)
	}
	if sent > 0 {
		predicates.ReportSent(ctx)
	}
}

func isPanic(err error) bool {
	_, ok := errors.AsType[*asyncop.PanicError](err)
	return ok
}

// errNil stands for a nil error.
var errNil = errors.New("lookup: CompleteExceptionally was called with a nil error")
