package delivery_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/backend"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/lock"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/failed"
	"github.com/weirflow/weir/internal/gate"
	"github.com/weirflow/weir/message"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/httpretry"
	"github.com/weirflow/weir/strategies"
)

// dueCounter is an engine that notes how many messages each transaction makes due.
type dueCounter struct {
	*memory.Engine
	mu    sync.Mutex
	made  []int
	at    []time.Time
	begun chan struct{}  // closed when the first message was made due
	fails map[string]int // how often the steps of a recovery fail
}

// fail returns an error if a step of a recovery fails.
func (e *dueCounter) fail(step string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.fails[step] == 0 {
		return nil
	}
	e.fails[step]--
	return errors.New("the engine does not answer")
}

func (e *dueCounter) List(ctx context.Context, queue string, f store.Filter, p store.Page) ([]store.Entry, error) {
	err := e.fail("list")
	if err != nil {
		return nil, err
	}
	return e.Engine.List(ctx, queue, f, p)
}

func (e *dueCounter) Queues(ctx context.Context) ([]string, error) {
	err := e.fail("queues")
	if err != nil {
		return nil, err
	}
	return e.Engine.Queues(ctx)
}

func (e *dueCounter) Locks() lock.Locks { return dueLocks{e.Engine.Locks(), e} }

type dueLocks struct {
	lock.Locks
	e *dueCounter
}

func (l dueLocks) Acquire(ctx context.Context, name, owner string, lease time.Duration) (lock.Grant, error) {
	if strings.Contains(name, "recovery") {
		err := l.e.fail("lock")
		if err != nil {
			return lock.Grant{}, err
		}
	}
	return l.Locks.Acquire(ctx, name, owner, lease)
}

func (e *dueCounter) Update(ctx context.Context, f func(context.Context, store.Tx) error) error {
	return e.Engine.Update(ctx, func(ctx context.Context, tx store.Tx) error { return f(ctx, dueTx{tx, e}) })
}

type dueTx struct {
	store.Tx
	e *dueCounter
}

func (t dueTx) Edit(ctx context.Context, edits ...store.Edit) ([]bool, error) {
	if len(edits) > 0 && edits[0].Do == store.Due {
		err := t.e.fail("edit")
		if err != nil {
			return nil, err
		}
	}
	done, err := t.Tx.Edit(ctx, edits...)
	if len(edits) > 0 && edits[0].Do == store.Due {
		n := len(slices.DeleteFunc(slices.Clone(done), func(isDone bool) bool { return !isDone }))
		t.e.mu.Lock()
		defer t.e.mu.Unlock()
		if len(t.e.made) == 0 {
			close(t.e.begun)
		}
		t.e.made = append(t.e.made, n)
		t.e.at = append(t.e.at, time.Now())
	}
	return done, err
}

// recovering is a queue whose service is down from its second second on, in virtual time.
type recovering struct {
	engine *dueCounter
	queue  *delivery.Queue[job]
	begun  time.Time
	down   time.Duration // the service answers after this time

	mu   sync.Mutex
	done map[job]time.Duration // when calls succeeded
}

func newRecovering(down time.Duration, layers ...time.Duration) *recovering {
	engine := &dueCounter{Engine: memory.Open(), begun: make(chan struct{})}
	return &recovering{
		engine: engine, begun: time.Now(), down: down, done: map[job]time.Duration{},
		queue: delivery.NewQueue[job](engine, "orders", delivery.RetryAfter(layers...), noLog),
	}
}

