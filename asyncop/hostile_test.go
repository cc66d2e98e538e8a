package asyncop_test

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
	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// ---- Law A6: an error is code of a user, too. Its methods may panic or end their goroutine.

// hostileError does something unfriendly in one of its methods. A nil one panics in each.
type hostileError struct{ error, is, as, unwrap, log func() }

func (e *hostileError) Error() string   { e.error(); return "hostile" }
func (e *hostileError) Is(error) bool   { e.is(); return false }
func (e *hostileError) As(any) bool     { e.as(); return false }
func (e *hostileError) Unwrap() error   { e.unwrap(); return nil }
func (e *hostileError) Timeout() bool   { e.unwrap(); return false }
func (e *hostileError) Temporary() bool { e.is(); return false }

// LogValue implements slog.LogValuer.
func (e *hostileError) LogValue() slog.Value { e.log(); return slog.StringValue("hostile") }

// valueError cannot be compared, though its type does not tell.
type valueError struct{ any }

func (valueError) Error() string { return "not comparable" }

// hostileErrors returns one of each kind. Those of which even the message ends the goroutine are nobody's to format.
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

// noisyLogger formats everything, in both ways.
func noisyLogger() *slog.Logger {
	o := &slog.HandlerOptions{Level: slog.LevelDebug}
	return slog.New(slog.NewMultiHandler(slog.NewTextHandler(io.Discard, o), slog.NewJSONHandler(io.Discard, o)))
}

// entries are the ways in which an error of element b comes to the operator. All others are answered with a result.
var entries = map[string]func(hostile error) setup{
	"AsyncInvoke": func(hostile error) setup {
		return setup{wrap: answering(func(*call) error { return hostile })}
	},
	"CompleteExceptionally": func(hostile error) setup {
		return setup{wrap: answering(func(c *call) error { c.CompleteExceptionally(hostile); return nil })}
	},
	"CompleteExceptionally elsewhere": func(hostile error) setup {
		return setup{wrap: answering(func(c *call) error { go c.CompleteExceptionally(hostile); return nil })}
	},
	"panic": func(hostile error) setup {
		return setup{wrap: answering(func(*call) error { panic(hostile) })}
	},
	"Blocking": func(hostile error) setup {
		return setup{wrap: func(*hand) function {
			return asyncop.Blocking(func(_ context.Context, in string) (string, error) {
				if in == "b" {
					return "", hostile
				}
				return strings.ToUpper(in), nil
			})
		}}
	},
	"BlockingMany": func(hostile error) setup {
		return setup{wrap: func(*hand) function {
			return asyncop.BlockingMany(func(_ context.Context, in string) ([]string, error) {
				if in == "b" {
					return nil, hostile
				}
				return []string{strings.ToUpper(in)}, nil
			})
		}}
	},
	"timeout handler": func(hostile error) setup {
		return setup{wrap: func(h *hand) function {
			return timeoutMethod(answering(func(*call) error { return nil })(h),
				func(context.Context, string) ([]string, error) { return nil, hostile })
		}}
	},
	"panic of a timeout handler": func(hostile error) setup {
		return setup{wrap: func(h *hand) function {
			return timeoutMethod(answering(func(*call) error { return nil })(h),
				func(context.Context, string) ([]string, error) { panic(hostile) })
		}}
	},
	"last error before the timeout": func(hostile error) setup {
		return setup{
			wrap:     answering(func(*call) error { return hostile }),
			strategy: strategies.FixedDelay[string](3, time.Hour).RetryIfException(predicates.HasException),
		}
	},
	"retried": func(hostile error) setup {
		return setup{wrap: answering(func(*call) error { return hostile }), strategy: retryAll(3, time.Millisecond)}
	},
	"panic of the predicate": func(hostile error) setup {
		return setup{
			wrap:     answering(fails),
			strategy: strategies.FixedDelay[string](3, 0).RetryIfException(func(error) bool { panic(hostile) }),
		}
	},
	"classified": func(hostile error) setup {
		return setup{wrap: answering(func(*call) error { return hostile }), strategy: aware(
			predicates.Classifiers(predicates.Named[string](), predicates.ByException[string](predicates.ErrorIs(errAgain), predicates.Reason{})), nil,
		)}
	},
	"strategy": func(hostile error) setup {
		return setup{wrap: answering(fails), strategy: because(safeReason,
			decides(func(context.Context, *view) (strategies.Action, error) { return strategies.RetryAfter(0), hostile }))}
	},
	"strategy on the loop": func(hostile error) setup {
		return setup{wrap: answering(fails), strategy: because(safeReason,
			immediate(decides(func(context.Context, *view) (strategies.Action, error) { return strategies.Action{}, hostile })))}
	},
	"translation": func(hostile error) setup {
		return setup{wrap: answering(fails), strategy: because(safeReason, always(true, strategies.Action{}.WithError(hostile)))}
	},
	"translation of a retry": func(hostile error) setup {
		return setup{wrap: answering(fails), strategy: because(safeReason, always(true, strategies.RetryAfter(time.Hour).WithError(hostile)))}
	},
	"first, before a retry": func(hostile error) setup {
		retry := strategies.RetryAfter(0).WithBefore(func(context.Context) error { return hostile })
		return setup{wrap: answering(fails), strategy: because(safeReason,
			decides(func(_ context.Context, a *view) (strategies.Action, error) {
				if a.Number > 1 {
					return strategies.Action{}, nil
				}
				return retry, nil
			}))}
	},
}

