package partitions

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/delivery/lock"
	"github.com/weirflow/weir/internal/guard"
)

// Leases is an [Assigner] that shares partitions out between all workers with the same locks, group and partitions: evenly, up to one. A worker
// that joins gets its share from the others, which suspend the partitions that they give up. The share of a worker that leaves is free at once,
// the share of a worker that dies when its lease has ended.
//
// Each partition has a lock, whose fencing number is the epoch, and so has each worker. A worker renews its locks every third of their lease. It
// loses a partition when another worker has the lock, or when it could not extend it within nine tenths of the lease by its own clock.
//
// A worker with a [Config.Monitor] or a [Config.Engine] reports the partitions whose locks no worker holds, as of its last poll.
//
// Epochs begin anew with a new Group, or if the locks are lost. Stores that have seen higher epochs reject them: each partition ends with
// [checkpoint.ErrFenced]. So keep the locks and the group as long as the stores.
type Leases struct {
	Locks      lock.Locks // required
	Group      string     // the prefix of the locks' names; required
	Partitions []string   // their names; the same at each worker

	Worker string        // the name of this worker, unique in the group; the default is made of the host, the process and a random number
	Lease  time.Duration // the default is 15 s
	Poll   time.Duration // how often the worker polls the locks; the default is 1 s, at most a third of Lease
	Logger *slog.Logger  // errors of Locks are logged at warn level; the default is slog.Default()
	Clock  clock.Clock   // the default is the machine's
}

const (
	defaultLease = 15 * time.Second
	defaultPoll  = time.Second
	atOnce       = 16  // calls of Locks
	mostAtOnce   = 256 // partitions that are taken before leases are extended again
)

func (l *Leases) complete() error {
	names := make(map[string]struct{}, len(l.Partitions))
	for _, name := range l.Partitions {
		names[name] = struct{}{}
	}
	_, unnamed := names[""]
	switch {
	case guard.IsNil(l.Locks):
		return errors.New("partitions: Leases.Locks is nil")
	case l.Group == "" || strings.Contains(l.Group, "/"):
		return fmt.Errorf("partitions: Leases.Group %q is empty or has a slash", l.Group)
	case len(l.Partitions) == 0:
		return errors.New("partitions: Leases.Partitions is empty")
	case unnamed || len(names) < len(l.Partitions):
		return fmt.Errorf("partitions: Leases.Partitions has an empty name, or the same one twice: %.10q", l.Partitions)
	case l.Lease < 0 || l.Poll < 0:
		return fmt.Errorf("partitions: Leases: Lease %v or Poll %v is negative", l.Lease, l.Poll)
	}
	if l.Worker == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "unknown host"
		}
		l.Worker = fmt.Sprintf("%s, process %d, %s", host, os.Getpid(), rand.Text()[:8])
	}
	if l.Lease == 0 {
		l.Lease = defaultLease
	}
	if l.Poll == 0 {
		l.Poll = defaultPoll
	}
	l.Poll = min(l.Poll, max(1, l.Lease/3))
	l.Logger = guard.Logger(l.Logger)
	if l.Clock == nil {
		l.Clock = clock.New()
	}
	return nil
}

// Run implements [Assigner].
func (l *Leases) Run(ctx context.Context, h Handler) error {
	c := *l
	if err := c.complete(); err != nil {
		return err
	}
	m := &member{
		Leases: c, handler: h, work: context.WithoutCancel(ctx),
		workers: c.Group + "/worker/", partitions: c.Group + "/partition/",
		extended: c.Clock.Now(), looked: c.Clock.Now(), changed: make(chan struct{}, 1), has: map[string]*holding{},
	}
	m.run(ctx)
	return nil
}

// member is a worker that takes part. Its loop acquires and extends locks; what is given up, is given up by goroutines.
type member struct {
	Leases
	handler             Handler
	work                context.Context     // without an end
	workers, partitions string              // prefixes of the names of the locks
	self                *holding            // the lock of the worker; nil: it has none
	extended            time.Time           // when the leases were extended last
	looked              time.Time           // when the worker looked last which locks are held
	taken               map[string]struct{} // the names of the locks that were
	leaving             sync.WaitGroup
	changed             chan struct{} // capacity 1: a partition was given up

	mu  sync.Mutex
	has map[string]*holding // by partition; guarded by mu
}