func (r *recovering) call(_ context.Context, j job) (string, error) {
	at := time.Since(r.begun)
	time.Sleep(20 * time.Millisecond)
	switch {
	case at >= time.Second && at < r.down:
		return "", &httpretry.StatusError{StatusCode: 503}
	case j == "poison":
		return "", errors.New("the order is damaged")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.done[j] = time.Since(r.begun)
	return "", nil
}

// work runs a worker for a time.
func (r *recovering) work(t *testing.T, d time.Duration, b *backend.Backend) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	time.AfterFunc(d, stop)
	policy := strategies.ReasonAware(httpretry.Classifier[string](), nil).Idempotent()
	op := asyncop.UnorderedWaitWithRetry(asyncop.Blocking(r.call), 10*time.Second, 50, policy,
		asyncop.WithBackend(b), asyncop.WithFailureSink(r.queue.TakeFailure), asyncop.WithLogger(quiet))
	_, err := delivery.Run(ctx, r.queue, op, sinkFunc(func(context.Context, []message.Message[string]) error { return nil }), silently)
	if err != nil {
		t.Error(err)
	}
}

// Law D3: messages that failed because of an outage are due when the service answers
// again, and not after the delay of their layer. Other messages wait for it.
func TestRun_RecoveryMakesMessagesDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const down = 10 * time.Minute
		r := newRecovering(down, time.Hour)
		for i := range 200 {
			require.NoError(t, r.queue.Put(t.Context(), job(fmt.Sprint(i)), delivery.After(2*time.Second)))
		}
		require.NoError(t, r.queue.Put(t.Context(), "poison", delivery.ID("poison")))
		b := backend.New("payments", backend.Limit(20), backend.WithLogger(quiet))
		time.AfterFunc(down-time.Second, func() {
			waits := entriesOf(t, r.engine.Engine, "orders-retry-1")
			assert.Greater(t, len(waits), 20)
			for _, e := range waits {
				if e.Meta.ID == "poison" {
					continue
				}
				o, ok := failed.ReadOutage(e.Meta.Outage)
				assert.True(t, ok, "%+v", e.Meta)
				assert.Equal(t, failed.Outage{Visit: 1, Early: e.Meta.Due.Sub(e.Arrived), Backend: "payments"}, o)
			}
		})
		time.AfterFunc(down+2*time.Minute, func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			assert.Len(t, r.done, 200)
			waits := entriesOf(t, r.engine.Engine, "orders-retry-1")
			if assert.Len(t, waits, 1) {
				assert.Equal(t, "poison", waits[0].Meta.ID)
				assert.Empty(t, waits[0].Meta.Outage)
				assert.Greater(t, time.Until(waits[0].Meta.Due), 45*time.Minute, "it failed 12 minutes ago")
			}
		})
		r.work(t, down+3*time.Minute, b)
	})
}

// waitingAt returns a message that waits in a layer for an hour.
func waitingAt(t *testing.T, id, outage string, visit int) store.Message {
	t.Helper()
	m, err := delivery.NewQueue[job](memory.Open(), "orders").Encode(job(id), delivery.ID(id), delivery.Key(id))
	require.NoError(t, err)
	m.Meta.Visit, m.Meta.FirstFailure, m.Meta.LastFailure = visit, time.Now(), time.Now()
	m.Meta.Outage = outage
	m.Delay = time.Hour
	return m
}

