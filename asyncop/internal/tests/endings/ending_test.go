package endings_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reugn/go-streams/extension"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/internal/optest"
)

// ---- Law F1: the source is cancelled, contexts end, Out closes after Err is set, and
// the rest is discarded.

// lifecycle is a function with Open and Close around the hand-driven function. It records
// its events.
type lifecycle struct {
	*optest.Hand
	open, close func() error

	mu     sync.Mutex
	events []string // guarded by mu
}

func (l *lifecycle) note(event string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, event)
}

func (l *lifecycle) Open(context.Context) error {
	l.note("open")
	if l.open == nil {
		return nil
	}
	return l.open()
}

func (l *lifecycle) Close() error {
	l.note("close")
	if l.close == nil {
		return nil
	}
	return l.close()
}

func (l *lifecycle) history() []string {
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.events...)
}

// endings are the ways to end an operator while a#1 and b#1 are running. err is the
// expected error of Err and cause the expected cause at the source; nil means no error
// and no call.
var endings = []struct {
	name      string
	end       func(r *optest.Rig)
	err       error
	cause     error
	inputEnds bool
}{
	{"end of input", func(r *optest.Rig) { r.EndInput(); r.Complete("a#1", "A"); r.Complete("b#1", "B") }, nil, nil, true},
	{"failure", func(r *optest.Rig) { r.Fail("b#1", optest.ErrBroken) }, optest.ErrBroken, optest.ErrBroken, false},
	{"failure after the end of input", func(r *optest.Rig) { r.EndInput(); r.Fail("b#1", optest.ErrBroken) }, optest.ErrBroken, nil, true},
	{"panic", func(r *optest.Rig) {
		r.Script("c#1", func(*optest.Call) error { panic(optest.ErrBroken) })
		r.Send("c")
	}, optest.ErrBroken, optest.ErrBroken, false},
	{"cancel", func(r *optest.Rig) { r.Cancel(optest.ErrTestOver) }, optest.ErrTestOver, optest.ErrTestOver, false},
	{"cancel without a cause", func(r *optest.Rig) { r.Cancel(nil) }, context.Canceled, context.Canceled, false},
	{"wrong type", func(r *optest.Rig) { r.Send(1) }, typeErr, typeErr, false},
	{"stop", func(r *optest.Rig) {
		go func() { _ = r.Op.Stop(context.Background()) }()
		r.Complete("a#1", "A")
		r.Complete("b#1", "B")
	}, nil, asyncop.ErrStopped, false},
	{"failure while stopping", func(r *optest.Rig) {
		go func() { _ = r.Op.Stop(context.Background()) }()
		synctest.Wait()
		r.Fail("a#1", optest.ErrBroken)
	}, optest.ErrBroken, asyncop.ErrStopped, false},
	{"stop that gives up", func(r *optest.Rig) {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = r.Op.Stop(ctx)
	}, context.Canceled, asyncop.ErrStopped, false},
}

// typeErr matches any *TypeError.
var typeErr = errors.New("a type error")

func requireErr(t *testing.T, want, got error) {
	t.Helper()
	switch {
	case want == nil:
		require.NoError(t, got)
	case errors.Is(want, typeErr):
		_, ok := errors.AsType[*asyncop.TypeError](got)
		require.True(t, ok, "%v", got)
	default:
		require.ErrorIs(t, got, want)
	}
}

// F1, for every way to end: Err is set before Out closes. The source is cancelled once,
// with the cause, unless its input has ended. The contexts of elements in flight end. The
// function is opened and closed once. Later elements are discarded and counted until In
// is closed. Then all goroutines of the operator have ended, which the bubble checks.
func TestOperator_EveryEnding(t *testing.T) {
	for _, ending := range endings {
		t.Run(ending.name, func(t *testing.T) {
			optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
				var causes []error
				var outClosed bool
				var l *lifecycle
				r := optest.NewRig(t, m, optest.Setup{
					Wrap: func(h *optest.Hand) optest.Function { l = &lifecycle{Hand: h}; return l },
					Opts: optest.Options(asyncop.WithUpstreamCancel(func(cause error) { causes = append(causes, cause) })),
				})
				r.SendEach("ab")
				require.NoError(t, r.Op.Err())
				ending.end(r)
				err := r.Wait()

				requireErr(t, ending.err, err)
				require.Equal(t, err, r.ErrAtEO, "Err before Out closes")
				_, outClosed = <-r.Op.Out()
				require.False(t, outClosed)
				if ending.cause == nil {
					require.Empty(t, causes)
				} else {
					require.Len(t, causes, 1)
					requireErr(t, ending.cause, causes[0])
				}
				require.Error(t, r.Call("a#1").Ctx.Err())
				require.Error(t, r.Call("b#1").Ctx.Err())
				require.Equal(t, []string{"open", "close"}, l.history())

				before := r.Stats().Discarded
				if !ending.inputEnds {
					for range 100 { // more than In can buffer
						r.Op.In() <- "late"
					}
					r.Op.In() <- optest.Mark(1)
					r.EndInput()
					require.EqualValues(t, before+100, r.Stats().Discarded)
				}
				s := r.Stats()
				require.Zero(t, s.InFlight)
				require.Zero(t, s.Running)
				require.Zero(t, s.WaitingForRetry)
				optest.CheckBalance(t, s)
				require.Equal(t, err, r.Op.Err(), "the first failure stays")
			})
		})
	}
}

