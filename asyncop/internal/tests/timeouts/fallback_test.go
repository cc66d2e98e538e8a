package timeouts_test

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
	"github.com/weirflow/weir/asyncop/internal/optest"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// fallback returns a fallback that answers "a!" for "a" and records the failures that it
// was given.
func fallback(given *[]optest.Failure) func(context.Context, optest.Failure) ([]string, error) {
	return func(_ context.Context, f optest.Failure) ([]string, error) {
		*given = append(*given, f)
		return []string{f.Element + "!"}, nil
	}
}

// Law A3: whatever the error of an element, the fallback's results replace it after the
// last retry, and are not retried.
func TestHandleFailure(t *testing.T) {
	panics := func(*optest.Call) error { panic("broken call") }
	badPredicate := strategies.FixedDelay[string](1, 0).RetryIfException(func(error) bool { panic("broken predicate") })
	for name, tt := range map[string]struct {
		answer   func(*optest.Call) error
		strategy optest.Strategy
		opts     []asyncop.Option
		attempts int
		is       error  // the error that the fallback gets
		says     string // part of its text
	}{
		"error":       {answer: optest.Fails, attempts: 1, is: optest.ErrBroken},
		"last retry":  {answer: optest.Fails, strategy: optest.RetryAll(2, time.Millisecond), attempts: 3, is: optest.ErrBroken},
		"panic":       {answer: panics, attempts: 1, says: "broken call"},
		"timeout":     {answer: func(*optest.Call) error { return nil }, attempts: 1, is: context.DeadlineExceeded, says: "timed out after 1s"},
		"predicate":   {answer: optest.Fails, strategy: badPredicate, attempts: 1, is: optest.ErrBroken, says: "broken predicate"},
		"exhausted":   {optest.Empty, optest.RetryAll(1, 0), optest.Options(asyncop.WithExhaustedAsFailure()), 2, asyncop.ErrRetriesExhausted, ""},
		"a time lost": {answer: optest.Fails, strategy: optest.RetryAll(9, time.Hour), attempts: 1, is: optest.ErrBroken, says: "timed out after 1s"},
		"early": {
			optest.Fails, optest.RetryAll(9, time.Hour), optest.Options(asyncop.WithEarlyTimeout()), 1, optest.ErrBroken, "timed out early",
		},
	} {
		t.Run(name, func(t *testing.T) {
			optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
				var given []optest.Failure
				r := optest.NewRig(t, m, optest.Setup{
					Timeout: time.Second, Strategy: tt.strategy, Opts: tt.opts,
					Wrap: func(h *optest.Hand) optest.Function { return asyncop.HandleFailure(h, fallback(&given)) },
				})
				r.Answer = tt.answer
				r.SendEach("a")
				r.Advance(time.Second)
				require.Equal(t, "a!", r.Outputs())
				require.Len(t, given, 1)
				f := given[0]
				require.Equal(t, tt.attempts, f.Attempts)
				require.False(t, f.Abandoned)
				if tt.is != nil {
					require.ErrorIs(t, f.Err, tt.is)
				}
				require.ErrorContains(t, f.Err, tt.says)
				require.Len(t, strings.Fields(r.Calls()), tt.attempts)
				require.NoError(t, r.End())
				s := r.Stats()
				require.Zero(t, s.Failures)
				require.EqualValues(t, 1, s.Completed)
				optest.CheckBalance(t, s)
			})
		})
	}
}

// Law A3: an empty result of the fallback, which the strategy would retry, ends the
// element.
func TestHandledResultsAreNotRetried(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Minute, Strategy: optest.RetryAll(1, time.Second),
			Wrap: func(h *optest.Hand) optest.Function {
				return asyncop.HandleFailure(h, func(context.Context, optest.Failure) ([]string, error) { return nil, nil })
			},
		})
		r.Answer = optest.Fails
		r.SendEach("a")
		r.Advance(time.Second)
		require.Equal(t, "a#1 a#2", r.Calls())
		require.NoError(t, r.End())
		require.Equal(t, "a#1 a#2", r.Calls())
		require.Empty(t, r.Outputs())
		require.EqualValues(t, 1, r.Stats().Completed)
	})
}

// An error of a fallback replaces the failure, and the failure policy gets it.
func TestErrorOfTheFallback(t *testing.T) {
	errMine := errors.New("mine")
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{Timeout: time.Second, Wrap: func(h *optest.Hand) optest.Function {
			return asyncop.HandleFailure(h, func(context.Context, optest.Failure) ([]string, error) { return nil, errMine })
		}})
		r.SendEach("a")
		r.Fail("a#1", optest.ErrBroken)
		err := r.Wait()
		require.ErrorIs(t, err, errMine)
		require.NotErrorIs(t, err, optest.ErrBroken)
		e, ok := errors.AsType[*asyncop.ElementError](err)
		require.True(t, ok)
		require.Equal(t, errMine, e.Err)
		require.Equal(t, 1, e.Attempts)
	})
}

