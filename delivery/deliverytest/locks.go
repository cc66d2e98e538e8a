package deliverytest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirflow/weir/delivery/lock"
)

// LockSetup opens the locks of one test.
type LockSetup struct {
	// Open returns the locks. It is called several times.
	Open func() (lock.Locks, error)
	// Wait lets the time d pass on the locks' clock.
	Wait func(d time.Duration)
	// Unit is the lease that the suite counts in; 0 means a second. With real time it
	// must be long against a call.
	Unit time.Duration
}

// RunLocks checks locks against each rule of [lock.Locks] in a subtest. newSetup returns
// new storage without locks each time.
func RunLocks(t *testing.T, newSetup func(t *testing.T) LockSetup) {
	t.Helper()
	for _, r := range lockRules {
		t.Run(r.name, func(t *testing.T) {
			if err := r.run(newSetup(t)); err != nil {
				t.Error(err)
			}
		})
	}
}

type lockRule struct {
	name  string
	check func(b *lockBench) error
}

func (r lockRule) run(setup LockSetup) error {
	if setup.Unit == 0 {
		setup.Unit = time.Second
	}
	b := &lockBench{LockSetup: setup, ctx: context.Background()}
	for i := range b.locks {
		var err error
		b.locks[i], err = setup.Open()
		if err != nil {
			return err
		}
	}
	return r.check(b)
}

var lockRules = []lockRule{
	{"one of two has it", oneOfTwo},
	{"after the lease another one gets it", afterTheLease},
	{"a stale owner cannot extend or release", staleOwner},
	{"an old grant of the same owner is stale", staleGrant},
	{"a lease that has ended is valid until another one comes", endedLease},
	{"released, it is free at once", releasedIsFree},
	{"extended, it stays", extendedStays},
	{"names are separate", namesAreSeparate},
	{"held locks are listed", heldAreListed},
	{"wrong arguments are refused", wrongLockArguments},
	{"many at once", manyLockers},
}

type lockBench struct {
	LockSetup
	ctx   context.Context
	locks [2]lock.Locks
}

func (b *lockBench) units(n int) time.Duration { return time.Duration(n) * b.Unit }

func (b *lockBench) acquire(i int, name string, units int) (lock.Grant, error) {
	owner := "owner " + strconv.Itoa(i)
	g, err := b.locks[i].Acquire(b.ctx, name, owner, b.units(units))
	if err == nil && (g.Name != name || g.Owner != owner || g.Fence == 0) {
		err = fmt.Errorf("Acquire returned %+v", g)
	}
	return g, err
}

func (b *lockBench) held(i int, name, owner string) error {
	_, err := b.acquire(i, name, 1)
	e, ok := errors.AsType[*lock.Holding](err)
	if !ok || !errors.Is(err, lock.ErrHeld) {
		return fmt.Errorf("Acquire of a lock that is held returned the error %v", err)
	}
	if e.Name != name || e.Owner != owner || e.For <= 0 {
		return fmt.Errorf("the error says %+v, the owner is %q", e, owner)
	}
	return nil
}

func mustBeLost(what string, err error) error {
	if !errors.Is(err, lock.ErrLost) {
		return fmt.Errorf("%s of a grant that is lost returned the error %v", what, err)
	}
	return nil
}

func oneOfTwo(b *lockBench) error {
	_, err := b.acquire(0, "a", 10)
	return errors.Join(err, b.held(1, "a", "owner 0"), b.held(0, "a", "owner 0"))
}

func afterTheLease(b *lockBench) error {
	first, err := b.acquire(0, "a", 2)
	if err != nil {
		return err
	}
	b.Wait(b.units(1))
	if err := b.held(1, "a", "owner 0"); err != nil {
		return err
	}
	b.Wait(b.units(1))
	second, err := b.acquire(1, "a", 10)
	if err != nil {
		return fmt.Errorf("after the lease: %w", err)
	}
	if second.Fence <= first.Fence {
		return fmt.Errorf("the fencing number went from %d to %d", first.Fence, second.Fence)
	}
	return b.held(0, "a", "owner 1")
}

func staleOwner(b *lockBench) error {
	first, err := b.acquire(0, "a", 1)
	if err != nil {
		return err
	}
	b.Wait(b.units(1))
	second, err := b.acquire(1, "a", 100)
	if err != nil {
		return err
	}
	forged := second
	forged.Owner = first.Owner
	return errors.Join(
		mustBeLost("Extend", b.locks[0].Extend(b.ctx, first, b.units(5))),
		mustBeLost("Release", b.locks[0].Release(b.ctx, first)),
		mustBeLost("Release by another owner", b.locks[0].Release(b.ctx, forged)),
		mustBeLost("Release of a lock that never was", b.locks[0].Release(b.ctx, lock.Grant{Name: "never", Owner: "x", Fence: 1})),
		b.held(0, "a", "owner 1"),
		b.locks[1].Extend(b.ctx, second, b.units(5)),
	)
}

func staleGrant(b *lockBench) error {
	first, err := b.acquire(0, "a", 1)
	if err != nil {
		return err
	}
	b.Wait(b.units(1))
	second, err := b.acquire(0, "a", 100)
	if err != nil {
		return err
	}
	return errors.Join(
		mustBeLost("Extend by an old grant", b.locks[0].Extend(b.ctx, first, b.units(5))),
		mustBeLost("Release by an old grant", b.locks[0].Release(b.ctx, first)),
		b.locks[0].Extend(b.ctx, second, b.units(100)),
		b.held(1, "a", "owner 0"),
	)
}

