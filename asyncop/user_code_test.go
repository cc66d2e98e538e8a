package asyncop_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// ---- Law A6: an error, a panic or a runtime.Goexit in user code is an outcome of its element.

// breakages are the ways in which user code can break without returning.
var breakages = []struct {
	name   string
	breaks func()
	value  any // of the PanicError
}{
	{"panic", func() { panic("broken") }, "broken"},
	{"panic with an error", func() { panic(errBroken) }, errBroken},
	{"goexit", runtime.Goexit, guard.ErrGoexit},
}

// ownStrategy is a strategy for errors made of functions.
type ownStrategy struct {
	can     func() bool
	backoff func() time.Duration
}

func (s ownStrategy) CanRetry(int) bool                   { return s.can == nil || s.can() }
func (s ownStrategy) BackoffTime(int) time.Duration       { return s.backoff() }
func (s ownStrategy) RetryPredicate() predicatesOfStrings { return errorsOnly }

// failingCall is what element b is answered with where the site needs an error.
func failingCall(c *call) { c.CompleteExceptionally(errBroken) }

// sites are the places at which the loop calls user code for one element. Element b breaks, the others do not.
var sites = []struct {
	name  string
	setup func(breaks func()) setup
	b     func(c *call) // how b's attempt is answered; nil: with a result
}{
	{"AsyncInvoke", func(breaks func()) setup {
		return setup{wrap: func(h *hand) function {
			h.script("b#1", func(*call) error { breaks(); return nil })
			return h
		}}
	}, nil},
	{"result predicate", func(breaks func()) setup {
		return setup{strategy: strategies.FixedDelay[string](3, 0).RetryIfResult(func(results []string) bool {
			if results[0] == "B" {
				breaks()
			}
			return false
		})}
	}, nil},
	{"exception predicate", func(breaks func()) setup {
		return setup{strategy: strategies.FixedDelay[string](3, 0).RetryIfException(func(error) bool { breaks(); return true })}
	}, failingCall},
	{"CanRetry", func(breaks func()) setup {
		return setup{strategy: ownStrategy{can: func() bool { breaks(); return true }}}
	}, failingCall},
	{"BackoffTime", func(breaks func()) setup {
		return setup{strategy: ownStrategy{backoff: func() time.Duration { breaks(); return 0 }}}
	}, failingCall},
	{"jitter", func(breaks func()) setup {
		return setup{strategy: retryAll(3, time.Second).WithJitter(func(time.Duration, *rand.Rand) time.Duration {
			breaks()
			return 0
		})}
	}, failingCall},
}

// A6: code that breaks ends its element, with its stack; the loop survives and loses nothing of the others, although
// elements are waiting to be accepted, and then completions to be handled, in the same turn.
func TestUserCodeThatBreaksEndsItsElement(t *testing.T) {
	for _, site := range sites {
		for _, b := range breakages {
			t.Run(site.name+"/"+b.name, func(t *testing.T) {
				forEachMode(t, func(t *testing.T, m mode) {
					side := newSideSink(false)
					s := site.setup(b.breaks)
					s.timeout = time.Hour
					s.opts = append(s.opts, asyncop.WithFailureSink(side.take))
					r := newRig(t, m, s)
					away := func(c *call) error { time.Sleep(time.Second); return upper(c) }
					r.script("x#1", away)
					r.script("y#1", away)

					r.op.In() <- "x"
					synctest.Wait()
					for _, e := range "abcde" { // accepted in one turn
						r.op.In() <- string(e)
					}
					r.advance(time.Second)
					r.op.In() <- "y"
					for _, c := range r.callsOf("abcde") { // completed in one turn
						if c.in == "b" && site.b != nil {
							site.b(c)
						} else {
							_ = upper(c)
						}
					}
					r.advance(time.Second)
					require.Equal(t, "X A C D E Y", r.outputs())
					require.Equal(t, "b", side.elements())
					panicked, ok := errors.AsType[*asyncop.PanicError](side.got()[0].Err)
					require.True(t, ok, "%v", side.got()[0].Err)
					require.Equal(t, b.value, panicked.Value)
					require.Contains(t, string(panicked.Stack), "user_code_test.go")
					require.LessOrEqual(t, strings.Count(r.calls(), "b#"), 1, "no retry after it")

					r.send("f")
					r.complete("f#1", "F")
					require.NoError(t, r.end())
					require.Regexp(t, " F$", r.outputs())
					st := r.stats()
					require.EqualValues(t, 7, st.Completed)
					require.EqualValues(t, 1, st.HandedOver)
					require.Zero(t, st.Running)
					checkBalance(t, st)
				})
			})
		}
	}
}

