package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/lock"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/outbox"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/testing/suite"
	"github.com/weirflow/weir/message"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errKilled = errors.New("killed")

// world is a store, its locks and the system that is published to.
type world struct {
	t     *testing.T
	store *memory.Engine
	locks lock.Locks

	mu        sync.Mutex
	published []string
	fail      func(ids []string) error // or nil
	lists     int
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return &world{t: t, store: memory.Open(), locks: memory.Open().Locks()}
}

func (w *world) stage(d time.Duration, ids ...string) {
	w.t.Helper()
	for _, id := range ids {
		require.NoError(w.t, w.store.Put(w.t.Context(), "outbox", store.Message{Meta: message.Meta{ID: id}, Delay: d}))
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

// Law W5: a message that is staged after the first one under its id was published is not
// lost in the queue where the first one waits.
func TestRelay_SecondMessageUnderAnID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		c := w.config()
		c.Publish = func(ctx context.Context, ms []store.Message) error { return w.store.Put(ctx, "orders", ms...) }
		for range 2 {
			w.stage(0, "17", "17") // the second message has no effect
			w.relay(w.store, c, 100*time.Millisecond)
		}
		orders, err := w.store.Count(t.Context(), "orders", store.Filter{})
		require.NoError(t, err)
		require.Equal(t, 2, orders.Messages)
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
			if tries++; tries <= 10 {
				return down
			}
			return nil
		}
		w.relay(w.store, w.config(), 5*time.Minute)
		require.Equal(t, []string{"a", "b"}, w.published)
		require.Equal(t, 12, tries)
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

func TestRelay_AnotherTakesOver(t *testing.T) {
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

func (m mortal) Claim(ctx context.Context, queue string, f store.Filter, p store.Page, lease time.Duration) (ls []store.Leased, err error) {
	return ls, m.step(func() error { ls, err = m.Inspector.Claim(ctx, queue, f, p, lease); return err })
}

func (m mortal) Release(ctx context.Context, d time.Duration, leases ...store.Lease) error {
	return m.step(func() error { return m.Inspector.Release(ctx, d, leases...) })
}

func (m mortal) Done(ctx context.Context, leases ...store.Lease) error {
	return m.step(func() error { return m.Inspector.Done(ctx, leases...) })
}

// Law D1: a relay is killed at a call, before or after the call has taken effect.
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

// trouble makes some calls fail, and counts them.
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

func (f flakyStore) Claim(ctx context.Context, queue string, filter store.Filter, p store.Page, lease time.Duration) ([]store.Leased, error) {
	if err := f.fail("claim"); err != nil {
		return nil, err
	}
	return f.Inspector.Claim(ctx, queue, filter, p, lease)
}

func (f flakyStore) Done(ctx context.Context, leases ...store.Lease) error {
	if err := f.fail("done"); err != nil {
		return err
	}
	return f.Inspector.Done(ctx, leases...)
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

// Whichever call fails, the relay continues after pauses that grow to five seconds, and
// begins with a short pause after a success.
func TestRelayOfAStoreThatFails(t *testing.T) {
	for _, what := range []string{"list", "claim", "done", "acquire"} {
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
				if what == "done" {
					require.Equal(t, numbers(2), w.published, "it need not be published again to be removed")
				} else {
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

// stubborn is a store that leases and removes messages even if the context has ended.
type stubborn struct{ store.Inspector }

func (s stubborn) Claim(ctx context.Context, queue string, f store.Filter, p store.Page, lease time.Duration) ([]store.Leased, error) {
	return s.Inspector.Claim(context.WithoutCancel(ctx), queue, f, p, lease)
}

func (s stubborn) Done(ctx context.Context, leases ...store.Lease) error {
	return s.Inspector.Done(context.WithoutCancel(ctx), leases...)
}

// Law D1: unpublished messages stay. The pauses grow to five seconds, and the end of the
// context ends them.
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

// woken is a store that notifies of puts.
type woken struct {
	store.Inspector
	notify chan func(misses bool)
}

func (n woken) Wake(ctx context.Context, _ string, wake func(misses bool)) error {
	n.notify <- wake
	<-ctx.Done()
	return context.Cause(ctx)
}

func TestRelayIsNotified(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		n := woken{w.store, make(chan func(misses bool), 1)}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- outbox.Relay(ctx, n, w.locks, w.config()) }()
		wake := <-n.notify
		time.Sleep(time.Minute) // until it looks only once a second
		for range 10 {
			time.Sleep(10 * time.Millisecond)
			w.stage(0, strconv.Itoa(len(w.published)))
			before := len(w.published)
			wake(true)
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

// Law D1: only the published message is removed, and not another message with its id.
func TestRelay_MergeWhileTheSameIDIsPublished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.stage(0, "a")
		w.fail = func(ids []string) error {
			if len(w.published) == 0 {
				return w.store.Put(t.Context(), "outbox", store.Message{Meta: message.Meta{ID: "a", Merges: 1}, Delay: time.Second})
			}
			return nil
		}
		w.relay(w.store, w.config(), 100*time.Millisecond)
		require.Equal(t, []string{"a"}, w.published)
		require.Equal(t, 1, w.left(), "the merged one waits for its time")
		w.relay(w.store, w.config(), 2*time.Second)
		require.Equal(t, []string{"a", "a"}, w.published)
		require.Zero(t, w.left())
	})
}

// A message with the id of a published message, in the same part of the queue, keeps its
// delay (law D3).
func TestRelay_SameIDThatIsNotDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.stage(0, "a")
		require.NoError(t, w.store.Put(t.Context(), "outbox", store.Message{Meta: message.Meta{ID: "a", Merges: 1}, Delay: time.Hour}))
		w.stage(0, "b")
		w.relay(w.store, w.config(), 59*time.Minute)
		require.Equal(t, []string{"a", "b"}, w.published)
		w.relay(w.store, w.config(), 2*time.Minute)
		require.Equal(t, []string{"a", "b", "a"}, w.published)
	})
}

func (w *world) refuse(poison ...string) {
	w.fail = func(ids []string) error {
		for _, id := range ids {
			if slices.Contains(poison, id) {
				return errors.New("the topic does not take " + id)
			}
		}
		return nil
	}
}

// Laws D4 and W2.
func TestRelay_RefusedMessageStopsNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		poison := []string{"p1", "p2", "p3", "p4", "p5"} // more than a batch
		w.stage(0, poison...)
		w.stage(0, numbers(50)...)
		w.refuse(poison...)
		w.relay(w.store, w.config(), 2*time.Minute)
		require.ElementsMatch(t, numbers(50), slices.Compact(slices.Sorted(slices.Values(w.published))))
		require.Equal(t, 5, w.left())

		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- outbox.Relay(ctx, w.store, w.locks, w.config()) }()
		for i := range 120 { // without other messages, it would look like an outage
			time.Sleep(time.Minute)
			w.stage(0, fmt.Sprint("later ", i))
		}
		time.Sleep(10 * time.Second)
		cancel()
		require.ErrorIs(t, <-ended, context.Canceled)
		require.Zero(t, w.left())
		buried, err := w.store.List(t.Context(), "outbox dead", store.Filter{}, store.Page{Max: 10})
		require.NoError(t, err)
		require.Len(t, buried, len(poison))
		for _, e := range buried {
			require.Equal(t, store.Exhausted, e.Cause)
			require.Equal(t, "the topic does not take "+e.Meta.ID, e.Meta.LastError)
			require.Equal(t, 16, e.Meta.Attempts)
			require.False(t, e.Meta.FirstFailure.IsZero())
		}
	})
}