// Only messages whose last visit failed because of an outage of this backend become due.
// A message that was snoozed since, is held, or whose service has demanded a longer delay
// keeps its time.
func TestRun_RecoveryLeavesOthersAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRecovering(0, time.Hour, time.Hour)
		old := waitingAt(t, "before the outage", "1;1h;payments", 1)
		require.NoError(t, r.engine.Put(t.Context(), "orders-retry-1", old))
		time.Sleep(2 * time.Minute)
		b := backend.New("payments", backend.Limit(20), backend.WithLogger(quiet))
		b.Hold("migration")
		for id, outage := range map[string]string{
			"due": "2;1h;payments", "demanded, and over": "2;59m50s;payments",
			"of another visit": "1;1h;payments", "of another backend": "2;1h;payments2", "not an outage": "",
			"demanded": "2;10m;payments", "held": "2;1h;payments", "snoozed": "2;1h;payments",
			"damaged": "2;1h", "damaged, too": "2;x;payments", "negative": "2;-1h;payments",
		} {
			m := waitingAt(t, id, outage, 2)
			if id == "snoozed" {
				m.Delay = 0
			}
			require.NoError(t, r.engine.Put(t.Context(), "orders-retry-2", m))
		}
		require.NoError(t, r.engine.Put(t.Context(), "others-retry-1", waitingAt(t, "of another queue", "1;1h;payments", 1)))
		held, err := r.engine.List(t.Context(), "orders-retry-2", store.Filter{Key: "held"}, store.Page{Max: 1})
		require.NoError(t, err)
		require.NoError(t, r.engine.Update(t.Context(), func(ctx context.Context, tx store.Tx) error {
			_, err := tx.Edit(ctx, store.Edit{Do: store.Hold, Queue: "orders-retry-2", Entry: held[0]})
			return err
		}))
		snoozed, err := r.engine.Take(t.Context(), "orders-retry-2", 10, time.Minute)
		require.NoError(t, err)
		require.Len(t, snoozed, 1)
		require.NoError(t, r.engine.Release(t.Context(), time.Hour, snoozed[0].Lease))

		require.NoError(t, r.queue.Put(t.Context(), "probe"))
		time.AfterFunc(30*time.Second, b.Resume)
		r.work(t, 2*time.Minute, b)
		var stay []string
		for _, queue := range []string{"orders-retry-1", "orders-retry-2", "others-retry-1"} {
			for _, e := range entriesOf(t, r.engine.Engine, queue) {
				require.Greater(t, time.Until(e.Meta.Due), 50*time.Minute, e.Meta.ID)
				stay = append(stay, e.Meta.ID)
			}
		}
		slices.Sort(stay)
		require.Equal(t, []string{
			"before the outage", "damaged", "damaged, too", "demanded", "held", "negative", "not an outage",
			"of another backend", "of another queue", "of another visit", "snoozed",
		}, stay)
	})
}

// Of several workers one at a time makes messages due, and at the pace of the ramp: 16
// calls a second at its end, if there were no calls before.
func TestRun_RecoveryAtThePaceOfTheRamp(t *testing.T) {
	for _, isShared := range []bool{false, true} {
		t.Run(fmt.Sprint("shared ", isShared), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { recoverWithWorkers(t, isShared) })
		})
	}
}

func recoverWithWorkers(t *testing.T, isShared bool) {
	r := newRecovering(0, time.Hour)
	for i := range 100 {
		require.NoError(t, r.engine.Put(t.Context(), "orders-retry-1", waitingAt(t, fmt.Sprint(i), "1;1h;payments", 1)))
	}
	for i := range 3 { // the service of each backend is tried by a message
		require.NoError(t, r.queue.Put(t.Context(), job(fmt.Sprint("probe", i))))
	}
	var workers sync.WaitGroup
	var backends []*backend.Backend
	for range 3 {
		opts := []backend.Option{backend.Limit(20), backend.WithLogger(quiet)}
		if isShared {
			opts = append(opts, backend.Shared(r.engine))
		}
		b := backend.New("payments", opts...)
		b.Hold("migration")
		time.AfterFunc(30*time.Second, b.Resume)
		workers.Go(func() { r.work(t, 2*time.Minute, b) })
		backends = append(backends, b)
	}
	late := waitingAt(t, "late", "1;1h;payments", 1) // it comes to the layer after all recoveries have begun
	workers.Go(func() {
		isDown := func(b *backend.Backend) bool { return gate.Of(b).Report().Recovery.Pace == 0 }
		for slices.ContainsFunc(backends, isDown) && time.Since(r.begun) < time.Minute {
			time.Sleep(100 * time.Millisecond)
		}
		assert.NoError(t, r.engine.Put(t.Context(), "orders-retry-1", late))
	})
	workers.Go(func() {
		<-r.engine.begun
		held, err := r.engine.Locks().Held(t.Context(), "")
		assert.NoError(t, err)
		isOutbox := func(h lock.Holding) bool { return !strings.HasPrefix(h.Name, "weir-jobs/") }
		assert.False(t, slices.ContainsFunc(held, isOutbox), "weir outbox would list %v", held)
		assert.NotEmpty(t, held)
	})
	workers.Wait()
	require.Len(t, r.done, 103)
	require.Len(t, entriesOf(t, r.engine.Engine, "orders-retry-1"), 1)
	require.Less(t, r.engine.made[0], 8, "at the start of the ramp")
	total := 0
	for i, n := range r.engine.made {
		total += n
		require.LessOrEqual(t, n, 16)
		if i > 0 && n > 0 && r.engine.made[i-1] > 0 {
			require.GreaterOrEqual(t, r.engine.at[i].Sub(r.engine.at[i-1]), time.Second)
		}
	}
	require.Equal(t, 100, total)
}