// A6: the same where the loop is in the middle of other work: attempts that time out all at once, whose predicate breaks.
func TestPredicateThatBreaksAtATimer(t *testing.T) {
	for _, b := range breakages {
		forEachClock(t, func(t *testing.T, m mode) {
			side := newSideSink(false)
			asked := 0
			s := strategies.FixedDelay[string](1, time.Second).RetryIfException(func(error) bool {
				if asked++; asked == 2 {
					b.breaks()
				}
				return true
			})
			r := newRig(t, m, setup{
				timeout: time.Minute, strategy: s,
				opts: options(asyncop.WithAttemptTimeout(time.Second), asyncop.WithFailureSink(side.take)),
			})
			r.sendEach("abcd")
			r.advance(2 * time.Second)
			require.Equal(t, "a#1@0s b#1@0s c#1@0s d#1@0s a#2@2s c#2@2s d#2@2s", r.callTimes())
			require.Equal(t, "b", side.elements())
			for _, e := range []string{"a", "c", "d"} {
				r.complete(e+"#2", e)
			}
			require.NoError(t, r.end())
			require.Equal(t, "a c d", r.outputs())
			require.EqualValues(t, 4, r.stats().AttemptTimeouts)
			checkBalance(t, r.stats())
		})
	}
}

// A6: and a retry that breaks while others are due in the same turn.
func TestRetryThatBreaksAmongOthers(t *testing.T) {
	for _, b := range breakages {
		forEachClock(t, func(t *testing.T, m mode) {
			side := newSideSink(false)
			r := newRig(t, m, setup{
				timeout: time.Minute, strategy: retryAll(1, time.Second), opts: options(asyncop.WithFailureSink(side.take)),
			})
			r.answer = func(c *call) error {
				switch {
				case c.attempt == 1:
					return errBroken
				case c.in == "b":
					b.breaks()
				}
				return upper(c)
			}
			r.sendEach("abcd")
			r.advance(time.Second)
			require.Equal(t, "A C D", r.outputs())
			require.Equal(t, "b", side.elements())
			require.NoError(t, r.end())
			require.Zero(t, r.stats().Running)
		})
	}
}

// callsOf returns the first calls of the elements, as far as they were made.
func (h *hand) callsOf(elements string) []*call {
	synctest.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	var found []*call
	for _, c := range h.made {
		if strings.Contains(elements, c.in) && c.attempt == 1 && h.scripts[c.String()] == nil {
			found = append(found, c)
		}
	}
	return found
}

// A6: under the default policy it fails the pipeline: never a hang, never an end that looks like a clean one.
func TestUserCodeThatBreaksFailsThePipeline(t *testing.T) {
	for _, site := range sites {
		for _, b := range breakages {
			t.Run(site.name+"/"+b.name, func(t *testing.T) {
				forEachMode(t, func(t *testing.T, m mode) {
					s := site.setup(b.breaks)
					s.timeout = time.Hour
					r := newRig(t, m, s)
					r.sendEach("abc")
					for _, c := range r.callsOf("b") {
						if site.b != nil {
							site.b(c)
						} else {
							_ = upper(c)
						}
					}
					err := r.wait()
					require.Equal(t, err, r.errAtEO)
					failed, ok := errors.AsType[*asyncop.ElementError](err)
					require.True(t, ok, "%v", err)
					require.Equal(t, "b", failed.Element)
					_, ok = errors.AsType[*asyncop.PanicError](err)
					require.True(t, ok, "%v", err)
					checkBalance(t, r.stats())
				})
			})
		}
	}
}

// A6: an error that the predicate was asked about is not lost when the predicate breaks.
func TestBrokenPredicateDoesNotHideTheError(t *testing.T) {
	errOfCall := errors.New("of the call")
	for _, b := range breakages {
		forEachMode(t, func(t *testing.T, m mode) {
			s := strategies.FixedDelay[string](3, 0).RetryIfException(func(error) bool { b.breaks(); return true })
			r := newRig(t, m, setup{timeout: time.Minute, strategy: s})
			r.sendEach("a")
			r.fail("a#1", errOfCall)
			err := r.wait()
			require.ErrorIs(t, err, errOfCall)
			panicked, ok := errors.AsType[*asyncop.PanicError](err)
			require.True(t, ok, "%v", err)
			require.Equal(t, b.value, panicked.Value)
		})
	}
}

// A6: a negative BackoffTime is nonsense that ends the element, and names the strategy.
func TestNegativeBackoffTime(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{
			timeout: time.Minute, strategy: ownStrategy{backoff: func() time.Duration { return -time.Second }},
		})
		r.sendEach("ab")
		r.fail("a#1", errBroken)
		err := r.wait()
		require.ErrorIs(t, err, errBroken)
		require.ErrorContains(t, err, "asyncop_test.ownStrategy")
		require.ErrorContains(t, err, "-1s")
		require.Equal(t, "a#1 b#1", r.calls())
	})
}

