package endings_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/internal/core"
	"github.com/weirflow/weir/asyncop/internal/optest"
	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// ---- Law A6: an error is user code, too. Its methods may panic or end their goroutine.

// hostileError breaks in one of its methods. A nil hostileError panics in all of them.
type hostileError struct{ error, is, as, unwrap, log func() }

func (e *hostileError) Error() string   { e.error(); return "hostile" }
func (e *hostileError) Is(error) bool   { e.is(); return false }
func (e *hostileError) As(any) bool     { e.as(); return false }
func (e *hostileError) Unwrap() error   { e.unwrap(); return nil }
func (e *hostileError) Timeout() bool   { e.unwrap(); return false }
func (e *hostileError) Temporary() bool { e.is(); return false }

// LogValue implements slog.LogValuer.
func (e *hostileError) LogValue() slog.Value { e.log(); return slog.StringValue("hostile") }

// valueError cannot be compared, although its static type is comparable.
type valueError struct{ any }

func (valueError) Error() string { return "not comparable" }

// hostileErrors returns an error of each kind. An error in unprintable must not be
// formatted, because its Error method ends the goroutine.
func hostileErrors() (errs map[string]error, unprintable map[string]bool) {
	friendly := hostileError{func() {}, func() {}, func() {}, func() {}, func() {}}
	errs = map[string]error{
		"typed nil": (*hostileError)(nil), "typed nil of ours": (*asyncop.PanicError)(nil), "not comparable": valueError{[]int{1}},
	}
	unprintable = map[string]bool{"Error/goexit": true}
	for name, breaks := range map[string]func(){"panic": func() { panic("broken") }, "goexit": runtime.Goexit} {
		for method, set := range map[string]func(e *hostileError){
			"Error":    func(e *hostileError) { e.error = breaks },
			"Is":       func(e *hostileError) { e.is = breaks },
			"As":       func(e *hostileError) { e.as = breaks },
			"Unwrap":   func(e *hostileError) { e.unwrap = breaks },
			"LogValue": func(e *hostileError) { e.log = breaks },
		} {
			e := friendly
			set(&e)
			errs[method+"/"+name] = &e
		}
	}
	return errs, unprintable
}

// noisyLogger formats everything, both as text and as JSON.
func noisyLogger() *slog.Logger {
	o := &slog.HandlerOptions{Level: slog.LevelDebug}
	return slog.New(slog.NewMultiHandler(slog.NewTextHandler(io.Discard, o), slog.NewJSONHandler(io.Discard, o)))
}

