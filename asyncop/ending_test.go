package asyncop_test

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
)

// ---- Law F1: the source is cancelled, contexts end, Out closes after Err is set, and the rest is discarded.

// lifecycle is a function with Open and Close around the hand-driven one; it records what happens.
type lifecycle struct {
	*hand
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

// endings are the ways in which an operator of a#1 and b#1, both running, can end; err is what Err must tell, and cause
// what the source must be told; nil: nothing.
var endings = []struct {
	name      string
	end       func(r *rig)
	err       error
	cause     error
	inputEnds bool
}{
	{"end of input", func(r *rig) { r.endInput(); r.complete("a#1", "A"); r.complete("b#1", "B") }, nil, nil, true},
	{"failure", func(r *rig) { r.fail("b#1", errBroken) }, errBroken, errBroken, false},
	{"failure after the end of input", func(r *rig) { r.endInput(); r.fail("b#1", errBroken) }, errBroken, nil, true},
	{"panic", func(r *rig) {
		r.script("c#1", func(*call) error { panic(errBroken) })
		r.send("c")
	}, errBroken, errBroken, false},
	{"cancel", func(r *rig) { r.cancel(errTestOver) }, errTestOver, errTestOver, false},
	{"cancel without a cause", func(r *rig) { r.cancel(nil) }, context.Canceled, context.Canceled, false},
	{"wrong type", func(r *rig) { r.send(1) }, typeErr, typeErr, false},
	{"stop", func(r *rig) {
		go func() { _ = r.op.Stop(context.Background()) }()
		r.complete("a#1", "A")
		r.complete("b#1", "B")
	}, nil, asyncop.ErrStopped, false},
	{"failure while stopping", func(r *rig) {
		go func() { _ = r.op.Stop(context.Background()) }()
		synctest.Wait()
		r.fail("a#1", errBroken)
	}, errBroken, asyncop.ErrStopped, false},
	{"stop that gives up", func(r *rig) {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = r.op.Stop(ctx)
	}, context.Canceled, asyncop.ErrStopped, false},
}

// typeErr stands for any *TypeError.
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

// F1 for every way to end: Err is set before Out closes; the source is cancelled once, with the cause, if it has not ended by
// itself; the contexts of what was in flight end; the function is opened and closed once; what comes later is discarded
// and counted, until In is closed; then nothing is left of the operator (the bubble checks that).
func TestEveryEnding(t *testing.T) {
	for _, ending := range endings {
		t.Run(ending.name, func(t *testing.T) {
			forEachMode(t, func(t *testing.T, m mode) {
				var causes []error
				var outClosed bool
				var l *lifecycle
				r := newRig(t, m, setup{
					wrap: func(h *hand) function { l = &lifecycle{hand: h}; return l },
					opts: options(asyncop.WithUpstreamCancel(func(cause error) { causes = append(causes, cause) })),
				})
				r.sendEach("ab")
				require.NoError(t, r.op.Err())
				ending.end(r)
				err := r.wait()

				requireErr(t, ending.err, err)
				require.Equal(t, err, r.errAtEO, "Err before Out closes")
				_, outClosed = <-r.op.Out()
				require.False(t, outClosed)
				if ending.cause == nil {
					require.Empty(t, causes)
				} else {
					require.Len(t, causes, 1)
					requireErr(t, ending.cause, causes[0])
				}
				require.Error(t, r.call("a#1").ctx.Err())
				require.Error(t, r.call("b#1").ctx.Err())
				require.Equal(t, []string{"open", "close"}, l.history())

				before := r.stats().Discarded
				if !ending.inputEnds {
					for range 100 { // more than In has places for
						r.op.In() <- "late"
					}
					r.endInput()
					require.EqualValues(t, before+100, r.stats().Discarded)
				}
				s := r.stats()
				require.Zero(t, s.InFlight)
				require.Zero(t, s.Running)
				require.Zero(t, s.WaitingForRetry)
				checkBalance(t, s)
				require.Equal(t, err, r.op.Err(), "the first failure stays")
			})
		})
	}
}

// F1: a source that is blocked, because the operator is full, is set free.
func TestBlockedSourceIsSetFree(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		m.capacity = 1
		r := newRig(t, m, setup{opts: options(asyncop.WithBuffer(0))})
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			for range 1000 {
				r.op.In() <- "a"
			}
		}()
		r.fail("a#1", errBroken)
		<-sent
		require.ErrorIs(t, r.wait(), errBroken)
		require.EqualValues(t, 999, r.stats().Discarded)
	})
}