// A6: errors, panics and runtime.Goexit of the call itself go to the exception predicate like any other error, be it
// made on the loop or as a blocking one.
func TestBrokenCallsAreRetried(t *testing.T) {
	kinds := map[string]func() error{
		"error":  func() error { return errBroken },
		"panic":  func() error { panic("broken") },
		"goexit": func() error { runtime.Goexit(); return nil },
	}
	styles := map[string]func(f func(context.Context) error) function{
		"AsyncInvoke": func(f func(context.Context) error) function {
			return asyncop.Func(func(ctx context.Context, in string, result future) error {
				if err := f(ctx); err != nil {
					return err
				}
				result.Complete(strings.ToUpper(in))
				return nil
			})
		},
		"Blocking": func(f func(context.Context) error) function {
			return asyncop.Blocking(func(ctx context.Context, in string) (string, error) {
				return strings.ToUpper(in), f(ctx)
			})
		},
		"BlockingMany": func(f func(context.Context) error) function {
			return asyncop.BlockingMany(func(ctx context.Context, in string) ([]string, error) {
				return []string{strings.ToUpper(in)}, f(ctx)
			})
		},
	}
	for style, fn := range styles {
		for kind, broken := range kinds {
			t.Run(style+"/"+kind, func(t *testing.T) {
				forEachMode(t, func(t *testing.T, m mode) {
					var seen []error
					r := newRig(t, m, setup{
						timeout: time.Minute,
						strategy: strategies.FixedDelay[string](3, time.Second).
							RetryIfException(func(err error) bool { seen = append(seen, err); return true }),
						wrap: func(*hand) function {
							return fn(func(ctx context.Context) error {
								if asyncop.AttemptFromContext(ctx) < 3 {
									return broken()
								}
								return nil
							})
						},
					})
					r.sendEach("a")
					r.advance(10 * time.Second)
					require.Equal(t, "A@2s", r.outputTimes())
					require.Len(t, seen, 2)
					if kind == "error" {
						require.Equal(t, errBroken, seen[0])
					} else {
						panicked, ok := errors.AsType[*asyncop.PanicError](seen[0])
						require.True(t, ok)
						require.Contains(t, string(panicked.Stack), "TestBrokenCallsAreRetried")
					}
					require.NoError(t, r.end())
				})
			})
		}
	}
}

// A6: Open and Close, whatever they do, end the pipeline with an error and not the process.
func TestOpenAndCloseThatBreak(t *testing.T) {
	for _, b := range breakages {
		t.Run(b.name, func(t *testing.T) {
			forEachMode(t, func(t *testing.T, m mode) {
				broken := func() error { b.breaks(); return nil }
				for _, l := range []*lifecycle{{open: broken}, {close: broken}} {
					r := newRig(t, m, setup{wrap: func(h *hand) function { l.hand = h; return l }})
					r.answer = upper
					r.sendEach("a")
					err := r.end()
					panicked, ok := errors.AsType[*asyncop.PanicError](err)
					require.True(t, ok, "%v", err)
					require.Equal(t, b.value, panicked.Value)
					require.Equal(t, err, r.errAtEO)
				}
			})
		})
	}
}

// A6: hooks that break change nothing else: the logger, and the function that reports the source.
func TestHooksThatBreak(t *testing.T) {
	for _, b := range breakages {
		hooks := map[string]asyncop.Option{
			"logger":          asyncop.WithLogger(slog.New(breakingHandler(b.breaks))),
			"upstream cancel": asyncop.WithUpstreamCancel(func(error) { b.breaks() }),
		}
		for name, hook := range hooks {
			t.Run(name+"/"+b.name, func(t *testing.T) {
				forEachMode(t, func(t *testing.T, m mode) {
					r := newRig(t, m, setup{
						timeout: time.Minute, strategy: retryAll(1, time.Second),
						opts: options(hook, asyncop.WithDropOnFailure()),
					})
					r.sendEach("ab")
					r.fail("a#1", errBroken) // logs a retry
					r.advance(time.Second)
					r.fail("a#2", errBroken) // logs the loss
					r.complete("b#1", "B")
					require.NoError(t, r.end())
					require.Equal(t, "B", r.outputs())

					r = newRig(t, m, setup{opts: options(hook)})
					r.sendEach("ab")
					r.fail("b#1", errBroken)
					require.ErrorIs(t, r.wait(), errBroken)
					require.Equal(t, r.op.Err(), r.errAtEO)
				})
			})
		}
	}
}

// breakingHandler is a slog.Handler.
type breakingHandler func()

func (h breakingHandler) Enabled(context.Context, slog.Level) bool  { return true }
func (h breakingHandler) Handle(context.Context, slog.Record) error { h(); return nil }
func (h breakingHandler) WithAttrs([]slog.Attr) slog.Handler        { return h }
func (h breakingHandler) WithGroup(string) slog.Handler             { return h }

