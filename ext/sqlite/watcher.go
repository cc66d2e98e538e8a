package sqlite

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/internal/wait"
)

const (
	checkEach = 100 * time.Millisecond // between two checks for the commits of other connections
	lookPause = 10 * time.Millisecond  // between two looks at due times, at least
	dueAgain  = time.Second            // until the next look at a queue that had due messages
	longSleep = time.Hour
)

// watcher wakes the consumers of queues. It runs while consumers wait, and has a
// connection of its own.
//
// Changes by transactions of this DB arrive through note. All others, such as commits of
// other processes, change SQLite's data version, which the watcher reads every 100 ms.
// After a change one statement looks at all queues that have consumers. It also finds
// when the next message of each queue becomes due, for which there is one timer. So an
// idle database costs the same with any number of queues.
//
// Safe for concurrent use.
type watcher struct {
	db    *DB
	clock clock.Clock
	now   *wait.Forward // the time of engines without a clock of their own

	mu      sync.Mutex // guards the fields below
	waiting map[string]map[*waiter]bool
	watched map[string]int       // consumers that do not poll, by queue
	fresh   map[string]bool      // watched queues with a consumer that was not woken yet
	next    map[string]time.Time // when to look at a watched queue again, by clock
	wakesAt time.Time            // end of the sleep of run
	running bool
	stop    context.CancelFunc
	closed  bool

	earlier chan struct{} // capacity 1: ends the sleep of run
	ended   sync.WaitGroup
}

// waiter is a consumer of a queue.
type waiter struct {
	engine *Engine
	wake   func(misses bool)
	polls  bool       // the engine has a clock of its own, so the watcher cannot time due messages
	ended  chan error // capacity 1: receives the reason when the watcher stops
}

func newWatcher(db *DB) *watcher {
	c := clock.New()
	return &watcher{
		db: db, clock: c, now: wait.NewForward(c), earlier: make(chan struct{}, 1),
		waiting: map[string]map[*waiter]bool{}, watched: map[string]int{}, fresh: map[string]bool{}, next: map[string]time.Time{},
	}
}

func (w *watcher) add(queue string, c *waiter) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return w.closedError()
	}
	if w.waiting[queue] == nil {
		w.waiting[queue] = map[*waiter]bool{}
	}
	w.waiting[queue][c] = true
	if c.polls {
		return nil
	}
	w.watched[queue]++
	w.fresh[queue] = true
	w.lookNow()
	if !w.running {
		w.running = true
		var ctx context.Context
		ctx, w.stop = context.WithCancel(context.Background())
		w.ended.Go(func() { w.run(ctx) }) // ends without consumers, with an error, or with close
	}
	return nil
}

func (w *watcher) remove(queue string, c *waiter) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.removeLocked(queue, c)
	w.lookNow() // run ends if it was the last
}

// removeLocked removes a consumer, unless endLocked has removed it.
func (w *watcher) removeLocked(queue string, c *waiter) {
	if !w.waiting[queue][c] {
		return
	}
	delete(w.waiting[queue], c)
	if len(w.waiting[queue]) == 0 {
		delete(w.waiting, queue)
	}
	if c.polls {
		return
	}
	w.watched[queue]--
	if w.watched[queue] == 0 {
		delete(w.watched, queue)
		delete(w.fresh, queue)
		delete(w.next, queue)
	}
}

// end removes the chosen consumers, which return err.
func (w *watcher) end(err error, chosen func(*waiter) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.endLocked(err, chosen)
}

func (w *watcher) endLocked(err error, chosen func(*waiter) bool) {
	for queue, waiters := range w.waiting {
		for c := range waiters {
			if chosen(c) {
				c.ended <- err
				w.removeLocked(queue, c)
			}
		}
	}
}

// close ends all consumers, and waits for run.
func (w *watcher) close() {
	w.mu.Lock()
	w.closed = true
	w.endLocked(explain(w.closedError()), func(*waiter) bool { return true })
	if w.running {
		w.stop()
	}
	w.mu.Unlock()
	w.ended.Wait()
}

func (w *watcher) closedError() error { return fmt.Errorf("%q was closed", w.db.path) }

func (w *watcher) lookNow() {
	select {
	case w.earlier <- struct{}{}:
	default:
	}
}

