package endings_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/internal/optest"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// failingCall fails the call of element b, at sites that need an error.
func failingCall(c *optest.Call) { c.CompleteExceptionally(optest.ErrBroken) }

// sites are the points at which the loop calls user code for one element. Element b
// breaks, the others do not.
var sites = []struct {
	name  string
	setup func(breaks func()) optest.Setup
	b     func(c *optest.Call) // answers b's attempt; nil answers with a result
}{
	{"AsyncInvoke", func(breaks func()) optest.Setup {
		return optest.Setup{Wrap: func(h *optest.Hand) optest.Function {
			h.Script("b#1", func(*optest.Call) error { breaks(); return nil })
			return h
		}}
	}, nil},
	{"result predicate", func(breaks func()) optest.Setup {
		return optest.Setup{Strategy: strategies.FixedDelay[string](3, 0).RetryIfResult(func(results []string) bool {
			if results[0] == "B" {
				breaks()
			}
			return false
		})}
	}, nil},
	{"exception predicate", func(breaks func()) optest.Setup {
		return optest.Setup{Strategy: strategies.FixedDelay[string](3, 0).RetryIfException(func(error) bool { breaks(); return true })}
	}, failingCall},
	{"CanRetry", func(breaks func()) optest.Setup {
		return optest.Setup{Strategy: optest.OwnStrategy{Can: func() bool { breaks(); return true }}}
	}, failingCall},
	{"BackoffTime", func(breaks func()) optest.Setup {
		return optest.Setup{Strategy: optest.OwnStrategy{Backoff: func() time.Duration { breaks(); return 0 }}}
	}, failingCall},
	{"jitter", func(breaks func()) optest.Setup {
		return optest.Setup{Strategy: optest.RetryAll(3, time.Second).WithJitter(func(time.Duration, *rand.Rand) time.Duration {
			breaks()
			return 0
		})}
	}, failingCall},
}

// Law A6: a panic ends its element, with its stack. The loop continues and loses no other
// element, although first elements and then completions wait to be handled in the same
// step.
func TestUserCodeThatBreaksEndsItsElement(t *testing.T) {
	for _, site := range sites {
		for _, b := range optest.Panics() {
			t.Run(site.name+"/"+b.Name, func(t *testing.T) {
				optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
					side := optest.NewSideSink(false)
					s := site.setup(b.Breaks)
					s.Timeout = time.Hour
					s.Opts = append(s.Opts, asyncop.WithFailureSink(side.Take))
					r := optest.NewRig(t, m, s)
					away := func(c *optest.Call) error { time.Sleep(time.Second); return optest.Upper(c) }
					r.Script("x#1", away)
					r.Script("y#1", away)

					r.Op.In() <- "x"
					synctest.Wait()
					for _, e := range "abcde" { // accepted in one step
						r.Op.In() <- string(e)
					}
					r.Advance(time.Second)
					r.Op.In() <- "y"
					for _, c := range r.CallsOf("abcde") { // completed in one step
						if c.In == "b" && site.b != nil {
							site.b(c)
						} else {
							_ = optest.Upper(c)
						}
					}
					r.Advance(time.Second)
					require.Equal(t, "X A C D E Y", r.Outputs())
					require.Equal(t, "b", side.Elements())
					panicked, ok := errors.AsType[*asyncop.PanicError](side.Got()[0].Err)
					require.True(t, ok, "%v", side.Got()[0].Err)
					require.Equal(t, b.Value, panicked.Value)
					require.Contains(t, string(panicked.Stack), "broken_code_test.go")
					require.LessOrEqual(t, strings.Count(r.Calls(), "b#"), 1, "no retry after it")

					r.Send("f")
					r.Complete("f#1", "F")
					require.NoError(t, r.End())
					require.Regexp(t, " F$", r.Outputs())
					st := r.Stats()
					require.EqualValues(t, 7, st.Completed)
					require.EqualValues(t, 1, st.HandedOver)
					require.Zero(t, st.Running)
					optest.CheckBalance(t, st)
				})
			})
		}
	}
}

// exitSites are further points at which the loop calls user code.
var exitSites = []struct {
	code  string // the name of the code in the error
	setup func(breaks func()) optest.Setup
}{
	{"the function of WithTimeoutFor", func(breaks func()) optest.Setup {
		return optest.Setup{Opts: optest.Options(asyncop.WithTimeoutFor(func(in string) time.Duration {
			if in == "b" {
				breaks()
			}
			return 0
		}))}
	}},
	{"the function of Cost", func(breaks func()) optest.Setup {
		return optest.Setup{Opts: optest.Options(asyncop.WithBackend(optest.Limited(9), asyncop.Cost(func(in string) float64 {
			if in == "b" {
				breaks()
			}
			return 1
		})))}
	}},
	{"the key function", func(breaks func()) optest.Setup {
		return optest.Setup{Key: func(in string) string {
			if in == "b" {
				breaks()
			}
			return in
		}}
	}},
	{"an observer", func(breaks func()) optest.Setup {
		return optest.Setup{Opts: optest.Options(asyncop.WithObserver(exitingObserver{breaks}))}
	}},
}