// holding is a lock that the worker has.
type holding struct {
	partition string // "": it is the lock of the worker
	grant     lock.Grant
	until     time.Time    // the end of the lease, by the worker's clock; owned by the loop
	end       *clock.Timer // of a partition: rings at until
	leaving   bool         // it is being given up; guarded by member.mu
}

func (m *member) run(ctx context.Context) {
	poll := m.Clock.Ticker(m.Poll)
	defer poll.Stop()
	for ended := false; ; {
		if now := m.Clock.Now(); now.Sub(m.extended) >= m.Lease/3 {
			m.extended = now
			m.extendAll()
		}
		done := ctx.Done() // nil: it cannot end
		switch {
		case !ended:
			m.balance(ctx)
		case m.count() == 0:
			m.leaving.Wait()
			if m.self != nil {
				m.release(m.self)
			}
			return
		default:
			done = nil
		}
		select {
		case <-poll.C:
		case <-m.changed:
		case <-done:
			ended = true
			m.giveUp(m.holdings())
		}
	}
}

// balance takes as many partitions as are the worker's share, or gives up those that are too many. It takes a third of a lease
// at most: meanwhile none is extended.
func (m *member) balance(ctx context.Context) {
	defer m.report()
	limit := m.Clock.Now().Add(m.Lease / 3)
	within, cancel := m.limited(m.work, limit)
	defer cancel()
	if m.self == nil {
		if m.self = m.acquire(within, m.workers+m.Worker, ""); m.self == nil {
			return
		}
	}
	looking, cancel := m.limited(ctx, limit)
	held, err := m.Locks.Held(looking, m.Group+"/")
	cancel()
	if err != nil {
		m.warn("looking", m.Group+"/", err)
		return
	}
	workers, rank := 0, -1
	m.looked, m.taken = m.Clock.Now(), make(map[string]struct{}, len(held))
	for _, h := range held { // in order, so the ranks are the same for all workers
		m.taken[h.Name] = struct{}{}
		if strings.HasPrefix(h.Name, m.workers) {
			if h.Name == m.self.grant.Name {
				rank = workers
			}
			workers++
		}
	}
	if rank < 0 {
		return // the lease of the worker has just ended
	}
	all := len(m.Partitions)
	share := all / workers
	if rank < all%workers {
		share++
	}
	mine := m.holdings()
	if len(mine) > share {
		m.giveUp(mine[share:])
		return
	}
	var free []string
	for i := range m.Partitions {
		name := m.Partitions[(i+rank*all/workers)%all] // not where the others begin
		if _, taken := m.taken[m.partitions+name]; !taken && !m.knows(name) {
			free = append(free, name)
		}
	}
	each(free[:min(len(free), share-len(mine), mostAtOnce)], func(name string) { m.take(within, name) })
}

// report says which partitions no worker has. What others had when the worker looked last has ended after a lease, as far as is known.
func (m *member) report() {
	h, ok := m.handler.(unownedHandler)
	if !ok {
		return
	}
	known := m.Clock.Since(m.looked) <= m.Lease
	var names []string
	for _, name := range m.Partitions {
		_, taken := m.taken[m.partitions+name]
		if !(known && taken) && !m.knows(name) {
			names = append(names, name)
		}
	}
	h.unowned(names)
}

// take tries to get a partition.
func (m *member) take(ctx context.Context, partition string) {
	h := m.acquire(ctx, m.partitions+partition, partition)
	if h == nil {
		return
	}
	m.mu.Lock()
	m.has[partition] = h
	h.end = m.Clock.AfterFunc(max(0, h.until.Sub(m.Clock.Now())), func() { m.lost(h) })
	m.mu.Unlock()
	if err := m.handler.Assigned(ctx, partition, h.grant.Fence); err != nil {
		m.warn("not taken", h.grant.Name, err)
		m.giveUp([]*holding{h})
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.has[partition] != h { // the lease has ended before the handler had it (law P1)
		m.handler.Lost(partition)
	}
}

// giveUp has partitions revoked and gives their locks back.
func (m *member) giveUp(all []*holding) {
	for _, h := range all {
		m.mu.Lock()
		h.leaving = true
		m.mu.Unlock()
		m.leaving.Go(func() {
			if err := m.handler.Revoked(m.work, h.partition); err != nil {
				m.warn("revoking", h.grant.Name, err) // its store is fenced by the next owner
			}
			h.end.Stop()
			m.release(h)
			m.forget(h)
			select {
			case m.changed <- struct{}{}:
			default:
			}
		})
	}
}

// lost reports a partition whose lease has ended. One that is being given up is revoked no more. The handler is called under mu, so
// that it loses no later assignment of the partition.
func (m *member) lost(h *holding) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.has[h.partition] != h {
		return // it was released
	}
	m.handler.Lost(h.partition)
	if !h.leaving {
		delete(m.has, h.partition)
	}
}

