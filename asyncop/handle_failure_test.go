package asyncop_test

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// fallback is one that answers "a!" for "a", and keeps what it was given.
func fallback(given *[]failure) func(context.Context, failure) ([]string, error) {
	return func(_ context.Context, f failure) ([]string, error) {
		*given = append(*given, f)
		return []string{f.Element + "!"}, nil
	}
}

// A3: whatever an element fails with, the fallback's results take its place, after the last retry, and are not retried.
func TestHandleFailure(t *testing.T) {
	panics := func(*call) error { panic("broken call") }
	badPredicate := strategies.FixedDelay[string](1, 0).RetryIfException(func(error) bool { panic("broken predicate") })
	for name, tt := range map[string]struct {
		answer   func(*call) error
		strategy strategy
		opts     []asyncop.Option
		attempts int
		is       error  // what the fallback gets
		says     string // the same
	}{
		"error":       {answer: fails, attempts: 1, is: errBroken},
		"last retry":  {answer: fails, strategy: retryAll(2, time.Millisecond), attempts: 3, is: errBroken},
		"panic":       {answer: panics, attempts: 1, says: "broken call"},
		"timeout":     {answer: func(*call) error { return nil }, attempts: 1, is: context.DeadlineExceeded, says: "timed out after 1s"},
		"predicate":   {answer: fails, strategy: badPredicate, attempts: 1, is: errBroken, says: "broken predicate"},
		"exhausted":   {empty, retryAll(1, 0), options(asyncop.WithExhaustedAsFailure()), 2, asyncop.ErrRetriesExhausted, ""},
		"a time lost": {answer: fails, strategy: retryAll(9, time.Hour), attempts: 1, is: errBroken, says: "timed out after 1s"},
		"early": {
			fails, retryAll(9, time.Hour), options(asyncop.WithEarlyTimeout()), 1, errBroken, "timed out early",
		},
	} {
		t.Run(name, func(t *testing.T) {
			forEachMode(t, func(t *testing.T, m mode) {
				var given []failure
				r := newRig(t, m, setup{
					timeout: time.Second, strategy: tt.strategy, opts: tt.opts,
					wrap: func(h *hand) function { return asyncop.HandleFailure(h, fallback(&given)) },
				})
				r.answer = tt.answer
				r.sendEach("a")
				r.advance(time.Second)
				require.Equal(t, "a!", r.outputs())
				require.Len(t, given, 1)
				f := given[0]
				require.Equal(t, tt.attempts, f.Attempts)
				require.False(t, f.Abandoned)
				if tt.is != nil {
					require.ErrorIs(t, f.Err, tt.is)
				}
				require.ErrorContains(t, f.Err, tt.says)
				require.Len(t, strings.Fields(r.calls()), tt.attempts)
				require.NoError(t, r.end())
				s := r.stats()
				require.Zero(t, s.Failures)
				require.EqualValues(t, 1, s.Completed)
				checkBalance(t, s)
			})
		})
	}
}

// A3: an empty result of the fallback, which the strategy would retry, ends the element.
func TestHandledResultsAreNotRetried(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{
			timeout: time.Minute, strategy: retryAll(1, time.Second),
			wrap: func(h *hand) function {
				return asyncop.HandleFailure(h, func(context.Context, failure) ([]string, error) { return nil, nil })
			},
		})
		r.answer = fails
		r.sendEach("a")
		r.advance(time.Second)
		require.Equal(t, "a#1 a#2", r.calls())
		require.NoError(t, r.end())
		require.Equal(t, "a#1 a#2", r.calls())
		require.Empty(t, r.outputs())
		require.EqualValues(t, 1, r.stats().Completed)
	})
}

// The error of a fallback takes the place of the failure: the failure policy gets it.
func TestErrorOfTheFallback(t *testing.T) {
	errMine := errors.New("mine")
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{timeout: time.Second, wrap: func(h *hand) function {
			return asyncop.HandleFailure(h, func(context.Context, failure) ([]string, error) { return nil, errMine })
		}})
		r.sendEach("a")
		r.fail("a#1", errBroken)
		err := r.wait()
		require.ErrorIs(t, err, errMine)
		require.NotErrorIs(t, err, errBroken)
		e, ok := errors.AsType[*asyncop.ElementError](err)
		require.True(t, ok)
		require.Equal(t, errMine, e.Err)
		require.Equal(t, 1, e.Attempts)
	})
}