// exitingObserver breaks when element b is accepted.
type exitingObserver struct{ breaks func() }

func (o exitingObserver) Accepted(ctx context.Context, element any, _ bool) context.Context {
	if element == "b" {
		o.breaks()
	}
	return ctx
}
func (exitingObserver) AttemptStarted(ctx context.Context, _ int) context.Context { return ctx }
func (exitingObserver) AttemptEnded(context.Context, observe.Outcome)             {}
func (exitingObserver) Ended(context.Context, observe.Ending)                     {}

// Law A6: runtime.Goexit in user code on the loop ends the run, whichever port is in use.
// The error names the code, the other elements are abandoned, and everything ends.
func TestGoexitOnTheLoop(t *testing.T) {
	type site struct {
		name  string
		setup func(breaks func()) optest.Setup
		code  string
		b     func(c *optest.Call)
	}
	var all []site
	for _, s := range sites {
		code := "the retry strategy or one of its predicates"
		if s.name == "AsyncInvoke" {
			code = s.name
		}
		all = append(all, site{s.name, s.setup, code, s.b})
	}
	for _, s := range exitSites {
		all = append(all, site{s.code, s.setup, s.code, nil})
	}
	for _, s := range all {
		t.Run(s.name, func(t *testing.T) {
			optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
				setup := s.setup(runtime.Goexit)
				setup.Timeout = time.Hour
				r := optest.NewRig(t, m, setup)
				r.SendEach("abc")
				for _, c := range r.CallsOf("b") {
					if s.b != nil {
						s.b(c)
					} else {
						_ = optest.Upper(c)
					}
				}
				err := r.Wait()
				require.ErrorContains(t, err, "asyncop: "+s.code+" ended the goroutine of the operator: ")
				require.ErrorIs(t, err, guard.ErrGoexit)
				st := r.Stats()
				require.Zero(t, st.Running)
				require.Zero(t, st.InFlight)
				optest.CheckBalance(t, st)
			})
		})
	}
	t.Run("Results", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			op := asyncop.OrderedWait(asyncop.Func(func(context.Context, string, optest.Future) error { runtime.Goexit(); return nil }), 0, 4,
				asyncop.WithLogger(slog.New(slog.DiscardHandler)))
			var last error
			for _, err := range op.Results(slices.Values([]string{"a", "b"})) {
				last = err
			}
			require.ErrorContains(t, last, "asyncop: AsyncInvoke ended the goroutine of the operator: ", "the loop of the caller goes on")
			<-op.Done()
			optest.CheckBalance(t, op.Stats())
		})
	})
}

// Law A6: the same applies while the loop does other work: several attempts time out at
// the same time, and their predicate breaks.
func TestPredicateThatBreaksAtATimer(t *testing.T) {
	for _, b := range optest.Panics() {
		optest.ForEachClock(t, func(t *testing.T, m optest.Mode) {
			side := optest.NewSideSink(false)
			asked := 0
			s := strategies.FixedDelay[string](1, time.Second).RetryIfException(func(error) bool {
				if asked++; asked == 2 {
					b.Breaks()
				}
				return true
			})
			r := optest.NewRig(t, m, optest.Setup{
				Timeout: time.Minute, Strategy: s,
				Opts: optest.Options(asyncop.WithAttemptTimeout(time.Second), asyncop.WithFailureSink(side.Take)),
			})
			r.SendEach("abcd")
			r.Advance(2 * time.Second)
			require.Equal(t, "a#1@0s b#1@0s c#1@0s d#1@0s a#2@2s c#2@2s d#2@2s", r.CallTimes())
			require.Equal(t, "b", side.Elements())
			for _, e := range []string{"a", "c", "d"} {
				r.Complete(e+"#2", e)
			}
			require.NoError(t, r.End())
			require.Equal(t, "a c d", r.Outputs())
			require.EqualValues(t, 4, r.Stats().AttemptTimeouts)
			optest.CheckBalance(t, r.Stats())
		})
	}
}