// Law F1: a source that is blocked, because the operator is full, is released.
func TestBlockedSourceIsSetFree(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		m.Capacity = 1
		r := optest.NewRig(t, m, optest.Setup{Opts: optest.Options(asyncop.WithBuffer(0))})
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			for range 1000 {
				r.Op.In() <- "a"
			}
		}()
		r.Fail("a#1", optest.ErrBroken)
		<-sent
		require.ErrorIs(t, r.Wait(), optest.ErrBroken)
		require.EqualValues(t, 999, r.Stats().Discarded)
	})
}

// Law F1: Done does not wait for upstream to close In; a goroutine discards until then.
func TestDoneDoesNotWaitForUpstream(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{})
		r.SendEach("a")
		r.Fail("a#1", optest.ErrBroken)
		synctest.Wait()
		select {
		case <-r.Op.Done():
		default:
			t.Fatal("not done")
		}
	})
}

// Law F1: a cancel reaches an operator whose downstream is blocked.
func TestCancelUnderBackpressure(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{Blocked: true, Opts: optest.Options(asyncop.WithBuffer(0))})
		r.Answer = optest.Upper
		r.SendEach("abc")
		r.Cancel(optest.ErrTestOver)
		synctest.Wait()
		select {
		case <-r.Op.Done():
		default:
			t.Fatal("not done")
		}
		require.ErrorIs(t, r.Wait(), optest.ErrTestOver)
		require.Empty(t, r.Outputs())
	})
}

// Law F1: results that are in the buffer of Out are not withdrawn.
func TestEmittedResultsSurviveTheFailure(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{Blocked: true})
		r.SendEach("ab")
		r.Complete("a#1", "A")
		r.Fail("b#1", optest.ErrBroken)
		require.ErrorIs(t, r.Wait(), optest.ErrBroken)
		require.Equal(t, "A", r.Outputs())
	})
}

// Law F1: the cancelling context may end at any time, even before the operator begins or
// after it has ended.
func TestCancelAfterTheEndChangesNothing(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{})
		r.Answer = optest.Upper
		r.SendEach("a")
		require.NoError(t, r.End())
		r.Cancel(optest.ErrTestOver)
		synctest.Wait()
		require.NoError(t, r.Op.Err())
	})
}

// Law F1: an operator is also cancelled by the deadline of its context.
func TestDeadlineOfTheOperatorsContext(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		r := optest.NewRig(t, m, optest.Setup{Opts: optest.Options(asyncop.WithContext(ctx))})
		r.SendEach("a")
		r.Advance(time.Second)
		require.ErrorIs(t, r.Wait(), context.DeadlineExceeded)
		require.ErrorIs(t, r.Call("a#1").Ctx.Err(), context.Canceled, "it was cancelled, not late itself")
	})
}

// In a clean end Close runs before Out is closed, so that its error is not overlooked.
func TestErrorOfCloseIsTold(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		var l *lifecycle
		r := optest.NewRig(t, m, optest.Setup{Wrap: func(h *optest.Hand) optest.Function {
			l = &lifecycle{Hand: h, close: func() error { return optest.ErrBroken }}
			return l
		}})
		r.Answer = optest.Upper
		r.SendEach("a")
		err := r.End()
		require.ErrorIs(t, err, optest.ErrBroken)
		require.Equal(t, err, r.ErrAtEO)
		require.Equal(t, "A", r.Outputs())
		require.Equal(t, []string{"open", "close"}, l.history(), "once")
	})
}

// After a failure, the error of Close does not replace the operator's error.
func TestErrorOfCloseDoesNotHideTheFailure(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{Wrap: func(h *optest.Hand) optest.Function {
			return &lifecycle{Hand: h, close: func() error { return errors.New("another") }}
		}})
		r.SendEach("a")
		r.Fail("a#1", optest.ErrBroken)
		require.ErrorIs(t, r.Wait(), optest.ErrBroken)
	})
}

