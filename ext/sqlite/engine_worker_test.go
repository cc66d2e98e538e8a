package sqlite_test

import (
	"context"
	"errors"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/internal/testing/workerkill"
)

// Laws D1 to D4.
func TestKilledWorkers(t *testing.T) {
	t.Parallel()
	workerkill.Run(t, workerkill.Config{DSN: filepath.Join(t.TempDir(), "queues.db"), Open: openForWorkers})
}

// Eight workers are killed while they keep the order of 200 keys, with WEIR_LONG.
func TestKilledWorkersInOrder(t *testing.T) {
	t.Parallel()
	workerkill.RunInOrder(t, workerkill.Config{DSN: filepath.Join(t.TempDir(), "queues.db"), Open: openForWorkers})
}

// Workers are killed while they share the limit of three calls for each of three keys.
func TestKilledWorkersByKey(t *testing.T) {
	workerkill.RunByKey(t, workerkill.Config{DSN: filepath.Join(t.TempDir(), "queues.db"), Open: openForWorkers})
}

// Law W4: workers of two versions at once, as in a rollout. The older one is the first
// with these tables.
func TestKilledWorkersOfTwoVersions(t *testing.T) {
	older := workerkill.Older(t, "8c775bb644e02a59b305c1a239db22b38a8d062d", "ext/sqlite")
	workerkill.Run(t, workerkill.Config{
		DSN: filepath.Join(t.TempDir(), "queues.db"), Open: openForWorkers, Programs: []string{older, ""}, MayDouble: true,
	})
}

func openForWorkers(ctx context.Context, path string) (workerkill.Engine, error) {
	s, err := openForCrash(ctx, path, func() {})
	return workerkill.Queues{Inspector: s}, err
}

// noting notes that a Put was refused since the store is full.
type noting struct {
	store.Inspector
	refused *atomic.Bool
}

func (n noting) Put(ctx context.Context, queue string, ms ...store.Message) error {
	err := n.Inspector.Put(ctx, queue, ms...)
	if errors.Is(err, store.ErrFull) {
		n.refused.Store(true)
	}
	return err
}

func (n noting) HandOver(ctx context.Context, moves ...store.Move) error {
	err := n.Inspector.HandOver(ctx, moves...)
	if errors.Is(err, store.ErrFull) {
		n.refused.Store(true)
	}
	return err
}

// Law D5: a full disk stops a worker, and no message is lost.
func TestWorkerOnAFullDisk(t *testing.T) {
	t.Parallel()
	db, err := sqlite.OpenDB(t.Context(), filepath.Join(t.TempDir(), "queues.db"))
	require.NoError(t, err)
	defer db.Close()
	require.NoError(t, sqlite.New(db).Migrate(t.Context()))
	s := sqlite.New(db)
	defer s.Close()
	const n = 1000
	e := workerkill.Queues{Inspector: s}
	workerkill.Fill(t, e, n)
	var pages, most int
	require.NoError(t, db.Writer().QueryRowContext(t.Context(), "PRAGMA page_count").Scan(&pages))
	limit := func(pages int) {
		require.NoError(t, db.Writer().QueryRowContext(t.Context(), "PRAGMA max_page_count = "+strconv.Itoa(pages)).Scan(&most))
	}
	limit(pages + 5)
	count := func(queue string) int {
		c, err := s.Count(t.Context(), queue, store.Filter{})
		require.NoError(t, err)
		return c.Messages
	}
	all := func() int {
		return count("work") + count("work-retry-1") + count("work-retry-2") + count("done") + count(workerkill.Dead)
	}
	work := func(e workerkill.Engine, until func() bool, opts ...delivery.RunOption) {
		ctx, stop := context.WithCancel(t.Context())
		go func() { // ends with the condition
			defer stop()
			for begun := time.Now(); !until() && time.Since(begun) < 3*time.Minute; time.Sleep(10 * time.Millisecond) {
			}
		}()
		summary, err := workerkill.Work(ctx, e, opts...)
		if !errors.Is(err, store.ErrFull) {
			require.NoError(t, err)
		}
		t.Log(summary)
	}
	var refused atomic.Bool
	var full time.Time // when it was refused
	work(workerkill.Queues{Inspector: noting{s, &refused}}, func() bool {
		if refused.Load() && full.IsZero() {
			full = time.Now()
		}
		return !full.IsZero() && time.Since(full) > time.Second/2
	}, delivery.WithDrain(0))
	require.True(t, refused.Load(), "the disk is not full")
	require.NotZero(t, count("work"))
	require.GreaterOrEqual(t, all(), n, "a message that is handed over may be in two queues")
	limit(1 << 20)
	work(e, func() bool { return count("done") == n-n/100-1 && count(workerkill.Dead) == n/100 })
	workerkill.Check(t, e, n)
}
