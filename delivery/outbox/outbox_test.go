package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/lock"
	"github.com/weirflow/weir/delivery/outbox"
	"github.com/weirflow/weir/delivery/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errKilled = errors.New("killed")

// world is a store, its locks and the system that is published to.
type world struct {
	t     *testing.T
	store *store.Memory
	locks *lock.Memory

	mu        sync.Mutex
	published []string
	fail      func(ids []string) error // or nil
	lists     int
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return &world{t: t, store: store.NewMemory(clock.New(), 0), locks: lock.NewMemory(clock.New())}
}

func (w *world) stage(d time.Duration, ids ...string) {
	w.t.Helper()
	for _, id := range ids {
		require.NoError(w.t, w.store.Put(w.t.Context(), "outbox", store.Message{Meta: delivery.Meta{ID: id}, Delay: d}))
	}
}

func (w *world) publish(_ context.Context, ms []store.Message) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	var ids []string
	for _, m := range ms {
		ids = append(ids, m.Meta.ID)
	}
	if w.fail != nil {
		if err := w.fail(ids); err != nil {
			return err
		}
	}
	w.published = append(w.published, ids...)
	return nil
}

func (w *world) config() outbox.Config {
	return outbox.Config{Queue: "outbox", Publish: w.publish, Logger: slog.New(slog.DiscardHandler), Batch: 3}
}

// relay runs a relay for some time.
func (w *world) relay(s store.Inspector, c outbox.Config, d time.Duration) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), d)
	defer cancel()
	require.ErrorIs(w.t, outbox.Relay(ctx, s, w.locks, c), context.DeadlineExceeded)
}

func (w *world) left() int {
	w.t.Helper()
	c, err := w.store.Count(w.t.Context(), "outbox", store.Filter{})
	require.NoError(w.t, err)
	return c.Messages
}

func numbers(n int) (ids []string) {
	for i := range n {
		ids = append(ids, strconv.Itoa(i))
	}
	return ids
}

func TestRelayPublishesInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.stage(0, numbers(10)...)
		w.relay(w.store, w.config(), 100*time.Millisecond)
		require.Equal(t, numbers(10), w.published)
		require.Zero(t, w.left())
	})
}

// Law D3.
func TestRelayIsNotEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.stage(10*time.Second, "a", "b", "c", "d")
		w.stage(0, "e")
		w.relay(w.store, w.config(), 9*time.Second)
		require.Equal(t, []string{"e"}, w.published)
		w.relay(w.store, w.config(), 3*time.Second)
		require.Equal(t, []string{"e", "a", "b", "c", "d"}, w.published)
	})
}

func TestRelayTriesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.stage(0, "a", "b")
		down := errors.New("down")
		tries := 0
		w.fail = func([]string) error {
			if tries++; tries <= 20 {
				return down
			}
			return nil
		}
		w.relay(w.store, w.config(), 5*time.Minute)
		require.Equal(t, []string{"a", "b"}, w.published)
		require.Equal(t, 21, tries)
	})
}

// counted counts how often an idle relay looks.
type counted struct {
	store.Inspector
	w *world
}

func (c counted) List(ctx context.Context, queue string, f store.Filter, p store.Page) ([]store.Entry, error) {
	c.w.lists++
	return c.Inspector.List(ctx, queue, f, p)
}

func TestIdleRelayBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.relay(counted{w.store, w}, w.config(), time.Minute)
		require.InDelta(t, 66, w.lists, 4, "it looks once a second at most")
	})
}

func TestOneRelayWorksAndAnotherTakesOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		_, err := w.locks.Acquire(t.Context(), "outbox", "one that was killed", 10*time.Second)
		require.NoError(t, err)
		w.stage(0, "a")
		w.relay(w.store, w.config(), 9*time.Second)
		require.Empty(t, w.published)
		w.relay(w.store, w.config(), 10*time.Second)
		require.Equal(t, []string{"a"}, w.published)

		// Two at once: one works.
		w.stage(0, numbers(30)...)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() { _ = outbox.Relay(ctx, w.store, w.locks, w.config()) })
		}
		wg.Wait()
		require.Equal(t, numbers(30), w.published[1:])
	})
}

// mortal is a store whose client dies at a call: before it has taken effect, or after.
type mortal struct {
	store.Inspector
	calls *int // until then
	after bool
	kill  context.CancelCauseFunc
}

func (m mortal) step(f func() error) error {
	if *m.calls--; *m.calls > 0 {
		return f()
	}
	if m.after && *m.calls == 0 {
		if err := f(); err != nil {
			return err
		}
	}
	m.kill(errKilled)
	return errKilled
}

func (m mortal) List(ctx context.Context, queue string, f store.Filter, p store.Page) (es []store.Entry, err error) {
	return es, m.step(func() error { es, err = m.Inspector.List(ctx, queue, f, p); return err })
}

func (m mortal) Purge(ctx context.Context, queue string, f store.Filter) (n int, err error) {
	return n, m.step(func() error { n, err = m.Inspector.Purge(ctx, queue, f); return err })
}

