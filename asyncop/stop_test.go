package asyncop_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
)

// lines is the output of a logger of several operators.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// step is an operator whose calls take d, and end with their context.
func step(name string, d time.Duration, log io.Writer, opts ...asyncop.Option) *asyncop.AsyncWaitOperator[int, int] {
	call := func(ctx context.Context, in int) (int, error) {
		select {
		case <-time.After(d):
			return in, nil
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
	opts = append(opts, asyncop.WithName(name), asyncop.WithLogger(slog.New(slog.NewTextHandler(log, nil))))
	return asyncop.OrderedWait(asyncop.Blocking(call), 0, 4, opts...)
}

// naturals is an input without an end.
func naturals(yield func(int) bool) {
	for n := 0; yield(n); n++ {
	}
}

func TestStopAll_RowOfFlows(t *testing.T) {
	for _, test := range []struct {
		limit time.Duration
		clean bool
	}{{time.Minute, true}, {time.Second, false}} {
		synctest.Test(t, func(t *testing.T) {
			log := &lines{}
			a, b, c := step("a", 2*time.Second, log), step("b", 3*time.Second, log), step("c", time.Second, log)
			a.Via(b).Via(c)
			var results []int
			var ended sync.WaitGroup
			ended.Go(func() {
				for v := range c.Out() {
					results = append(results, v.(int))
				}
			})
			for n := range 4 {
				a.In() <- n
			}
			synctest.Wait()
			ctx, cancel := context.WithTimeout(t.Context(), test.limit)
			defer cancel()
			begun := time.Now()
			err := asyncop.StopAll(ctx, a, b, c)
			if test.clean {
				require.NoError(t, err)
				require.Equal(t, 6*time.Second, time.Since(begun))
			} else {
				require.ErrorIs(t, err, asyncop.ErrStopped)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.EqualError(t, err, "asyncop: ended with 4 elements in flight: asyncop: operator stopped: context deadline exceeded")
				require.Less(t, time.Since(begun), 3*time.Second)
			}
			close(a.In())
			for _, op := range []asyncop.Stopper{a, b, c} {
				<-op.Done()
			}
			ended.Wait()
			if test.clean {
				require.Equal(t, []int{0, 1, 2, 3}, results)
			}
			assert.NotContains(t, log.String(), "level=ERROR")
		})
	}
}

func TestStopAll_LoopOverResults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &lines{}
		a, b := step("a", 2*time.Second, log), step("b", 3*time.Second, log)
		var stopped error
		var stopping sync.WaitGroup
		stopping.Go(func() {
			time.Sleep(time.Second)
			stopped = asyncop.StopAll(t.Context(), a, b)
		})
		sum, last := 0, error(nil)
		for n, err := range b.ResultsFrom(a.Results(naturals)) {
			sum, last = sum+n, err
		}
		stopping.Wait()
		require.NoError(t, stopped)
		require.ErrorIs(t, last, asyncop.ErrStopped)
		require.Equal(t, 0+1+2+3, sum)
		assert.NotContains(t, log.String(), "level=ERROR")
	})
}

func TestStopAll_ReturnsFailureOfLaterOperator(t *testing.T) {
	log := &lines{}
	down := errors.New("down")
	a := step("a", 0, log)
	b := asyncop.OrderedWait(asyncop.Blocking(func(context.Context, int) (int, error) { return 0, down }), 0, 4,
		asyncop.WithName("b"), asyncop.WithLogger(slog.New(slog.NewTextHandler(log, nil))))
	a.Via(b)
	a.In() <- 1
	<-b.Done()
	<-a.Done()
	close(a.In())
	err := asyncop.StopAll(t.Context(), a, b)
	require.ErrorIs(t, err, down)
	_, isElement := errors.AsType[*asyncop.ElementError](err)
	require.True(t, isElement, err)
	require.Equal(t, 1, strings.Count(log.String(), "level=ERROR"), log.String())
}

func TestStopAll_RefusesNil(t *testing.T) {
	require.PanicsWithValue(t, "asyncop: StopAll: no operators", func() { _ = asyncop.StopAll(t.Context()) })
	require.PanicsWithValue(t, "asyncop: StopAll: nil operator 1", func() { _ = asyncop.StopAll(t.Context(), nil) })
}

// A cancel is expected. The operators behind a cancelled operator have not failed either.
func TestWithContext_CancelledRowLogsNoError(t *testing.T) {
	for _, which := range []string{"all", "first", "last"} {
		for _, inLoop := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				log := &lines{}
				ctx, cancel := context.WithCancelCause(t.Context())
				of := func(name string) *asyncop.AsyncWaitOperator[int, int] {
					if which == "all" || which == name {
						return step(name, time.Second, log, asyncop.WithContext(ctx))
					}
					return step(name, time.Second, log)
				}
				a, b, c := of("first"), of("second"), of("last")
				go func() {
					time.Sleep(10 * time.Second)
					cancel(errors.New("shutdown"))
				}()
				if inLoop {
					for range c.ResultsFrom(b.ResultsFrom(a.Results(naturals))) {
					}
				} else {
					a.Via(b).Via(c)
					go func() {
						defer close(a.In())
						for n := range 1000 {
							a.In() <- n
						}
					}()
					for range c.Out() {
					}
				}
				<-a.Done()
				<-b.Done()
				<-c.Done()
				require.Error(t, c.Err())
				synctest.Wait()
				assert.NotContains(t, log.String(), "level=ERROR", "%s, loop: %v", which, inLoop)
				assert.Contains(t, log.String(), "operator cancelled")
			})
		}
	}
}