func endedLease(b *lockBench) error {
	g, err := b.acquire(0, "a", 1)
	if err != nil {
		return err
	}
	b.Wait(b.units(2))
	return errors.Join(b.locks[0].Extend(b.ctx, g, b.units(100)), b.held(1, "a", "owner 0"))
}

func releasedIsFree(b *lockBench) error {
	first, err := b.acquire(0, "a", 100)
	if err != nil {
		return err
	}
	if err := b.locks[0].Release(b.ctx, first); err != nil {
		return err
	}
	err = errors.Join(mustBeLost("a second Release", b.locks[0].Release(b.ctx, first)),
		mustBeLost("Extend after Release", b.locks[0].Extend(b.ctx, first, b.Unit)))
	second, acquired := b.acquire(1, "a", 100)
	if acquired == nil && second.Fence <= first.Fence {
		acquired = fmt.Errorf("after Release the fencing number went from %d to %d", first.Fence, second.Fence)
	}
	return errors.Join(err, acquired)
}

func extendedStays(b *lockBench) error {
	g, err := b.acquire(0, "a", 2)
	for range 3 {
		b.Wait(b.units(1))
		err = errors.Join(err, b.locks[0].Extend(b.ctx, g, b.units(2)))
	}
	b.Wait(b.units(1))
	return errors.Join(err, b.held(1, "a", "owner 0"))
}

func namesAreSeparate(b *lockBench) error {
	_, err := b.acquire(0, "a", 10)
	_, other := b.acquire(1, "b", 10)
	return errors.Join(err, other)
}

func heldAreListed(b *lockBench) error {
	fences := map[string]uint64{}
	for _, name := range []string{"p/é_1", "p/%", "p/a", "p", "q/a"} { // not sorted
		g, err := b.acquire(0, name, 10)
		if err != nil {
			return err
		}
		fences[name] = g.Fence
	}
	_, err := b.acquire(1, "p/short", 1)
	released, acquired := b.acquire(1, "p/released", 10)
	if err := errors.Join(err, acquired, b.locks[1].Release(b.ctx, released)); err != nil {
		return err
	}
	b.Wait(b.units(2))
	again, err := b.acquire(1, "p/short", 10) // another grant, by its fencing number
	if err != nil {
		return err
	}
	for prefix, want := range map[string]string{
		"p/": "p/% p/a p/short p/é_1", "p": "p p/% p/a p/short p/é_1", "p/é": "p/é_1", "%": "", "p_": "", "": "p p/% p/a p/short p/é_1 q/a",
	} {
		held, err := b.locks[0].Held(b.ctx, prefix)
		if err != nil {
			return err
		}
		var names []string
		for _, h := range held {
			names = append(names, h.Name)
			owner := "owner 0"
			fence := fences[h.Name]
			least := 7
			if h.Name == again.Name {
				owner = "owner 1"
				fence = again.Fence
				least = 9
			}
			if h.Owner != owner || h.Fence != fence || h.For <= b.units(least-2) || h.For > b.units(10) {
				return fmt.Errorf("Held(%q) has %+v", prefix, h)
			}
		}
		if got := strings.Join(names, " "); got != want {
			return fmt.Errorf("Held(%q) returned %q in place of %q", prefix, got, want)
		}
	}
	return nil
}

func wrongLockArguments(b *lockBench) error {
	for _, c := range []struct {
		name, owner string
		lease       time.Duration
	}{{"", "o", b.Unit}, {"a", "", b.Unit}, {"a", "o", 0}, {"a\x00", "o", b.Unit}, {"a", "\xff", b.Unit}} {
		if _, err := b.locks[0].Acquire(b.ctx, c.name, c.owner, c.lease); err == nil || errors.Is(err, lock.ErrHeld) {
			return fmt.Errorf("Acquire of %+v returned the error %v", c, err)
		}
	}
	g, err := b.acquire(0, "a", 10)
	if b.locks[0].Extend(b.ctx, g, 0) == nil {
		return errors.New("Extend by 0 returned nil")
	}
	return err
}

func manyLockers(b *lockBench) error {
	const lockers, rounds = 4, 10
	var mu sync.Mutex
	var errs []error
	holder := map[string]bool{}
	fences := map[uint64]bool{}
	note := func(err error) {
		mu.Lock()
		defer mu.Unlock()
		errs = append(errs, err)
	}
	var wg sync.WaitGroup
	for n := range lockers {
		wg.Go(func() {
			l := b.locks[n%2]
			for held := 0; held < rounds; {
				g, err := l.Acquire(b.ctx, "a", strconv.Itoa(n), b.units(10_000))
				if errors.Is(err, lock.ErrHeld) {
					continue
				}
				if err != nil {
					note(err)
					return
				}
				held++
				mu.Lock()
				if len(holder) > 0 || fences[g.Fence] {
					errs = append(errs, fmt.Errorf("%q has the lock, %v have it already; fencing number %d", g.Owner, holder, g.Fence))
				}
				holder[g.Owner], fences[g.Fence] = true, true
				delete(holder, g.Owner)
				mu.Unlock()
				if err := l.Release(b.ctx, g); err != nil {
					note(err)
					return
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
