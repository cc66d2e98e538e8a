package jobs_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/guard"
)

// The first live worker removes silent workers, and the others need not decode all
// reports at each heartbeat (law W3).
func TestJobsWork_SilentWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		report, listed, work := silentWorkers(t)
		report("!", time.Now()) // before all ids
		report("#", time.Now().Add(-time.Hour))
		report("~", time.Now().Add(-time.Hour))
		defer work()()
		time.Sleep(time.Minute)
		require.Equal(t, []string{"!", "#", "~"}, listed(), "the first worker lives, and removes the others")
		time.Sleep(90 * time.Second)
		require.Empty(t, listed(), "the first worker is silent as well")

		report("~", time.Now())
		time.Sleep(time.Minute)
		require.Equal(t, []string{"~"}, listed())
		time.Sleep(90 * time.Second)
		require.Empty(t, listed())
	})
}

// A worker reported itself when the engine's clock was 12 h ahead, and died. Its report is
// removed like the others, although it has the first id.
func TestJobsWork_SilentWorkers_ReportFromTheFuture(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		report, listed, work := silentWorkers(t)
		report("!", time.Now().Add(12*time.Hour))
		report("#", time.Now().Add(-time.Hour))
		report("~", time.Now().Add(time.Minute)) // the clocks of a cluster differ a little
		defer work()()
		time.Sleep(time.Second)
		require.Equal(t, []string{"~"}, listed())
		time.Sleep(4 * time.Minute)
		require.Empty(t, listed())
	})
}

// runEach runs work for n workers until stop is called. They start at different times of a
// period. work returns when ctx ends.
func runEach(t *testing.T, n int, period time.Duration, work func(ctx context.Context, worker int)) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var ended sync.WaitGroup
	for i := range n {
		ended.Go(func() { // ends with ctx
			time.Sleep(time.Duration(i) * period / time.Duration(n))
			work(ctx, i)
		})
	}
	return func() {
		cancel()
		ended.Wait()
	}
}

// silentWorkers returns functions to write the report of a worker whose id has one
// character, to list these workers, and to run a live worker, which returns how to stop
// it.
func silentWorkers(t *testing.T) (report func(id string, seen time.Time), listed func() []string, work func() context.CancelFunc) {
	t.Helper()
	engine := memory.Open()
	j := newJobs(t, engine)
	report = func(id string, seen time.Time) {
		require.NoError(t, engine.Update(t.Context(), func(ctx context.Context, tx store.Tx) error {
			return tx.Write(ctx, store.Record{Kind: "worker", Name: id, Value: fmt.Sprintf(`{"id":%q,"seen":%q}`, id, seen.Format(time.RFC3339))})
		}))
	}
	listed = func() (ids []string) {
		workers, err := j.Workers(t.Context())
		require.NoError(t, err)
		for _, w := range workers {
			if len(w.ID) == 1 {
				ids = append(ids, w.ID)
			}
		}
		return ids
	}
	work = func() context.CancelFunc {
		ctx, stop := context.WithCancel(t.Context())
		go j.Work(ctx, func() jobs.Worker { return jobs.Worker{} }, nil) // ends with ctx
		return stop
	}
	return report, listed, work
}

// refusesUpdates is an engine whose user may not write its records for some time.
type refusesUpdates struct {
	*memory.Engine
	until time.Time
}

func (e refusesUpdates) Update(ctx context.Context, f func(context.Context, store.Tx) error) error {
	if time.Now().Before(e.until) {
		return guard.MarkPermanent(errors.New("permission denied for table weir_records"))
	}
	return e.Engine.Update(ctx, f)
}

// A worker reports itself again after a permanent error, such as a missing right that was
// granted meanwhile.
func TestJobsWork_HeartbeatsAfterAPermanentError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJobs(t, refusesUpdates{memory.Open(), time.Now().Add(time.Minute)})
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go j.Work(ctx, func() jobs.Worker { return jobs.Worker{} }, nil) // ends with ctx
		time.Sleep(50 * time.Second)
		workers, err := j.Workers(t.Context())
		require.NoError(t, err)
		require.Empty(t, workers)
		time.Sleep(time.Minute)
		workers, err = j.Workers(t.Context())
		require.NoError(t, err)
		require.Len(t, workers, 1)
	})
}

func TestWorkerTakes(t *testing.T) {
	w := jobs.Worker{Reads: "around", ReadsFirst: []string{"orders", "mails"}, Queues: []string{"around", "orders", "mails", "results"}}
	for queue, want := range map[string]bool{"around": true, "orders": true, "mails": true, "results": false, "": false} {
		require.Equal(t, want, w.Takes(queue), queue)
	}
	relay := jobs.Worker{Outbox: "outbox"}
	require.False(t, relay.Takes(""))
}