// F1: Done does not wait for upstream to close In; a goroutine discards until then.
func TestDoneDoesNotWaitForUpstream(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{})
		r.sendEach("a")
		r.fail("a#1", errBroken)
		synctest.Wait()
		select {
		case <-r.op.Done():
		default:
			t.Fatal("not done")
		}
	})
}

// F1: a cancel reaches an operator whose downstream takes nothing.
func TestCancelUnderBackpressure(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{blocked: true, opts: options(asyncop.WithBuffer(0))})
		r.answer = upper
		r.sendEach("abc")
		r.cancel(errTestOver)
		synctest.Wait()
		select {
		case <-r.op.Done():
		default:
			t.Fatal("not done")
		}
		require.ErrorIs(t, r.wait(), errTestOver)
		require.Empty(t, r.outputs())
	})
}

// F1: what has left the operator for the places of Out is not taken back.
func TestEmittedResultsSurviveTheFailure(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{blocked: true})
		r.sendEach("ab")
		r.complete("a#1", "A")
		r.fail("b#1", errBroken)
		require.ErrorIs(t, r.wait(), errBroken)
		require.Equal(t, "A", r.outputs())
	})
}

// F1: the context that cancels may end at any time, also before the operator begins and after it has ended.
func TestCancelAfterTheEndChangesNothing(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{})
		r.answer = upper
		r.sendEach("a")
		require.NoError(t, r.end())
		r.cancel(errTestOver)
		synctest.Wait()
		require.NoError(t, r.op.Err())
	})
}

// F1: the deadline of the operator's context is one way to cancel it.
func TestDeadlineOfTheOperatorsContext(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		r := newRig(t, m, setup{opts: options(asyncop.WithContext(ctx))})
		r.sendEach("a")
		r.advance(time.Second)
		require.ErrorIs(t, r.wait(), context.DeadlineExceeded)
		require.ErrorIs(t, r.call("a#1").ctx.Err(), context.Canceled, "it was cancelled, not late itself")
	})
}

// Close comes before Out is closed in a clean end, so its error is not overlooked.
func TestErrorOfCloseIsTold(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		var l *lifecycle
		r := newRig(t, m, setup{wrap: func(h *hand) function {
			l = &lifecycle{hand: h, close: func() error { return errBroken }}
			return l
		}})
		r.answer = upper
		r.sendEach("a")
		err := r.end()
		require.ErrorIs(t, err, errBroken)
		require.Equal(t, err, r.errAtEO)
		require.Equal(t, "A", r.outputs())
		require.Equal(t, []string{"open", "close"}, l.history(), "once")
	})
}

// After a failure, the error of Close is not the operator's.
func TestErrorOfCloseDoesNotHideTheFailure(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{wrap: func(h *hand) function {
			return &lifecycle{hand: h, close: func() error { return errors.New("another") }}
		}})
		r.sendEach("a")
		r.fail("a#1", errBroken)
		require.ErrorIs(t, r.wait(), errBroken)
	})
}