// A backend that is down again stops the order, and its next recovery continues it.
func TestRun_RecoveryStopsAtARelapse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRecovering(0, time.Hour)
		for i := range 100 {
			require.NoError(t, r.engine.Put(t.Context(), "orders-retry-1", waitingAt(t, fmt.Sprint(i), "1;1h;payments", 1)))
		}
		require.NoError(t, r.queue.Put(t.Context(), "probe"))
		require.NoError(t, r.queue.Put(t.Context(), "another probe", delivery.After(59*time.Second)))
		b := backend.New("payments", backend.Limit(20), backend.WithLogger(quiet))
		b.Hold("migration")
		time.AfterFunc(5*time.Second, b.Resume)
		time.AfterFunc(8500*time.Millisecond, func() { b.Hold("again") })
		var left atomic.Int64
		time.AfterFunc(time.Minute, func() {
			for _, e := range entriesOf(t, r.engine.Engine, "orders-retry-1") {
				if e.Meta.Due.After(time.Now()) {
					left.Add(1)
				}
			}
			b.Resume()
		})
		r.work(t, 2*time.Minute, b)
		require.Greater(t, left.Load(), int64(50))
		require.Less(t, left.Load(), int64(100))
		require.Len(t, r.done, 102)
	})
}

// After errors of the engine the worker tries again.
func TestRun_RecoveryTriesAgain(t *testing.T) {
	for _, step := range []string{"lock", "queues", "list", "edit"} {
		t.Run(step, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRecovering(0, time.Hour)
				for i := range 100 {
					require.NoError(t, r.engine.Put(t.Context(), "orders-retry-1", waitingAt(t, fmt.Sprint(i), "1;1h;payments", 1)))
				}
				require.NoError(t, r.queue.Put(t.Context(), "probe"))
				b := backend.New("payments", backend.Limit(20), backend.WithLogger(quiet))
				b.Hold("migration")
				time.AfterFunc(5*time.Second, func() {
					r.engine.mu.Lock()
					r.engine.fails = map[string]int{step: 3}
					r.engine.mu.Unlock()
					b.Resume()
				})
				r.work(t, time.Minute, b)
				require.Zero(t, r.engine.fails[step])
				require.Len(t, r.done, 101)
			})
		})
	}
}

// Messages that keep their time do not slow down the others: they do not count for the
// pace, wherever they are in the layer.
func TestRun_RecoveryAmongOtherMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRecovering(0, time.Hour)
		var want []job
		for i := range 20 {
			for j := range 250 {
				outage := []string{"", "1;1h;payments", "1;10m;payments"}[j%3]
				m := waitingAt(t, fmt.Sprint(i, " ", j), outage, 1)
				m.Meta.Key = ""
				if j%3 == 1 {
					m.Meta.Key = "held"
				}
				require.NoError(t, r.engine.Put(t.Context(), "orders-retry-1", m))
			}
			want = append(want, job(fmt.Sprint(i)))
			require.NoError(t, r.engine.Put(t.Context(), "orders-retry-1", waitingAt(t, fmt.Sprint(i), "1;1h;payments", 1)))
		}
		held, err := r.engine.List(t.Context(), "orders-retry-1", store.Filter{Key: "held"}, store.Page{Max: 10_000})
		require.NoError(t, err)
		var edits []store.Edit
		for _, e := range held {
			edits = append(edits, store.Edit{Do: store.Hold, Queue: "orders-retry-1", Entry: e})
		}
		require.NoError(t, r.engine.Update(t.Context(), func(ctx context.Context, tx store.Tx) error {
			_, err := tx.Edit(ctx, edits...)
			return err
		}))
		require.NoError(t, r.queue.Put(t.Context(), "probe"))
		b := backend.New("payments", backend.Limit(20), backend.WithLogger(quiet))
		b.Hold("migration")
		time.AfterFunc(5*time.Second, b.Resume)
		r.work(t, 20*time.Second, b)
		for _, j := range want {
			require.Contains(t, r.done, j)
		}
		require.Len(t, r.done, 21)
	})
}

