package timeouts_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/internal/optest"
)

// ownTimeouts gives "a" a second, "b" a minute, "n" a negative timeout, and other
// elements no timeout of their own.
func ownTimeouts() asyncop.Option {
	own := map[string]time.Duration{"a": time.Second, "b": time.Minute, "n": -1}
	return asyncop.WithTimeoutFor(func(in string) time.Duration { return own[in] })
}

// Law A3: an element's own timeout, shorter or longer, replaces the operator's. It counts
// from the time when the element takes its slot.
func TestOwnTimeouts(t *testing.T) {
	optest.ForEachClock(t, func(t *testing.T, m optest.Mode) {
		var mu sync.Mutex
		limits := map[string]time.Duration{} // guarded by mu
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: 10 * time.Second, Opts: optest.Options(ownTimeouts()),
			Wrap: func(h *optest.Hand) optest.Function {
				return asyncop.HandleFailure(h, func(_ context.Context, f optest.Failure) ([]string, error) {
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
		r.SendEach("xbya")
		r.Advance(time.Second)
		require.Equal(t, m.Pick("", "a!"), r.Outputs())
		r.Advance(9 * time.Second)
		require.EqualValues(t, 3, r.Stats().Timeouts)
		r.Complete("b#1", "B")
		require.NoError(t, r.End())
		require.Len(t, strings.Fields(r.Outputs()), 4)
		require.Equal(t, map[string]time.Duration{"a": time.Second, "x": 10 * time.Second, "y": 10 * time.Second}, limits)
	})
}

// Law A5: an element whose own timeout has passed is not called.
func TestOwnTimeoutThatIsOver(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		var given []optest.Failure
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Second, Opts: optest.Options(ownTimeouts(), asyncop.WithDropOnFailure()),
			Wrap: func(h *optest.Hand) optest.Function {
				return asyncop.HandleFailure(h, func(_ context.Context, f optest.Failure) ([]string, error) {
					given = append(given, f)
					return nil, f.Err
				})
			},
		})
		r.SendEach("nc")
		require.Equal(t, "c#1", r.Calls())
		require.EqualValues(t, 1, r.Stats().Timeouts)
		require.EqualValues(t, 1, r.Stats().Dropped)
		r.Complete("c#1", "C")
		require.NoError(t, r.End())
		require.Equal(t, "C", r.Outputs())
		require.Len(t, given, 1)
		require.EqualError(t, given[0].Err, "asyncop: timed out before the first attempt: the deadline had passed")
	})
}

// An operator without a timeout applies the timeouts of its elements, and their calls
// have these deadlines.
func TestOwnTimeoutsOnly(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{Opts: optest.Options(ownTimeouts(), asyncop.WithDropOnFailure())})
		r.SendEach("ca")
		deadline, ok := r.Call("a#1").Ctx.Deadline()
		require.True(t, ok)
		require.Equal(t, time.Second, time.Until(deadline))
		_, ok = r.Call("c#1").Ctx.Deadline()
		require.False(t, ok)
		r.Advance(time.Second)
		require.EqualValues(t, 1, r.Stats().Dropped)
		require.ErrorIs(t, r.Call("a#1").Ctx.Err(), context.DeadlineExceeded)
		r.Advance(100 * time.Hour)
		r.Complete("c#1", "C")
		require.NoError(t, r.End())
		require.Equal(t, "C", r.Outputs())
	})
}

// Law A5: no retry starts at the element's own deadline or after it.
func TestRetriesWithinOwnTimeouts(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: 10 * time.Second, Strategy: optest.RetryAll(100, 400*time.Millisecond),
			Opts: optest.Options(ownTimeouts(), asyncop.WithDropOnFailure()),
		})
		r.Answer = optest.Fails
		r.SendEach("a")
		r.Advance(time.Minute)
		require.Equal(t, "a#1@0s a#2@400ms a#3@800ms", r.CallTimes())
		require.EqualValues(t, 1, r.Stats().Timeouts)
		require.NoError(t, r.End())
	})
}

// Law A6: a function that breaks fails its element, and the others continue.
func TestBrokenTimeoutFor(t *testing.T) {
	for name, broken := range map[string]func(){"panic": func() { panic("no timeout") }} {
		t.Run(name, func(t *testing.T) {
			optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
				var given []optest.Failure
				r := optest.NewRig(t, m, optest.Setup{
					Timeout: time.Second,
					Wrap:    func(h *optest.Hand) optest.Function { return asyncop.HandleFailure(h, fallback(&given)) },
					Opts: optest.Options(asyncop.WithTimeoutFor(func(in string) time.Duration {
						if in == "a" {
							broken()
						}
						return 0
					})),
				})
				r.SendEach("abc")
				require.Equal(t, "b#1 c#1", r.Calls())
				r.Complete("b#1", "B")
				r.Complete("c#1", "C")
				require.NoError(t, r.End())
				require.Len(t, given, 1)
				p, ok := errors.AsType[*asyncop.PanicError](given[0].Err)
				require.True(t, ok)
				require.NotEmpty(t, p.Stack)
				require.Zero(t, given[0].Attempts)
				optest.CheckBalance(t, r.Stats())
			})
		})
	}
}

// Without own timeouts, or with own timeouts equal to the operator's, an element needs no
// additional allocation.
func TestOwnTimeoutsOfTheOperatorsCostNothing(t *testing.T) {
	perElement := func(opts ...asyncop.Option) float64 {
		keys := make([]string, 1000)
		return testing.AllocsPerRun(5, func() {
			op := asyncop.OrderedWait[string, string](asyncop.Func(func(_ context.Context, in string, f optest.Future) error {
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