// Law A3: a fallback has its own limit, which begins with the failure. It has no permit,
// and not the deadline of the element.
func TestFallbackHasALimitAndNoPermit(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		release := make(chan struct{})
		left := make(chan time.Duration, 1)
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Second,
			Wrap: func(h *optest.Hand) optest.Function {
				return asyncop.HandleFailure(h, func(ctx context.Context, f optest.Failure) ([]string, error) {
					deadline, _ := ctx.Deadline()
					left <- time.Until(deadline)
					if asyncop.AttemptFromContext(ctx) != 0 || ctx.Value(optest.ValueKey{}) != "of the operator" {
						return nil, errors.New("wrong values")
					}
					<-release // ignores its context
					return []string{"late"}, nil
				})
			},
			Opts: optest.Options(asyncop.WithHandlerLimit(3*time.Second), asyncop.WithMaxConcurrentCalls(1), asyncop.WithDropOnFailure()),
		})
		r.SendEach("ab")
		r.Advance(time.Second / 2)
		r.Fail("a#1", optest.ErrBroken)
		require.Equal(t, 3*time.Second, <-left)
		require.Equal(t, "a#1 b#1", r.Calls(), "the permit is free")
		r.Complete("b#1", "B")
		r.Advance(3*time.Second - 1)
		require.Zero(t, r.Stats().Failures)
		r.Advance(1)
		require.EqualValues(t, 1, r.Stats().Dropped)
		require.Equal(t, "B", r.Outputs())
		close(release)
		require.NoError(t, r.End())
		require.EqualValues(t, 1, r.Stats().LateCompletions)
	})
}

// Law A6: if a fallback exceeds its limit, panics or calls runtime.Goexit, the element
// keeps its failure.
func TestBrokenFallback(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		for name, broken := range map[string]func(ctx context.Context){
			"limit":  func(ctx context.Context) { <-ctx.Done() },
			"panic":  func(context.Context) { panic("in the fallback") },
			"goexit": func(context.Context) { runtime.Goexit() },
		} {
			for _, timeout := range []bool{false, true} {
				r := optest.NewRig(t, m, optest.Setup{Timeout: time.Second, Wrap: func(h *optest.Hand) optest.Function {
					return asyncop.HandleFailure(h, func(ctx context.Context, _ optest.Failure) ([]string, error) { broken(ctx); return nil, nil })
				}})
				r.SendEach("a")
				if !timeout {
					r.Fail("a#1", optest.ErrBroken)
				}
				r.Advance(time.Minute)
				err := r.Wait()
				if timeout {
					require.ErrorIs(t, err, context.DeadlineExceeded, name)
				} else {
					require.ErrorIs(t, err, optest.ErrBroken, name)
				}
				if name == "limit" {
					require.ErrorContains(t, err, string(optest.ErrHandlerLimit))
				} else {
					p, ok := errors.AsType[*asyncop.PanicError](err)
					require.True(t, ok, "%s: %v", name, err)
					require.NotEmpty(t, p.Stack)
				}
			}
		}
	})
}

// For a timeout, the Timeout method is called before the fallback around it. Fallbacks
// run from the inside out, and each gets the error of the previous handler.
func TestHandlersAroundHandlers(t *testing.T) {
	errFirst := errors.New("first")
	for name, tt := range map[string]struct {
		timeout func() ([]string, error)
		fails   bool
		want    string
		is      error // the error that the outer fallback got
	}{
		"the method answers":      {timeout: func() ([]string, error) { return []string{"method"}, nil }, want: "method"},
		"the method fails":        {timeout: func() ([]string, error) { return nil, errFirst }, want: "a!", is: errFirst},
		"the method panics":       {timeout: func() ([]string, error) { panic("broken method") }, want: "a!", is: context.DeadlineExceeded},
		"the method ends":         {timeout: func() ([]string, error) { runtime.Goexit(); return nil, nil }, want: "a!", is: guard.ErrGoexit},
		"no timeout":              {timeout: func() ([]string, error) { return []string{"method"}, nil }, fails: true, want: "a!", is: optest.ErrBroken},
		"the inner fallback says": {timeout: nil, fails: true, want: "a!", is: errFirst},
	} {
		t.Run(name, func(t *testing.T) {
			optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
				var given []optest.Failure
				r := optest.NewRig(t, m, optest.Setup{Timeout: time.Second, Wrap: func(h *optest.Hand) optest.Function {
					var inner optest.Function = h
					if tt.timeout != nil {
						inner = optest.TimeoutMethod(inner, func(context.Context, string) ([]string, error) { return tt.timeout() })
					} else {
						inner = asyncop.HandleFailure(inner, func(context.Context, optest.Failure) ([]string, error) { return nil, errFirst })
					}
					return asyncop.HandleFailure[string, string](&optest.Wrapper{Inner: inner}, fallback(&given))
				}})
				r.SendEach("a")
				if tt.fails {
					r.Fail("a#1", optest.ErrBroken)
				}
				r.Advance(time.Second)
				require.Equal(t, tt.want, r.Outputs())
				if tt.is == nil {
					require.Empty(t, given)
				} else {
					require.Len(t, given, 1)
					require.ErrorIs(t, given[0].Err, tt.is)
				}
				require.NoError(t, r.End())
			})
		})
	}
}

