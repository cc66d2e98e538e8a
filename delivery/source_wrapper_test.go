package delivery_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

// countedSource counts the messages of the source that it wraps.
type countedSource struct {
	delivery.Source[int]
	received *atomic.Int64
}

func (s countedSource) Receive(ctx context.Context, n int) ([]message.Message[int], error) {
	ms, err := s.Source.Receive(ctx, n)
	s.received.Add(int64(len(ms)))
	return ms, err
}

func (s countedSource) Unwrap() delivery.Source[int] { return s.Source }

// A worker whose source wraps the source of a queue, twice, is shown as a worker of the
// queue, runs the jobs of its engine, and ends the calls of purged messages.
func TestSourceWrapper_Run(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := memory.Open()
		q := delivery.NewQueue[int](engine, "numbers", silently, delivery.WithLease(9*time.Second))
		texts := delivery.NewQueue[string](memory.Open(), "texts", silently)
		j, err := jobs.New(engine, jobs.Config{})
		require.NoError(t, err)
		for i := range 3 {
			require.NoError(t, q.Put(t.Context(), i, delivery.Key("ann")))
		}
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		causes := make(chan error, 3)
		op := asyncop.UnorderedWait(asyncop.Blocking(func(ctx context.Context, _ int) (string, error) {
			<-ctx.Done()
			causes <- context.Cause(ctx)
			return "", context.Cause(ctx)
		}), time.Hour, 10, asyncop.WithFailureSink(q.TakeFailure), asyncop.WithLogger(quiet))
		var received atomic.Int64
		source := countedSource{countedSource{q.Source(nil), &received}, &received}
		monitor := new(delivery.Monitor)
		ended := make(chan error, 1)
		go func() { // ends with ctx
			_, err := delivery.Run(ctx, source, op, texts, silently, delivery.WithMonitor(monitor))
			ended <- err
		}()
		time.Sleep(time.Second)
		require.EqualValues(t, 6, received.Load(), "three messages, each counted twice")
		workers, err := j.Workers(t.Context())
		require.NoError(t, err)
		require.Len(t, workers, 1)
		require.Equal(t, []string{"numbers"}, workers[0].Queues)
		require.Equal(t, "numbers", workers[0].Reads)

		job, err := j.Start(t.Context(), jobs.Spec{Do: store.Purge, Queue: "numbers", Filter: store.Filter{Key: "ann"}, By: "ann", Why: "left"})
		require.NoError(t, err)
		time.Sleep(25 * time.Second)
		job, err = j.Get(t.Context(), job.ID)
		require.NoError(t, err)
		require.Equal(t, "done", job.State())
		for range 3 {
			require.ErrorIs(t, <-causes, message.ErrPurged)
		}
		require.Equal(t, 3, monitor.Status().Purged)
		stop()
		require.NoError(t, <-ended)
	})
}

// The source of a queue with a first source is the source of the queue as well.
func TestSourceWrapper_SourceWithFirst(t *testing.T) {
	engine := memory.Open()
	q := delivery.NewQueue[int](engine, "numbers", silently)
	for name, source := range map[string]delivery.Source[int]{"alone": q.Source(nil), "with a first source": q.Source(newList(1, false))} {
		t.Run(name, func(t *testing.T) {
			on, ok := source.(delivery.OnEngine)
			require.True(t, ok)
			require.Equal(t, "numbers", on.Name())
			require.Equal(t, engine, on.Engine())
			require.NoError(t, source.Close(t.Context()))
		})
	}
}
