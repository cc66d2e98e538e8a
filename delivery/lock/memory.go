package lock

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/wait"
)

// Memory has locks in memory, for tests. Safe for concurrent use.
type Memory struct {
	clock *wait.Forward

	mu    sync.Mutex
	locks map[string]*memoryLock
	fence uint64 // the highest of the names that were forgotten: others begin behind it
	sweep int    // so many names are worth a look at all of them
}

const (
	minSweep = 100
	keepName = 24 * time.Hour // a name, after its last lease
)

type memoryLock struct {
	owner string // "": free
	fence uint64
	until time.Time
}

// NewMemory returns locks that are free. It panics if the clock is nil.
func NewMemory(c clock.Clock) *Memory {
	guard.RefuseNil("lock: NewMemory", "clock", c)
	return &Memory{clock: wait.NewForward(c), locks: map[string]*memoryLock{}, sweep: minSweep}
}

// forget forgets names that were not used for long (law W3). Called with mu held.
func (m *Memory) forget(now time.Time) {
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

// Acquire implements [Locks].
func (m *Memory) Acquire(ctx context.Context, name, owner string, lease time.Duration) (Grant, error) {
	if err := Check(name, owner, lease); err != nil {
		return Grant{}, err
	}
	if ctx.Err() != nil {
		return Grant{}, context.Cause(ctx)
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
		return Grant{}, &HeldError{Name: name, Owner: l.owner, For: l.until.Sub(now)}
	}
	l.owner, l.until = owner, now.Add(lease)
	l.fence++
	return Grant{Name: name, Owner: owner, Fence: l.fence}, nil
}

// Extend implements [Locks].
func (m *Memory) Extend(ctx context.Context, g Grant, d time.Duration) error {
	if err := CheckLease(d); err != nil {
		return err
	}
	return m.with(ctx, g, func(l *memoryLock) { l.until = m.clock.Now().Add(d) })
}

// Release implements [Locks].
func (m *Memory) Release(ctx context.Context, g Grant) error {
	return m.with(ctx, g, func(l *memoryLock) { l.owner = "" })
}

// Held implements [Locks].
func (m *Memory) Held(ctx context.Context, prefix string) (held []Holding, err error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.clock.Now()
	for name, l := range m.locks {
		if strings.HasPrefix(name, prefix) && l.owner != "" && l.until.After(now) {
			held = append(held, Holding{Grant{name, l.owner, l.fence}, l.until.Sub(now)})
		}
	}
	slices.SortFunc(held, func(a, b Holding) int { return strings.Compare(a.Name, b.Name) })
	return held, nil
}

func (m *Memory) with(ctx context.Context, g Grant, f func(*memoryLock)) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	l := m.locks[g.Name]
	if l == nil || l.fence != g.Fence || l.owner != g.Owner || g.Owner == "" {
		return ErrLost
	}
	f(l)
	return nil
}
