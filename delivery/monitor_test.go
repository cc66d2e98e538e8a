package delivery_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

// get asks a monitor as Kubernetes does.
func get(t *testing.T, m *delivery.Monitor, path string) (status int, text string) {
	t.Helper()
	r := httptest.NewRecorder()
	m.ServeHTTP(r, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody))
	return r.Code, strings.TrimSpace(r.Body.String())
}

// shaky is an engine that does not answer for a while.
type shaky struct {
	store.Keeper
	hangs atomic.Bool
	asked atomic.Int32
}

func (e *shaky) Records(ctx context.Context, kind, after string, limit int) ([]store.Record, error) {
	if kind != "weir-ready" {
		return e.Keeper.Records(ctx, kind, after, limit)
	}
	e.asked.Add(1)
	if e.hangs.Load() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return e.Keeper.Records(ctx, kind, after, limit)
}

// A worker is ready when it receives and its engine answers, and alive until it has
// returned.
func TestMonitorStatusAndServeHTTP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := &shaky{Keeper: memory.Open()}
		q, texts := delivery.NewQueue[int](engine, "numbers"), delivery.NewQueue[string](engine, "texts")
		m := &delivery.Monitor{}
		require.Equal(t, delivery.Status{State: "starting"}, m.Status())
		status, text := get(t, m, "/readyz")
		require.Equal(t, http.StatusServiceUnavailable, status)
		require.Equal(t, "delivery: the worker is starting", text)
		status, text = get(t, m, "/probes/healthz")
		require.Equal(t, http.StatusOK, status)
		require.Equal(t, "ok", text)

		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { // ends with ctx
			defer close(ended)
			_, err := delivery.Run(ctx, q, operator(slow), texts, silently, delivery.WithMonitor(m))
			require.NoError(t, err)
		}()
		synctest.Wait()
		require.NoError(t, m.Ready(t.Context()), "it waits for messages")
		for i := range 5 {
			require.NoError(t, q.Put(t.Context(), i))
		}
		time.Sleep(100 * time.Millisecond)
		require.Equal(t, 5, m.Status().Received)
		require.Equal(t, 5, m.Status().InFlight)
		require.Equal(t, "receiving: "+m.Status().Summary.String()+"; 5 in flight, 0 redelivered, 0 leases lost", m.Status().String())
		require.Contains(t, slog.AnyValue(m.Status()).Resolve().String(), "state=receiving error=<nil> in_flight=5 ")

		// The engine is left alone while it answers, and its absence is found within ten
		// seconds.
		for range 100 {
			require.NoError(t, m.Ready(t.Context()))
		}
		require.EqualValues(t, 1, engine.asked.Load())
		engine.hangs.Store(true)
		time.Sleep(10 * time.Second)
		begun := time.Now()
		status, text = get(t, m, "/readyz")
		require.Equal(t, http.StatusServiceUnavailable, status)
		require.Equal(t, `delivery: the engine of queue "numbers" does not answer: no answer within 2s`, text)
		require.Equal(t, 2*time.Second, time.Since(begun))
		require.ErrorContains(t, m.Ready(t.Context()), "does not answer", "at once")
		require.Equal(t, 2*time.Second, time.Since(begun))
		status, _ = get(t, m, "/healthz")
		require.Equal(t, http.StatusOK, status, "a new start would not help")
		engine.hangs.Store(false)
		time.Sleep(time.Second)
		require.NoError(t, m.Ready(t.Context()))

		stop()
		<-ended
		require.Equal(t, "ended", m.Status().State)
		require.Equal(t, 5, m.Status().Done)
		status, text = get(t, m, "/healthz")
		require.Equal(t, http.StatusServiceUnavailable, status)
		require.Equal(t, "delivery: the worker has ended", text)
		status, _ = get(t, m, "/metrics")
		require.Equal(t, http.StatusNotFound, status)

		// Another Run adds up.
		ctx, stop = context.WithCancel(t.Context())
		stop()
		_, err := delivery.Run(ctx, q, operator(itoa), texts, silently, delivery.WithMonitor(m))
		require.NoError(t, err)
		require.Equal(t, 5, m.Status().Received)
	})
}

// A probe that has left does not show the state of the engine.
func TestWithMonitor_ProbeThatLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := &shaky{Keeper: memory.Open()}
		engine.hangs.Store(true)
		m := &delivery.Monitor{}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { // ends with ctx
			defer close(ended)
			_, _ = delivery.Run(ctx, delivery.NewQueue[int](engine, "numbers"), operator(itoa), &collected{}, silently, delivery.WithMonitor(m))
		}()
		synctest.Wait()
		asking, leave := context.WithTimeout(t.Context(), time.Second)
		defer leave()
		require.Error(t, m.Ready(asking))
		engine.hangs.Store(false)
		require.NoError(t, m.Ready(t.Context()))
		stop()
		<-ended
	})
}

