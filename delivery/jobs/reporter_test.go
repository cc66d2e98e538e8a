package jobs_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
)

// reports is an engine that counts its transactions, and refuses or delays some of them.
type reports struct {
	*memory.Engine
	updates  atomic.Int64
	refuses  atomic.Bool  // transactions that write the report of worker 7
	together atomic.Int64 // the next transactions with several reports that wait until their contexts end
	waits    atomic.Int64 // these transactions so far
	hangs    atomic.Bool  // a transaction with only the report of worker 7 waits until its context ends
	slow     atomic.Int64 // the next transaction begins so much later, in ns
}

func (e *reports) Update(ctx context.Context, f func(context.Context, store.Tx) error) error {
	e.updates.Add(1)
	time.Sleep(time.Duration(e.slow.Swap(0)))
	written := 0
	hangs := false
	err := e.Engine.Update(ctx, func(ctx context.Context, tx store.Tx) error {
		t := &reportsTx{Tx: tx, engine: e}
		err := f(ctx, t)
		written = t.written
		hangs = written == 1 && t.hasSeven && e.hangs.Load()
		if err == nil && (hangs || written > 1 && e.together.Load() > 0) {
			return errors.New("rolled back")
		}
		return err
	})
	if hangs {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	if written > 1 && e.together.Add(-1) >= 0 {
		e.waits.Add(1)
		<-ctx.Done()
		return context.Cause(ctx)
	}
	return err
}

type reportsTx struct {
	store.Tx
	engine   *reports
	written  int  // reports
	hasSeven bool // the report of worker 7 is one of them
}

func (t *reportsTx) Write(ctx context.Context, r store.Record) error {
	if r.Kind == "worker" && r.Value != "" {
		t.written++
		isSeven := strings.Contains(r.Value, `"queues":["queue-7"]`)
		t.hasSeven = t.hasSeven || isSeven
		if isSeven && t.engine.refuses.Load() {
			return errors.New("the report of worker 7 is refused")
		}
	}
	return t.Tx.Write(ctx, r)
}

// run runs n workers until stop is called. They start at different times of 20 s.
func (e *reports) run(t *testing.T, n int) (stop func()) {
	t.Helper()
	return runEach(t, n, 20*time.Second, func(ctx context.Context, worker int) { e.work(ctx, t, worker) })
}

func (e *reports) work(ctx context.Context, t *testing.T, i int) {
	j, err := jobs.New(e, jobs.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Error(err)
		return
	}
	j.Work(ctx, func() jobs.Worker { return jobs.Worker{Queues: []string{fmt.Sprintf("queue-%d", i)}} }, nil)
}

// workers returns the workers, and the age of the oldest report without worker 7.
func (e *reports) workers(t *testing.T) (n int, oldest time.Duration) {
	t.Helper()
	list, err := newJobs(t, e).Workers(t.Context())
	require.NoError(t, err)
	for _, w := range list {
		if w.Queues[0] != "queue-7" {
			oldest = max(oldest, time.Since(w.Seen))
		}
	}
	return len(list), oldest
}

// Up to 100 workers of a process report in one transaction.
func TestWork_ReportsTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &reports{Engine: memory.Open()}
		stop := e.run(t, 250)
		time.Sleep(45 * time.Second) // all have reported together
		before := e.updates.Load()
		for range 20 {
			time.Sleep(time.Second)
			n, oldest := e.workers(t)
			require.Equal(t, 250, n)
			require.LessOrEqual(t, oldest, 20*time.Second)
		}
		require.EqualValues(t, 3, e.updates.Load()-before)
		stop()
		n, _ := e.workers(t)
		require.Zero(t, n)
	})
}

// A report that the engine refuses does not hold up the others.
func TestWork_ReportsTogether_OneIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &reports{Engine: memory.Open()}
		defer e.run(t, 50)()
		time.Sleep(45 * time.Second)
		e.refuses.Store(true)
		for range 150 {
			time.Sleep(time.Second)
			_, oldest := e.workers(t)
			require.LessOrEqual(t, oldest, 20*time.Second)
		}
		n, _ := e.workers(t)
		require.Equal(t, 49, n, "worker 7 is silent")
		e.refuses.Store(false)
		time.Sleep(20 * time.Second)
		n, _ = e.workers(t)
		require.Equal(t, 50, n)
	})
}

// While an engine does not answer the transactions of several workers, each reports
// alone.
func TestWork_ReportsTogether_NoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &reports{Engine: memory.Open()}
		defer e.run(t, 50)()
		time.Sleep(45 * time.Second)
		e.together.Store(5)
		for range 150 {
			time.Sleep(time.Second)
			n, oldest := e.workers(t)
			require.Equal(t, 50, n)
			require.LessOrEqual(t, oldest, 31*time.Second)
		}
		require.EqualValues(t, 5, e.waits.Load())
		time.Sleep(20 * time.Second)
		_, oldest := e.workers(t)
		require.LessOrEqual(t, oldest, 20*time.Second)
	})
}

// A worker whose own transaction is not answered does not hold up the others, which report
// together without it, and workers that start and end.
func TestWork_ReportsTogether_OneHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &reports{Engine: memory.Open()}
		defer e.run(t, 50)()
		time.Sleep(45 * time.Second)
		e.hangs.Store(true)
		e.together.Store(1) // then each reports alone
		time.Sleep(40 * time.Second)
		before := e.updates.Load()
		for range 100 {
			time.Sleep(time.Second)
			_, oldest := e.workers(t)
			require.LessOrEqual(t, oldest, 20*time.Second)
		}
		require.EqualValues(t, 5, e.updates.Load()-before)
	})
}