// A TimeoutError that a function returns, for example from an operator inside it, does
// not belong to the element. It does not describe how the fallback broke.
func TestBrokenFallbackOfAForeignTimeout(t *testing.T) {
	breaks := func(context.Context, optest.Failure) ([]string, error) { panic("broken fallback") }
	for name, around := range map[string]func(fn optest.Function, given *[]optest.Failure) optest.Function{
		"the only one": func(fn optest.Function, _ *[]optest.Failure) optest.Function {
			return asyncop.HandleFailure(fn, breaks)
		},
		"the inner one": func(fn optest.Function, given *[]optest.Failure) optest.Function {
			return asyncop.HandleFailure(asyncop.HandleFailure(fn, breaks), fallback(given))
		},
	} {
		t.Run(name, func(t *testing.T) {
			other := &asyncop.TimeoutError{Limit: time.Second}
			var given []optest.Failure
			fn := around(asyncop.Func(func(context.Context, string, optest.Future) error { return other }), &given)
			_, err := asyncop.Map(t.Context(), []string{"a"}, fn, nil, asyncop.WithLogger(slog.New(slog.DiscardHandler)))
			if len(given) > 0 {
				require.NoError(t, err)
				err = given[0].Err
			}
			timeout, ok := errors.AsType[*asyncop.TimeoutError](err)
			require.True(t, ok)
			require.Same(t, other, timeout)
			_, ok = errors.AsType[*asyncop.PanicError](err)
			require.True(t, ok)
		})
	}
}

// Laws A1, A5: a cancel ends the context of a fallback, and its element is abandoned.
func TestCancelWhileTheFallbackRuns(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		var ended error
		r := optest.NewRig(t, m, optest.Setup{Timeout: time.Second, Wrap: func(h *optest.Hand) optest.Function {
			return asyncop.HandleFailure(h, func(ctx context.Context, _ optest.Failure) ([]string, error) {
				<-ctx.Done()
				ended = ctx.Err()
				return []string{"late"}, nil
			})
		}})
		r.SendEach("a")
		r.Fail("a#1", optest.ErrBroken)
		require.ErrorIs(t, r.Cut(optest.ErrTestOver), optest.ErrTestOver)
		require.ErrorIs(t, ended, context.Canceled)
		require.EqualValues(t, 1, r.Stats().Abandoned)
		require.Empty(t, r.Outputs())
		optest.CheckBalance(t, r.Stats())
	})
}

// The end of the input and Stop wait for a fallback.
func TestWithFallback_EndWaits(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{Wrap: func(h *optest.Hand) optest.Function {
			return asyncop.HandleFailure(asyncop.Blocking(func(context.Context, string) (string, error) { return "", optest.ErrBroken }),
				func(_ context.Context, f optest.Failure) ([]string, error) {
					time.Sleep(time.Second)
					return []string{f.Element + "!"}, nil
				})
		}})
		r.SendEach("a")
		require.NoError(t, r.Op.Stop(t.Context()))
		require.NoError(t, r.End())
		require.Equal(t, "a!@1s", r.OutputTimes())
	})
}

// The fallback, too, gets the policy's classification of the failure.
func TestFallbackKnowsTheReason(t *testing.T) {
	refused := predicates.NewRejection("REFUSED")
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		var given []optest.Failure
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Second,
			Strategy: strategies.ReasonAware(
				predicates.ByException[string](predicates.ErrorIs(optest.ErrBroken), refused), strategies.BestEffort[string]()),
			Wrap: func(h *optest.Hand) optest.Function { return asyncop.HandleFailure(h, fallback(&given)) },
		})
		r.SendEach("a")
		r.Fail("a#1", optest.ErrBroken)
		require.NoError(t, r.End())
		require.Len(t, given, 1)
		require.Equal(t, refused, given[0].Reason)
		require.False(t, given[0].UnsafeToRepeat())
	})
}
