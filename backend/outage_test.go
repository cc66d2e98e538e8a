package backend_test

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/backend"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/testing/suite"
	"github.com/weirflow/weir/message"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/httpretry"
	"github.com/weirflow/weir/strategies"
)

// Law B2: an hour of outage makes no dead letters. A hundredth of the messages is poison,
// half of that answers 503 for ever. The load never exceeds the limits, also on the way
// back, and 99 of 100 good messages are done in 1.2 times the ideal time after the
// outage. With WEIR_LONG=1 there are 100,000 messages at 500 a second.
func TestBackend_HourOfOutage(t *testing.T) {
	for name, layers := range map[string][]time.Duration{"without layers": nil, "with a short one": {10 * time.Second}, "with two": {time.Minute, 10 * time.Minute}} {
		if (suite.Race || !suite.Full()) && len(layers) != 1 {
			continue
		}
		t.Run(name, func(t *testing.T) { anHourOfOutage(t, layers...) })
	}
}

func anHourOfOutage(t *testing.T, layers ...time.Duration) {
	messages, rate := 5_000, 25
	if suite.Long() {
		messages, rate = 100_000, 500
	}
	synctest.Test(t, func(t *testing.T) {
		const limit = 50
		begun := time.Now()
		from, to := 10*time.Second, 10*time.Second+time.Hour
		var (
			mu             sync.Mutex
			running, calls int
			starts         []time.Duration
			inOutage       int
		)
		serve := func(_ context.Context, in int) (string, error) {
			mu.Lock()
			at := time.Since(begun)
			calls++
			running++
			starts = append(starts, at)
			down := at >= from && at < to
			if down {
				inOutage++
			}
			over := running > limit
			mu.Unlock()
			time.Sleep(20 * time.Millisecond)
			mu.Lock()
			running--
			mu.Unlock()
			switch {
			case over:
				return "", errors.New("over the limit")
			case down, in%200 == 7:
				return "", &httpretry.StatusError{StatusCode: 503}
			case in%200 == 8:
				return "", &httpretry.StatusError{StatusCode: 500}
			}
			return strconv.Itoa(in), nil
		}

		engine := memory.Open()
		defer func() { require.NoError(t, engine.Close()) }()
		in := delivery.NewQueue[int](engine, "in", delivery.WithLogger(silent), delivery.RetryAfter(layers...))
		for i := range messages {
			require.NoError(t, in.PutAll(t.Context(), []message.Message[int]{message.New(i, &message.Meta{ID: strconv.Itoa(i)}, func(message.Settlement) {})}))
		}
		b := backend.New("payments", backend.Limit(limit), backend.Rate(float64(rate), time.Second), backend.WithLogger(silent))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		toCall := messages + 2*messages/200*((len(layers)+1)*4-1) // poison has four calls at each visit
		ideal := time.Duration(float64(toCall-int(from.Seconds())*rate) / float64(rate) * 1e9)
		time.AfterFunc(to+2*ideal+26*time.Hour, cancel)
		var drained time.Duration
		op := asyncop.UnorderedWaitWithRetry(asyncop.Blocking(serve), 30*time.Second, 200,
			strategies.PolicyOf(strategies.FixedDelay[string](3, time.Second).RetryIfException(predicates.HasException)).Idempotent(),
			asyncop.WithBackend(b), asyncop.WithLogger(silent),
			asyncop.WithFailureSink(in.TakeFailure))
		done := 0
		sink := sinkFunc(func(ms []message.Message[string]) {
			good := messages - 2*messages/200
			if done += len(ms); drained == 0 && done >= good-good/100 { // messages whose calls failed in the outage wait in layers
				drained = time.Since(begun)
			}
			if done == good {
				time.AfterFunc(24*time.Hour, cancel) // the remaining messages fail: their probes keep the backend down, and they wait
			}
		})
		summary, err := delivery.Run(ctx, in, op, sink, delivery.WithLogger(silent))
		require.NoError(t, err)
		t.Log(summary, "calls in the outage:", inOutage, "drained after", drained-to)

		letters, err := engine.List(t.Context(), in.DeadLetters(), store.Filter{}, store.Page{Max: messages})
		require.NoError(t, err)
		for _, l := range letters {
			i, err := strconv.Atoi(l.Meta.ID)
			require.NoError(t, err)
			require.Contains(t, []int{7, 8}, i%200, "a dead letter that is no poison: %+v", l)
		}
		require.Equal(t, messages-2*messages/200, done)
		require.Equal(t, 2*messages/200, len(letters))
		for i, first := 0, 0; i < len(starts); i++ {
			for starts[first] <= starts[i]-time.Second {
				first++
			}
			require.LessOrEqual(t, float64(i-first+1), float64(rate)*1.05+1, "load at %v", starts[i])
		}
		require.Less(t, drained-to, ideal*12/10)
		require.Less(t, inOutage, 500)
	})
}