// In an outage no message is refused, however long it lasts: two days, or 4 hours without
// WEIR_LONG. Without the outage, a message becomes a dead letter within two hours.
func TestRelay_OutageMakesNoDeadLetter(t *testing.T) {
	outage := 4 * time.Hour
	if suite.Full() {
		outage = 48 * time.Hour
	}
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.stage(0, numbers(20)...)
		start := time.Now()
		w.fail = func([]string) error {
			if time.Since(start) < outage {
				return errDown
			}
			return nil
		}
		w.relay(w.store, w.config(), outage+time.Minute)
		require.Zero(t, w.left())
		probe := slices.Index(numbers(20), w.published[0])
		require.Equal(t, slices.Delete(numbers(20), probe, probe+1), w.published[1:], "one has gone ahead")
	})
}

// A full queue does not refuse messages: they wait, however often they are tried.
func TestRelayIntoAFullQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.stage(0, numbers(40)...)
		begun := time.Now()
		w.fail = func(ids []string) error {
			if len(w.published)+len(ids) > int(time.Since(begun)/(3*time.Minute)) {
				return fmt.Errorf("queue: %w", store.ErrFull)
			}
			return nil
		}
		w.relay(w.store, w.config(), 3*time.Hour)
		require.Equal(t, numbers(40), w.published)
		require.Zero(t, w.left())
	})
}

