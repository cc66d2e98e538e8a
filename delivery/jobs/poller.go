package jobs

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/storearg"
	"github.com/weirflow/weir/internal/wait"
)

// poller reads people's orders on an engine that cannot announce changes, once a second,
// and wakes the workers of this process when they have changed. So idle workers cost the
// engine as much as a single one. Safe for concurrent use.
type poller struct {
	engine  store.Keeper
	clock   clock.Clock
	stop    context.CancelFunc // ends run
	stopped chan struct{}      // closed by run at its end

	watchers map[*watcher]wakeFunc // guarded by pollers.mu
	joined   int                   // watchers so far; guarded by pollers.mu
}

// wakeFunc makes a watcher read orders, and the cancelled keys if they have changed or
// matter to it now. It does not block.
type wakeFunc func(cancelledChanged bool)

// pollers has the running pollers. No other lock is taken while mu is held.
var pollers struct {
	mu  sync.Mutex // guards all, and the watchers of each
	all []*poller
}

// poll wakes a watcher until ctx ends: at once, within a second of a change of orders,
// and when they cannot be read, so that the watcher reports that, and tries again.
func (w *watcher) poll(ctx context.Context, wake wakeFunc) {
	p := joinPoller(w, wake)
	wake(false)
	<-ctx.Done()
	p.leave(w)
}

// joinPoller adds a watcher to the poller of its engine and clock, which it may start.
func joinPoller(w *watcher, wake wakeFunc) *poller {
	pollers.mu.Lock()
	defer pollers.mu.Unlock()
	at := slices.IndexFunc(pollers.all, func(p *poller) bool {
		return storearg.IsSame(p.engine, w.jobs.engine) && isSameClock(p.clock, w.jobs.Clock)
	})
	if at < 0 {
		at = len(pollers.all)
		ctx, stop := context.WithCancel(context.Background())
		p := &poller{engine: w.jobs.engine, clock: w.jobs.Clock, stop: stop, stopped: make(chan struct{}), watchers: map[*watcher]wakeFunc{}}
		pollers.all = append(pollers.all, p)
		go p.run(ctx) // ends when the last watcher leaves, which waits for it
	}
	p := pollers.all[at]
	p.watchers[w] = wake
	p.joined++
	return p
}

// isSameClock reports whether two clocks are one, or both are the machine's.
func isSameClock(a, b clock.Clock) bool {
	t := reflect.TypeOf(a)
	if t != reflect.TypeOf(b) {
		return false
	}
	return t == reflect.TypeOf(clock.New()) || t.Comparable() && a == b
}

// leave removes a watcher. The last watcher ends the poller.
func (p *poller) leave(w *watcher) {
	pollers.mu.Lock()
	delete(p.watchers, w)
	isLast := len(p.watchers) == 0
	if isLast {
		pollers.all = slices.DeleteFunc(pollers.all, func(other *poller) bool { return other == p })
	}
	pollers.mu.Unlock()
	if isLast {
		p.stop()
		<-p.stopped
	}
}

// run reads the orders until ctx ends. After a permanent error it waits, but not if a
// watcher has joined: the watcher may have read orders since, and relies on the poller.
func (p *poller) run(ctx context.Context) {
	defer close(p.stopped)
	last := map[string][]store.Record{} // by kind, as of the last read
	var next time.Time                  // the earliest time of the next read
	joined := 0                         // watchers, before the last read
	hasFailed := false
	for {
		err := wait.For(ctx, p.clock, readEach)
		if err != nil {
			return // ctx has ended
		}
		if p.joins() == joined && p.clock.Now().Before(next) {
			continue
		}
		joined = p.joins()
		next = time.Time{}
		changed, err := p.read(ctx, last)
		if err != nil && !p.steers() && guard.IsPermanent(err) {
			next = p.clock.Now().Add(readAfterRefusal)
		}
		isNewFailure := err != nil && !hasFailed
		if len(changed) > 0 || isNewFailure {
			p.wakeAll(slices.Contains(changed, kindCancelled))
		}
		hasFailed = err != nil
	}
}

// read reads the records of orders into last, and returns the kinds that have changed. It
// reads the cancelled keys only while a worker is busy.
func (p *poller) read(ctx context.Context, last map[string][]store.Record) (changed []string, err error) {
	kinds := []string{kindPaused, kindHeld, backendKind}
	if p.looksForCancelled() {
		kinds = append(kinds, kindCancelled)
	}
	for _, kind := range kinds {
		var now []store.Record
		err = each(ctx, p.engine, kind, func(r store.Record) error {
			now = append(now, r)
			return nil
		})
		if err != nil {
			return changed, err
		}
		before, isKnown := last[kind]
		if !isKnown || !slices.Equal(before, now) {
			changed = append(changed, kind)
		}
		last[kind] = now
	}
	return changed, nil
}

// looksForCancelled reports whether a worker needs the cancelled keys.
func (p *poller) looksForCancelled() bool {
	return slices.ContainsFunc(p.list(), (*watcher).looksForCancelled)
}

// steers reports whether a worker has a backend.
func (p *poller) steers() bool {
	return slices.ContainsFunc(p.list(), func(w *watcher) bool { return w.steer != nil })
}

// joins returns how many watchers have joined so far.
func (p *poller) joins() int {
	pollers.mu.Lock()
	defer pollers.mu.Unlock()
	return p.joined
}

func (p *poller) list() []*watcher {
	pollers.mu.Lock()
	defer pollers.mu.Unlock()
	return slices.Collect(maps.Keys(p.watchers))
}

func (p *poller) wakeAll(cancelledChanged bool) {
	pollers.mu.Lock()
	all := slices.Collect(maps.Values(p.watchers))
	pollers.mu.Unlock()
	for _, wake := range all {
		wake(cancelledChanged)
	}
}
