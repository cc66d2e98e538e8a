package memory

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weirflow/weir/delivery/lock"
	"github.com/weirflow/weir/internal/storearg"
	"github.com/weirflow/weir/internal/wait"
)

// memoryLocks implements [lock.Locks].
type memoryLocks struct {
	clock *wait.Forward

	mu    sync.Mutex
	locks map[string]*memoryLock
	fence uint64 // the highest of the forgotten names: new names begin above it
	sweep int    // number of names at which forget looks at all
}

const (
	minSweep = 100
	keepName = 24 * time.Hour // keeps a name after its last lease
)

type memoryLock struct {
	owner string // "" if free
	fence uint64
	until time.Time
}

func newLocks(c *wait.Forward) *memoryLocks {
	return &memoryLocks{clock: c, locks: map[string]*memoryLock{}, sweep: minSweep}
}

// forget forgets names that were long unused (law W3). Called with mu held.
func (m *memoryLocks) forget(now time.Time) {
	if len(m.locks) < m.sweep {
		return
	}
	for name, l := range m.locks {
		if now.Sub(l.until) >= keepName {
			m.fence = max(m.fence, l.fence)
			delete(m.locks, name)
		}
	}
	m.sweep = 2*len(m.locks) + minSweep
}

// Acquire implements [lock.Locks].
func (m *memoryLocks) Acquire(ctx context.Context, name, owner string, lease time.Duration) (lock.Grant, error) {
	if err := storearg.Lock(name, owner, lease); err != nil {
		return lock.Grant{}, err
	}
	if ctx.Err() != nil {
		return lock.Grant{}, context.Cause(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.clock.Now()
	l := m.locks[name]
	if l == nil {
		m.forget(now)
		l = &memoryLock{fence: m.fence}
		m.locks[name] = l
	}
	if l.owner != "" && l.until.After(now) {
		return lock.Grant{}, &lock.Holding{Grant: lock.Grant{Name: name, Owner: l.owner}, For: l.until.Sub(now)}
	}
	l.owner, l.until = owner, now.Add(lease)
	l.fence++
	return lock.Grant{Name: name, Owner: owner, Fence: l.fence}, nil
}

// Extend implements [lock.Locks].
func (m *memoryLocks) Extend(ctx context.Context, g lock.Grant, d time.Duration) error {
	if err := storearg.Extend(d); err != nil {
		return err
	}
	return m.with(ctx, g, func(l *memoryLock) { l.until = m.clock.Now().Add(d) })
}

// Release implements [lock.Locks].
func (m *memoryLocks) Release(ctx context.Context, g lock.Grant) error {
	return m.with(ctx, g, func(l *memoryLock) { l.owner = "" })
}

// Held implements [lock.Locks].
func (m *memoryLocks) Held(ctx context.Context, prefix string) (held []lock.Holding, err error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.clock.Now()
	for name, l := range m.locks {
		if strings.HasPrefix(name, prefix) && l.owner != "" && l.until.After(now) {
			held = append(held, lock.Holding{Grant: lock.Grant{Name: name, Owner: l.owner, Fence: l.fence}, For: l.until.Sub(now)})
		}
	}
	slices.SortFunc(held, func(a, b lock.Holding) int { return strings.Compare(a.Name, b.Name) })
	return held, nil
}

func (m *memoryLocks) with(ctx context.Context, g lock.Grant, f func(*memoryLock)) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	l := m.locks[g.Name]
	if l == nil || l.fence != g.Fence || l.owner != g.Owner || g.Owner == "" {
		return lock.ErrLost
	}
	f(l)
	return nil
}