// answering answers b's calls with f, and all others at once.
func answering(f func(*call) error) func(*hand) function {
	return func(h *hand) function {
		h.answer = func(c *call) error {
			if c.in == "b" {
				return f(c)
			}
			return upper(c)
		}
		return h
	}
}

// A6: whatever the methods of an error do, and wherever it comes from, its element fails, the others are served, and what
// the operator tells about it can be printed.
func TestHostileErrors(t *testing.T) {
	policies := map[string][]asyncop.Option{"fail": nil, "drop": options(asyncop.WithDropOnFailure()), "failure sink": nil}
	errs, unprintable := hostileErrors()
	for entry, build := range entries {
		for name, hostile := range errs {
			for policy, opts := range policies {
				t.Run(entry+"/"+name+"/"+policy, func(t *testing.T) {
					forEachMode(t, func(t *testing.T, m mode) {
						s := build(hostile)
						s.timeout = time.Minute
						if s.strategy == nil {
							s.strategy = strategies.FixedDelay[string](3, 0).
								RetryIfException(predicates.AnyOf(predicates.ErrorIs(errAgain), predicates.ErrorAs[*asyncop.TypeError]()))
						}
						side := newSideSink(false)
						s.opts = append(opts, asyncop.WithLogger(noisyLogger()))
						if policy == "failure sink" {
							s.opts = append(s.opts, asyncop.WithFailureSink(side.take))
						}
						r := newRig(t, m, s)
						r.sendEach("ab")
						if policy != "fail" {
							r.sendEach("c") // not at once with a: calls that block may end in any order
						}
						r.advance(2 * time.Minute)
						if policy == "fail" {
							failed, ok := r.wait().(*asyncop.ElementError) // As calls methods of the hostile one
							require.True(t, ok)
							require.Equal(t, "b", failed.Element)
							requirePrintable(t, failed, unprintable[name])
							checkBalance(t, r.stats())
							return
						}
						r.sendEach("d")
						require.True(t, r.end() == nil)
						require.Equal(t, "A C D", r.outputs())
						st := r.stats()
						require.EqualValues(t, 1, st.Dropped+st.HandedOver)
						require.Zero(t, st.Running)
						checkBalance(t, st)
						if policy == "failure sink" {
							require.Equal(t, "b", side.elements())
							requirePrintable(t, side.got()[0].Err, unprintable[name])
						}
					})
				})
			}
		}
	}
}

