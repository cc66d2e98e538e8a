package delivery_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

// inOrder runs a worker that keeps the order of keys for a time, and returns the visits
// that it makes.
func inOrder(t *testing.T, q *delivery.Queue[job], d time.Duration, f func(context.Context, job) error) (visits []string) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	time.AfterFunc(d, stop)
	var mu sync.Mutex
	_, err := delivery.Run(ctx, q, operate(q, func(ctx context.Context, j job) (string, error) {
		mu.Lock()
		visits = append(visits, string(j))
		mu.Unlock()
		return "", f(ctx, j)
	}), sinkFunc(func(context.Context, []message.Message[string]) error { return nil }), silently, delivery.WithFloodGuard(1, 100))
	require.NoError(t, err)
	return visits
}

func done(context.Context, job) error { return nil }

func inLayer(id string, visit int, delay time.Duration) store.Message {
	return store.Message{Meta: message.Meta{ID: id, Key: "k", Visit: visit}, Payload: []byte(`"` + id + `"`), Delay: delay}
}

// Regression: a message that waits in a layer of another version of the program did not
// block later messages of its key.
func TestWithKeepKeyOrder_LayerOfAnotherVersion(t *testing.T) {
	for what, after := range map[string]time.Duration{"before the worker": 0, "while it works": time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			engine := memory.Open()
			q := delivery.NewQueue[job](engine, "jobs", delivery.RetryAfter(time.Second), delivery.WithKeepKeyOrder(100), noLog)
			if after == 0 {
				require.NoError(t, engine.Put(t.Context(), "jobs-retry-3", inLayer("first", 3, 20*time.Minute)))
			}
			time.AfterFunc(after, func() {
				_ = engine.Put(t.Context(), "jobs-retry-3", inLayer("first", 3, 20*time.Minute))
			})
			time.AfterFunc(6*time.Minute, func() { _ = q.Put(t.Context(), "second", delivery.ID("second"), delivery.Key("k")) })
			require.Equal(t, []string{"first", "second"}, inOrder(t, q, time.Hour, done), what)
		})
	}
}

// Regression: no provider could be chosen for a message of a layer, or of those behind
// it.
func TestWithKeepKeyOrder_Provider(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := memory.Open()
		q := delivery.NewQueue[job](engine, "jobs", delivery.RetryAfter(time.Minute), delivery.WithKeepKeyOrder(100), noLog)
		for _, id := range []string{"first", "second"} {
			require.NoError(t, q.Put(t.Context(), job(id), delivery.ID(id), delivery.Key("k")))
		}
		chosen := map[string]bool{}
		visits := inOrder(t, q, time.Hour, func(ctx context.Context, j job) error {
			meta, _ := message.MetaFromContext(ctx)
			if meta.Visit == 1 && j == "first" {
				return errBusy
			}
			provider, err := q.Provider(ctx, func() string { return "north" })
			require.NoError(t, err, j)
			chosen[string(j)] = provider == "north"
			return nil
		})
		require.Equal(t, []string{"first", "first", "second"}, visits)
		require.Equal(t, map[string]bool{"first": true, "second": true}, chosen)
		counts, err := q.Counts(t.Context())
		require.NoError(t, err)
		require.Equal(t, delivery.QueueCounts{}, counts)
	})
}

// waking is an engine that wakes its consumers, and counts what they ask.
type waking struct {
	*memory.Engine

	mu    sync.Mutex
	takes map[string]int // by queue
}

func (w *waking) Take(ctx context.Context, queue string, limit int, lease time.Duration) ([]store.Leased, error) {
	w.mu.Lock()
	w.takes[queue]++
	w.mu.Unlock()
	return w.Engine.Take(ctx, queue, limit, lease)
}

func (w *waking) Wake(ctx context.Context, _ string, wake func(misses bool)) error {
	wake(false)
	<-ctx.Done()
	return context.Cause(ctx)
}

// Regression: with the order of keys the layers were polled, though the engine wakes.
func TestWithKeepKeyOrder_IdleWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := &waking{Engine: memory.Open(), takes: map[string]int{}}
		q := delivery.NewQueue[job](engine, "jobs", delivery.RetryAfter(time.Minute, time.Hour), delivery.WithKeepKeyOrder(100), noLog)
		inOrder(t, q, 10*time.Second, done)
		for queue, n := range engine.takes {
			require.LessOrEqual(t, n, 3, queue)
		}
		require.NotZero(t, engine.takes["jobs-retry-2"])
		require.Zero(t, engine.takes["jobs-blocked"], "it is in memory which keys are free")
	})
}