// A3: a fallback has a limit of its own, which begins with the failure, no permit, and no deadline of the element.
func TestFallbackHasALimitAndNoPermit(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		release := make(chan struct{})
		left := make(chan time.Duration, 1)
		r := newRig(t, m, setup{
			timeout: time.Second,
			wrap: func(h *hand) function {
				return asyncop.HandleFailure(h, func(ctx context.Context, f failure) ([]string, error) {
					deadline, _ := ctx.Deadline()
					left <- time.Until(deadline)
					if asyncop.AttemptFromContext(ctx) != 0 || ctx.Value(valueKey{}) != "of the operator" {
						return nil, errors.New("wrong values")
					}
					<-release // ignores its context
					return []string{"late"}, nil
				})
			},
			opts: options(asyncop.WithHandlerLimit(3*time.Second), asyncop.WithMaxConcurrentCalls(1), asyncop.WithDropOnFailure()),
		})
		r.sendEach("ab")
		r.advance(time.Second / 2)
		r.fail("a#1", errBroken)
		require.Equal(t, 3*time.Second, <-left)
		require.Equal(t, "a#1 b#1", r.calls(), "the permit is free")
		r.complete("b#1", "B")
		r.advance(3*time.Second - 1)
		require.Zero(t, r.stats().Failures)
		r.advance(1)
		require.EqualValues(t, 1, r.stats().Dropped)
		require.Equal(t, "B", r.outputs())
		close(release)
		require.NoError(t, r.end())
		require.EqualValues(t, 1, r.stats().LateCompletions)
	})
}

// A6: a fallback that exceeds its limit, panics or calls runtime.Goexit leaves the element with its failure.
func TestBrokenFallback(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		for name, broken := range map[string]func(ctx context.Context){
			"limit":  func(ctx context.Context) { <-ctx.Done() },
			"panic":  func(context.Context) { panic("in the fallback") },
			"goexit": func(context.Context) { runtime.Goexit() },
		} {
			for _, timeout := range []bool{false, true} {
				r := newRig(t, m, setup{timeout: time.Second, wrap: func(h *hand) function {
					return asyncop.HandleFailure(h, func(ctx context.Context, _ failure) ([]string, error) { broken(ctx); return nil, nil })
				}})
				r.sendEach("a")
				if !timeout {
					r.fail("a#1", errBroken)
				}
				r.advance(time.Minute)
				err := r.wait()
				if timeout {
					require.ErrorIs(t, err, context.DeadlineExceeded, name)
				} else {
					require.ErrorIs(t, err, errBroken, name)
				}
				if name == "limit" {
					require.ErrorContains(t, err, string(errHandlerLimit))
				} else {
					p, ok := errors.AsType[*asyncop.PanicError](err)
					require.True(t, ok, "%s: %v", name, err)
					require.NotEmpty(t, p.Stack)
				}
			}
		}
	})
}

// A Timeout method is asked before the fallback around it, for timeouts only, and fallbacks from the inside out: each gets the
// error of the one before.
func TestHandlersAroundHandlers(t *testing.T) {
	errFirst := errors.New("first")
	for name, tt := range map[string]struct {
		timeout func() ([]string, error)
		fails   bool
		want    string
		is      error // what the outer fallback got
	}{
		"the method answers":      {timeout: func() ([]string, error) { return []string{"method"}, nil }, want: "method"},
		"the method fails":        {timeout: func() ([]string, error) { return nil, errFirst }, want: "a!", is: errFirst},
		"the method panics":       {timeout: func() ([]string, error) { panic("broken method") }, want: "a!", is: context.DeadlineExceeded},
		"the method ends":         {timeout: func() ([]string, error) { runtime.Goexit(); return nil, nil }, want: "a!", is: guard.ErrGoexit},
		"no timeout":              {timeout: func() ([]string, error) { return []string{"method"}, nil }, fails: true, want: "a!", is: errBroken},
		"the inner fallback says": {timeout: nil, fails: true, want: "a!", is: errFirst},
	} {
		t.Run(name, func(t *testing.T) {
			forEachMode(t, func(t *testing.T, m mode) {
				var given []failure
				r := newRig(t, m, setup{timeout: time.Second, wrap: func(h *hand) function {
					var inner function = h
					if tt.timeout != nil {
						inner = timeoutMethod(inner, func(context.Context, string) ([]string, error) { return tt.timeout() })
					} else {
						inner = asyncop.HandleFailure(inner, func(context.Context, failure) ([]string, error) { return nil, errFirst })
					}
					return asyncop.HandleFailure[string, string](&wrapper{inner}, fallback(&given))
				}})
				r.sendEach("a")
				if tt.fails {
					r.fail("a#1", errBroken)
				}
				r.advance(time.Second)
				require.Equal(t, tt.want, r.outputs())
				if tt.is == nil {
					require.Empty(t, given)
				} else {
					require.Len(t, given, 1)
					require.ErrorIs(t, given[0].Err, tt.is)
				}
				require.NoError(t, r.end())
			})
		})
	}
}

