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

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/memory"
)

// A worker says what it does, and runs the jobs of its engine beside its messages (law J1).
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
				return "", errors.New("down")
			}
			return itoa(ctx, i)
		})
		go func() { // ends with ctx
			_, err := delivery.Run(ctx, q, op, texts, silent)
			ended <- err
		}()
		time.Sleep(time.Second)
		workers, err := j.Workers(t.Context())
		require.NoError(t, err)
		require.Len(t, workers, 1)
		require.Equal(t, []string{"numbers", "texts"}, workers[0].Queues)
		since := workers[0].Since

		m, err := q.Encode(8, delivery.ID("8"))
		require.NoError(t, err)
		require.NoError(t, engine.Put(t.Context(), q.DeadLetters(), m))
		up.Store(true)
		job, err := j.Start(t.Context(), jobs.Spec{Do: jobs.Merge, Queue: q.DeadLetters(), To: q.Name(), By: "ann", Why: "test"})
		require.NoError(t, err)
		held, err := j.Start(t.Context(), jobs.Spec{Do: jobs.Hold, Queue: "texts", By: "ann", Why: "test"})
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
		require.Equal(t, "down", stats.LastError)

		stop()
		require.NoError(t, <-ended)
		workers, err = j.Workers(t.Context())
		require.NoError(t, err)
		require.Empty(t, workers, "a worker that has ended")
	})
}