// Open runs before the first element. If it fails, the pipeline fails, and Close is not
// called.
func TestErrorOfOpen(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		var l *lifecycle
		var cause error
		r := optest.NewRig(t, m, optest.Setup{
			Wrap: func(h *optest.Hand) optest.Function {
				l = &lifecycle{Hand: h, open: func() error { return optest.ErrBroken }}
				return l
			},
			Opts: optest.Options(asyncop.WithUpstreamCancel(func(c error) { cause = c })),
		})
		r.SendEach("ab")
		err := r.Wait()
		require.ErrorIs(t, err, optest.ErrBroken)
		require.ErrorContains(t, err, "open")
		require.ErrorIs(t, cause, optest.ErrBroken)
		require.Empty(t, r.Calls())
		require.Equal(t, []string{"open"}, l.history())
		r.EndInput()
		require.EqualValues(t, 2, r.Stats().Discarded)
	})
}

// Law F1: the first reason to end remains the reason: here that Open failed, although it
// cancelled the operator, too.
func TestFirstReasonToEndCounts(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		ctx, cancel := context.WithCancelCause(t.Context())
		r := optest.NewRig(t, m, optest.Setup{
			Wrap: func(h *optest.Hand) optest.Function {
				return &lifecycle{Hand: h, open: func() error {
					cancel(optest.ErrTestOver)
					time.Sleep(time.Second)
					return optest.ErrBroken
				}}
			},
			Opts: optest.Options(asyncop.WithContext(ctx)),
		})
		err := r.Wait()
		require.ErrorIs(t, err, optest.ErrBroken)
		require.NotErrorIs(t, err, optest.ErrTestOver)
	})
}

// Law F1: the first cause of cancellation counts, too, whenever the loop checks.
func TestFirstCauseCounts(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{})
		r.Script("a#1", func(*optest.Call) error { time.Sleep(time.Second); return nil }) // the loop is busy
		r.Send("a")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(optest.ErrBroken)
		go func() { _ = r.Op.Stop(ctx) }()
		synctest.Wait()
		r.Cancel(optest.ErrTestOver)
		err := r.Wait()
		require.ErrorIs(t, err, optest.ErrBroken)
		require.NotErrorIs(t, err, optest.ErrTestOver)
	})
}

// Close waits for the last element, and for the failure sink.
func TestCloseComesAfterTheLastElement(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		var l *lifecycle
		r := optest.NewRig(t, m, optest.Setup{Wrap: func(h *optest.Hand) optest.Function { l = &lifecycle{Hand: h}; return l }})
		r.SendEach("a")
		r.EndInput()
		require.Equal(t, []string{"open"}, l.history())
		r.Complete("a#1", "A")
		require.NoError(t, r.Wait())
		require.Equal(t, []string{"open", "close"}, l.history())
	})
}

// If a cancel precedes the end of the input, the end is not clean, even if the loop
// notices the end of the input first. Usually a source with the same context ends its
// output.
func TestInputThatEndsAfterACancel(t *testing.T) {
	for range 20 { // the scheduler decides which of them the loop sees first
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			op := asyncop.OrderedWait(asyncop.Func(func(_ context.Context, in int, r asyncop.ResultFuture[int]) error {
				r.Complete(in)
				return nil
			}), time.Minute, 5, asyncop.WithContext(ctx))
			op.In() <- 1
			synctest.Wait()
			cancel(optest.ErrBroken)
			close(op.In())
			require.ErrorIs(t, op.Wait(), optest.ErrBroken)
		})
	}
}

// The same applies while the loop is in a step, so that it notices both at the same time.
func TestInputThatEndsAfterACancelInAStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		retried := make(chan struct{})
		op := asyncop.OrderedWaitWithRetry(optest.SlowRetry(retried), time.Minute, 5, optest.RetryAll(3, time.Second), asyncop.WithContext(ctx))
		op.In() <- "a"
		<-retried
		cancel(optest.ErrBroken)
		synctest.Wait()
		close(op.In())
		require.ErrorIs(t, op.Wait(), optest.ErrBroken)
	})
}

// A WithUpstreamCancel function may wait for its source. Only Done waits for it.
func TestUpstreamCancelThatWaitsForTheSource(t *testing.T) {
	for _, stop := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			gone := make(chan struct{})
			var told error
			op := asyncop.OrderedWait(asyncop.Func(func(_ context.Context, _ string, result optest.Future) error {
				if stop {
					return nil // times out
				}
				return optest.ErrBroken
			}), time.Second, 1, asyncop.WithBuffer(0), asyncop.WithUpstreamCancel(func(err error) {
				<-gone
				told = err
			}))
			go func() {
				for range 3 {
					op.In() <- "a"
				}
				close(op.In())
				close(gone)
			}()
			synctest.Wait()
			if stop {
				var timeout *asyncop.TimeoutError
				require.ErrorAs(t, op.Stop(t.Context()), &timeout)
				require.ErrorIs(t, told, asyncop.ErrStopped)
				return
			}
			require.ErrorIs(t, op.Wait(), optest.ErrBroken)
			require.ErrorIs(t, told, optest.ErrBroken)
		})
	}
}

