package asyncop_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
)

// ownTimeouts gives "a" a second, "b" a minute, "n" a negative timeout, and all others none of their own.
func ownTimeouts() asyncop.Option {
	own := map[string]time.Duration{"a": time.Second, "b": time.Minute, "n": -1}
	return asyncop.WithTimeoutFor(func(in string) time.Duration { return own[in] })
}

// A3: an element's own timeout takes the place of the operator's, be it shorter or longer; it counts from the slot on.
func TestOwnTimeouts(t *testing.T) {
	forEachClock(t, func(t *testing.T, m mode) {
		var mu sync.Mutex
		limits := map[string]time.Duration{} // guarded by mu
		r := newRig(t, m, setup{
			timeout: 10 * time.Second, opts: options(ownTimeouts()),
			wrap: func(h *hand) function {
				return asyncop.HandleFailure(h, func(_ context.Context, f failure) ([]string, error) {
					timeout, ok := errors.AsType[*asyncop.TimeoutError](f.Err)
					if !ok {
						return nil, f.Err
					}
					mu.Lock()
					defer mu.Unlock()
					limits[f.Element] = timeout.Limit
					return []string{f.Element + "!"}, nil
				})
			},
		})
		r.sendEach("xbya")
		r.advance(time.Second)
		require.Equal(t, m.pick("", "a!"), r.outputs())
		r.advance(9 * time.Second)
		require.EqualValues(t, 3, r.stats().Timeouts)
		r.complete("b#1", "B")
		require.NoError(t, r.end())
		require.Len(t, strings.Fields(r.outputs()), 4)
		require.Equal(t, map[string]time.Duration{"a": time.Second, "x": 10 * time.Second, "y": 10 * time.Second}, limits)
	})
}

// A5: an element whose own time is over has no call.
func TestOwnTimeoutThatIsOver(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		var given []failure
		r := newRig(t, m, setup{
			timeout: time.Second, opts: options(ownTimeouts(), asyncop.WithDropOnFailure()),
			wrap: func(h *hand) function {
				return asyncop.HandleFailure(h, func(_ context.Context, f failure) ([]string, error) { given = append(given, f); return nil, f.Err })
			},
		})
		r.sendEach("nc")
		require.Equal(t, "c#1", r.calls())
		require.EqualValues(t, 1, r.stats().Timeouts)
		require.EqualValues(t, 1, r.stats().Dropped)
		r.complete("c#1", "C")
		require.NoError(t, r.end())
		require.Equal(t, "C", r.outputs())
		require.Len(t, given, 1)
		require.EqualError(t, given[0].Err, "asyncop: timed out before the first attempt: the deadline had passed")
	})
}

// An operator without a timeout has those that its elements have, and their calls have the deadlines.
func TestOwnTimeoutsOnly(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{opts: options(ownTimeouts(), asyncop.WithDropOnFailure())})
		r.sendEach("ca")
		deadline, ok := r.call("a#1").ctx.Deadline()
		require.True(t, ok)
		require.Equal(t, time.Second, time.Until(deadline))
		_, ok = r.call("c#1").ctx.Deadline()
		require.False(t, ok)
		r.advance(time.Second)
		require.EqualValues(t, 1, r.stats().Dropped)
		require.ErrorIs(t, r.call("a#1").ctx.Err(), context.DeadlineExceeded)
		r.advance(100 * time.Hour)
		r.complete("c#1", "C")
		require.NoError(t, r.end())
		require.Equal(t, "C", r.outputs())
	})
}

// A5: no retry starts at the element's own deadline or after it.
func TestRetriesWithinOwnTimeouts(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{
			timeout: 10 * time.Second, strategy: retryAll(100, 400*time.Millisecond),
			opts: options(ownTimeouts(), asyncop.WithDropOnFailure()),
		})
		r.answer = fails
		r.sendEach("a")
		r.advance(time.Minute)
		require.Equal(t, "a#1@0s a#2@400ms a#3@800ms", r.callTimes())
		require.EqualValues(t, 1, r.stats().Timeouts)
		require.NoError(t, r.end())
	})
}

// A6: a function that breaks fails its element, and the others go on.
func TestBrokenTimeoutFor(t *testing.T) {
	for name, broken := range map[string]func(){"panic": func() { panic("no timeout") }, "goexit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			forEachMode(t, func(t *testing.T, m mode) {
				var given []failure
				r := newRig(t, m, setup{
					timeout: time.Second,
					wrap:    func(h *hand) function { return asyncop.HandleFailure(h, fallback(&given)) },
					opts: options(asyncop.WithTimeoutFor(func(in string) time.Duration {
						if in == "a" {
							broken()
						}
						return 0
					})),
				})
				r.sendEach("abc")
				require.Equal(t, "b#1 c#1", r.calls())
				r.complete("b#1", "B")
				r.complete("c#1", "C")
				require.NoError(t, r.end())
				require.Len(t, given, 1)
				p, ok := errors.AsType[*asyncop.PanicError](given[0].Err)
				require.True(t, ok)
				require.NotEmpty(t, p.Stack)
				require.Zero(t, given[0].Attempts)
				checkBalance(t, r.stats())
			})
		})
	}
}

// Without own timeouts, or with the operator's, an element allocates nothing more.
func TestOwnTimeoutsOfTheOperatorsCostNothing(t *testing.T) {
	perElement := func(opts ...asyncop.Option) float64 {
		keys := make([]string, 1000)
		return testing.AllocsPerRun(5, func() {
			op := asyncop.OrderedWait[string, string](asyncop.Func(func(_ context.Context, in string, f future) error {
				f.Complete(in)
				return nil
			}), time.Minute, 100, opts...)
			for _, err := range op.ResultsOf(asyncop.FromSlice(keys)) {
				if err != nil {
					panic(err)
				}
			}
		}) / float64(len(keys))
	}
	require.Less(t, perElement(asyncop.WithTimeoutFor(func(string) time.Duration { return 0 })), 2.4, "the attempt, its results, and the start")
	require.Less(t, perElement(), 2.4, "the same")
}