// aheadClock is a clock that is ahead of the others.
type aheadClock struct {
	clock.Clock
	by time.Duration
}

func (c aheadClock) Now() time.Time { return c.Clock.Now().Add(c.by) }

// The times of messages are those of the engine's clock.
func TestRun_RecoveryByTheClockOfTheEngine(t *testing.T) {
	for _, ahead := range []time.Duration{-3 * time.Hour, 3 * time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			r := newRecovering(0, time.Hour)
			r.engine.Engine = memory.Open(memory.WithClock(aheadClock{clock.New(), ahead}))
			require.NoError(t, r.engine.Put(t.Context(), "orders-retry-1", waitingAt(t, "before the outage", "1;1h;payments", 1)))
			time.Sleep(2 * time.Minute)
			require.NoError(t, r.engine.Put(t.Context(), "orders-retry-1",
				waitingAt(t, "due", "1;1h;payments", 1), waitingAt(t, "demanded", "1;30m;payments", 1)))
			time.Sleep(50 * time.Second) // the first calls of an outage are lost before it is found
			require.NoError(t, r.queue.Put(t.Context(), "probe"))
			b := backend.New("payments", backend.Limit(20), backend.WithLogger(quiet))
			b.Hold("migration")
			time.AfterFunc(4*time.Second, b.Resume)
			r.work(t, 20*time.Second, b)
			require.Contains(t, r.done, job("due"))
			require.Len(t, r.done, 2)
		})
	}
}

// A message whose call was answered, and that then waited for its backend until its time
// ran out, has failed because of the backend.
func TestRun_RecoveryOfAMessageThatWaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRecovering(0, time.Hour)
		require.NoError(t, r.queue.Put(t.Context(), "a"))
		b := backend.New("payments", backend.Limit(20), backend.WithLogger(quiet))
		policy := strategies.PolicyOf(strategies.FixedDelay[string](3, time.Second).RetryIfException(predicates.HasException)).Idempotent()
		op := asyncop.UnorderedWaitWithRetry(asyncop.Blocking(func(context.Context, job) (string, error) {
			b.Hold("migration")
			return "", &httpretry.StatusError{StatusCode: 500}
		}), 10*time.Second, 50, policy, asyncop.WithBackend(b), asyncop.WithFailureSink(r.queue.TakeFailure), asyncop.WithLogger(quiet))
		ctx, stop := context.WithTimeout(t.Context(), 15*time.Second)
		defer stop()
		_, err := delivery.Run(ctx, r.queue, op, sinkFunc(func(context.Context, []message.Message[string]) error { return nil }), silently)
		require.NoError(t, err)
		waits := entriesOf(t, r.engine.Engine, "orders-retry-1")
		require.Len(t, waits, 1)
		o, ok := failed.ReadOutage(waits[0].Meta.Outage)
		require.True(t, ok)
		require.Equal(t, "payments", o.Backend)
	})
}

// An outage of a tenant is not an outage of the backend.
func TestRun_NoRecoveryOfATenant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCustomers()
		c.down["a"] = time.Hour
		c.put(t, "a", 20)
		c.work(t, 500*time.Millisecond, backend.New("customers", backend.TenantBreaker(), backend.WithLogger(quiet)))
		waits := entriesOf(t, c.engine, "hooks-retry-1")
		require.NotEmpty(t, waits)
		for _, e := range waits {
			require.Empty(t, e.Meta.Outage)
		}
	})
}