// tardy is a context whose end reaches derived contexts late.
type tardy struct {
	context.Context
	err atomic.Pointer[error]
}

func (c *tardy) Done() <-chan struct{} { return c.Context.Done() }
func (c *tardy) Value(any) any         { return nil }

func (c *tardy) Err() error {
	if err := c.err.Load(); err != nil {
		return *err
	}
	return nil
}

// If In is closed because the context has ended, the end is not clean, and no call is
// made.
func TestEndOfInputAfterACancelThatIsSlow(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		parent, cancel := context.WithCancel(context.Background())
		defer cancel()
		ctx := &tardy{Context: parent}
		r := optest.NewRig(t, m, optest.Setup{Opts: optest.Options(asyncop.WithContext(ctx))})
		ctx.err.Store(&context.Canceled)
		r.SendEach("a")
		r.EndInput()
		require.ErrorIs(t, r.Wait(), context.Canceled)
		require.Empty(t, r.Calls())
	})
}

// The cause that contexts report for the failure of another element is complete and does
// not change.
func TestCauseOfAFailureIsComplete(t *testing.T) {
	for range 20 {
		told := make(chan string, 1)
		op := asyncop.UnorderedWait(asyncop.Func(func(ctx context.Context, in string, _ optest.Future) error {
			if in == "bad" {
				return optest.ErrBroken
			}
			context.AfterFunc(ctx, func() { told <- context.Cause(ctx).Error() })
			return nil
		}), 0, 10)
		op.In() <- "good"
		op.In() <- "bad"
		close(op.In())
		require.Contains(t, <-told, "broken")
		require.ErrorContains(t, op.Wait(), "1 other element in flight")
	}
}

// The context of Open is still valid in Close.
func TestContextOfOpenLivesInClose(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		var ctx context.Context
		var inClose error
		fn := &closingUnder{Function: optest.UpperFunc(), open: func(c context.Context) { ctx = c }, close: func() { inClose = ctx.Err() }}
		op := optest.Construct(m, optest.Function(fn), time.Minute, nil)
		for _, err := range op.Results(optest.Letters("ab")) {
			require.NoError(t, err)
		}
		require.NoError(t, inClose)
		require.Error(t, ctx.Err(), "and ends with the operator")
	})
}

type closingUnder struct {
	optest.Function
	open  func(context.Context)
	close func()
}

func (f *closingUnder) Open(ctx context.Context) error { f.open(ctx); return nil }
func (f *closingUnder) Close() error                   { f.close(); return nil }

// Law F1: an operator that was never wired has no upstream that closes In. All its
// goroutines have ended when it has.
func TestEndWithoutAnUpstream(t *testing.T) {
	for name, use := range map[string]func(op *optest.Operator){
		"unused":  func(*optest.Operator) {},
		"Out":     func(op *optest.Operator) { op.Out() },
		"To":      func(op *optest.Operator) { op.To(extension.NewIgnoreSink()) },
		"Results": func(op *optest.Operator) { op.Results(optest.Letters("a")) }, // created, but not iterated
	} {
		t.Run(name, func(t *testing.T) {
			optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
				ctx, cancel := context.WithCancelCause(t.Context())
				op := optest.Construct(m, optest.UpperFunc(), time.Minute, nil, asyncop.WithContext(ctx), asyncop.WithFailureSink(func(context.Context, optest.Failure) error { return nil }))
				used := make(chan struct{})
				go func() { use(op); close(used) }()
				synctest.Wait()
				cancel(optest.ErrTestOver)
				require.ErrorIs(t, op.Wait(), optest.ErrTestOver)
				<-used
			}) // the bubble waits for its goroutines
		})
	}
}

// Law F1: elements that reach an operator after its end are discarded, even if its
// upstream connects after the end.
func TestUpstreamThatComesAfterTheEnd(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(optest.ErrTestOver)
		op := optest.Construct(m, optest.UpperFunc(), time.Minute, nil, asyncop.WithContext(ctx), asyncop.WithBuffer(0))
		require.ErrorIs(t, op.Wait(), optest.ErrTestOver)
		op.In() <- "a"
		op.In() <- "b"
		close(op.In())
		synctest.Wait()
		require.EqualValues(t, 2, op.Stats().Discarded)

		op = optest.Construct(m, optest.UpperFunc(), time.Minute, nil, asyncop.WithContext(ctx))
		require.ErrorIs(t, op.Wait(), optest.ErrTestOver)
		for _, err := range op.Results(optest.Letters("ab")) {
			require.ErrorIs(t, err, optest.ErrTestOver)
		}
	})
}