// requirePrintable checks that err has a message, unless that ends the goroutine.
func requirePrintable(t *testing.T, err error, unprintable bool) {
	t.Helper()
	require.True(t, err != nil)
	switch e := err.(type) { // As calls methods of the hostile one
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

// A6, F1: the same for the errors that end an operator as a whole.
func TestHostileErrorsOfTheWhole(t *testing.T) {
	errs, unprintable := hostileErrors()
	for name, hostile := range errs {
		for entry, end := range map[string]func(r *rig, l *lifecycle, cancel context.CancelCauseFunc) error{
			"Open":   func(r *rig, _ *lifecycle, _ context.CancelCauseFunc) error { return r.wait() },
			"Close":  func(r *rig, _ *lifecycle, _ context.CancelCauseFunc) error { return r.end() },
			"cancel": func(r *rig, _ *lifecycle, cancel context.CancelCauseFunc) error { cancel(hostile); return r.wait() },
			"Stop": func(r *rig, _ *lifecycle, _ context.CancelCauseFunc) error {
				ctx, cancel := context.WithCancelCause(r.t.Context())
				cancel(hostile)
				return r.op.Stop(ctx)
			},
			"element": func(r *rig, _ *lifecycle, _ context.CancelCauseFunc) error {
				r.call("a#1").CompleteExceptionally(hostile)
				return r.wait()
			},
		} {
			t.Run(entry+"/"+name, func(t *testing.T) {
				forEachMode(t, func(t *testing.T, m mode) {
					l := &lifecycle{open: func() error { return nil }, close: func() error { return nil }}
					switch entry {
					case "Open":
						l.open = func() error { return hostile }
					case "Close":
						l.close = func() error { return hostile }
					}
					ctx, cancel := context.WithCancelCause(t.Context())
					c := must(checkpoint.NewCoordinator(checkpointtest.NewMemoryStore()))
					r := newRig(t, m, setup{
						wrap: func(h *hand) function { l.hand = h; return l },
						opts: options(asyncop.WithLogger(noisyLogger()), asyncop.WithContext(ctx),
							asyncop.WithName("op"), asyncop.WithCheckpoints(c)),
					})
					require.NoError(t, c.Start())
					if entry != "Close" {
						r.sendEach("a")
					}
					err := end(r, l, cancel)
					require.True(t, err != nil)
					if !unprintable[name] {
						require.NotEmpty(t, err.Error())
						require.NotEmpty(t, c.Wait().Error())
					}
					require.True(t, c.Wait() != nil)
					<-r.op.Done()
				})
			})
		}
	}
}

// hostileID is an element that says something else of itself than its number.
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

// A6: elements have methods, too; they are called for labels.
func TestHostileElements(t *testing.T) {
	for _, id := range []hostileID{1, 2} {
		forEachMode(t, func(t *testing.T, m mode) {
			fn := asyncop.Func(func(_ context.Context, id hostileID, result asyncop.ResultFuture[int]) error {
				if id > 0 {
					return errBroken
				}
				result.Complete(int(id))
				return nil
			})
			op := construct[hostileID, int](m, fn, 0, nil, asyncop.WithDropOnFailure(), asyncop.WithLogger(noisyLogger()))
			op.In() <- id
			op.In() <- hostileID(0)
			close(op.In())
			require.Equal(t, []any{0}, drain(op))
			require.NoError(t, op.Wait())

			op = construct[hostileID, int](m, fn, 0, nil, asyncop.WithLogger(noisyLogger()))
			op.In() <- id
			synctest.Wait()
			require.ErrorIs(t, op.Wait(), errBroken)
			require.NotEmpty(t, op.Err().Error())
			failed, ok := errors.AsType[*asyncop.ElementError](op.Err())
			require.True(t, ok)
			require.Equal(t, id, failed.Element)
			close(op.In())
		})
	}
}

// A6: so do errors of a batch, for one element or for all.
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
				forEachMode(t, func(t *testing.T, m mode) {
					side := newSideSink(false)
					r := newRig(t, m, setup{
						wrap: func(*hand) function {
							return asyncop.Batched(func(_ context.Context, ins []string) ([]asyncop.Result[string], error) { return answer(ins) }, 3, time.Second)
						},
						opts: options(asyncop.WithFailureSink(side.take), asyncop.WithLogger(noisyLogger())),
					})
					r.sendEach("abc")
					r.advance(time.Minute)
					require.True(t, r.end() == nil)
					want := "b"
					if what == "all" {
						want = "a b c"
					}
					require.Equal(t, want, side.elements())
					for _, f := range side.got() {
						requirePrintable(t, f.Err, unprintable[name])
					}
				})
			})
		}
	}
}

// A6: an error of a failure sink says that it has not taken the element, whatever its methods do. The sink gets it again.
func TestHostileErrorsOfAFailureSink(t *testing.T) {
	errs, _ := hostileErrors()
	for name, hostile := range errs {
		t.Run(name, func(t *testing.T) {
			forEachMode(t, func(t *testing.T, m mode) {
				calls := 0
				r := newRig(t, m, setup{
					wrap: answering(fails),
					opts: options(asyncop.WithLogger(noisyLogger()), asyncop.WithFailureSink(func(context.Context, asyncop.Failure[string]) error {
						if calls++; calls == 1 {
							return hostile
						}
						return nil
					})),
				})
				r.sendEach("abc")
				r.advance(time.Minute)
				require.True(t, r.end() == nil)
				require.Equal(t, "A C", r.outputs())
				require.Equal(t, 2, calls)
			})
		})
	}
}