// A6: a typed nil is an error whose methods panic: an old mistake of user code that must not end the process.
func TestErrorWhoseMethodsPanic(t *testing.T) {
	var typedNil *fs.PathError // its Unwrap panics
	fns := map[string]func(*hand) function{
		"AsyncInvoke": func(h *hand) function {
			h.answer = func(*call) error { return typedNil }
			return h
		},
		"CompleteExceptionally": func(h *hand) function {
			h.answer = func(c *call) error { c.CompleteExceptionally(typedNil); return nil }
			return h
		},
		"Blocking": func(*hand) function {
			return asyncop.Blocking(func(context.Context, string) (string, error) { return "", typedNil })
		},
		"timeout handler": func(h *hand) function {
			return timeoutMethod(h, func(context.Context, string) ([]string, error) { return nil, typedNil })
		},
	}
	for name, fn := range fns {
		t.Run(name, func(t *testing.T) {
			forEachMode(t, func(t *testing.T, m mode) {
				side := newSideSink(false)
				r := newRig(t, m, setup{
					timeout: time.Second, wrap: fn, opts: options(asyncop.WithFailureSink(side.take)),
					strategy: strategies.FixedDelay[string](3, 0).RetryIfException(predicates.ErrorIs(errBroken)),
				})
				r.sendEach("a")
				r.advance(time.Second)
				require.NoError(t, r.end())
				require.Equal(t, "a", side.elements())
				require.Error(t, side.got()[0].Err)
			})
		})
	}
}

// A6: a function that panics while another goroutine completes the attempt: whichever is first counts, and only it.
func TestPanicRacesACompletion(t *testing.T) {
	fn := asyncop.Func(func(_ context.Context, in int, result asyncop.ResultFuture[int]) error {
		go result.Complete(in)
		runtime.Gosched()
		if in%2 == 0 {
			runtime.Goexit()
		}
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

// A6: the message says where user code panicked, and %+v shows the stack, whatever the error is wrapped in.
func TestPlaceOfAPanic(t *testing.T) {
	broken := func(context.Context, string) (string, error) { panic("boom") }
	const place = "panic in user code: boom (at user_code_test.go:N asyncop_test.TestPlaceOfAPanic.func1)"
	stacks := map[string]struct {
		run  func(opts ...asyncop.Option) error
		want string
	}{
		"element": {func(opts ...asyncop.Option) error {
			return lastError(asyncop.OrderedWait(asyncop.Blocking(broken), time.Minute, 1, opts...), "a")
		}, `asyncop: element "a" failed after 1 attempt in 0s: asyncop: ` + place},
		"with others in flight": {func(opts ...asyncop.Option) error {
			fn := asyncop.Blocking(func(ctx context.Context, in string) (string, error) {
				if in == "b" {
					return broken(ctx, in)
				}
				<-ctx.Done()
				return "", nil
			})
			return lastError(asyncop.OrderedWait(fn, time.Minute, 2, opts...), "ab")
		}, `asyncop: element "b" failed after 1 attempt in 0s: asyncop: ` + place + " (1 other element in flight was abandoned)"},
		"timeout": {func(opts ...asyncop.Option) error {
			fn := timeoutMethod(asyncop.Func(func(context.Context, string, future) error { return nil }),
				func(ctx context.Context, in string) ([]string, error) { _, err := broken(ctx, in); return nil, err })
			return lastError(asyncop.OrderedWait(fn, time.Minute, 1, opts...), "a")
		}, `asyncop: element "a" failed after 1 attempt in 1m0s: asyncop: timed out after 1m0s and 1 attempt: handler: asyncop: ` + place},
		"Close": {func(opts ...asyncop.Option) error {
			l := &lifecycle{hand: newHand(t), close: func() error { _, err := broken(t.Context(), ""); return err }}
			l.answer = upper
			return lastError(asyncop.OrderedWait(function(l), time.Minute, 1, opts...), "a")
		}, "asyncop: close: asyncop: " + place},
	}
	for name, tt := range stacks {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				err := tt.run(asyncop.WithLogger(slog.New(slog.DiscardHandler)))
				require.Equal(t, tt.want, withoutLine(err.Error()))
				require.Equal(t, err.Error(), fmt.Sprintf("%v", err))
				detailed := fmt.Sprintf("%+v", err)
				require.True(t, strings.HasPrefix(detailed, err.Error()+"\ngoroutine "), detailed)
				require.Contains(t, detailed, "asyncop_test.TestPlaceOfAPanic.func1(")
				require.Equal(t, 1, strings.Count(detailed, "runtime/debug.Stack"))
			})
		})
	}
}

// lastError feeds op the letters of elements and returns its last error.
func lastError(op *operator, elements string) (last error) {
	for _, err := range op.Results(letters(elements)) {
		last = err
	}
	return last
}
