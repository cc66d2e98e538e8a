package lock_test

import (
	"context"
	"errors"
	"runtime"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/weirflow/weir/delivery/deliverytest"
	"github.com/weirflow/weir/delivery/lock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestMemory(t *testing.T) {
	deliverytest.RunLocks(t, func(*testing.T) deliverytest.LockPlace {
		mock := clock.NewMock()
		m := lock.NewMemory(mock)
		return deliverytest.LockPlace{Open: func() (lock.Locks, error) { return m, nil }, Wait: mock.Add}
	})
}

// Law W3: a name that is not used any more is forgotten, and its fencing numbers go on all the same.
func TestMemoryForgetsNames(t *testing.T) {
	mock := clock.NewMock()
	m := lock.NewMemory(mock)
	acquire := func(name string) lock.Grant {
		g, err := m.Acquire(t.Context(), name, "me", time.Minute)
		require.NoError(t, err)
		return g
	}
	for range 7 {
		g := acquire("a")
		require.NoError(t, m.Release(t.Context(), g))
	}
	held := acquire("held")
	for i := range 1000 {
		acquire(strconv.Itoa(i))
		mock.Add(time.Hour)
		if i == 20 {
			require.NoError(t, m.Extend(t.Context(), held, 10_000*time.Hour), "its lease has ended, and nobody else has it")
		}
	}
	require.Less(t, lock.Names(m), 200)
	require.Greater(t, acquire("a").Fence, uint64(7))
	require.ErrorIs(t, m.Extend(t.Context(), lock.Grant{Name: "1", Owner: "me", Fence: 1}, time.Hour), lock.ErrLost)
}

func TestHoldKeepsAndGivesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := clock.New()
		l := lock.NewMemory(c)
		broken := errors.New("broken")
		err := lock.Hold(t.Context(), c, l, "a", "me", time.Second, func(ctx context.Context, g lock.Grant) error {
			time.Sleep(time.Minute)
			require.NoError(t, ctx.Err())
			_, err := l.Acquire(ctx, "a", "other", time.Second)
			require.ErrorIs(t, err, lock.ErrHeld)
			require.Equal(t, uint64(1), g.Fence)
			return broken
		})
		require.ErrorIs(t, err, broken)
		_, err = l.Acquire(t.Context(), "a", "other", time.Second)
		require.NoError(t, err)
	})
}

// extensions counts them.
type extensions struct {
	lock.Locks
	n int
}

func (e *extensions) Extend(ctx context.Context, g lock.Grant, lease time.Duration) error {
	e.n++
	return e.Locks.Extend(ctx, g, lease)
}

// Regression: the ticker was made on a goroutine that may run later than f.
func TestHoldExtendsFromTheStart(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	synctest.Test(t, func(t *testing.T) {
		c := clock.NewMock()
		l := &extensions{Locks: lock.NewMemory(c)}
		require.NoError(t, lock.Hold(t.Context(), c, l, "a", "me", 3*time.Second, func(context.Context, lock.Grant) error {
			c.Add(time.Second + time.Millisecond)
			synctest.Wait()
			require.Equal(t, 1, l.n)
			return nil
		}))
	})
}

func TestHoldWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := clock.New()
		l := lock.NewMemory(c)
		_, err := l.Acquire(t.Context(), "a", "dead", 10*time.Second)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		run := func(context.Context, lock.Grant) error { return nil }
		require.ErrorIs(t, lock.Hold(ctx, c, l, "a", "me", 3*time.Second, run), context.DeadlineExceeded)
		begun := time.Now()
		require.NoError(t, lock.Hold(t.Context(), c, l, "a", "me", 3*time.Second, run))
		require.InDelta(t, 9.5, time.Since(begun).Seconds(), 1)
	})
}

// stuck is locks whose server does not answer any more.
type stuck struct{ lock.Locks }

func (stuck) Extend(ctx context.Context, _ lock.Grant, _ time.Duration) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

func (stuck) Release(ctx context.Context, _ lock.Grant) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

// A server that does not answer holds up the end of Hold for the time of a lease, and for 5 s, at most.
func TestHoldDoesNotWaitForeverToGiveBack(t *testing.T) {
	for lease, want := range map[time.Duration]time.Duration{3 * time.Second: 3 * time.Second, time.Minute: 5 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			c := clock.New()
			ctx, cancel := context.WithCancel(t.Context())
			begun := time.Now()
			err := lock.Hold(ctx, c, stuck{lock.NewMemory(c)}, "a", "me", lease, func(context.Context, lock.Grant) error {
				cancel()
				return nil
			})
			require.ErrorContains(t, err, "is held until its lease ends")
			require.Equal(t, want, time.Since(begun))
		})
	}
}

func TestHoldEndsWithItsLease(t *testing.T) {
	for _, name := range []string{"taken over", "no answer"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := clock.New()
				m := lock.NewMemory(c)
				var l lock.Locks = m
				if name == "no answer" {
					l = stuck{m}
				}
				err := lock.Hold(t.Context(), c, l, "a", "me", 3*time.Second, func(ctx context.Context, g lock.Grant) error {
					begun := time.Now()
					if name == "taken over" {
						require.NoError(t, m.Release(ctx, g))
						_, err := m.Acquire(ctx, "a", "other", time.Hour)
						require.NoError(t, err)
					}
					<-ctx.Done()
					require.LessOrEqual(t, time.Since(begun), 3*time.Second)
					return context.Cause(ctx)
				})
				require.ErrorIs(t, err, lock.ErrLost)
			})
		})
	}
}