// A worker does not remove its own report, although it has not reported for long: its
// transaction was slow.
func TestWork_RemovesSilentWorkers_NotItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &reports{Engine: memory.Open()}
		defer e.run(t, 1)()
		time.Sleep(45 * time.Second)
		e.slow.Store(int64(2 * jobs.SilentAfter))
		time.Sleep(15*time.Second + 2*jobs.SilentAfter + time.Second)
		require.Zero(t, e.slow.Load())
		n, oldest := e.workers(t)
		require.Equal(t, 1, n)
		require.LessOrEqual(t, oldest, 20*time.Second)
	})
}

// Workers end within their second while a transaction with their reports is not answered,
// and the others live on.
func TestWork_ReportsTogether_WorkersEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &reports{Engine: memory.Open()}
		stop := e.run(t, 10)
		end := runEach(t, 1, 0, func(ctx context.Context, _ int) { e.work(ctx, t, 10) })
		time.Sleep(45 * time.Second)
		e.together.Store(1)
		time.Sleep(20 * time.Second)
		require.EqualValues(t, 1, e.waits.Load(), "a transaction waits")
		begun := time.Now()
		end()
		require.LessOrEqual(t, time.Since(begun), time.Second)
		n, _ := e.workers(t)
		require.Equal(t, 10, n)
		time.Sleep(time.Minute)
		n, _ = e.workers(t)
		require.Equal(t, 10, n)
		stop()
		n, _ = e.workers(t)
		require.Zero(t, n)
	})
}

// A worker that ends while its report is on the way with others is not stored again, even
// if the worker does not wait for the report, and its last minute is kept.
func TestWork_ReportsTogether_EndsDuringItsReport(t *testing.T) {
	for _, takes := range []time.Duration{time.Second / 2, 5 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			e := &reports{Engine: memory.Open()}
			defer e.run(t, 10)()
			var orders flowing
			end := orders.work(t, e)
			time.Sleep(45 * time.Second)
			e.slow.Store(int64(takes))
			time.Sleep(15*time.Second + 100*time.Millisecond)
			require.Zero(t, e.slow.Load(), "the transaction is on the way")
			orders.received.Store(3)
			end()
			time.Sleep(10 * time.Second)
			n, _ := e.workers(t)
			require.Equal(t, 10, n)
			points, err := newJobs(t, e).History(t.Context(), "orders")
			require.NoError(t, err)
			require.Equal(t, 3, points[len(points)-1].In)
		})
	}
}

// The silent workers of a large fleet are removed in several transactions.
func TestWork_RemovesManySilentWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &reports{Engine: memory.Open()}
		require.NoError(t, e.Engine.Update(t.Context(), func(ctx context.Context, tx store.Tx) error {
			var err error
			for i := range 250 {
				r := store.Record{Kind: "worker", Name: fmt.Sprint("silent", i), Value: `{"queues":["orders"],"seen":"1999-01-01T00:00:00Z"}`}
				err = errors.Join(err, tx.Write(ctx, r))
			}
			return err
		}))
		defer e.run(t, 1)()
		for _, left := range []int{150, 50, 0} {
			time.Sleep(time.Second)
			n, _ := e.workers(t)
			require.Equal(t, left+1, n)
			time.Sleep(19 * time.Second)
		}
	})
}

// Workers that report together remove the workers that are silent now.
func TestWork_ReportsTogether_RemovesSilentWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &reports{Engine: memory.Open()}
		defer e.run(t, 20)()
		time.Sleep(45 * time.Second)
		require.NoError(t, e.Engine.Update(t.Context(), func(ctx context.Context, tx store.Tx) error {
			return tx.Write(ctx, store.Record{Kind: "worker", Name: "silent", Value: `{"queues":["orders"],"seen":"1999-01-01T00:00:00Z"}`})
		}))
		time.Sleep(20 * time.Second)
		n, _ := e.workers(t)
		require.Equal(t, 20, n)
	})
}

// Workers on two engines do not share a transaction.
func TestWork_ReportsTogether_TwoEngines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := &reports{Engine: memory.Open()}, &reports{Engine: memory.Open()}
		stopA, stopB := a.run(t, 5), b.run(t, 5)
		time.Sleep(45 * time.Second)
		beforeA, beforeB := a.updates.Load(), b.updates.Load()
		time.Sleep(20 * time.Second)
		require.EqualValues(t, 1, a.updates.Load()-beforeA)
		require.EqualValues(t, 1, b.updates.Load()-beforeB)
		stopA()
		n, _ := a.workers(t)
		require.Zero(t, n)
		time.Sleep(time.Minute)
		n, oldest := b.workers(t)
		require.Equal(t, 5, n)
		require.LessOrEqual(t, oldest, 20*time.Second)
		stopB()
	})
}

// The reports of a process whose workers the others have removed, for example because its
// machine was suspended, are written again.
func TestWork_ReportsTogether_RemovedByOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &reports{Engine: memory.Open()}
		defer e.run(t, 5)()
		time.Sleep(45 * time.Second)
		require.NoError(t, e.Engine.Update(t.Context(), func(ctx context.Context, tx store.Tx) error {
			list, err := tx.Records(ctx, "worker", "", 3)
			for _, r := range list {
				r.Value = ""
				err = errors.Join(err, tx.Write(ctx, r))
			}
			return err
		}))
		n, _ := e.workers(t)
		require.Equal(t, 2, n)
		time.Sleep(20 * time.Second)
		n, oldest := e.workers(t)
		require.Equal(t, 5, n)
		require.LessOrEqual(t, oldest, 20*time.Second)
	})
}