// entries are the ways in which an error of element b reaches the operator. The other
// elements have a result.
var entries = map[string]func(hostile error) optest.Setup{
	"AsyncInvoke": func(hostile error) optest.Setup {
		return optest.Setup{Wrap: answering(func(*optest.Call) error { return hostile })}
	},
	"CompleteExceptionally": func(hostile error) optest.Setup {
		return optest.Setup{Wrap: answering(func(c *optest.Call) error { c.CompleteExceptionally(hostile); return nil })}
	},
	"CompleteExceptionally elsewhere": func(hostile error) optest.Setup {
		return optest.Setup{Wrap: answering(func(c *optest.Call) error { go c.CompleteExceptionally(hostile); return nil })}
	},
	"panic": func(hostile error) optest.Setup {
		return optest.Setup{Wrap: answering(func(*optest.Call) error { panic(hostile) })}
	},
	"Blocking": func(hostile error) optest.Setup {
		return optest.Setup{Wrap: func(*optest.Hand) optest.Function {
			return asyncop.Blocking(func(_ context.Context, in string) (string, error) {
				if in == "b" {
					return "", hostile
				}
				return strings.ToUpper(in), nil
			})
		}}
	},
	"BlockingMany": func(hostile error) optest.Setup {
		return optest.Setup{Wrap: func(*optest.Hand) optest.Function {
			return asyncop.BlockingMany(func(_ context.Context, in string) ([]string, error) {
				if in == "b" {
					return nil, hostile
				}
				return []string{strings.ToUpper(in)}, nil
			})
		}}
	},
	"timeout handler": func(hostile error) optest.Setup {
		return optest.Setup{Wrap: func(h *optest.Hand) optest.Function {
			return optest.TimeoutMethod(answering(func(*optest.Call) error { return nil })(h),
				func(context.Context, string) ([]string, error) { return nil, hostile })
		}}
	},
	"panic of a timeout handler": func(hostile error) optest.Setup {
		return optest.Setup{Wrap: func(h *optest.Hand) optest.Function {
			return optest.TimeoutMethod(answering(func(*optest.Call) error { return nil })(h),
				func(context.Context, string) ([]string, error) { panic(hostile) })
		}}
	},
	"last error before the timeout": func(hostile error) optest.Setup {
		return optest.Setup{
			Wrap:     answering(func(*optest.Call) error { return hostile }),
			Strategy: strategies.FixedDelay[string](3, time.Hour).RetryIfException(predicates.HasException),
		}
	},
	"retried": func(hostile error) optest.Setup {
		return optest.Setup{Wrap: answering(func(*optest.Call) error { return hostile }), Strategy: optest.RetryAll(3, time.Millisecond)}
	},
	"panic of the predicate": func(hostile error) optest.Setup {
		return optest.Setup{
			Wrap:     answering(optest.Fails),
			Strategy: strategies.FixedDelay[string](3, 0).RetryIfException(func(error) bool { panic(hostile) }),
		}
	},
	"classified": func(hostile error) optest.Setup {
		return optest.Setup{Wrap: answering(func(*optest.Call) error { return hostile }), Strategy: optest.Aware(
			predicates.Classifiers(predicates.Named[string](), predicates.ByException[string](predicates.ErrorIs(optest.ErrAgain), predicates.Reason{})), nil,
		)}
	},
	"strategy": func(hostile error) optest.Setup {
		return optest.Setup{Wrap: answering(optest.Fails), Strategy: optest.Because(optest.SafeReason,
			optest.Decides(func(context.Context, *optest.View) (strategies.Action, error) {
				return strategies.RetryAfter(0), hostile
			}))}
	},
	"strategy on the loop": func(hostile error) optest.Setup {
		return optest.Setup{Wrap: answering(optest.Fails), Strategy: optest.Because(optest.SafeReason,
			optest.Immediate(optest.Decides(func(context.Context, *optest.View) (strategies.Action, error) { return strategies.Action{}, hostile })))}
	},
	"translation": func(hostile error) optest.Setup {
		return optest.Setup{Wrap: answering(optest.Fails), Strategy: optest.Because(optest.SafeReason, optest.Always(true, strategies.Action{}.WithError(hostile)))}
	},
	"translation of a retry": func(hostile error) optest.Setup {
		return optest.Setup{Wrap: answering(optest.Fails), Strategy: optest.Because(optest.SafeReason, optest.Always(true, strategies.RetryAfter(time.Hour).WithError(hostile)))}
	},
	"first, before a retry": func(hostile error) optest.Setup {
		retry := strategies.RetryAfter(0).WithBefore(func(context.Context) error { return hostile })
		return optest.Setup{Wrap: answering(optest.Fails), Strategy: optest.Because(optest.SafeReason,
			optest.Decides(func(_ context.Context, a *optest.View) (strategies.Action, error) {
				if a.Number > 1 {
					return strategies.Action{}, nil
				}
				return retry, nil
			}))}
	},
}

// answering answers b's calls with f, and the other calls immediately.
func answering(f func(*optest.Call) error) func(*optest.Hand) optest.Function {
	return func(h *optest.Hand) optest.Function {
		h.Answer = func(c *optest.Call) error {
			if c.In == "b" {
				return f(c)
			}
			return optest.Upper(c)
		}
		return h
	}
}