// Regression: a Receive that panicked left the queue locked.
func TestReceiveBesideASourceInOrder(t *testing.T) {
	q := delivery.NewQueue[job](memory.Open(), "jobs", delivery.WithKeepKeyOrder(100), noLog)
	s := q.Source(nil)
	require.Panics(t, func() { _, _ = q.Receive(t.Context(), 1) })
	require.NoError(t, q.Close(t.Context()))
	require.NoError(t, s.Close(t.Context()))
}

// A worker whose engine is closed ends, and its error names the queue.
func TestRun_EngineIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := memory.Open()
		q := delivery.NewQueue[job](engine, "jobs", delivery.RetryAfter(time.Minute), noLog)
		time.AfterFunc(time.Minute, func() { _ = engine.Close() })
		_, err := delivery.Run(t.Context(), q, operate(q, func(context.Context, job) (string, error) { return "", nil }), &collected{}, silently)
		require.ErrorIs(t, err, store.ErrClosed)
		require.ErrorContains(t, err, `queue "jobs"`)
	})
}

// A message of a layer that a person makes due keeps its visits and its place before the
// others of its key. Regression (law D1): a merge into its queue lost it, because it was
// taken for a redelivery of the message in the layer.
func TestWithKeepKeyOrder_MessageMadeDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := memory.Open()
		q := delivery.NewQueue[job](engine, "jobs", delivery.RetryAfter(time.Hour, 10*time.Hour), delivery.WithKeepKeyOrder(100), noLog)
		for _, id := range []string{"first", "second"} {
			require.NoError(t, q.Put(t.Context(), job(id), delivery.ID(id), delivery.Key("k")))
		}
		time.AfterFunc(time.Minute, func() {
			j, err := jobs.New(engine, jobs.Config{Logger: quiet})
			require.NoError(t, err)
			spec := jobs.Spec{Do: store.Merge, Queue: "jobs-retry-1", To: "jobs", By: "ann", Why: "test"}
			_, err = j.Start(t.Context(), spec)
			require.Error(t, err)
			spec.Do, spec.To = store.Due, ""
			now, err := j.Start(t.Context(), spec)
			require.NoError(t, err)
			now, err = j.Run(t.Context(), now.ID, nil)
			require.NoError(t, err)
			require.Equal(t, 1, now.Done)
		})
		begun := time.Now()
		var mu sync.Mutex
		var at []string
		visits := inOrder(t, q, 5*time.Hour, func(ctx context.Context, _ job) error {
			mu.Lock()
			defer mu.Unlock()
			meta, _ := message.MetaFromContext(ctx)
			at = append(at, fmt.Sprintf("%s %d", time.Since(begun).Round(time.Minute), meta.Visit))
			if len(at) == 1 {
				return errors.New("busy")
			}
			return nil
		})
		require.Equal(t, []string{"first", "first", "second"}, visits)
		require.Equal(t, []string{"0s 1", "1m0s 2", "1m0s 1"}, at)
	})
}

// unwoken is an engine that consumers poll.
type unwoken struct{ *memory.Engine }

func (unwoken) Wake(ctx context.Context, _ string, _ func(misses bool)) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

// Regression (law D4): a held message that a worker had taken before made the next worker
// that keeps the order wait for it, and take no message.
func TestWithKeepKeyOrder_HeldMessage(t *testing.T) {
	for what, late := range map[string]bool{"before the worker": false, "before its lease has ended": true} {
		synctest.Test(t, func(t *testing.T) {
			engine := unwoken{memory.Open()} // it looks only after the message was held
			q := delivery.NewQueue[job](engine, "jobs", delivery.WithKeepKeyOrder(100), noLog)
			for _, id := range []string{"first", "second"} {
				require.NoError(t, q.Put(t.Context(), job(id), delivery.ID(id), delivery.Key(id)))
			}
			taken, err := engine.Take(t.Context(), "jobs", 1, 10*time.Second)
			require.NoError(t, err)
			hold := func() {
				j, err := jobs.New(engine, jobs.Config{Logger: quiet})
				require.NoError(t, err)
				spec := jobs.Spec{Do: store.Hold, Queue: "jobs", Filter: store.Filter{IDs: []string{"first"}}, By: "ann", Why: "test"}
				held, err := j.Start(t.Context(), spec)
				require.NoError(t, err)
				held, err = j.Run(t.Context(), held.ID, nil)
				require.NoError(t, err)
				require.Equal(t, 1, held.Done)
			}
			if late {
				time.AfterFunc(10*time.Second, hold)
			} else {
				require.NoError(t, engine.Release(t.Context(), 0, taken[0].Lease))
				hold()
			}
			require.Equal(t, []string{"second"}, inOrder(t, q, time.Hour, done), what)
		})
	}
}