// Law A6: the same applies to a retry that breaks while others are due in the same step.
func TestRetryThatBreaksAmongOthers(t *testing.T) {
	for _, b := range optest.Panics() {
		optest.ForEachClock(t, func(t *testing.T, m optest.Mode) {
			side := optest.NewSideSink(false)
			r := optest.NewRig(t, m, optest.Setup{
				Timeout: time.Minute, Strategy: optest.RetryAll(1, time.Second), Opts: optest.Options(asyncop.WithFailureSink(side.Take)),
			})
			r.Answer = func(c *optest.Call) error {
				switch {
				case c.Attempt == 1:
					return optest.ErrBroken
				case c.In == "b":
					b.Breaks()
				}
				return optest.Upper(c)
			}
			r.SendEach("abcd")
			r.Advance(time.Second)
			require.Equal(t, "A C D", r.Outputs())
			require.Equal(t, "b", side.Elements())
			require.NoError(t, r.End())
			require.Zero(t, r.Stats().Running)
		})
	}
}

// Law A6: under the default policy, broken code fails the pipeline. It never hangs, and
// its end never looks clean.
func TestUserCodeThatBreaksFailsThePipeline(t *testing.T) {
	for _, site := range sites {
		for _, b := range optest.Panics() {
			t.Run(site.name+"/"+b.Name, func(t *testing.T) {
				optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
					s := site.setup(b.Breaks)
					s.Timeout = time.Hour
					r := optest.NewRig(t, m, s)
					r.SendEach("abc")
					for _, c := range r.CallsOf("b") {
						if site.b != nil {
							site.b(c)
						} else {
							_ = optest.Upper(c)
						}
					}
					err := r.Wait()
					require.Equal(t, err, r.ErrAtEO)
					failed, ok := errors.AsType[*asyncop.ElementError](err)
					require.True(t, ok, "%v", err)
					require.Equal(t, "b", failed.Element)
					_, ok = errors.AsType[*asyncop.PanicError](err)
					require.True(t, ok, "%v", err)
					optest.CheckBalance(t, r.Stats())
				})
			})
		}
	}
}

// Law A6: an error is not lost if the predicate breaks on it.
func TestBrokenPredicateDoesNotHideTheError(t *testing.T) {
	errOfCall := errors.New("of the call")
	for _, b := range optest.Panics() {
		optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
			s := strategies.FixedDelay[string](3, 0).RetryIfException(func(error) bool { b.Breaks(); return true })
			r := optest.NewRig(t, m, optest.Setup{Timeout: time.Minute, Strategy: s})
			r.SendEach("a")
			r.Fail("a#1", errOfCall)
			err := r.Wait()
			require.ErrorIs(t, err, errOfCall)
			panicked, ok := errors.AsType[*asyncop.PanicError](err)
			require.True(t, ok, "%v", err)
			require.Equal(t, b.Value, panicked.Value)
		})
	}
}

// Law A6: a negative BackoffTime is invalid. It ends the element with an error that names
// the strategy.
func TestNegativeBackoffTime(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Minute, Strategy: optest.OwnStrategy{Backoff: func() time.Duration { return -time.Second }},
		})
		r.SendEach("ab")
		r.Fail("a#1", optest.ErrBroken)
		err := r.Wait()
		require.ErrorIs(t, err, optest.ErrBroken)
		require.ErrorContains(t, err, "optest.OwnStrategy")
		require.ErrorContains(t, err, "-1s")
		require.Equal(t, "a#1 b#1", r.Calls())
	})
}