// process is a store whose process may have died: its later calls have no effect.
type process struct {
	*memory.Engine
	ctx  context.Context
	kill context.CancelCauseFunc
}

func (p process) List(ctx context.Context, queue string, f store.Filter, page store.Page) ([]store.Entry, error) {
	if p.ctx.Err() != nil {
		return nil, errKilled
	}
	return p.Engine.List(ctx, queue, f, page)
}

func (p process) Done(ctx context.Context, leases ...store.Lease) error {
	if p.ctx.Err() != nil {
		return errKilled
	}
	return p.Engine.Done(ctx, leases...)
}

func (p process) Release(ctx context.Context, d time.Duration, ls ...store.Lease) error {
	if p.ctx.Err() != nil {
		return errKilled
	}
	return p.Engine.Release(ctx, d, ls...)
}

type processLocks struct {
	lock.Locks
	process context.Context
}

func (p processLocks) Release(ctx context.Context, g lock.Grant) error {
	if p.process.Err() != nil {
		return errKilled
	}
	return p.Locks.Release(ctx, g)
}

// Regression (laws D4, W2): a message that kills the relay's process stopped the outbox
// for ever.
func TestRelay_MessageThatKillsItsProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.stage(0, numbers(50)...)
		work := func() (killed bool) {
			p := process{Engine: w.store}
			p.ctx, p.kill = context.WithCancelCause(t.Context())
			w.fail = func(ids []string) error {
				if slices.Contains(ids, "20") {
					p.kill(errKilled)
					return errKilled
				}
				return nil
			}
			ctx, cancel := context.WithTimeout(p.ctx, time.Minute)
			defer cancel()
			return errors.Is(outbox.Relay(ctx, p, processLocks{w.locks, p.ctx}, w.config()), errKilled)
		}
		deaths := 0
		for work() {
			deaths++
			require.Less(t, deaths, 10)
		}
		require.Equal(t, 5, deaths)
		require.Zero(t, w.left())
		require.Equal(t, slices.Delete(numbers(50), 20, 21), w.published, "in order, each once")
		buried, err := w.store.List(t.Context(), "outbox dead", store.Filter{}, store.Page{Max: 10})
		require.NoError(t, err)
		require.Len(t, buried, 1)
		require.Equal(t, store.Lapsed, buried[0].Cause)
		require.Contains(t, buried[0].Meta.LastError, "ended 5 times")
	})
}

// ahead is a store whose clock is an hour ahead of the relay's.
type ahead struct{ store.Inspector }