// Open comes before the first element; if it fails, so does the pipeline, and there is nothing to close.
func TestErrorOfOpen(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		var l *lifecycle
		var cause error
		r := newRig(t, m, setup{
			wrap: func(h *hand) function {
				l = &lifecycle{hand: h, open: func() error { return errBroken }}
				return l
			},
			opts: options(asyncop.WithUpstreamCancel(func(c error) { cause = c })),
		})
		r.sendEach("ab")
		err := r.wait()
		require.ErrorIs(t, err, errBroken)
		require.ErrorContains(t, err, "open")
		require.ErrorIs(t, cause, errBroken)
		require.Empty(t, r.calls())
		require.Equal(t, []string{"open"}, l.history())
		r.endInput()
		require.EqualValues(t, 2, r.stats().Discarded)
	})
}

// F1: the first reason to end stays the reason: here that Open failed, not that it cancelled the operator, too.
func TestFirstReasonToEndCounts(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		ctx, cancel := context.WithCancelCause(t.Context())
		r := newRig(t, m, setup{
			wrap: func(h *hand) function {
				return &lifecycle{hand: h, open: func() error {
					cancel(errTestOver)
					time.Sleep(time.Second)
					return errBroken
				}}
			},
			opts: options(asyncop.WithContext(ctx)),
		})
		err := r.wait()
		require.ErrorIs(t, err, errBroken)
		require.NotErrorIs(t, err, errTestOver)
	})
}

// F1: also among causes of cancellation, whenever the loop comes to look.
func TestFirstCauseCounts(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{})
		r.script("a#1", func(*call) error { time.Sleep(time.Second); return nil }) // the loop is away
		r.send("a")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errBroken)
		go func() { _ = r.op.Stop(ctx) }()
		synctest.Wait()
		r.cancel(errTestOver)
		err := r.wait()
		require.ErrorIs(t, err, errBroken)
		require.NotErrorIs(t, err, errTestOver)
	})
}

// Close waits for the last element, and for the failure sink.
func TestCloseComesAfterTheLastElement(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		var l *lifecycle
		r := newRig(t, m, setup{wrap: func(h *hand) function { l = &lifecycle{hand: h}; return l }})
		r.sendEach("a")
		r.endInput()
		require.Equal(t, []string{"open"}, l.history())
		r.complete("a#1", "A")
		require.NoError(t, r.wait())
		require.Equal(t, []string{"open", "close"}, l.history())
	})
}

// A cancel before the end of the input is no clean end, also if the loop comes to the latter first: as a rule it is a source
// with the same context that ends its output.
func TestInputThatEndsAfterACancel(t *testing.T) {
	for range 20 { // which the loop sees first is up to the scheduler
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			op := asyncop.OrderedWait(asyncop.Func(func(_ context.Context, in int, r asyncop.ResultFuture[int]) error {
				r.Complete(in)
				return nil
			}), time.Minute, 5, asyncop.WithContext(ctx))
			op.In() <- 1
			synctest.Wait()
			cancel(errBroken)
			close(op.In())
			require.ErrorIs(t, op.Wait(), errBroken)
		})
	}
}

// The same while the loop is in a turn, so that it sees both at once.
func TestInputThatEndsAfterACancelInATurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		retried := make(chan struct{})
		op := asyncop.OrderedWaitWithRetry(slowRetry(retried), time.Minute, 5, retryAll(3, time.Second), asyncop.WithContext(ctx))
		op.In() <- "a"
		<-retried
		cancel(errBroken)
		synctest.Wait()
		close(op.In())
		require.ErrorIs(t, op.Wait(), errBroken)
	})
}

// slowRetry fails at first, and holds the loop for a millisecond when it is called again.
func slowRetry(retried chan<- struct{}) asyncop.AsyncFunction[string, string] {
	return asyncop.Func(func(ctx context.Context, in string, r asyncop.ResultFuture[string]) error {
		if asyncop.AttemptFromContext(ctx) == 1 {
			return errBroken
		}
		close(retried)
		time.Sleep(time.Millisecond)
		r.Complete(in)
		return nil
	})
}