func logTo(log *bytes.Buffer) delivery.QueueOption {
	return delivery.WithLogger(slog.New(slog.NewTextHandler(log, nil)))
}

// Regression: messages that waited behind others of their key stayed for ever, in
// silence, when the next version of the program did not have WithKeepKeyOrder.
func TestWithKeepKeyOrder_DroppedByAVersion(t *testing.T) {
	for what, fair := range map[string][]delivery.QueueOption{"the oldest first": nil, "keys in rounds": {delivery.WithFairByKey(1)}} {
		synctest.Test(t, func(t *testing.T) {
			engine := memory.Open()
			before := delivery.NewQueue[job](engine, "jobs", delivery.RetryAfter(time.Hour), delivery.WithKeepKeyOrder(100), noLog)
			for _, id := range []string{"first", "second", "third"} {
				require.NoError(t, before.Put(t.Context(), job(id), delivery.ID(id), delivery.Key("k")))
			}
			require.Equal(t, []string{"first"}, inOrder(t, before, time.Minute, func(context.Context, job) error { return errBusy }), what)
			require.Len(t, entriesOf(t, engine, "jobs-blocked"), 2)

			var log bytes.Buffer
			after := delivery.NewQueue[job](engine, "jobs", append(fair, delivery.RetryAfter(time.Hour), logTo(&log))...)
			time.AfterFunc(time.Minute, func() { // a worker of the version before still runs
				_ = engine.Put(context.Background(), "jobs-blocked", inLayer("fourth", 0, 0))
			})
			visits := inOrder(t, after, 7*time.Minute, done)
			require.ElementsMatch(t, []string{"second", "third", "fourth"}, visits, what)
			require.Equal(t, "fourth", visits[2])
			require.Equal(t, []string{"first"}, inOrder(t, after, 2*time.Hour, done), what)
			counts, err := after.Counts(t.Context())
			require.NoError(t, err)
			require.Equal(t, delivery.QueueCounts{}, counts)
			require.Equal(t, 1, strings.Count(log.String(), "level=WARN"), log.String())
			require.Contains(t, log.String(), "does not have WithKeepKeyOrder")
			require.Contains(t, log.String(), "queue=jobs-blocked")
		})
	}
}

// A version with WithKeepKeyOrder does not take parked messages for messages of another
// version, and a version without has no reason to warn.
func TestWithKeepKeyOrder_OneVersion(t *testing.T) {
	for what, order := range map[string][]delivery.QueueOption{"with": {delivery.WithKeepKeyOrder(100)}, "without": nil} {
		synctest.Test(t, func(t *testing.T) {
			var log bytes.Buffer
			engine := memory.Open()
			q := delivery.NewQueue[job](engine, "jobs", append(order, delivery.RetryAfter(10*time.Minute), logTo(&log))...)
			other := delivery.NewQueue[job](engine, "other-jobs", delivery.WithKeepKeyOrder(100), noLog)
			require.NoError(t, engine.Put(t.Context(), other.Name()+"-blocked", inLayer("of another queue", 0, 0)))
			for _, id := range []string{"first", "second"} {
				require.NoError(t, q.Put(t.Context(), job(id), delivery.ID(id), delivery.Key("k")))
			}
			visits := inOrder(t, q, time.Hour, func(ctx context.Context, j job) error {
				if meta, _ := message.MetaFromContext(ctx); j == "first" && meta.Visit == 1 {
					return errBusy
				}
				return nil
			})
			if what == "with" {
				require.Equal(t, []string{"first", "first", "second"}, visits)
			} else {
				require.ElementsMatch(t, []string{"first", "second", "first"}, visits)
			}
			require.NotContains(t, log.String(), "WithKeepKeyOrder", what)
			require.Len(t, entriesOf(t, engine, "other-jobs-blocked"), 1)
		})
	}
}