// Law A6: errors, panics and runtime.Goexit of the call itself go to the exception
// predicate like any other error, whether the call is made on the loop or is a blocking
// call.
func TestBrokenCallsAreRetried(t *testing.T) {
	kinds := map[string]func() error{
		"error":  func() error { return optest.ErrBroken },
		"panic":  func() error { panic("broken") },
		"goexit": func() error { runtime.Goexit(); return nil },
	}
	styles := map[string]func(f func(context.Context) error) optest.Function{
		"AsyncInvoke": func(f func(context.Context) error) optest.Function {
			return asyncop.Func(func(ctx context.Context, in string, result optest.Future) error {
				if err := f(ctx); err != nil {
					return err
				}
				result.Complete(strings.ToUpper(in))
				return nil
			})
		},
		"Blocking": func(f func(context.Context) error) optest.Function {
			return asyncop.Blocking(func(ctx context.Context, in string) (string, error) {
				return strings.ToUpper(in), f(ctx)
			})
		},
		"BlockingMany": func(f func(context.Context) error) optest.Function {
			return asyncop.BlockingMany(func(ctx context.Context, in string) ([]string, error) {
				return []string{strings.ToUpper(in)}, f(ctx)
			})
		},
	}
	for style, fn := range styles {
		for kind, broken := range kinds {
			if style == "AsyncInvoke" && kind == "goexit" {
				continue // that ends the run
			}
			t.Run(style+"/"+kind, func(t *testing.T) {
				optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
					var seen []error
					r := optest.NewRig(t, m, optest.Setup{
						Timeout: time.Minute,
						Strategy: strategies.FixedDelay[string](3, time.Second).
							RetryIfException(func(err error) bool { seen = append(seen, err); return true }),
						Wrap: func(*optest.Hand) optest.Function {
							return fn(func(ctx context.Context) error {
								if asyncop.AttemptFromContext(ctx) < 3 {
									return broken()
								}
								return nil
							})
						},
					})
					r.SendEach("a")
					r.Advance(10 * time.Second)
					require.Equal(t, "A@2s", r.OutputTimes())
					require.Len(t, seen, 2)
					if kind == "error" {
						require.Equal(t, optest.ErrBroken, seen[0])
					} else {
						panicked, ok := errors.AsType[*asyncop.PanicError](seen[0])
						require.True(t, ok)
						require.Contains(t, string(panicked.Stack), "TestBrokenCallsAreRetried")
					}
					require.NoError(t, r.End())
				})
			})
		}
	}
}

// Law A6: Open and Close, whatever they do, end the pipeline with an error and not the
// process.
func TestOpenAndCloseThatBreak(t *testing.T) {
	for _, b := range optest.Breakages {
		t.Run(b.Name, func(t *testing.T) {
			optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
				broken := func() error { b.Breaks(); return nil }
				for _, l := range []*lifecycle{{open: broken}, {close: broken}} {
					r := optest.NewRig(t, m, optest.Setup{Wrap: func(h *optest.Hand) optest.Function { l.Hand = h; return l }})
					r.Answer = optest.Upper
					r.SendEach("a")
					err := r.End()
					panicked, ok := errors.AsType[*asyncop.PanicError](err)
					require.True(t, ok, "%v", err)
					require.Equal(t, b.Value, panicked.Value)
					require.Equal(t, err, r.ErrAtEO)
				}
			})
		})
	}
}

// Law A6: a logger or a WithUpstreamCancel function that breaks changes nothing else.
func TestHooksThatBreak(t *testing.T) {
	for _, b := range optest.Breakages {
		hooks := map[string]asyncop.Option{
			"logger":          asyncop.WithLogger(slog.New(optest.BreakingHandler(b.Breaks))),
			"upstream cancel": asyncop.WithUpstreamCancel(func(error) { b.Breaks() }),
		}
		for name, hook := range hooks {
			t.Run(name+"/"+b.Name, func(t *testing.T) {
				optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
					r := optest.NewRig(t, m, optest.Setup{
						Timeout: time.Minute, Strategy: optest.RetryAll(1, time.Second),
						Opts: optest.Options(hook, asyncop.WithDropOnFailure()),
					})
					r.SendEach("ab")
					r.Fail("a#1", optest.ErrBroken) // logs a retry
					r.Advance(time.Second)
					r.Fail("a#2", optest.ErrBroken) // logs the loss
					r.Complete("b#1", "B")
					require.NoError(t, r.End())
					require.Equal(t, "B", r.Outputs())

					r = optest.NewRig(t, m, optest.Setup{Opts: optest.Options(hook)})
					r.SendEach("ab")
					r.Fail("b#1", optest.ErrBroken)
					require.ErrorIs(t, r.Wait(), optest.ErrBroken)
					require.Equal(t, r.Op.Err(), r.ErrAtEO)
				})
			})
		}
	}
}

// Law A6: an error that is a typed nil has methods that panic, a common mistake in user
// code, which must not end the process.
func TestErrorWhoseMethodsPanic(t *testing.T) {
	var typedNil *fs.PathError // its Unwrap panics
	fns := map[string]func(*optest.Hand) optest.Function{
		"AsyncInvoke": func(h *optest.Hand) optest.Function {
			h.Answer = func(*optest.Call) error { return typedNil }
			return h
		},
		"CompleteExceptionally": func(h *optest.Hand) optest.Function {
			h.Answer = func(c *optest.Call) error { c.CompleteExceptionally(typedNil); return nil }
			return h
		},
		"Blocking": func(*optest.Hand) optest.Function {
			return asyncop.Blocking(func(context.Context, string) (string, error) { return "", typedNil })
		},
		"timeout handler": func(h *optest.Hand) optest.Function {
			return optest.TimeoutMethod(h, func(context.Context, string) ([]string, error) { return nil, typedNil })
		},
	}
	for name, fn := range fns {
		t.Run(name, func(t *testing.T) {
			optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
				side := optest.NewSideSink(false)
				r := optest.NewRig(t, m, optest.Setup{
					Timeout: time.Second, Wrap: fn, Opts: optest.Options(asyncop.WithFailureSink(side.Take)),
					Strategy: strategies.FixedDelay[string](3, 0).RetryIfException(predicates.ErrorIs(optest.ErrBroken)),
				})
				r.SendEach("a")
				r.Advance(time.Second)
				require.NoError(t, r.End())
				require.Equal(t, "a", side.Elements())
				require.Error(t, side.Got()[0].Err)
			})
		})
	}
}

