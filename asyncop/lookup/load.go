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

// load is a call for the lookups that wait for it, and its ResultFuture.
type load[K comparable, V any] struct {
	f      *Function[K, V]
	key    K
	ctx    context.Context //nolint:containedctx // of the call; ends with the last lookup
	cancel context.CancelFunc
	report report

	// Guarded by f.mu.
	waiters  []*waiter[V]  // perhaps with some that have left; never changed in place
	waiting  int           // waiters that have not left
	joined   int           // waiters so far
	reserved int           // lookups that are about to wait
	settled  bool          // the waiters have the outcome
	results  []V           // once settled
	err      error         // once settled
	ended    bool          // there is an outcome, or there will not be one
	storing  bool          // into the cache
	stored   chan struct{} // closed at the end of storing; nil unless Forget waits for it
}

type waiter[V any] struct {
	ctx    context.Context //nolint:containedctx // of the attempt
	result asyncop.ResultFuture[V]

	// Guarded by the function's mu.
	settled bool
	stop    func() bool // ends the watch over ctx; set by watch, until w is settled
}

// newLoad returns the load of the lookup with context leader.
func newLoad[K comparable, V any](leader context.Context, f *Function[K, V], key K) *load[K, V] {
	l := &load[K, V]{f: f, key: key}
	l.ctx, l.cancel = context.WithCancel(loadContext[K, V]{context.WithoutCancel(leader), l})
	return l
}

// start makes the call, on the goroutine of that lookup.
func (l *load[K, V]) start() {
	var g guard.Guard
	defer g.Close(func(recovered any) { l.CompleteExceptionally(guard.Recovered("asyncop", recovered)) })
	err := l.f.fn.AsyncInvoke(l.ctx, l.key, l)
	g.Returned()
	if err != nil {
		l.CompleteExceptionally(err)
	}
}

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

// leave ends the wait of w. The load ends with its last waiter. After a timeout it does
// not take waiters, because its call may hang.
func (l *load[K, V]) leave(w *waiter[V]) {
	err := w.ctx.Err()
	l.f.mu.Lock()
	if w.settled {
		l.f.mu.Unlock()
		return
	}
	w.settled = true
	l.waiting--
	last := l.waiting == 0 && l.reserved == 0
	if !l.ended && (last || err == context.DeadlineExceeded) {
		l.f.detach(l)
	}
	l.f.mu.Unlock()
	if last {
		l.cancel()
	}
	l.report.to(w.ctx) // w has ended, but outer calls continue
	w.result.CompleteExceptionally(err)
}

func (l *load[K, V]) Complete(results ...V) { l.end(results, nil) }

func (l *load[K, V]) CompleteExceptionally(err error) {
	if err == nil {
		err = errNil
	}
	l.end(nil, err)
}

// end takes the first outcome, stores it and hands it to the waiters. The load leaves the
// map after that, so that a lookup in between does not begin another load.
func (l *load[K, V]) end(results []V, err error) {
	f := l.f
	f.mu.Lock()
	if l.ended {
		f.mu.Unlock()
		return
	}
	l.ended = true
	l.storing = f.cache != nil && f.current[l.key] == l // not if it was forgotten or replaced
	storing := l.storing
	f.mu.Unlock()

	if storing {
		l.store(results, err)
		return
	}
	l.settle(results, err)
}

// settle hands the outcome to the waiters. A failed load can be reserved until then, so
// that a lookup which comes meanwhile shares the failure.
func (l *load[K, V]) settle(results []V, err error) {
	f := l.f
	if err != nil {
		f.loadErrors.Add(1)
	}

	f.mu.Lock()
	if l.storing {
		f.stored.Add(1)
	}
	l.storing = false
	if l.stored != nil {
		close(l.stored)
		f.leaving[l.key] = slices.DeleteFunc(f.leaving[l.key], func(c chan struct{}) bool { return c == l.stored })
		if len(f.leaving[l.key]) == 0 {
			delete(f.leaving, l.key)
		}
	}
	if err == nil {
		f.detach(l)
	}
	f.running--
	waiters := make([]*waiter[V], 0, l.waiting)
	for _, w := range l.waiters {
		if !w.settled {
			w.settled = true
			waiters = append(waiters, w)
		}
	}
	l.waiters, l.waiting = nil, 0
	l.settled = true
	l.results, l.err = results, err
	f.mu.Unlock()
	l.cancel()
	l.deliver(waiters, results, err)
	if err != nil {
		f.mu.Lock()
		f.detach(l)
		f.mu.Unlock()
	}
}

// store stores the outcome if the rules allow it, and settles the load. A panic of the
// rules or the cache is the outcome (law A6).
func (l *load[K, V]) store(results []V, err error) {
	var g guard.Guard
	defer g.Close(func(recovered any) { l.settle(nil, guard.Recovered("asyncop", recovered)) })
	if ttl, keep := l.f.ttl(results, err); keep {
		l.f.cache.Put(l.key, Entry[V]{Results: results, Err: err, TTL: ttl})
	}
	g.Returned()
	l.settle(results, err)
}