// Regression (law B2): a message that had waited for the end of an outage, and had no
// time in the ramp, became a dead letter at its last visit.
func TestRamp_DeadlineMakesNoDeadLetter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := memory.Open()
		defer func() { require.NoError(t, engine.Close()) }()
		in := delivery.NewQueue[int](engine, "in", delivery.WithLogger(silent), delivery.RetryAfter(time.Minute))
		for i := range 20 {
			m, err := in.Encode(i)
			require.NoError(t, err)
			m.Meta.Visit, m.Meta.LastFailure = 1, time.Now()
			require.NoError(t, engine.Put(t.Context(), "in-retry-1", m))
		}
		b := backend.New("payments", backend.Limit(10), backend.Rate(10, time.Second), backend.WithLogger(silent))
		b.Hold("migration")
		time.AfterFunc(2*time.Second, b.Resume)
		op := asyncop.UnorderedWaitWithRetry(asyncop.Blocking(func(context.Context, int) (string, error) {
			time.Sleep(20 * time.Millisecond)
			return "", nil
		}), 3*time.Second, 20, strategies.PolicyOf(strategies.NoRetry[string]()).Idempotent(), // otherwise a call that is cut off is in doubt
			asyncop.WithBackend(b), asyncop.WithLogger(silent), asyncop.WithFailureSink(in.TakeFailure))
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		done := 0
		_, err := delivery.Run(ctx, in, op, sinkFunc(func(ms []message.Message[string]) { done += len(ms) }), delivery.WithLogger(silent))
		require.NoError(t, err)
		letters, err := engine.List(t.Context(), in.DeadLetters(), store.Filter{}, store.Page{Max: 20})
		require.NoError(t, err)
		require.Empty(t, letters)
		require.Equal(t, 20, done)
	})
}

type sinkFunc func(ms []message.Message[string])

func (f sinkFunc) PutAll(_ context.Context, ms []message.Message[string]) error { f(ms); return nil }

// Regression: elements that have waited for most of their time go first on the way back,
// and are cut off by their own deadlines. The service is not the cause: a backend that
// counted them as lost went down again and again, and never recovered.
func TestRamp_ElementsWithLittleTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		b := backend.New("x", backend.Limit(50), backend.WithLogger(silent))
		call := func(ctx context.Context, i int) (int, error) {
			if at := time.Since(begun); at >= 10*time.Second && at < 40*time.Second {
				return 0, &httpretry.StatusError{StatusCode: 503}
			}
			select {
			case <-time.After(200 * time.Millisecond):
				return i, nil
			case <-ctx.Done():
				return 0, context.Cause(ctx)
			}
		}
		op := asyncop.UnorderedWaitWithRetry(asyncop.Blocking(call), 10*time.Second, 1000,
			strategies.ReasonAware(httpretry.Classifier[int](), nil).Idempotent(),
			asyncop.WithBackend(b), asyncop.WithLogger(silent), asyncop.WithDropOnFailure())
		go func() {
			defer close(op.In())
			for i := range 50 * 120 { // 50 a second
				op.In() <- i
				time.Sleep(20 * time.Millisecond)
			}
		}()
		done := 0
		for range op.Out() {
			if time.Since(begun) > time.Minute { // 20 s after the outage
				done++
			}
		}
		require.NoError(t, op.Err())
		require.Equal(t, backend.Up, b.Stats().State)
		require.Greater(t, done, 2500, "of 3,000 or more that have come since")
	})
}

// Few losses among very many calls do not shrink an adaptive limit, though not every call
// is timed.
func TestAdaptiveWithFewLosses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := backend.New("x", backend.Adaptive(8, 200), backend.WithLogger(silent))
		op := asyncop.UnorderedWait(asyncop.Blocking(func(_ context.Context, i int) (int, error) {
			time.Sleep(10 * time.Millisecond)
			if i%50 == 0 {
				return 0, &httpretry.StatusError{StatusCode: 503}
			}
			return i, nil
		}), time.Minute, 400, asyncop.WithBackend(b), asyncop.WithDropOnFailure(), asyncop.WithLogger(silent))
		ended := time.After(8 * time.Second)
		go func() {
			defer close(op.In())
			for i := 0; ; i++ {
				select {
				case op.In() <- i:
				case <-ended:
					return
				}
			}
		}()
		for range op.Out() {
		}
		require.NoError(t, op.Err())
		require.Greater(t, b.Stats().Limit, 150)
	})
}

// A service that hangs is noticed, although all its elements have waited for most of
// their time: it does not answer any of them.
func TestBackend_HangsBehindABacklog(t *testing.T) {
	for _, limit := range []int{1, 10} {
		synctest.Test(t, func(t *testing.T) {
			begun := time.Now()
			b := backend.New("x", backend.Limit(limit), backend.WithLogger(silent))
			var called atomic.Int64
			op := asyncop.UnorderedWait(asyncop.Blocking(func(ctx context.Context, i int) (int, error) {
				wait := time.Second
				if time.Since(begun) > time.Minute {
					called.Add(1)
					wait = time.Hour
				}
				select {
				case <-time.After(wait):
					return i, nil
				case <-ctx.Done():
					return 0, context.Cause(ctx)
				}
			}), 10*time.Second, 8*limit, asyncop.WithBackend(b), asyncop.WithLogger(silent), asyncop.WithDropOnFailure())
			go func() {
				defer close(op.In())
				for i := 0; time.Since(begun) < 9*time.Minute; i++ {
					op.In() <- i
				}
			}()
			for range op.Out() {
			}
			require.NoError(t, op.Err())
			require.NotEqual(t, backend.Up, b.Stats().State)
			require.Less(t, called.Load(), int64(100+20*limit))
		})
	}
}
