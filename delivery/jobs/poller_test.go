package jobs_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/guard"
)

// silentEngine is an engine that cannot announce changes, and counts reads of held keys.
type silentEngine struct {
	*memory.Engine
	reads atomic.Int64
	fails atomic.Int64 // reads that fail

	refuses atomic.Bool // all reads

	steer func(jobs.BackendOrder) // of the workers
}

func (*silentEngine) Watch(context.Context, func()) error { return errors.ErrUnsupported }

func (e *silentEngine) Records(ctx context.Context, kind, after string, limit int) ([]store.Record, error) {
	if kind != "held-key" {
		return e.Engine.Records(ctx, kind, after, limit)
	}
	e.reads.Add(1)
	if e.refuses.Load() {
		return nil, guard.MarkPermanent(errors.New("the table is missing"))
	}
	if e.fails.Add(-1) >= 0 {
		return nil, errors.New("the database is unavailable")
	}
	return e.Engine.Records(ctx, kind, after, limit)
}

// readers runs workers that read the held keys, until stop is called. They start at
// different times of a second.
func (e *silentEngine) readers(t *testing.T, n int, took func(worker int, held []jobs.KeyOrder, err error)) (stop func()) {
	t.Helper()
	return runEach(t, n, time.Second, func(ctx context.Context, worker int) {
		j, err := jobs.New(e, jobs.Config{Logger: slog.New(slog.DiscardHandler), KeysHeld: func(held []jobs.KeyOrder, err error) { took(worker, held, err) }})
		if err != nil {
			t.Error(err)
			return
		}
		j.Work(ctx, func() jobs.Worker { return jobs.Worker{Reads: "orders", HoldsKeys: true} }, e.steer)
	})
}

// On an engine that cannot announce changes, the number of workers of a process does not
// change the number of reads of orders. Each worker gets a new order within two seconds.
func TestWork_PollsOrdersOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const workers = 100
		e := &silentEngine{Engine: memory.Open()}
		require.NoError(t, e.Put(t.Context(), "orders", ofKey("1", "a")))
		var mu sync.Mutex
		held := map[int]int{} // by worker: the keys that are held
		stop := e.readers(t, workers, func(worker int, list []jobs.KeyOrder, err error) {
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				held[worker] = len(list)
			}
		})
		defer stop()
		time.Sleep(5 * time.Second)
		before := e.reads.Load()
		time.Sleep(time.Minute)
		synctest.Wait()
		require.LessOrEqual(t, e.reads.Load()-before, int64(61), "a read a second, for 100 workers")

		_, err := newJobs(t, e).HoldKey(t.Context(), "orders", "a", "ann", "they migrate")
		require.NoError(t, err)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		require.Len(t, held, workers)
		for worker, n := range held {
			require.Equal(t, 1, n, "worker %d", worker)
		}
	})
}

// While orders cannot be read, each worker gets the error, and the orders when they can be
// read again.
func TestWork_PolledOrdersCannotBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &silentEngine{Engine: memory.Open()}
		require.NoError(t, e.Put(t.Context(), "orders", ofKey("1", "a")))
		var mu sync.Mutex
		failed, held := map[int]int{}, map[int]int{} // by worker
		stop := e.readers(t, 3, func(worker int, list []jobs.KeyOrder, err error) {
			mu.Lock()
			defer mu.Unlock()
			held[worker] = len(list)
			if err != nil {
				failed[worker]++
			}
		})
		defer stop()
		time.Sleep(5 * time.Second)
		_, err := newJobs(t, e).HoldKey(t.Context(), "orders", "a", "ann", "they migrate")
		require.NoError(t, err)
		e.fails.Store(10)
		time.Sleep(20 * time.Second)
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		require.Len(t, failed, 3)
		for worker, n := range held {
			require.Equal(t, 1, n, "worker %d", worker)
		}
	})
}

// Each engine has a poller of its own, which ends with its last worker.
func TestWork_PollsTwoEngines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engines := []*silentEngine{{Engine: memory.Open()}, {Engine: memory.Open()}}
		var stops []func()
		for _, e := range engines {
			stops = append(stops, e.readers(t, 2, func(int, []jobs.KeyOrder, error) {}))
		}
		reads := func() (n [2]int64) {
			before := [2]int64{engines[0].reads.Load(), engines[1].reads.Load()}
			time.Sleep(10 * time.Second)
			synctest.Wait()
			return [2]int64{engines[0].reads.Load() - before[0], engines[1].reads.Load() - before[1]}
		}
		time.Sleep(5*time.Second + time.Millisecond)
		require.Equal(t, [2]int64{10, 10}, reads())
		stops[0]()
		require.Equal(t, [2]int64{0, 10}, reads())
		stops[1]()
		require.Equal(t, [2]int64{0, 0}, reads())
	})
}

// The other workers get new orders within two seconds after the first worker has ended.
func TestWork_PollsWithoutTheFirstWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &silentEngine{Engine: memory.Open()}
		require.NoError(t, e.Put(t.Context(), "orders", ofKey("1", "a")))
		stopFirst := e.readers(t, 1, func(int, []jobs.KeyOrder, error) {})
		time.Sleep(300 * time.Millisecond)
		var held atomic.Int64
		stop := e.readers(t, 1, func(_ int, list []jobs.KeyOrder, err error) {
			if err == nil {
				held.Store(int64(len(list)))
			}
		})
		defer stop()
		time.Sleep(5 * time.Second)
		stopFirst()
		j := newJobs(t, e)
		_, err := j.HoldKey(t.Context(), "orders", "a", "ann", "they migrate")
		require.NoError(t, err)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.EqualValues(t, 1, held.Load())
	})
}

// A worker that starts after people have mended a table gets new orders within two
// seconds, although the other workers of the process read rarely after a refusal.
func TestWork_PollsAfterARefusalForANewWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &silentEngine{Engine: memory.Open()}
		require.NoError(t, e.Put(t.Context(), "orders", ofKey("1", "a")))
		e.refuses.Store(true)
		defer e.readers(t, 1, func(int, []jobs.KeyOrder, error) {})()
		time.Sleep(65 * time.Second)
		before := e.reads.Load()
		time.Sleep(time.Minute)
		require.LessOrEqual(t, e.reads.Load()-before, int64(8), "a worker and the poller read every 20 s")
		e.refuses.Store(false)
		var held atomic.Int64
		defer e.readers(t, 1, func(_ int, list []jobs.KeyOrder, err error) { held.Store(int64(len(list))) })()
		time.Sleep(1500 * time.Millisecond)
		j := newJobs(t, e)
		_, err := j.HoldKey(t.Context(), "orders", "a", "ann", "they migrate")
		require.NoError(t, err)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.EqualValues(t, 1, held.Load())
	})
}

// A worker with a backend gets new orders within two seconds after people have mended a
// table.
func TestWork_PollsAfterARefusalForABackend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &silentEngine{Engine: memory.Open(), steer: func(jobs.BackendOrder) {}}
		require.NoError(t, e.Put(t.Context(), "orders", ofKey("1", "a")))
		e.refuses.Store(true)
		var held atomic.Int64
		defer e.readers(t, 1, func(_ int, list []jobs.KeyOrder, err error) { held.Store(int64(len(list))) })()
		time.Sleep(65 * time.Second)
		e.refuses.Store(false)
		time.Sleep(1500 * time.Millisecond)
		_, err := newJobs(t, e).HoldKey(t.Context(), "orders", "a", "ann", "they migrate")
		require.NoError(t, err)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.EqualValues(t, 1, held.Load())
	})
}