func (m *member) forget(h *holding) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.has[h.partition] == h {
		delete(m.has, h.partition)
	}
}

// knows reports whether the worker has a partition or is giving it up.
func (m *member) knows(partition string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.has[partition] != nil
}

// holdings returns what the worker has and is not giving up.
func (m *member) holdings() (all []*holding) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range m.Partitions { // in their order
		if h := m.has[name]; h != nil && !h.leaving {
			all = append(all, h)
		}
	}
	return all
}

// count returns how many partitions the worker has, those included that it is giving up.
func (m *member) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.has)
}

// leaseFrom returns when a lease ends that is asked for now: early, since clocks differ.
func (m *member) leaseFrom(now time.Time) time.Time { return now.Add(m.Lease - m.Lease/10) }

// acquire tries to get a lock; nil: another one has it, or the locks do not answer.
func (m *member) acquire(ctx context.Context, name, partition string) *holding {
	until := m.leaseFrom(m.Clock.Now())
	g, err := m.Locks.Acquire(ctx, name, m.Worker, m.Lease)
	if err != nil {
		if !guard.Is(err, lock.ErrHeld) {
			m.warn("acquiring", name, err)
		}
		return nil
	}
	return &holding{partition: partition, grant: g, until: until}
}

// extendAll extends the leases of all that the worker has, also of what it is giving up.
func (m *member) extendAll() {
	m.mu.Lock()
	all := slices.Collect(maps.Values(m.has))
	m.mu.Unlock()
	each(all, func(h *holding) {
		if m.extend(h) == lock.ErrLost && h.end.Stop() { //nolint:errorlint // extend returns it as it is
			m.lost(h)
		}
	})
	if m.self != nil && m.extend(m.self) != nil {
		m.self = nil
	}
}

// extend extends a lease; nil: the worker has it, until it ends.
func (m *member) extend(h *holding) error {
	until := m.leaseFrom(m.Clock.Now())
	ctx, cancel := m.limited(m.work, h.until)
	defer cancel()
	err := m.Locks.Extend(ctx, h.grant, m.Lease)
	switch {
	case guard.Is(err, lock.ErrLost):
		return lock.ErrLost
	case err != nil:
		m.warn("extending", h.grant.Name, err)
	case h.end == nil:
		h.until = until
	case h.end.Stop(): // else it has ended: the handler knows
		h.until = until
		h.end.Reset(max(0, until.Sub(m.Clock.Now())))
	}
	if !m.Clock.Now().Before(h.until) {
		return errLost
	}
	return nil
}

func (m *member) release(h *holding) {
	ctx, cancel := m.limited(m.work, m.Clock.Now().Add(m.Lease))
	defer cancel()
	if err := m.Locks.Release(ctx, h.grant); err != nil && !guard.Is(err, lock.ErrLost) {
		m.warn("releasing", h.grant.Name, err)
	}
}

// limited returns a context that ends at a time of the worker's clock.
func (m *member) limited(ctx context.Context, until time.Time) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	timer := m.Clock.AfterFunc(max(0, until.Sub(m.Clock.Now())), cancel)
	return ctx, func() { timer.Stop(); cancel() }
}

func (m *member) warn(doing, name string, err error) {
	m.Logger.Warn("partitions: "+doing, slog.String("lock", name), slog.Any("error", err))
}

// each calls f for all of a list, some at once.
func each[T any](list []T, f func(T)) {
	next := make(chan T, len(list))
	for _, v := range list {
		next <- v
	}
	close(next)
	var wg sync.WaitGroup
	for range min(atOnce, len(list)) {
		wg.Go(func() {
			for v := range next {
				f(v)
			}
		})
	}
	wg.Wait()
}