// Law A6: whatever the methods of an error do, and wherever it comes from, its element
// fails, the others are completed, and the operator's report of it can be printed. If the
// policy calls a method on the loop, runtime.Goexit in it ends the run.
func TestHostileErrors(t *testing.T) {
	policies := map[string][]asyncop.Option{"fail": nil, "drop": optest.Options(asyncop.WithDropOnFailure()), "failure sink": nil}
	errs, unprintable := hostileErrors()
	for entry, build := range entries {
		for name, hostile := range errs {
			for policy, opts := range policies {
				t.Run(entry+"/"+name+"/"+policy, func(t *testing.T) {
					optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
						s := build(hostile)
						s.Timeout = time.Minute
						if s.Strategy == nil {
							s.Strategy = strategies.FixedDelay[string](3, 0).
								RetryIfException(predicates.AnyOf(predicates.ErrorIs(optest.ErrAgain), predicates.ErrorAs[*asyncop.TypeError]()))
						}
						side := optest.NewSideSink(false)
						s.Opts = append(opts, asyncop.WithLogger(noisyLogger()))
						if policy == "failure sink" {
							s.Opts = append(s.Opts, asyncop.WithFailureSink(side.Take))
						}
						r := optest.NewRig(t, m, s)
						r.SendEach("ab")
						if policy != "fail" {
							r.SendEach("c") // not together with a: blocking calls may end in any order
						}
						r.Advance(2 * time.Minute)
						if endedByGoexit(r) {
							require.True(t, strings.HasSuffix(name, "/goexit"), name)
							require.Zero(t, r.Stats().Running)
							optest.CheckBalance(t, r.Stats())
							return
						}
						if policy == "fail" {
							failed, ok := r.Wait().(*asyncop.ElementError) // As calls methods of the hostile error
							require.True(t, ok)
							require.Equal(t, "b", failed.Element)
							requirePrintable(t, failed, unprintable[name])
							optest.CheckBalance(t, r.Stats())
							return
						}
						r.SendEach("d")
						require.True(t, r.End() == nil)
						require.Equal(t, "A C D", r.Outputs())
						st := r.Stats()
						require.EqualValues(t, 1, st.Dropped+st.HandedOver)
						require.Zero(t, st.Running)
						optest.CheckBalance(t, st)
						if policy == "failure sink" {
							require.Equal(t, "b", side.Elements())
							requirePrintable(t, side.Got()[0].Err, unprintable[name])
						}
					})
				})
			}
		}
	}
}

// endedByGoexit reports whether a method of the hostile error, which the policy has
// called on the loop, has ended the run.
func endedByGoexit(r *optest.Rig) bool {
	switch err := r.Op.Err().(type) { // As calls methods of the hostile error
	case *core.GoexitError:
		return true
	case *asyncop.AbandonedError:
		_, ok := err.Cause.(*core.GoexitError)
		return ok
	}
	return false
}

// requirePrintable checks that err has a message, unless that ends the goroutine.
func requirePrintable(t *testing.T, err error, unprintable bool) {
	t.Helper()
	require.True(t, err != nil)
	switch e := err.(type) { // As calls methods of the hostile error
	case *hostileError:
		return
	case *asyncop.PanicError:
		if e == nil {
			return
		}
	}
	if unprintable {
		return
	}
	require.NotEmpty(t, err.Error())
}

// Laws A6, F1: the same for the errors that end an operator as a whole.
func TestHostileErrorsOfTheWhole(t *testing.T) {
	errs, unprintable := hostileErrors()
	for name, hostile := range errs {
		for entry, end := range map[string]func(r *optest.Rig, l *lifecycle, cancel context.CancelCauseFunc) error{
			"Open":  func(r *optest.Rig, _ *lifecycle, _ context.CancelCauseFunc) error { return r.Wait() },
			"Close": func(r *optest.Rig, _ *lifecycle, _ context.CancelCauseFunc) error { return r.End() },
			"cancel": func(r *optest.Rig, _ *lifecycle, cancel context.CancelCauseFunc) error {
				cancel(hostile)
				return r.Wait()
			},
			"Stop": func(r *optest.Rig, _ *lifecycle, _ context.CancelCauseFunc) error {
				ctx, cancel := context.WithCancelCause(r.T.Context())
				cancel(hostile)
				return r.Op.Stop(ctx)
			},
			"element": func(r *optest.Rig, _ *lifecycle, _ context.CancelCauseFunc) error {
				r.Call("a#1").CompleteExceptionally(hostile)
				return r.Wait()
			},
		} {
			t.Run(entry+"/"+name, func(t *testing.T) {
				optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
					l := &lifecycle{open: func() error { return nil }, close: func() error { return nil }}
					switch entry {
					case "Open":
						l.open = func() error { return hostile }
					case "Close":
						l.close = func() error { return hostile }
					}
					ctx, cancel := context.WithCancelCause(t.Context())
					c := optest.Must(checkpoint.NewCoordinator(checkpointtest.NewMemoryStore()))
					r := optest.NewRig(t, m, optest.Setup{
						Wrap: func(h *optest.Hand) optest.Function { l.Hand = h; return l },
						Opts: optest.Options(asyncop.WithLogger(noisyLogger()), asyncop.WithContext(ctx),
							asyncop.WithName("op"), asyncop.WithCheckpoints(c)),
					})
					require.NoError(t, c.Start())
					if entry != "Close" {
						r.SendEach("a")
					}
					err := end(r, l, cancel)
					require.True(t, err != nil)
					if !unprintable[name] {
						require.NotEmpty(t, err.Error())
						require.NotEmpty(t, c.Wait().Error())
					}
					require.True(t, c.Wait() != nil)
					<-r.Op.Done()
				})
			})
		}
	}
}