func (a ahead) List(ctx context.Context, queue string, f store.Filter, p store.Page) ([]store.Entry, error) {
	es, err := a.Inspector.List(ctx, queue, f, p)
	for i := range es {
		if es[i].Fence > 0 { // it was released, so it is due from the store's present time
			es[i].Meta.Due = es[i].Meta.Due.Add(time.Hour)
		}
	}
	return es, err
}

// A failed message keeps its place, whatever the store's clock, and its lease does not
// count as the lease of a relay that died.
func TestRelay_FailedMessageKeepsItsPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.stage(0, numbers(10)...)
		tries := 0
		w.fail = func([]string) error {
			if tries++; tries < 9 {
				return errDown
			}
			return nil
		}
		w.relay(ahead{w.store}, w.config(), time.Minute)
		require.Equal(t, numbers(10), w.published)
	})
}

// A message that is held stays until it is released.
func TestRelayLeavesWhatIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.stage(0, numbers(3)...)
		entries, err := w.store.List(t.Context(), "outbox", store.Filter{}, store.Page{Max: 3})
		require.NoError(t, err)
		require.NoError(t, w.store.Update(t.Context(), func(ctx context.Context, tx store.Tx) error {
			_, err := tx.Edit(ctx, store.Edit{Do: store.Hold, Queue: "outbox", Entry: entries[1]})
			return err
		}))
		w.relay(w.store, w.config(), time.Minute)
		require.Equal(t, []string{"0", "2"}, w.published)
		require.Equal(t, 1, w.left())
	})
}

// The report of a relay shows its work and its errors, as the report of a worker does.
func TestRelay_Report(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.stage(0, "1", "2")
		w.fail = func([]string) error { return errors.New("https://ann:s3cret@broker: refused") }
		j, err := jobs.New(w.store, jobs.Config{Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		report := func() (text string) {
			workers, err := j.Workers(t.Context())
			require.NoError(t, err)
			require.Len(t, workers, 1)
			require.Equal(t, "outbox", workers[0].Outbox)
			return string(workers[0].Operators[0])
		}
		time.AfterFunc(30*time.Second, func() {
			require.Contains(t, report(), `"LastError":"https://ann:xxxxx@broker: refused"`)
			require.NotContains(t, report(), `"Failures":0`)
			w.mu.Lock()
			w.fail = nil
			w.mu.Unlock()
		})
		time.AfterFunc(50*time.Second, func() { require.Contains(t, report(), `"Acknowledged":2`) })
		time.AfterFunc(50*time.Second, func() { require.Contains(t, report(), `"Failures":0`) })
		w.relay(w.store, w.config(), time.Minute)
		workers, err := j.Workers(t.Context())
		require.NoError(t, err)
		require.Empty(t, workers)
	})
}

// damaged is a store that cannot read some messages, and returns others instead.
type damaged struct {
	*memory.Engine
	instead map[string]string // ids, by the stored ids
}

var errDamaged = errors.New("the row is damaged")

func (d damaged) List(ctx context.Context, queue string, f store.Filter, p store.Page) ([]store.Entry, error) {
	entries, err := d.Engine.List(ctx, queue, f, p)
	for i := range entries {
		if id, ok := d.instead[entries[i].Meta.ID]; ok {
			entries[i].Meta = message.Meta{ID: id}
		}
	}
	return entries, err
}

func (d damaged) Claim(ctx context.Context, queue string, f store.Filter, p store.Page, lease time.Duration) ([]store.Leased, error) {
	leased, err := d.Engine.Claim(ctx, queue, f, p, lease)
	for i := range leased {
		if id, ok := d.instead[leased[i].Meta.ID]; ok {
			leased[i].Meta, leased[i].Damage = message.Meta{ID: id}, errDamaged
		}
	}
	return leased, err
}