// deliver hands the outcome to waiters. A panic of a future, such as a user's wrapper,
// does not stop it.
func (l *load[K, V]) deliver(waiters []*waiter[V], results []V, err error) {
	for i, w := range waiters {
		func() {
			var g guard.Guard
			defer g.Close(func(recovered any) {
				if recovered == nil { // runtime.Goexit
					l.deliver(waiters[i+1:], results, err)
				}
				w.result.CompleteExceptionally(guard.Recovered("asyncop", recovered))
			})
			if w.stop != nil { // otherwise watch will see that w is settled
				w.stop()
			}
			l.report.to(w.ctx)
			complete(w.result, results, err)
			g.Returned()
		}()
	}
}

// lateHost is an attempt that may be late.
type lateHost interface{ Late() error }

var (
	_ lateHost = (*call.Attempt[int])(nil)
	_ lateHost = loadHost[int, int]{}
)

// loadContext has the values of the lookup that began the load, but not of its attempt.
type loadContext[K comparable, V any] struct {
	context.Context //nolint:containedctx // it is one

	load *load[K, V]
}

func (c loadContext[K, V]) Value(key any) any {
	switch key.(type) {
	case ctxkey.Stage:
		return &c.load.report
	case call.AttemptKey:
		if h, ok := c.Context.Value(key).(blockingHost); ok {
			return loadHost[K, V]{h, c.load}
		}
		return nil
	}
	return c.Context.Value(key)
}

// blockingHost runs blocking calls: see asyncop.Blocking.
type blockingHost interface {
	RunBlocking(ctx context.Context, task func(late error))
}

var (
	_ blockingHost = (*call.Attempt[int])(nil)
	_ blockingHost = loadHost[int, int]{}
)

// loadHost runs the blocking call on the host of the lookup that began the load.
type loadHost[K comparable, V any] struct {
	host blockingHost
	load *load[K, V]
}

// RunBlocking runs task unless it is too late for all waiters (law A5). Then the load has
// no outcome: each lookup ends by its timeout, or with its operator.
func (h loadHost[K, V]) RunBlocking(ctx context.Context, task func(late error)) {
	h.host.RunBlocking(ctx, func(late error) {
		if late == nil || !h.load.giveUp() {
			task(nil)
		}
	})
}

var _ call.LateChecker = loadHost[int, int]{}

// CheckLate returns why the load must not join a batch, or nil.
func (h loadHost[K, V]) CheckLate() error {
	if late := h.Late(); late != nil && h.load.giveUp() {
		return late
	}
	return nil
}

// Late returns why it is too late for the call, or nil.
func (h loadHost[K, V]) Late() error {
	waiters, _, isReserved := h.load.present()
	if isReserved {
		return nil
	}
	err := context.Canceled
	for _, w := range waiters {
		err = w.late()
		if err == nil {
			return nil
		}
	}
	return err
}

// giveUp reports whether it is too late for all waiters. If so, no lookup joins the load.
func (l *load[K, V]) giveUp() bool {
	for {
		waiters, joined, isReserved := l.present()
		if isReserved {
			return false
		}
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

// endWithout ends the load without an outcome, unless it has more than joined waiters.
func (l *load[K, V]) endWithout(joined int) bool {
	l.f.mu.Lock()
	defer l.f.mu.Unlock()
	if l.joined > joined || l.reserved > 0 {
		return false
	}
	if !l.ended {
		l.ended = true
		l.f.detach(l)
		l.f.running--
	}
	return true
}

// add adds w to the waiters. The caller holds f.mu.
func (l *load[K, V]) add(w *waiter[V]) {
	if len(l.waiters) > 2*l.waiting+16 { // most have left
		left := func(w *waiter[V]) bool { return w.settled }
		l.waiters = slices.DeleteFunc(slices.Clone(l.waiters), left)
	}
	l.waiters = append(l.waiters, w)
	l.waiting++
	l.joined++
}

// present returns the waiters (some may have left), their number so far, and whether
// another lookup is about to wait.
func (l *load[K, V]) present() (waiters []*waiter[V], joined int, isReserved bool) {
	l.f.mu.Lock()
	defer l.f.mu.Unlock()
	return l.waiters, l.joined, l.reserved > 0
}

// late returns why a call must not begin for w, or nil: its context has ended, or is
// about to.
func (w *waiter[V]) late() error {
	if h, ok := w.ctx.Value(call.AttemptKey{}).(lateHost); ok {
		if err := h.Late(); err != nil {
			return err
		}
	}
	return w.ctx.Err()
}

// report has the reports of a load. Package predicates finds it in the load's context.
type report struct {
	mu    sync.Mutex
	stage predicates.Stage // guarded by mu; the latest
	sent  int              // guarded by mu; requests that were not refused
}

func (r *report) ReportStage(stage predicates.Stage) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stage = max(r.stage, stage)
}

// ReportSent counts a request, even if it is deduplicated: another lookup's retry would
// have another identity.
func (r *report) ReportSent(bool) (counted bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sent++
	return true
}

func (r *report) ReportRefused(bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sent--
}

// to passes the reports on to a lookup, which is in doubt if the request is.
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

// errNil replaces a nil error.
var errNil = errors.New("lookup: CompleteExceptionally was called with a nil error")