// Law D1, and a transaction that commits late.
func TestRelayThatWasKilled(t *testing.T) {
	for step := 2; step <= 20; step++ {
		calls, after := step/2, step%2 == 1
		t.Run(fmt.Sprintf("call=%d/after=%v", calls, after), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.stage(0, numbers(8)...)
				ctx, kill := context.WithCancelCause(t.Context())
				err := outbox.Relay(ctx, mortal{w.store, &calls, after, kill}, w.locks, w.config())
				require.ErrorIs(t, err, errKilled)
				w.relay(w.store, w.config(), time.Minute)
				require.Zero(t, w.left())
				require.Equal(t, numbers(8), slices.Compact(slices.Sorted(slices.Values(w.published))))
				require.LessOrEqual(t, len(w.published), 8+3, "more than one batch was published again")
			})
		})
	}
}

// trouble says which calls fail, and counts them.
type trouble struct {
	what  string
	down  atomic.Bool
	calls atomic.Int64 // that have failed
}

var errDown = errors.New("the store is down")

func (t *trouble) fail(call string) error {
	if !t.down.Load() || call != t.what {
		return nil
	}
	t.calls.Add(1)
	return errDown
}

type flakyStore struct {
	store.Inspector
	*trouble
}

func (f flakyStore) List(ctx context.Context, queue string, filter store.Filter, p store.Page) ([]store.Entry, error) {
	es, err := f.Inspector.List(ctx, queue, filter, p)
	return es, errors.Join(err, f.fail("list"))
}

func (f flakyStore) Purge(ctx context.Context, queue string, filter store.Filter) (int, error) {
	if err := f.fail("purge"); err != nil {
		return 0, err
	}
	return f.Inspector.Purge(ctx, queue, filter)
}

type flakyLocks struct {
	lock.Locks
	*trouble
}

func (f flakyLocks) Acquire(ctx context.Context, name, owner string, lease time.Duration) (lock.Grant, error) {
	if err := f.fail("acquire"); err != nil {
		return lock.Grant{}, err
	}
	return f.Locks.Acquire(ctx, name, owner, lease)
}

// Whichever call fails, the relay goes on after pauses that grow to five seconds, and begins with a short one when it has worked.
func TestRelayOfAStoreThatFails(t *testing.T) {
	for _, what := range []string{"list", "purge", "acquire"} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.stage(0, numbers(2)...)
				f := &trouble{what: what}
				f.down.Store(true)
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error)
				go func() { ended <- outbox.Relay(ctx, flakyStore{w.store, f}, flakyLocks{w.locks, f}, w.config()) }()
				time.Sleep(time.Minute)
				require.Greater(t, f.calls.Load(), int64(10))
				require.Less(t, f.calls.Load(), int64(30))
				require.Equal(t, 2, w.left())
				if what != "purge" {
					require.Empty(t, w.published, "it has not seen, or not locked, what it publishes")
				}
				f.down.Store(false)
				time.Sleep(10 * time.Second)
				require.Zero(t, w.left())
				require.Equal(t, numbers(2), slices.Compact(slices.Sorted(slices.Values(w.published))))
				if what == "list" { // it has the lock
					f.calls.Store(0)
					f.down.Store(true)
					time.Sleep(time.Second)
					require.Greater(t, f.calls.Load(), int64(4), "it has worked since")
					time.Sleep(time.Minute)
					require.Less(t, f.calls.Load(), int64(35), "and has not since then")
				}
				cancel()
				require.ErrorIs(t, <-ended, context.Canceled)
			})
		})
	}
}

// stubborn is a store that purges whatever becomes of the context.
type stubborn struct{ store.Inspector }

func (s stubborn) Purge(ctx context.Context, queue string, f store.Filter) (int, error) {
	return s.Inspector.Purge(context.WithoutCancel(ctx), queue, f)
}

// Law D1: what is not published stays. The pauses grow to five seconds, and the end of the context ends them.
func TestRelayWhosePublishNeverSucceeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.stage(0, "a")
		tries := 0
		w.fail = func([]string) error { tries++; return errDown }
		w.relay(stubborn{w.store}, w.config(), time.Minute+time.Millisecond)
		require.InDelta(t, 21, tries, 3)
		require.Equal(t, 1, w.left())
	})
}

// woken is a store that says when something was put.
type woken struct {
	store.Inspector
	notify chan func()
}

func (n woken) Notify(ctx context.Context, _ string, wake func()) error {
	n.notify <- wake
	<-ctx.Done()
	return context.Cause(ctx)
}

func TestRelayIsNotified(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		n := woken{w.store, make(chan func(), 1)}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- outbox.Relay(ctx, n, w.locks, w.config()) }()
		wake := <-n.notify
		time.Sleep(time.Minute) // it looks once a second by now
		for range 10 {
			time.Sleep(10 * time.Millisecond)
			w.stage(0, strconv.Itoa(len(w.published)))
			before := len(w.published)
			wake()
			synctest.Wait()
			require.Len(t, w.published, before+1)
		}
		cancel()
		require.ErrorIs(t, <-ended, context.Canceled)
	})
}

func TestRelayRefusesAWrongConfig(t *testing.T) {
	w := newWorld(t)
	for _, c := range []outbox.Config{{}, {Queue: "outbox"}, {Publish: w.publish}, {Queue: "outbox", Publish: w.publish, Batch: -1}} {
		require.Error(t, outbox.Relay(t.Context(), w.store, w.locks, c))
	}
}