// A TimeoutError that a function returns, such as that of an operator inside of it, is not the element's own: it does not say
// how the fallback broke.
func TestBrokenFallbackOfAForeignTimeout(t *testing.T) {
	breaks := func(context.Context, failure) ([]string, error) { panic("broken fallback") }
	for name, around := range map[string]func(fn function, given *[]failure) function{
		"the only one": func(fn function, _ *[]failure) function { return asyncop.HandleFailure(fn, breaks) },
		"the inner one": func(fn function, given *[]failure) function {
			return asyncop.HandleFailure(asyncop.HandleFailure(fn, breaks), fallback(given))
		},
	} {
		t.Run(name, func(t *testing.T) {
			foreign := &asyncop.TimeoutError{Limit: time.Second}
			var given []failure
			fn := around(asyncop.Func(func(context.Context, string, future) error { return foreign }), &given)
			_, err := asyncop.Map(t.Context(), []string{"a"}, fn, nil, asyncop.WithLogger(slog.New(slog.DiscardHandler)))
			if len(given) > 0 {
				require.NoError(t, err)
				err = given[0].Err
			}
			timeout, ok := errors.AsType[*asyncop.TimeoutError](err)
			require.True(t, ok)
			require.Same(t, foreign, timeout)
			_, ok = errors.AsType[*asyncop.PanicError](err)
			require.True(t, ok)
		})
	}
}

// A1, A5: a cancel ends the context of a fallback, and its element is abandoned.
func TestCancelWhileTheFallbackRuns(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		var ended error
		r := newRig(t, m, setup{timeout: time.Second, wrap: func(h *hand) function {
			return asyncop.HandleFailure(h, func(ctx context.Context, _ failure) ([]string, error) {
				<-ctx.Done()
				ended = ctx.Err()
				return []string{"late"}, nil
			})
		}})
		r.sendEach("a")
		r.fail("a#1", errBroken)
		require.ErrorIs(t, r.cut(errTestOver), errTestOver)
		require.ErrorIs(t, ended, context.Canceled)
		require.EqualValues(t, 1, r.stats().Abandoned)
		require.Empty(t, r.outputs())
		checkBalance(t, r.stats())
	})
}

// The end of the input and Stop wait for a fallback.
func TestTheEndWaitsForTheFallback(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{wrap: func(h *hand) function {
			return asyncop.HandleFailure(asyncop.Blocking(func(context.Context, string) (string, error) { return "", errBroken }),
				func(_ context.Context, f failure) ([]string, error) {
					time.Sleep(time.Second)
					return []string{f.Element + "!"}, nil
				})
		}})
		r.sendEach("a")
		require.NoError(t, r.op.Stop(t.Context()))
		require.NoError(t, r.end())
		require.Equal(t, "a!@1s", r.outputTimes())
	})
}

// What a policy knows of the failure is the fallback's, too.
func TestFallbackKnowsTheReason(t *testing.T) {
	refused := predicates.NewRejection("REFUSED")
	forEachMode(t, func(t *testing.T, m mode) {
		var given []failure
		r := newRig(t, m, setup{
			timeout: time.Second,
			strategy: strategies.ReasonAware(
				predicates.ByException[string](predicates.ErrorIs(errBroken), refused), strategies.BestEffort[string]()),
			wrap: func(h *hand) function { return asyncop.HandleFailure(h, fallback(&given)) },
		})
		r.sendEach("a")
		r.fail("a#1", errBroken)
		require.NoError(t, r.end())
		require.Len(t, given, 1)
		require.Equal(t, refused, given[0].Reason)
		require.False(t, given[0].Ambiguous())
	})
}