// Law A6: if a function panics while another goroutine completes the attempt, only the
// first of the two counts.
func TestPanicRacesACompletion(t *testing.T) {
	fn := asyncop.Func(func(_ context.Context, in int, result asyncop.ResultFuture[int]) error {
		go result.Complete(in)
		runtime.Gosched()
		panic("broken")
	})
	op := asyncop.UnorderedWait(fn, time.Minute, 8, asyncop.WithDropOnFailure(), asyncop.WithLogger(slog.New(slog.DiscardHandler)))
	go func() {
		defer close(op.In())
		for i := range 300 {
			op.In() <- i
		}
	}()
	n := 0
	for range op.Out() {
		n++
	}
	require.NoError(t, op.Wait())
	s := op.Stats()
	require.EqualValues(t, 300, s.Completed+s.Dropped)
	require.EqualValues(t, n, s.Completed)
	require.Zero(t, s.Running)
}

// Law A6: the message names the place where user code panicked, and %+v prints the stack,
// however the error is wrapped.
func TestFrameOfAPanic(t *testing.T) {
	broken := func(context.Context, string) (string, error) { panic("boom") }
	const frame = "panic in user code: boom (at broken_code_test.go:N endings_test.TestFrameOfAPanic.func1)"
	stacks := map[string]struct {
		run  func(opts ...asyncop.Option) error
		want string
	}{
		"element": {func(opts ...asyncop.Option) error {
			return lastError(asyncop.OrderedWait(asyncop.Blocking(broken), time.Minute, 1, opts...), "a")
		}, `asyncop: element "a" failed after 1 attempt in 0s: asyncop: ` + frame},
		"with others in flight": {func(opts ...asyncop.Option) error {
			fn := asyncop.Blocking(func(ctx context.Context, in string) (string, error) {
				if in == "b" {
					return broken(ctx, in)
				}
				<-ctx.Done()
				return "", nil
			})
			return lastError(asyncop.OrderedWait(fn, time.Minute, 2, opts...), "ab")
		}, `asyncop: element "b" failed after 1 attempt in 0s: asyncop: ` + frame + " (1 other element in flight abandoned)"},
		"timeout": {func(opts ...asyncop.Option) error {
			fn := optest.TimeoutMethod(asyncop.Func(func(context.Context, string, optest.Future) error { return nil }),
				func(ctx context.Context, in string) ([]string, error) { _, err := broken(ctx, in); return nil, err })
			return lastError(asyncop.OrderedWait(fn, time.Minute, 1, opts...), "a")
		}, `asyncop: element "a" failed after 1 attempt in 1m0s: asyncop: timed out after 1m0s and 1 attempt: handler: asyncop: ` + frame},
		"Close": {func(opts ...asyncop.Option) error {
			l := &lifecycle{Hand: optest.NewHand(t), close: func() error { _, err := broken(t.Context(), ""); return err }}
			l.Answer = optest.Upper
			return lastError(asyncop.OrderedWait(optest.Function(l), time.Minute, 1, opts...), "a")
		}, "asyncop: close: asyncop: " + frame},
	}
	for name, tt := range stacks {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				err := tt.run(asyncop.WithLogger(slog.New(slog.DiscardHandler)))
				require.Equal(t, tt.want, withoutLine(err.Error()))
				require.Equal(t, err.Error(), fmt.Sprintf("%v", err))
				detailed := fmt.Sprintf("%+v", err)
				require.True(t, strings.HasPrefix(detailed, err.Error()+"\ngoroutine "), detailed)
				require.Contains(t, detailed, "endings_test.TestFrameOfAPanic.func1(")
				require.Equal(t, 1, strings.Count(detailed, "runtime/debug.Stack"))
			})
		})
	}
}

// lastError feeds op the letters of elements and returns its last error.
func lastError(op *optest.Operator, elements string) (last error) {
	for _, err := range op.Results(optest.Letters(elements)) {
		last = err
	}
	return last
}
