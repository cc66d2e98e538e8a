package lock_test

import (
	"context"
	"errors"
	"os"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/weirflow/weir/delivery/lock"
	"github.com/weirflow/weir/delivery/memory"
)

func TestMain(m *testing.M) {
	if path := os.Getenv(holdForever); path != "" {
		holdFile(path)
	}
	goleak.VerifyTestMain(m)
}

func TestHold_WithoutWait(t *testing.T) {
	l := memory.Open().Locks()
	_, err := l.Acquire(t.Context(), "a", "first", time.Minute)
	require.NoError(t, err)
	err = lock.Hold(t.Context(), l, "a", "me", time.Minute, func(context.Context, lock.Grant) error { t.Error("it is held"); return nil }, lock.WithoutWait())
	held, ok := errors.AsType[*lock.Holding](err)
	require.True(t, ok, err)
	require.Equal(t, "first", held.Owner)
	require.ErrorIs(t, err, lock.ErrHeld)
	run := false
	require.NoError(t, lock.Hold(t.Context(), l, "b", "me", time.Minute, func(context.Context, lock.Grant) error { run = true; return nil }, lock.WithoutWait()))
	require.True(t, run)
}

func TestHold_RefusesLease(t *testing.T) {
	require.PanicsWithValue(t, "lock: Hold: the lease must be above 0, got 0s", func() {
		_ = lock.Hold(t.Context(), memory.Open().Locks(), "a", "me", 0, nil)
	})
}

func TestHold_KeepsAndReleases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := clock.New()
		l := memory.Open(memory.WithClock(c)).Locks()
		broken := errors.New("broken")
		err := lock.Hold(t.Context(), l, "a", "me", time.Second, func(ctx context.Context, g lock.Grant) error {
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
func TestHoldWithClock_ExtendsFromTheStart(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	synctest.Test(t, func(t *testing.T) {
		c := clock.NewMock()
		l := &extensions{Locks: memory.Open(memory.WithClock(c)).Locks()}
		require.NoError(t, lock.Hold(t.Context(), l, "a", "me", 3*time.Second, func(context.Context, lock.Grant) error {
			c.Add(time.Second + time.Millisecond)
			synctest.Wait()
			require.Equal(t, 1, l.n)
			return nil
		}, lock.WithClock(c)))
	})
}

func TestHoldWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := clock.New()
		l := memory.Open(memory.WithClock(c)).Locks()
		_, err := l.Acquire(t.Context(), "a", "dead", 10*time.Second)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		run := func(context.Context, lock.Grant) error { return nil }
		require.ErrorIs(t, lock.Hold(ctx, l, "a", "me", 3*time.Second, run), context.DeadlineExceeded)
		begun := time.Now()
		require.NoError(t, lock.Hold(t.Context(), l, "a", "me", 3*time.Second, run))
		require.InDelta(t, 9.5, time.Since(begun).Seconds(), 1)
	})
}

// stuck is locks whose server does not answer.
type stuck struct{ lock.Locks }

func (stuck) Extend(ctx context.Context, _ lock.Grant, _ time.Duration) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

func (stuck) Release(ctx context.Context, _ lock.Grant) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

// A server that does not answer delays the end of Hold for the time of a lease, and for 5
// s, at most.
func TestHold_ReleaseDoesNotWaitForever(t *testing.T) {
	for lease, want := range map[time.Duration]time.Duration{3 * time.Second: 3 * time.Second, time.Minute: 5 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			c := clock.New()
			ctx, cancel := context.WithCancel(t.Context())
			begun := time.Now()
			err := lock.Hold(ctx, stuck{memory.Open(memory.WithClock(c)).Locks()}, "a", "me", lease, func(context.Context, lock.Grant) error {
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
				m := memory.Open(memory.WithClock(c)).Locks()
				var l lock.Locks = m
				if name == "no answer" {
					l = stuck{m}
				}
				err := lock.Hold(t.Context(), l, "a", "me", 3*time.Second, func(ctx context.Context, g lock.Grant) error {
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
