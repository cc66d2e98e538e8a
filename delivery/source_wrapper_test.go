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
// queue, runs the jobs of its engine, and ends the calls of purged messages. So does a
// worker that wraps the queue itself, or a source whose first source is a wrapper.
func TestSourceWrapper_Run(t *testing.T) {
	for name, sourceOf := range map[string]func(q *delivery.Queue[int]) delivery.Source[int]{
		"a source of the queue": func(q *delivery.Queue[int]) delivery.Source[int] { return q.Source(nil) },
		"the queue":             func(q *delivery.Queue[int]) delivery.Source[int] { return q },
		"the first source of another queue": func(q *delivery.Queue[int]) delivery.Source[int] {
			first := countedSource{q.Source(nil), new(atomic.Int64)}
			return delivery.NewQueue[int](q.Engine(), "others", silently).Source(first)
		},
	} {
		t.Run(name, func(t *testing.T) { wrapperRun(t, sourceOf) })
	}
}

func wrapperRun(t *testing.T, sourceOf func(q *delivery.Queue[int]) delivery.Source[int]) {
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
		inner := sourceOf(q)
		onEngine, ok := inner.(delivery.OnEngine)
		require.True(t, ok)
		source := countedSource{countedSource{inner, &received}, &received}
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
		require.Equal(t, onEngine.Name(), workers[0].Reads)
		require.True(t, workers[0].Takes("numbers"))
		require.Contains(t, workers[0].Queues, "numbers")

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

// A worker whose source wraps a queue, and whose sink is that queue, would lose results.
func TestSourceWrapper_QueueOfTheSinkAsSource(t *testing.T) {
	engine := memory.Open()
	q := delivery.NewQueue[int](engine, "numbers", silently)
	other := delivery.NewQueue[int](engine, "other", silently)
	for name, source := range map[string]delivery.Source[int]{
		"first source of another queue": other.Source(q.Source(nil)),
		"first source that is wrapped":  other.Source(countedSource{q.Source(nil), new(atomic.Int64)}),

		"source":               q.Source(nil),
		"wrapper of a source":  countedSource{q.Source(nil), new(atomic.Int64)},
		"wrapper of the queue": countedSource{q, new(atomic.Int64)},
	} {
		t.Run(name, func(t *testing.T) {
			op := operator(itoa)
			_, err := delivery.Run(t.Context(), source, op, delivery.NewQueue[string](engine, "numbers", silently), silently)
			require.ErrorContains(t, err, "the sink is the queue of the source")
			<-op.Done()
		})
	}
}

// selfSource is a wrapper whose Unwrap returns the wrapper.
type selfSource struct{ delivery.Source[int] }

func (s selfSource) Unwrap() delivery.Source[int] { return s }

func TestSourceWrapper_UnwrapReturnsTheWrapper(t *testing.T) {
	source := selfSource{newList(1, false)}
	q := delivery.NewQueue[int](memory.Open(), "numbers", silently)
	panicOf := func(f func()) (p any) {
		defer func() { p = recover() }()
		f()
		return nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	op := operator(itoa, asyncop.WithContext(ctx))
	require.Contains(t, panicOf(func() { _, _ = delivery.Run(t.Context(), source, op, &collected{}) }), "selfSource wraps more than 100")
	require.Contains(t, panicOf(func() { q.Source(source) }), "selfSource wraps more than 100")
	cancel()
	<-op.Done()
}