// A function of WithUpstreamCancel may wait for its source: it holds up nothing but Done.
func TestUpstreamCancelThatWaitsForTheSource(t *testing.T) {
	for _, stop := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			gone := make(chan struct{})
			var told error
			op := asyncop.OrderedWait(asyncop.Func(func(_ context.Context, _ string, result future) error {
				if stop {
					return nil // times out
				}
				return errBroken
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
			require.ErrorIs(t, op.Wait(), errBroken)
			require.ErrorIs(t, told, errBroken)
		})
	}
}

// tardy is a context whose end takes its time to come to those derived from it.
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

// Whoever closes In because the context has ended does not make a clean end of it, and nothing is called any more.
func TestEndOfInputAfterACancelThatIsSlow(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		parent, cancel := context.WithCancel(context.Background())
		defer cancel()
		ctx := &tardy{Context: parent}
		r := newRig(t, m, setup{opts: options(asyncop.WithContext(ctx))})
		ctx.err.Store(&context.Canceled)
		r.sendEach("a")
		r.endInput()
		require.ErrorIs(t, r.wait(), context.Canceled)
		require.Empty(t, r.calls())
	})
}

// What contexts tell of the failure of another element is not changed any more.
func TestCauseOfAFailureIsComplete(t *testing.T) {
	for range 20 {
		told := make(chan string, 1)
		op := asyncop.UnorderedWait(asyncop.Func(func(ctx context.Context, in string, _ future) error {
			if in == "bad" {
				return errBroken
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

// What was opened under the operator's context can be closed under it.
func TestContextOfOpenLivesInClose(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		var ctx context.Context
		var inClose error
		fn := &closingUnder{function: upperFunc(), open: func(c context.Context) { ctx = c }, close: func() { inClose = ctx.Err() }}
		op := construct(m, function(fn), time.Minute, nil)
		for _, err := range op.Results(letters("ab")) {
			require.NoError(t, err)
		}
		require.NoError(t, inClose)
		require.Error(t, ctx.Err(), "and ends with the operator")
	})
}

type closingUnder struct {
	function
	open  func(context.Context)
	close func()
}

func (f *closingUnder) Open(ctx context.Context) error { f.open(ctx); return nil }
func (f *closingUnder) Close() error                   { f.close(); return nil }

// F1: an operator that was never wired has no upstream that closes In: nothing of it is left when it has ended.
func TestEndWithoutAnUpstream(t *testing.T) {
	for name, use := range map[string]func(op *operator){
		"unused":  func(*operator) {},
		"Out":     func(op *operator) { op.Out() },
		"To":      func(op *operator) { op.To(extension.NewIgnoreSink()) },
		"Results": func(op *operator) { op.Results(letters("a")) }, // made, and not ranged over
	} {
		t.Run(name, func(t *testing.T) {
			forEachMode(t, func(t *testing.T, m mode) {
				ctx, cancel := context.WithCancelCause(t.Context())
				op := construct(m, upperFunc(), time.Minute, nil, asyncop.WithContext(ctx), asyncop.WithFailureSink(func(context.Context, failure) error { return nil }))
				used := make(chan struct{})
				go func() { use(op); close(used) }()
				synctest.Wait()
				cancel(errTestOver)
				require.ErrorIs(t, op.Wait(), errTestOver)
				<-used
			}) // the bubble waits for its goroutines
		})
	}
}

// F1: whatever comes to an operator that has ended is discarded, also if its upstream comes after the end.
func TestUpstreamThatComesAfterTheEnd(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errTestOver)
		op := construct(m, upperFunc(), time.Minute, nil, asyncop.WithContext(ctx), asyncop.WithBuffer(0))
		require.ErrorIs(t, op.Wait(), errTestOver)
		op.In() <- "a"
		op.In() <- "b"
		close(op.In())
		synctest.Wait()
		require.EqualValues(t, 2, op.Stats().Discarded)

		op = construct(m, upperFunc(), time.Minute, nil, asyncop.WithContext(ctx))
		require.ErrorIs(t, op.Wait(), errTestOver)
		for _, err := range op.Results(letters("ab")) {
			require.ErrorIs(t, err, errTestOver)
		}
	})
}