// note wakes the consumers of queues in which this DB has put or released messages, or
// notes when these are due. It does not block.
func (w *watcher) note(d dues) {
	if len(d) == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for queue, of := range d {
		if len(w.waiting[queue]) == 0 {
			continue
		}
		if of.now {
			w.wakeLocked(queue)
		}
		if of.later > 0 {
			w.lookAtLocked(queue, w.clock.Now().Add(of.later))
		}
	}
}

func (w *watcher) wakeLocked(queue string) {
	for c := range w.waiting[queue] {
		c.wake(c.polls)
	}
}

// lookAtLocked makes run look at a queue at a time, or earlier. It ignores a queue whose
// consumers all poll: run does not look at it, and would not sleep after that time.
func (w *watcher) lookAtLocked(queue string, at time.Time) {
	if w.watched[queue] == 0 {
		return
	}
	before, isKnown := w.next[queue]
	if isKnown && !at.Before(before) {
		return
	}
	w.next[queue] = at
	if at.Before(w.wakesAt) {
		w.lookNow()
	}
}

// run watches the database until no consumer is left. A failure ends all consumers.
func (w *watcher) run(ctx context.Context) {
	err := w.watch(ctx)
	if err == nil {
		return // no consumers left: chooseQueues has noted that run ends
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running = false
	w.stop()
	w.endLocked(explain(err), func(c *waiter) bool { return !c.polls })
}

// watch wakes consumers. It returns nil when the last consumer has left, or an error.
func (w *watcher) watch(ctx context.Context) error {
	v, err := openView(ctx, w.db)
	if err != nil {
		return err
	}
	defer v.close()
	timer := w.clock.Timer(0)
	defer timer.Stop()
	var checked, looked time.Time
	for {
		hasChanged := false
		now := w.clock.Now()
		if now.Sub(checked) >= checkEach {
			hasChanged, err = v.hasChanged(ctx)
			if err != nil {
				return err
			}
			checked = now
		}
		queues, fresh, isOver := w.chooseQueues(now, hasChanged)
		if isOver {
			return nil
		}
		if len(queues) > 0 {
			found, err := v.look(ctx, queues, w.now)
			if err != nil {
				return err
			}
			w.found(found, fresh)
			looked = w.clock.Now()
		}
		timer.Reset(w.sleep(checked.Add(checkEach), looked.Add(lookPause)))
		select {
		case <-timer.C:
		case <-w.earlier:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// chooseQueues returns the queues to look at now: all watched queues if the database has
// changed, otherwise only queues with a new consumer (fresh) or a message that has become
// due.
// Without consumers it notes that run ends.
func (w *watcher) chooseQueues(now time.Time, hasChanged bool) (queues []string, fresh map[string]bool, isOver bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.watched) == 0 {
		w.running = false
		w.stop()
		return nil, nil, true
	}
	fresh = w.fresh
	w.fresh = map[string]bool{}
	if hasChanged {
		clear(w.next)
		return slices.Collect(maps.Keys(w.watched)), fresh, false
	}
	for queue := range fresh {
		queues = append(queues, queue)
		delete(w.next, queue)
	}
	for queue, at := range w.next {
		if !at.After(now) {
			queues = append(queues, queue)
			delete(w.next, queue)
		}
	}
	return queues, fresh, false
}

// found wakes the consumers of due and fresh queues, and notes when to look at each
// again.
func (w *watcher) found(all []dueTimes, fresh map[string]bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.clock.Now()
	for _, t := range all {
		if len(w.waiting[t.queue]) == 0 {
			continue // the last consumer has gone meanwhile
		}
		if t.isDue || fresh[t.queue] {
			w.wakeLocked(t.queue)
		}
		if t.isDue {
			w.lookAtLocked(t.queue, now.Add(dueAgain))
		}
		if t.later > 0 {
			w.lookAtLocked(t.queue, now.Add(min(t.later, longSleep)))
		}
	}
}

// sleep returns how long run may sleep: until the next check, or until a queue is due,
// but not before soonest.
func (w *watcher) sleep(check, soonest time.Time) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	until := check
	for _, at := range w.next {
		if at.Before(until) {
			until = at
		}
	}
	if until.Before(soonest) {
		until = soonest
	}
	w.wakesAt = until
	return max(0, until.Sub(w.clock.Now()))
}