// Messages that wait in layers when a version adds WithKeepKeyOrder block later messages
// of their keys.
func TestWithKeepKeyOrder_AddedByAVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := memory.Open()
		before := delivery.NewQueue[job](engine, "jobs", delivery.RetryAfter(time.Hour), noLog)
		require.NoError(t, before.Put(t.Context(), "first", delivery.ID("first"), delivery.Key("k")))
		require.Equal(t, []string{"first"}, inOrder(t, before, time.Minute, func(context.Context, job) error { return errBusy }))

		after := delivery.NewQueue[job](engine, "jobs", delivery.RetryAfter(time.Hour), delivery.WithKeepKeyOrder(100), noLog)
		require.NoError(t, after.Put(t.Context(), "second", delivery.ID("second"), delivery.Key("k")))
		require.Equal(t, []string{"first", "second"}, inOrder(t, after, 2*time.Hour, done))
	})
}

// In a rollout, workers with and without WithKeepKeyOrder share a queue for a while. Each
// message is done once, whoever goes first.
func TestWithKeepKeyOrder_Rollout(t *testing.T) {
	with := []delivery.QueueOption{delivery.WithKeepKeyOrder(100)}
	for what, versions := range map[string][2][]delivery.QueueOption{"drops": {with, nil}, "adds": {nil, with}} {
		synctest.Test(t, func(t *testing.T) {
			engine := memory.Open()
			version := func(order []delivery.QueueOption) *delivery.Queue[job] {
				return delivery.NewQueue[job](engine, "jobs", append(order, delivery.RetryAfter(5*time.Second, time.Minute), noLog)...)
			}
			before, after := version(versions[0]), version(versions[1])
			var mu sync.Mutex
			got, want := map[job]int{}, map[job]int{}
			call := func(ctx context.Context, j job) error {
				meta, _ := message.MetaFromContext(ctx)
				time.Sleep(100 * time.Millisecond)
				if len(j)%3 == meta.Visit { // of three messages, one fails once, and another fails at its second visit
					return errBusy
				}
				mu.Lock()
				defer mu.Unlock()
				got[j]++
				return nil
			}
			var workers sync.WaitGroup
			workers.Go(func() { inOrder(t, before, 3*time.Minute, call) })
			workers.Go(func() {
				time.Sleep(time.Minute)
				inOrder(t, after, time.Hour, call)
			})
			for i := range 400 {
				j := job(strings.Repeat("j", i+1))
				require.NoError(t, before.Put(t.Context(), j, delivery.ID(fmt.Sprint(i)), delivery.Key(fmt.Sprint(i%10))))
				want[j] = 1
				time.Sleep(500 * time.Millisecond)
			}
			workers.Wait()
			require.True(t, maps.Equal(want, got), what)
			counts, err := after.Counts(t.Context())
			require.NoError(t, err)
			require.Equal(t, delivery.QueueCounts{}, counts, what)
		})
	}
}

// Regression (law D1): a message that a worker of another version had taken from its
// layer and put back into the queue was taken for a redelivery of the message in the
// layer, and acknowledged without a call. A merge of the dead letter that it has made is
// such a message, too.
func TestWithKeepKeyOrder_TakenByAnotherVersion(t *testing.T) {
	for what, back := range map[string]message.Meta{
		"an outage without layers": {ID: "first", Key: "k", Visit: 2},
		"a merge":                  {ID: "first", Key: "k", Merges: 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			engine := memory.Open()
			q := delivery.NewQueue[job](engine, "jobs", delivery.RetryAfter(10*time.Minute), delivery.WithKeepKeyOrder(100), noLog)
			require.NoError(t, q.Put(t.Context(), "first", delivery.ID("first"), delivery.Key("k")))
			time.AfterFunc(time.Minute, func() {
				if n, err := engine.Purge(context.Background(), "jobs-retry-1", store.Filter{}); n != 1 || err != nil {
					t.Errorf("Purge returned %d, %v", n, err)
				}
				_ = engine.Put(context.Background(), "jobs", store.Message{Meta: back, Payload: []byte(`"first"`)})
			})
			visits := inOrder(t, q, time.Hour, func(ctx context.Context, _ job) error {
				if meta, _ := message.MetaFromContext(ctx); meta.Visit == 1 && meta.Merges == 0 {
					return errBusy
				}
				return nil
			})
			require.Equal(t, []string{"first", "first"}, visits, what)
			counts, err := q.Counts(t.Context())
			require.NoError(t, err)
			require.Equal(t, delivery.QueueCounts{}, counts, what)
		})
	}
}
