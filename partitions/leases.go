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

// Leases is an [Assigner] that distributes partitions evenly to all workers with the same
// locks, group and partitions; their numbers differ by at most one. When a worker joins,
// the others suspend partitions and release them to it. The partitions of a worker that
// leaves are free at once, or if it dies, when its lease has ended.
//
// Each partition has a lock, whose fencing number is the epoch, and so has each worker. A
// worker extends its locks every third of their lease. It loses a partition when another
// worker has the lock, or when it could not extend it within nine tenths of the lease by
// its own clock.
//
// A worker with a [Config.Monitor] or a [Config.Engine] reports the partitions without an
// owner, as of its last poll. Keep the locks and the group as long as the stores:
// otherwise epochs start from the beginning, and stores that have seen higher epochs
// reject them with [checkpoint.ErrFenced].
type Leases struct {
	Locks      lock.Locks // required
	Group      string     // prefix of the locks' names; required; without a slash
	Partitions []string   // names of the partitions, equal at each worker; required

	Worker string        // name, unique in the group; the default consists of host, process and a random text
	Lease  time.Duration // the default is 15 s
	Poll   time.Duration // interval between polls of the locks; the default is 1 s, at most a third of Lease
	Logger *slog.Logger  // logs errors of Locks as warnings; the default is slog.Default()
	Clock  clock.Clock   // the default is the real clock
}

const (
	defaultLease = 15 * time.Second
	defaultPoll  = time.Second
	atOnce       = 16  // concurrent calls of Locks
	mostAtOnce   = 256 // partitions to acquire before leases are extended
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
		return fmt.Errorf("partitions: Leases.Partitions has an empty or duplicate name: %.10q", l.Partitions)
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
		extended: c.Clock.Now(), polled: c.Clock.Now(), changed: make(chan struct{}, 1), has: map[string]*holding{},
	}
	m.run(ctx)
	return nil
}

// member is a running worker. Its loop acquires and extends locks. A goroutine for each
// partition revokes it and releases its lock.
type member struct {
	Leases
	handler             Handler
	work                context.Context     // never ends
	workers, partitions string              // prefixes of the locks' names
	self                *holding            // the lock of the worker, or nil
	extended            time.Time           // when the leases were last extended
	polled              time.Time           // when the held locks were last read
	taken               map[string]struct{} // names of the locks held at polled
	leaving             sync.WaitGroup      // goroutines of giveUp
	changed             chan struct{}       // capacity 1: giveUp sends when it has released a partition; the loop receives

	mu  sync.Mutex
	has map[string]*holding // by partition; guarded by mu
}

type holding struct {
	partition string // "" for the lock of the worker
	grant     lock.Grant
	until     time.Time    // end of the lease, by the worker's clock; owned by the loop
	end       *clock.Timer // calls lost at until; nil for the lock of the worker
	leaving   bool         // giveUp revokes the partition; guarded by member.mu
}

