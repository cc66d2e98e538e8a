package deliverytest

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"

	"github.com/weirflow/weir/delivery/lock"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/internal/storearg"
)

// wrongLocks are sound except for replaced functions.
type wrongLocks struct {
	lock.Locks
	acquire func(next lock.Locks, name, owner string, lease time.Duration) (lock.Grant, error)
	extend  func(next lock.Locks, g lock.Grant, d time.Duration) error
	release func(next lock.Locks, g lock.Grant) error
	held    func(next lock.Locks, prefix string) ([]lock.Holding, error)
}

func (w wrongLocks) Held(ctx context.Context, prefix string) ([]lock.Holding, error) {
	if w.held == nil {
		return w.Locks.Held(ctx, prefix)
	}
	return w.held(w.Locks, prefix)
}

func (w wrongLocks) Acquire(ctx context.Context, name, owner string, lease time.Duration) (lock.Grant, error) {
	if w.acquire == nil {
		return w.Locks.Acquire(ctx, name, owner, lease)
	}
	return w.acquire(w.Locks, name, owner, lease)
}

func (w wrongLocks) Extend(ctx context.Context, g lock.Grant, d time.Duration) error {
	if w.extend == nil {
		return w.Locks.Extend(ctx, g, d)
	}
	return w.extend(w.Locks, g, d)
}

func (w wrongLocks) Release(ctx context.Context, g lock.Grant) error {
	if w.release == nil {
		return w.Locks.Release(ctx, g)
	}
	return w.release(w.Locks, g)
}

func TestRunLocksFindsWhatIsWrong(t *testing.T) {
	for name, c := range map[string]struct {
		locks wrongLocks
		found string
	}{
		"leases never end": {wrongLocks{acquire: func(next lock.Locks, name, owner string, lease time.Duration) (lock.Grant, error) {
			return next.Acquire(bg, name, owner, 1000*lease)
		}}, "after the lease another one gets it"},
		"a grant without its number": {wrongLocks{extend: func(next lock.Locks, g lock.Grant, d time.Duration) error {
			held, err := next.Held(bg, g.Name)
			if err == nil && len(held) == 1 && held[0].Owner == g.Owner {
				g = held[0].Grant
			}
			return errors.Join(err, next.Extend(bg, g, d))
		}}, "an old grant of the same owner is stale"},
		"an owner gets it twice": {wrongLocks{acquire: func(next lock.Locks, name, owner string, lease time.Duration) (lock.Grant, error) {
			g, err := next.Acquire(bg, name, owner, lease)
			if held, ok := errors.AsType[*lock.Holding](err); ok && held.Owner == owner {
				return lock.Grant{Name: name, Owner: owner, Fence: 1}, nil
			}
			return g, err
		}}, "one of two has it"},
		"one lock for all names": {wrongLocks{acquire: func(next lock.Locks, name, owner string, lease time.Duration) (lock.Grant, error) {
			if err := storearg.Lock(name, owner, lease); err != nil {
				return lock.Grant{}, err
			}
			return next.Acquire(bg, "the lock", owner, lease)
		}}, "names are separate"},
		"a stale owner extends": {wrongLocks{extend: func(next lock.Locks, g lock.Grant, d time.Duration) error {
			_ = next.Extend(bg, g, d)
			return nil
		}}, "a stale owner cannot extend or release"},
		"Extend does nothing":  {wrongLocks{extend: func(lock.Locks, lock.Grant, time.Duration) error { return nil }}, "extended, it stays"},
		"Release does nothing": {wrongLocks{release: func(lock.Locks, lock.Grant) error { return nil }}, "released, it is free at once"},
		"all are listed":       {wrongLocks{held: func(next lock.Locks, _ string) ([]lock.Holding, error) { return next.Held(bg, "") }}, "held locks are listed"},
		"they are listed in any order": {wrongLocks{held: func(next lock.Locks, prefix string) ([]lock.Holding, error) {
			held, err := next.Held(bg, prefix)
			slices.Reverse(held)
			return held, err
		}}, "held locks are listed"},
		"any name": {wrongLocks{acquire: func(next lock.Locks, name, owner string, lease time.Duration) (lock.Grant, error) {
			return next.Acquire(bg, "x"+name, "x"+owner, max(1, lease))
		}}, "wrong arguments are refused"},
	} {
		t.Run(name, func(t *testing.T) {
			found := map[string]bool{}
			for _, r := range lockRules {
				if r.name == "many at once" {
					continue // with some wrong locks this rule would not end
				}
				mock := clock.NewMock()
				m := memory.Open(memory.WithClock(mock)).Locks()
				w := c.locks
				w.Locks = m
				if r.run(LockSetup{Open: func() (lock.Locks, error) { return w, nil }, Wait: mock.Add}) != nil {
					found[r.name] = true
				}
			}
			assert.True(t, found[c.found], "found: %v", found)
		})
	}
}
