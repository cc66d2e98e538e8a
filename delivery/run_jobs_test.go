package delivery_test

import (
	"context"
	"encoding/json"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/backend"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
)

// A worker reports its state, and runs the jobs of its engine beside its messages
// (law J1).
func TestRunRunsJobs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := memory.Open()
		q := delivery.NewQueue[int](engine, "numbers")
		texts := delivery.NewQueue[string](engine, "texts")
		require.NoError(t, q.Put(t.Context(), 7))
		j, err := jobs.New(engine, jobs.Config{})
		require.NoError(t, err)

		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		var up atomic.Bool
		op := operator(func(ctx context.Context, i int) (string, error) {
			if !up.Load() {
				return "", errors.New("down: https://ann:s3cret@pay")
			}
			return itoa(ctx, i)
		})
		go func() { // ends with ctx
			_, err := delivery.Run(ctx, q, op, texts, silently)
			ended <- err
		}()
		time.Sleep(time.Second)
		workers, err := j.Workers(t.Context())
		require.NoError(t, err)
		require.Len(t, workers, 1)
		require.Equal(t, []string{"numbers", "texts"}, workers[0].Queues)
		require.Equal(t, "numbers", workers[0].Reads)
		require.Contains(t, string(workers[0].Counts), `"Redelivered":0`)
		since := workers[0].Since

		m, err := q.Encode(8, delivery.ID("8"))
		require.NoError(t, err)
		require.NoError(t, engine.Put(t.Context(), q.DeadLetters(), m))
		up.Store(true)
		job, err := j.Start(t.Context(), jobs.Spec{Do: store.Merge, Queue: q.DeadLetters(), To: q.Name(), By: "ann", Why: "test"})
		require.NoError(t, err)
		held, err := j.Start(t.Context(), jobs.Spec{Do: store.Hold, Queue: "texts", By: "ann", Why: "test"})
		require.NoError(t, err)
		time.Sleep(25 * time.Second)
		job, err = j.Get(t.Context(), job.ID)
		require.NoError(t, err)
		require.Equal(t, "done", job.State())
		held, err = j.Get(t.Context(), held.ID)
		require.NoError(t, err)
		require.Equal(t, "done", held.State())
		counts, err := texts.Counts(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, counts.Waiting)

		time.Sleep(20 * time.Second)
		workers, err = j.Workers(t.Context())
		require.NoError(t, err)
		require.Equal(t, since, workers[0].Since)
		require.WithinDuration(t, time.Now(), workers[0].Seen, 20*time.Second)
		var summary delivery.Summary
		require.NoError(t, json.Unmarshal(workers[0].Counts, &summary))
		require.Equal(t, 2, summary.Received)
		var stats struct {
			Completed int
			LastError string
		}
		require.NoError(t, json.Unmarshal(workers[0].Operators[0], &stats))
		require.Equal(t, 1, stats.Completed)
		require.Equal(t, "down: https://ann:xxxxx@pay", stats.LastError)
		require.NotContains(t, string(workers[0].Operators[0]), "s3cret", "nor in a group of failures")

		stop()
		require.NoError(t, <-ended)
		workers, err = j.Workers(t.Context())
		require.NoError(t, err)
		require.Empty(t, workers, "a worker that has ended")
	})
}

// An order for a backend reaches all workers of the engine at once, and they report its
// state.
func TestRunSteersItsBackend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := memory.Open()
		q := delivery.NewQueue[int](engine, "numbers", silently)
		j, err := jobs.New(engine, jobs.Config{})
		require.NoError(t, err)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 2)
		var backends []*backend.Backend
		for range 2 {
			b := backend.New("pay", backend.Limit(4), backend.WithLogger(quiet))
			backends = append(backends, b)
			op := operator(itoa, asyncop.WithBackend(b))
			go func() { // ends with ctx
				_, err := delivery.Run(ctx, q, op, &collected{}, silently)
				ended <- err
			}()
		}
		synctest.Wait()
		all := func(state backend.State, reason string, limit int) {
			t.Helper()
			synctest.Wait()
			for _, b := range backends {
				s := b.Stats()
				require.Equal(t, state, s.State)
				require.Equal(t, reason, s.Reason)
				require.Equal(t, limit, s.Limit)
			}
		}
		all(backend.Up, "", 4)
		held := time.Now()
		_, err = j.HoldBackend(t.Context(), "pay", "ann", "they migrate")
		require.NoError(t, err)
		all(backend.Held, "they migrate (ann)", 4)
		_, err = j.HoldBackend(t.Context(), "mail", "ann", "another one")
		require.NoError(t, err)
		_, err = j.LimitBackend(t.Context(), "pay", 2, "ann", "slow")
		require.NoError(t, err)
		synctest.Wait()
		require.NoError(t, q.Put(t.Context(), 1))
		time.Sleep(25 * time.Second)
		workers, err := j.Workers(t.Context())
		require.NoError(t, err)
		require.Len(t, workers, 2)
		for _, w := range workers {
			require.Len(t, w.Backends, 1)
			require.WithinDuration(t, held, w.Backends[0].Since, 0)
			w.Backends[0].Since, w.Backends[0].Waiting = time.Time{}, 0
			require.Len(t, w.Backends[0].States, 2)
			require.Equal(t, []string{"up", "held"}, []string{w.Backends[0].States[0].State, w.Backends[0].States[1].State})
			w.Backends[0].States = nil
			require.Equal(t, jobs.Backend{Name: "pay", State: "held", Why: "they migrate (ann)", Limit: 2}, w.Backends[0])
		}
		_, err = j.ResumeBackend(t.Context(), "pay", "ann", "done")
		require.NoError(t, err)
		time.Sleep(time.Second)
		require.Equal(t, int64(1), backends[0].Stats().Started+backends[1].Stats().Started)
		_, err = j.LimitBackend(t.Context(), "pay", -1, "ann", "fast")
		require.NoError(t, err)
		synctest.Wait()
		require.Equal(t, 4, backends[0].Stats().Limit)
		stop()
		require.NoError(t, <-ended)
		require.NoError(t, <-ended)
	})
}

// Regression: the report of a worker left out that its backend is shared, so a fleet had
// a state for each process and the sum of their limits.
func TestRun_ReportsASharedBackend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := memory.Open()
		q := delivery.NewQueue[int](engine, "numbers", silently)
		j, err := jobs.New(engine, jobs.Config{})
		require.NoError(t, err)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 2)
		for range 2 {
			pay := backend.New("pay", backend.Limit(50), backend.Shared(engine), backend.WithLogger(quiet))
			op := operator(itoa, asyncop.WithBackend(pay))
			go func() { // ends with ctx
				_, err := delivery.Run(ctx, q, op, &collected{}, silently)
				ended <- err
			}()
		}
		_, err = j.HoldBackend(t.Context(), "pay", "ann", "they migrate")
		require.NoError(t, err)
		time.Sleep(25 * time.Second)
		workers, err := j.Workers(t.Context())
		require.NoError(t, err)
		services := jobs.Services(workers, time.Now())
		require.Len(t, services, 1)
		s := services[0]
		require.Len(t, s.Processes, 2)
		require.Equal(t, []int{50, 50}, []int{s.Processes[0].Fleet, s.Processes[1].Fleet})
		s.Processes, s.Since = nil, time.Time{}
		require.Equal(t, jobs.Service{
			Name: "pay", IsShared: true, State: "held", In: 2, Reporting: 2, Why: "they migrate (ann)", Limit: 50, Waiting: s.Waiting,
		}, s)
		stop()
		require.NoError(t, <-ended)
		require.NoError(t, <-ended)
	})
}