func (m *member) run(ctx context.Context) {
	poll := m.Clock.Ticker(m.Poll)
	defer poll.Stop()
	for ended := false; ; {
		if now := m.Clock.Now(); now.Sub(m.extended) >= m.Lease/3 {
			m.extended = now
			m.extendAll()
		}
		done := ctx.Done()
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
			done = nil // do not receive it again
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

// balance acquires partitions up to the worker's share, or gives up the rest. It takes at
// most a third of a lease, since leases are not extended meanwhile.
func (m *member) balance(ctx context.Context) {
	defer m.report()
	limit := m.Clock.Now().Add(m.Lease / 3)
	within, cancel := m.limited(m.work, limit)
	defer cancel()
	if m.self == nil {
		m.self = m.acquire(within, m.workers+m.Worker, "")
		if m.self == nil {
			return
		}
	}
	polling, cancel := m.limited(ctx, limit)
	held, err := m.Locks.Held(polling, m.Group+"/")
	cancel()
	if err != nil {
		m.warn("polling", m.Group+"/", err)
		return
	}
	workers, rank := 0, -1
	m.polled, m.taken = m.Clock.Now(), make(map[string]struct{}, len(held))
	for _, h := range held { // by name, so all workers compute the same ranks
		m.taken[h.Name] = struct{}{}
		if strings.HasPrefix(h.Name, m.workers) {
			if h.Name == m.self.grant.Name {
				rank = workers
			}
			workers++
		}
	}
	if rank < 0 {
		return // the worker's own lease has just ended
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
		name := m.Partitions[(i+rank*all/workers)%all] // each worker starts at another partition
		if _, taken := m.taken[m.partitions+name]; !taken && !m.knows(name) {
			free = append(free, name)
		}
	}
	each(free[:min(len(free), share-len(mine), mostAtOnce)], func(name string) { m.take(within, name) })
}

// report reports the partitions without an owner. If the last poll is older than a lease,
// the partitions of other workers count as unowned.
func (m *member) report() {
	h, ok := m.handler.(unownedHandler)
	if !ok {
		return
	}
	known := m.Clock.Since(m.polled) <= m.Lease
	var names []string
	for _, name := range m.Partitions {
		_, taken := m.taken[m.partitions+name]
		if !(known && taken) && !m.knows(name) {
			names = append(names, name)
		}
	}
	h.unowned(names)
}

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
		m.warn("assigning", h.grant.Name, err)
		m.giveUp([]*holding{h})
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.has[partition] != h { // the lease has ended before Assigned returned (law P1)
		m.handler.Lost(partition)
	}
}

// giveUp revokes partitions and releases their locks, each on its own goroutine.
func (m *member) giveUp(all []*holding) {
	for _, h := range all {
		m.mu.Lock()
		h.leaving = true
		m.mu.Unlock()
		m.leaving.Go(func() {
			if err := m.handler.Revoked(m.work, h.partition); err != nil {
				m.warn("revoking", h.grant.Name, err) // the next owner fences its store
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

// lost reports a partition whose lease has ended to the handler, with mu held, so that it
// cannot affect a later assignment. A partition that is being given up stays in has until
// giveUp has finished.
func (m *member) lost(h *holding) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.has[h.partition] != h {
		return // already released
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

func (m *member) knows(partition string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.has[partition] != nil
}

// holdings returns the partitions that the worker is not giving up, in the order of
// Partitions.
func (m *member) holdings() (all []*holding) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range m.Partitions {
		if h := m.has[name]; h != nil && !h.leaving {
			all = append(all, h)
		}
	}
	return all
}

// count includes partitions being given up.
func (m *member) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.has)
}

// leaseFrom returns the end of a lease requested now, a tenth early, since clocks differ.
func (m *member) leaseFrom(now time.Time) time.Time { return now.Add(m.Lease - m.Lease/10) }

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

// extendAll extends all leases of the worker, even of partitions being given up.
func (m *member) extendAll() {
	m.mu.Lock()
	all := slices.Collect(maps.Values(m.has))
	m.mu.Unlock()
	each(all, func(h *holding) {
		if m.extend(h) == lock.ErrLost && h.end.Stop() { //nolint:errorlint // extend does not wrap it
			m.lost(h)
		}
	})
	if m.self != nil && m.extend(m.self) != nil {
		m.self = nil
	}
}

// extend extends a lease. It returns nil while the worker has the lease, even if the call
// failed.
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
	case h.end.Stop(): // otherwise lost was called
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

func (m *member) limited(ctx context.Context, until time.Time) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	timer := m.Clock.AfterFunc(max(0, until.Sub(m.Clock.Now())), cancel)
	return ctx, func() { timer.Stop(); cancel() }
}

func (m *member) warn(doing, name string, err error) {
	m.Logger.Warn("partitions: "+doing, slog.String("lock", name), slog.Any("error", err))
}

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