// A fault of the source or the service makes a worker not ready, and so does its end.
func TestMonitorReady_Faults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var down atomic.Bool
		numbers := newList(1000, true)
		source := receiver{list: numbers, receive: func(ctx context.Context, n int) ([]message.Message[int], error) {
			if down.Load() {
				return nil, errors.New("no connection")
			}
			return numbers.Receive(ctx, n)
		}}
		bad := errors.New("bad gateway")
		op := operator(func(ctx context.Context, i int) (string, error) {
			switch {
			case i < 200:
				return slow(ctx, i)
			case i < 400:
				return "", bad
			}
			return slow(ctx, i)
		})
		m := &delivery.Monitor{}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { // ends with ctx
			defer close(ended)
			_, _ = delivery.Run(ctx, source, op, &collected{}, silently, delivery.WithMonitor(m))
		}()
		defer func() { stop(); <-ended }()
		require.Panics(t, func() {
			synctest.Wait()
			_, _ = delivery.Run(ctx, source, op, &collected{}, silently, delivery.WithMonitor(m))
		})
		require.NoError(t, m.Ready(t.Context()))
		for m.Status().State == "receiving" {
			time.Sleep(time.Second)
		}
		require.Equal(t, "flooded", m.Status().State)
		require.ErrorIs(t, m.Ready(t.Context()), bad)
		for m.Status().State == "flooded" {
			time.Sleep(time.Second)
		}
		down.Store(true)
		for m.Status().State == "receiving" {
			time.Sleep(time.Second)
		}
		require.EqualError(t, m.Ready(t.Context()), "delivery: the worker is failing: no connection")
		down.Store(false)
		for m.Status().State == "failing" {
			time.Sleep(time.Second)
		}
		require.NoError(t, m.Ready(t.Context()))
		stop()
		synctest.Wait()
		require.EqualError(t, m.Ready(t.Context()), "delivery: the worker is draining")
		<-ended
		require.EqualError(t, m.Ready(t.Context()), "delivery: the worker is ended")
		require.Equal(t, 1, m.Status().Floods)
	})
}

// A source that has failed, and then waits for messages, does not count as failing for
// ever.
func TestMonitorOfASourceThatWaitsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failed := false
		source := receiver{list: newList(0, true), receive: func(ctx context.Context, _ int) ([]message.Message[int], error) {
			if !failed {
				failed = true
				return nil, errors.New("no connection")
			}
			<-ctx.Done()
			return nil, context.Cause(ctx)
		}}
		m := &delivery.Monitor{}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { // ends with ctx
			defer close(ended)
			_, _ = delivery.Run(ctx, source, operator(itoa), &collected{}, silently, delivery.WithMonitor(m))
		}()
		time.Sleep(5 * time.Second)
		require.Equal(t, "failing", m.Status().State, "a connection may take as long to fail")
		time.Sleep(6 * time.Second)
		require.NoError(t, m.Ready(t.Context()))
		stop()
		<-ended
	})
}

// A Run that panics has opened no source: goleak would find its goroutines.
func TestRunThatPanicsOpensNoSource(t *testing.T) {
	q := delivery.NewQueue[int](memory.Open(), "q", noLog)
	op := operator(itoa)
	require.Panics(t, func() { _, _ = delivery.Run(t.Context(), q, op, &collected{}, nil) })
	require.NoError(t, op.Stop(t.Context()))
}

// frozen is an engine whose leases cannot be extended for a while, as if the process
// stood still.
type frozen struct {
	*memory.Engine
	freezes atomic.Bool
}

func (e *frozen) Extend(ctx context.Context, d time.Duration, leases ...store.Lease) error {
	if e.freezes.Load() {
		return nil
	}
	return e.Engine.Extend(ctx, d, leases...)
}

// jumping is a clock that may be wrong.
type jumping struct {
	clock.Clock
	by atomic.Int64 // time.Duration
}

func (c *jumping) Now() time.Time { return c.Clock.Now().Add(time.Duration(c.by.Load())) }

// A monitor counts leases that were lost, and knows how far the engine's clock is ahead.
func TestMonitorOfLeasesAndClocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &jumping{Clock: clock.New()}
		engine := &frozen{Engine: memory.Open(memory.WithClock(c))}
		q := delivery.NewQueue[int](engine, "numbers", silently)
		require.NoError(t, q.Put(t.Context(), 1))
		m := &delivery.Monitor{}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { // ends with ctx
			defer close(ended)
			op := asyncop.OrderedWait(asyncop.Blocking(func(ctx context.Context, _ int) (string, error) {
				<-ctx.Done()
				return "", context.Cause(ctx)
			}), time.Hour, 10, asyncop.WithFailureSink(q.TakeFailure), asyncop.WithLogger(slog.New(slog.DiscardHandler)))
			_, err := delivery.Run(ctx, q, op, &collected{}, silently, delivery.WithMonitor(m))
			require.NoError(t, err)
		}()
		time.Sleep(time.Minute)
		require.Zero(t, m.Status().LeasesLost)
		require.Zero(t, m.Status().ClockOffset)
		engine.freezes.Store(true)
		time.Sleep(2 * time.Minute)
		engine.freezes.Store(false)
		require.Positive(t, m.Status().LeasesLost)
		lost := m.Status().LeasesLost
		c.by.Store(int64(-time.Hour))
		time.Sleep(21 * time.Second)
		require.InDelta(t, 0, m.Status().ClockOffset, float64(time.Second), "the engine does not go back")
		c.by.Store(int64(time.Hour))
		time.Sleep(21 * time.Second)
		require.Equal(t, 2*time.Hour, m.Status().ClockOffset.Round(time.Minute))
		stop()
		<-ended
		require.GreaterOrEqual(t, m.Status().LeasesLost, lost)
	})
}

// keepsResults is a sink that takes everything.
type keepsResults struct{}

func (keepsResults) PutAll(context.Context, []message.Message[int]) error { return nil }
