package asyncop_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// perSecond lets one attempt start in each second.
type perSecond struct {
	mu   sync.Mutex
	next time.Time
}

func (p *perSecond) Take(now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if wait := p.next.Sub(now); wait > 0 {
		return wait
	}
	p.next = now.Add(time.Second)
	return 0
}

// Attempts of two operators, retries included, start in the pace that they share.
func TestPaceOfOperators(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var starts []time.Time
		fn := asyncop.Blocking(func(ctx context.Context, in int) (int, error) {
			mu.Lock()
			defer mu.Unlock()
			starts = append(starts, time.Now())
			if asyncop.AttemptFromContext(ctx) == 1 {
				return 0, errors.New("again")
			}
			return in, nil
		})
		pace := new(perSecond)
		var wg sync.WaitGroup
		for range 2 {
			op := asyncop.OrderedWaitWithRetry(fn, time.Minute, 10,
				strategies.FixedDelay[int](1, 0).RetryIfException(predicates.HasException), asyncop.WithPace(pace))
			wg.Go(func() {
				if n := consume(t, op, 5); n != 5 {
					t.Errorf("%d results", n)
				}
			})
		}
		start := time.Now()
		wg.Wait()
		require.Len(t, starts, 20)
		for i, at := range starts {
			require.Equal(t, start.Add(time.Duration(i)*time.Second), at, "law T1: neither early nor late")
		}
	})
}

// What waits for the pace holds no call and no goroutine; a timeout ends it without an attempt (law A3).
func TestTimeoutInThePace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		op := asyncop.OrderedWait(asyncop.Blocking(func(_ context.Context, in int) (int, error) { return in, nil }),
			3500*time.Millisecond, 100, asyncop.WithPace(new(perSecond)), asyncop.WithDropOnFailure(),
			asyncop.WithLogger(slog.New(slog.DiscardHandler)))
		go func() {
			time.Sleep(500 * time.Millisecond)
			s := op.Stats()
			if s.Running != 0 || s.InFlight < 98 {
				t.Errorf("%+v", s)
			}
		}()
		require.Equal(t, 4, consume(t, op, 100)) // at 0, 1, 2, 3 seconds
		require.EqualValues(t, 96, op.Stats().Dropped)
		require.EqualValues(t, 4, op.Stats().Attempts)
	})
}

// The pace goes by the clock of the operator.
func TestPaceByAMockClock(t *testing.T) {
	mock := clock.NewMock()
	called := make(chan int)
	op := asyncop.OrderedWait(asyncop.Blocking(func(_ context.Context, in int) (int, error) {
		called <- in
		return in, nil
	}), time.Minute, 10, asyncop.WithClock(mock), asyncop.WithPace(new(perSecond)))
	done := make(chan int)
	go func() { done <- consume(t, op, 2) }()
	<-called
	begun := mock.Now()
	for n := 0; n < 1; {
		select {
		case <-called:
			n++
		case <-time.After(5 * time.Millisecond):
			if mock.Now().Sub(begun) < 2*time.Second { // the timeout does not come, however slow the machine is
				mock.Add(100 * time.Millisecond)
			}
		}
	}
	require.GreaterOrEqual(t, mock.Now().Sub(begun), time.Second)
	require.Equal(t, 2, <-done)
}

// The input has ended: what is left keeps to the pace, and so does the last attempt of what is in back-off.
func TestPaceAfterTheEndOfTheInput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var starts []time.Duration
		start := time.Now()
		op := asyncop.OrderedWaitWithRetry(asyncop.Blocking(func(context.Context, int) (int, error) {
			starts = append(starts, time.Since(start))
			return 0, errors.New("again")
		}), time.Hour, 10, strategies.FixedDelay[int](5, time.Minute).RetryIfException(predicates.HasException),
			asyncop.WithPace(new(perSecond)), asyncop.WithMaxConcurrentCalls(1), asyncop.WithDropOnFailure(),
			asyncop.WithLogger(slog.New(slog.DiscardHandler)))
		op.In() <- 1
		op.In() <- 2
		close(op.In())
		for range op.Out() {
			t.Error("a result")
		}
		require.NoError(t, op.Wait())
		require.LessOrEqual(t, len(starts), 4)
		for i, at := range starts {
			require.Equal(t, time.Duration(i)*time.Second, at)
		}
	})
}

func TestPacePanics(t *testing.T) {
	require.PanicsWithValue(t, "asyncop: WithPace: nil pacer", func() { asyncop.WithPace(nil) })
	require.PanicsWithValue(t, "asyncop: WithPace: nil pacer", func() { asyncop.WithPace((*perSecond)(nil)) })
}