// hostileID is an element whose String method does not return its number.
type hostileID int

func (id hostileID) String() string {
	switch id {
	case 1:
		panic("broken")
	case 2:
		runtime.Goexit()
	}
	return "fine"
}

// Law A6: elements have methods, too, which are called for labels.
func TestHostileElements(t *testing.T) {
	for _, id := range []hostileID{1, 2} {
		optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
			fn := asyncop.Func(func(_ context.Context, id hostileID, result asyncop.ResultFuture[int]) error {
				if id > 0 {
					return optest.ErrBroken
				}
				result.Complete(int(id))
				return nil
			})
			op := optest.Construct[hostileID, int](m, fn, 0, nil, asyncop.WithDropOnFailure(), asyncop.WithLogger(noisyLogger()))
			op.In() <- id
			op.In() <- hostileID(0)
			close(op.In())
			require.Equal(t, []any{0}, optest.Drain(op))
			require.NoError(t, op.Wait())

			op = optest.Construct[hostileID, int](m, fn, 0, nil, asyncop.WithLogger(noisyLogger()))
			op.In() <- id
			synctest.Wait()
			require.ErrorIs(t, op.Wait(), optest.ErrBroken)
			require.NotEmpty(t, op.Err().Error())
			failed, ok := errors.AsType[*asyncop.ElementError](op.Err())
			require.True(t, ok)
			require.Equal(t, id, failed.Element)
			close(op.In())
		})
	}
}

// Law A6: errors of a batch, for one element or for all, have methods, too. A Goexit in a
// method that the operator calls on its loop ends the run.
func TestHostileErrorsOfABatch(t *testing.T) {
	errs, unprintable := hostileErrors()
	for name, hostile := range errs {
		for what, answer := range map[string]func([]string) ([]asyncop.Result[string], error){
			"one": func(ins []string) (all []asyncop.Result[string], _ error) {
				for _, in := range ins {
					r := asyncop.Result[string]{Value: strings.ToUpper(in)}
					if in == "b" {
						r = asyncop.Result[string]{Err: hostile}
					}
					all = append(all, r)
				}
				return all, nil
			},
			"all": func([]string) ([]asyncop.Result[string], error) { return nil, hostile },
		} {
			t.Run(what+"/"+name, func(t *testing.T) {
				optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
					side := optest.NewSideSink(false)
					r := optest.NewRig(t, m, optest.Setup{
						Wrap: func(*optest.Hand) optest.Function {
							return asyncop.Batched(func(_ context.Context, ins []string) ([]asyncop.Result[string], error) { return answer(ins) }, 3, time.Second)
						},
						Opts: optest.Options(asyncop.WithFailureSink(side.Take), asyncop.WithLogger(noisyLogger())),
					})
					r.SendEach("abc")
					r.Advance(time.Minute)
					if endedByGoexit(r) {
						require.True(t, strings.HasSuffix(name, "/goexit"), name)
						optest.CheckBalance(t, r.Stats())
						return
					}
					require.True(t, r.End() == nil)
					want := "b"
					if what == "all" {
						want = "a b c"
					}
					require.Equal(t, want, side.Elements())
					for _, f := range side.Got() {
						requirePrintable(t, f.Err, unprintable[name])
					}
				})
			})
		}
	}
}

// Law A6: a non-nil error of a failure sink means that the sink has not taken the
// element, whatever the methods of the error do. The sink gets the element again.
func TestHostileErrorsOfAFailureSink(t *testing.T) {
	errs, _ := hostileErrors()
	for name, hostile := range errs {
		t.Run(name, func(t *testing.T) {
			optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
				calls := 0
				r := optest.NewRig(t, m, optest.Setup{
					Wrap: answering(optest.Fails),
					Opts: optest.Options(asyncop.WithLogger(noisyLogger()), asyncop.WithFailureSink(func(context.Context, asyncop.Failure[string]) error {
						if calls++; calls == 1 {
							return hostile
						}
						return nil
					})),
				})
				r.SendEach("abc")
				r.Advance(time.Minute)
				require.True(t, r.End() == nil)
				require.Equal(t, "A C", r.Outputs())
				require.Equal(t, 2, calls)
			})
		})
	}
}
