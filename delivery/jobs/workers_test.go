package jobs_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
)

// The first live worker removes silent workers, and the others need not decode all
// reports at each heartbeat (law W3).
func TestJobsWork_SilentWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := memory.Open()
		report := func(name string, seen time.Time) {
			require.NoError(t, engine.Update(t.Context(), func(ctx context.Context, tx store.Tx) error {
				return tx.Write(ctx, store.Record{Kind: "worker", Name: name, Value: fmt.Sprintf(`{"id":%q,"seen":%q}`, name, seen.Format(time.RFC3339))})
			}))
		}
		j, err := jobs.New(engine, jobs.Config{Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		listed := func() (names []string) {
			workers, err := j.Workers(t.Context())
			require.NoError(t, err)
			for _, w := range workers {
				if len(w.ID) == 1 {
					names = append(names, w.ID)
				}
			}
			return names
		}
		report("!", time.Now()) // before all ids
		report("#", time.Now().Add(-time.Hour))
		report("~", time.Now().Add(-time.Hour))
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go j.Work(ctx, func() jobs.Worker { return jobs.Worker{} }, nil) // ends with ctx
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