// Laws D4, W2: a message that is damaged in the store is not published, and does not
// block others. A relay waited for it for ever.
func TestRelay_DamagedMessageStopsNoOther(t *testing.T) {
	for what, instead := range map[string]map[string]string{
		"whose id is damaged": {"0": "row 1", "2": "row 3", "9": "row 10"},
		"whose id is left":    {"0": "0", "2": "2", "9": "9"},
	} {
		for _, batch := range []int{1, 3, 100} {
			t.Run(fmt.Sprintf("%s/batch=%d", what, batch), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t)
					w.stage(0, numbers(10)...)
					c := w.config()
					c.Batch = batch
					w.relay(damaged{w.store, instead}, c, time.Second)
					require.Equal(t, []string{"1", "3", "4", "5", "6", "7", "8"}, w.published)
					require.Zero(t, w.left())
					letters, err := w.store.List(t.Context(), "outbox dead", store.Filter{}, store.Page{Max: 10})
					require.NoError(t, err)
					require.Len(t, letters, 3)
					for i, id := range []string{"0", "2", "9"} {
						require.Equal(t, instead[id], letters[i].Meta.ID)
						require.Equal(t, store.Undecodable, letters[i].Cause)
						require.Equal(t, errDamaged.Error(), letters[i].Meta.LastError)
					}
				})
			})
		}
	}
}

// Law D4: refused messages, however many and wherever they are, delay the others by about
// ten seconds in all.
func TestRelay_RefusedMessagesDelayOthersBriefly(t *testing.T) {
	n := 250
	if suite.Full() {
		n = 1000
	}
	for name, isBad := range map[string]func(i int) bool{
		"1 in front":        func(i int) bool { return i == 0 },
		"3 in front":        func(i int) bool { return i < 3 },
		"20 in front":       func(i int) bool { return i < 20 },
		"1 %":               func(i int) bool { return i%100 == 50 },
		"5 %":               func(i int) bool { return i%20 == 10 },
		"half of them":      func(i int) bool { return i%2 == 0 },
		"20 in the middle":  func(i int) bool { return i >= n/2 && i < n/2+20 },
		"some, then 1 good": func(i int) bool { return i < n-1 && i >= n-20 },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				good := 0
				for i := range n {
					id := strconv.Itoa(i)
					if isBad(i) {
						id = "bad " + id
					} else {
						good++
					}
					w.stage(0, id)
				}
				tries := 0
				w.fail = func(ids []string) error {
					tries++
					if slices.ContainsFunc(ids, func(id string) bool { return strings.HasPrefix(id, "bad") }) {
						return errors.New("never")
					}
					return nil
				}
				c := w.config()
				c.Batch = 100
				w.relay(w.store, c, 20*time.Second)
				require.Len(t, w.published, good)
				require.True(t, slices.IsSortedFunc(w.published, func(a, b string) int {
					x, _ := strconv.Atoi(a)
					y, _ := strconv.Atoi(b)
					return x - y
				}), "the others keep their order")
				require.Less(t, tries, 20*n)
				require.Equal(t, n-good, w.left())
			})
		})
	}
}

// A long outage refuses no message, and asks the target only a few times a second.
func TestRelay_LongOutageKeepsAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		n := 300
		if suite.Full() {
			n = 1000
		}
		w.stage(0, numbers(n)...)
		tries, begun := 0, time.Now()
		w.fail = func([]string) error {
			if time.Since(begun) < 20*time.Minute {
				tries++
				return errDown
			}
			return nil
		}
		c := w.config()
		c.Batch = 100
		w.relay(w.store, c, 21*time.Minute)
		require.Less(t, tries, 20*60*16/5+100)
		require.Len(t, w.published, n)
		out := 0
		for i, id := range w.published[1:] {
			before, _ := strconv.Atoi(w.published[i])
			now, _ := strconv.Atoi(id)
			if now < before {
				out++
			}
		}
		require.LessOrEqual(t, out, 1, "the order changes by one message")
		letters, err := w.store.Count(t.Context(), "outbox dead", store.Filter{})
		require.NoError(t, err)
		require.Zero(t, letters.Messages)
	})
}
