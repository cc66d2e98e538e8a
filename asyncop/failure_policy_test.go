package asyncop_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reugn/go-streams"
	"github.com/reugn/go-streams/extension"
	"github.com/reugn/go-streams/flow"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
	"github.com/weirflow/weir/strategies/strategiestest"
)

// ---- Failure policy: fail the pipeline

// By default the first failure fails the pipeline at once: nothing is emitted after it, complete results that wait for
// their turn included.
func TestNothingIsEmittedAfterAFailure(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{blocked: true, opts: options(asyncop.WithBuffer(0))})
		r.send("a", "b", "c", mark(1), "d")
		r.complete("b#1", "B") // in order it waits for a, else for downstream
		r.complete("c#1", "C")
		r.complete("d#1", "D")
		r.fail("a#1", errBroken)
		require.ErrorIs(t, r.wait(), errBroken)
		require.Empty(t, r.outputs())
		s := r.stats()
		require.EqualValues(t, 3, s.Abandoned)
		require.Zero(t, s.Emitted)
		checkBalance(t, s)
	})
}

// The same for results that were handed in before the failure, in the same turn.
func TestNothingIsEmittedInTheTurnOfAFailure(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{})
		r.script("x#1", func(*call) error { time.Sleep(time.Second); return nil }) // the loop is away
		r.sendEach("abc")
		a, b, c := r.call("a#1"), r.call("b#1"), r.call("c#1")
		r.op.In() <- "x"
		a.Complete("A")
		b.CompleteExceptionally(errBroken)
		c.CompleteExceptionally(errors.New("another"))
		require.ErrorIs(t, r.wait(), errBroken)
		require.Empty(t, r.outputs())
		s := r.stats()
		require.EqualValues(t, 1, s.Failed, "the first failure counts")
		require.EqualValues(t, 3, s.Abandoned)
	})
}

// The error tells the element, its attempts, the time since it took its slot, and the cause.
func TestElementError(t *testing.T) {
	forEachClock(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{timeout: time.Minute, strategy: retryAll(1, time.Second)})
		r.advance(time.Hour)
		r.answer = fails
		r.sendEach("a")
		r.advance(time.Second)
		err := r.wait()
		failed, ok := errors.AsType[*asyncop.ElementError](err)
		require.True(t, ok, "%v", err)
		require.Equal(t, "a", failed.Element)
		require.Equal(t, 2, failed.Attempts)
		require.Equal(t, time.Second, failed.Elapsed)
		require.Equal(t, errBroken, failed.Err)
		require.Zero(t, failed.Abandoned)
		require.EqualError(t, err, `asyncop: element "a" failed after 2 attempts in 1s, 1 of 1 retries used: broken`)
	})
}

// The time before the first attempt counts, too.
func TestElapsedCountsTheWaitForAPermit(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{opts: options(asyncop.WithMaxConcurrentCalls(1))})
		r.sendEach("ab")
		r.advance(time.Second)
		r.complete("a#1", "A")
		r.advance(time.Second)
		r.fail("b#1", errBroken)
		failed, ok := errors.AsType[*asyncop.ElementError](r.wait())
		require.True(t, ok)
		require.Equal(t, 2*time.Second, failed.Elapsed)
	})
}

// The time of a call on the loop counts, too.
func TestElapsedCountsTheCallItself(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{})
		r.script("a#1", func(*call) error { time.Sleep(time.Second); return errBroken })
		r.sendEach("a")
		failed, ok := errors.AsType[*asyncop.ElementError](r.wait())
		require.True(t, ok)
		require.Equal(t, time.Second, failed.Elapsed)
	})
}

// ---- Failure policy: drop

// WithDropOnFailure counts the failure and goes on.
func TestDropOnFailure(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{timeout: time.Second, opts: options(asyncop.WithDropOnFailure())})
		r.sendEach("abcd")
		r.fail("a#1", errBroken)
		r.complete("b#1", "B")
		r.complete("d#1", "D")
		r.advance(time.Second) // c
		require.NoError(t, r.end())
		require.Equal(t, "B D", r.outputs())
		s := r.stats()
		require.EqualValues(t, 2, s.Dropped)
		require.EqualValues(t, 2, s.Failures)
		require.Zero(t, s.Failed)
		checkBalance(t, s)
	})
}

// ---- Failure policy: side output

// The side output gets the element, its error, its attempts, and when they began.
func TestSideOutputGetsFailures(t *testing.T) {
	forEachClock(t, func(t *testing.T, m mode) {
		side := newSideSink(false)
		r := newRig(t, m, setup{
			timeout: 10 * time.Second, strategy: retryAll(2, time.Second), opts: options(asyncop.WithSideOutput(side)),
		})
		r.script("b#1", upper)
		r.advance(time.Second)
		r.sendEach("ab")
		r.advance(500 * time.Millisecond)
		r.answer = fails
		r.fail("a#1", errors.New("another"))
		r.advance(5 * time.Second)
		require.NoError(t, r.end())
		require.Equal(t, "B", r.outputs())
		require.Equal(t, []failure{{
			Element: "a", Err: errBroken, Attempts: 3, Elapsed: 2500 * time.Millisecond,
			FirstAttempt: r.start.Add(time.Second), LastAttempt: r.start.Add(3500 * time.Millisecond),
			Verdict: strategies.Refused, // no retry is left
			InDoubt: true,
		}}, plain(side.got()))
		s := r.stats()
		require.EqualValues(t, 1, s.SideOutput)
		require.EqualValues(t, 1, s.Failures)
		checkBalance(t, s)
	})
}

// inUTC takes the monotonic part and the zone from times, as require.Equal looks at them.
// plain returns what is to be seen of failures, with times that can be compared.
func plain(fs []failure) (all []failure) {
	for _, f := range fs {
		all = append(all, failure{
			Element: f.Element, Err: f.Err, Abandoned: f.Abandoned, Attempts: f.Attempts, Elapsed: f.Elapsed,
			FirstAttempt: f.FirstAttempt.Round(0), LastAttempt: f.LastAttempt.Round(0),
			Verdict: f.Verdict, Reason: f.Reason, Reasons: f.Reasons, InDoubt: f.InDoubt,
		})
	}
	return all
}

// A blocked side output holds slots, and nothing else: timers fire on time, other elements go on.
func TestBlockedSideOutputHoldsSlotsNotTimers(t *testing.T) {
	forEachClock(t, func(t *testing.T, m mode) {
		m.capacity = 4
		side := newSideSink(true)
		r := newRig(t, m, setup{
			timeout: 3 * time.Second, strategy: retryAll(1, time.Second), opts: options(asyncop.WithSideOutput(side)),
		})
		r.script("a#1", fails)
		r.script("a#2", fails)
		r.script("b#1", fails)
		r.sendEach("abcd") // b#2, c and d time out
		r.advance(10 * time.Second)
		r.sendEach("e")
		require.Equal(t, "a#1@0s b#1@0s c#1@0s d#1@0s a#2@1s b#2@1s", r.callTimes())
		s := r.stats()
		require.EqualValues(t, 3, s.Timeouts)
		require.EqualValues(t, 4, s.InFlight)
		require.Zero(t, s.SideOutput)
		side.unblock()
		require.Equal(t, "a b c d", side.elements())
		r.complete("e#1", "E")
		require.NoError(t, r.end())
		require.Equal(t, "E", r.outputs())
		checkBalance(t, r.stats())
	})
}

// A blocked side output does not keep the results of others from leaving, unless the order wants it.
func TestBlockedSideOutputAndTheResultsOfOthers(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		side := newSideSink(true)
		r := newRig(t, m, setup{opts: options(asyncop.WithSideOutput(side))})
		r.sendEach("abc")
		r.complete("a#1", "A")
		r.fail("b#1", errBroken)
		r.complete("c#1", "C")
		require.Equal(t, m.pick("A", "A C"), r.outputs())
		side.unblock()
		require.NoError(t, r.end())
		require.Equal(t, "A C", r.outputs())
	})
}

// The operator closes the side output after the last failure; Done waits until it has completed.
func TestSideOutputIsClosedAndAwaited(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		side := newSideSink(false)
		slow := &slowSink{sideSink: side, finish: make(chan struct{})}
		r := newRig(t, m, setup{opts: options(asyncop.WithSideOutput(slow))})
		r.answer = fails
		r.sendEach("ab")
		r.endInput()
		<-side.completed // it was closed
		<-r.read         // and so was Out
		synctest.Wait()
		select {
		case <-r.op.Done():
			t.Fatal("done before the side output")
		default:
		}
		require.NoError(t, r.op.Err())
		close(slow.finish)
		require.NoError(t, r.wait())
		require.Equal(t, "a b", side.elements())
	})
}

// slowSink completes when finish is closed.
type slowSink struct {
	*sideSink
	finish chan struct{}
}

func (s *slowSink) AwaitCompletion() { <-s.finish }

// A side output that panics while it is awaited does not bring the process down (A6).
func TestSideOutputThatPanics(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{opts: options(asyncop.WithSideOutput(panickingSink{newSideSink(false)}))})
		r.answer = upper
		r.sendEach("a")
		require.NoError(t, r.end())
	})
}

type panickingSink struct{ *sideSink }

func (panickingSink) AwaitCompletion() { panic("broken") }

// Any inlet of go-streams can be the side output: a flow, for instance.
func TestSideOutputIsAnyInlet(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		names := flow.NewMap(func(f failure) string { return f.Element + ": " + f.Err.Error() }, 1)
		out := make(chan any, 10)
		go names.To(extension.NewChanSink(out))
		r := newRig(t, m, setup{opts: options(asyncop.WithSideOutput(names))})
		r.answer = fails
		r.sendEach("ab")
		require.NoError(t, r.end())
		var got []any
		for v := range out {
			got = append(got, v)
		}
		require.Equal(t, []any{"a: broken", "b: broken"}, got)
	})
}

// A cancelled operator ends although its side output takes nothing: Out is closed, Err is set; only Done waits.
func TestCancelWithABlockedSideOutput(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		side := newSideSink(true)
		r := newRig(t, m, setup{opts: options(asyncop.WithSideOutput(side))})
		r.script("a#1", fails)
		r.sendEach("ab")
		r.cancel(errTestOver)
		<-r.read
		require.ErrorIs(t, r.op.Err(), errTestOver)
		side.unblock()
		require.ErrorIs(t, r.wait(), errTestOver)
		require.Equal(t, "a b", side.elements())
		require.Equal(t, errBroken, side.got()[0].Err)
		require.ErrorIs(t, side.got()[1].Err, errTestOver)
		checkBalance(t, r.stats())
	})
}

// F1: a side output that takes nothing any more holds up the end of a cancelled operator for a while, and not for ever. What it
// did not get is counted, and logged.
func TestSideOutputThatIsDead(t *testing.T) {
	for name, newInlet := range map[string]func(*deadSink) streams.Inlet{
		"takes nothing":     func(s *deadSink) streams.Inlet { return s },
		"does not complete": func(s *deadSink) streams.Inlet { s.in = make(chan any, 10); return s },
		"no sink":           func(s *deadSink) streams.Inlet { return inletOnly{s.in} },
	} {
		t.Run(name, func(t *testing.T) {
			forEachClock(t, func(t *testing.T, m mode) {
				sink := &deadSink{make(chan any), make(chan struct{})}
				dead := newInlet(sink)
				defer close(sink.end)
				var lines strings.Builder
				r := newRig(t, m, setup{opts: options(asyncop.WithSideOutput(dead),
					asyncop.WithLogger(slog.New(slog.NewTextHandler(&lines, nil))))})
				r.script("a#1", fails)
				r.sendEach("abc")
				r.cancel(errTestOver)
				<-r.read
				require.ErrorIs(t, r.op.Err(), errTestOver)
				synctest.Wait() // the side output is being waited for
				r.advance(30*time.Second - 1)
				select {
				case <-r.op.Done():
					t.Fatal("it gave up early")
				default:
				}
				r.advance(1)
				require.ErrorIs(t, r.wait(), errTestOver)
				s := r.stats()
				checkBalance(t, s)
				if name == "does not complete" {
					require.EqualValues(t, 1, s.SideOutput)
					require.EqualValues(t, 2, s.Abandoned)
					require.Contains(t, lines.String(), `level=ERROR msg="asyncop: the side output has not completed within 30s`)
					return
				}
				require.Zero(t, s.SideOutput)
				require.EqualValues(t, 3, s.Abandoned)
				require.Contains(t, lines.String(), `level=ERROR msg="asyncop: the side output has taken nothing for 30s`)
				require.Contains(t, lines.String(), " lost=3")
			})
		})
	}
}

// One that is slow gets everything, and may complete, however long all of it takes.
func TestSideOutputThatIsSlowAtTheEnd(t *testing.T) {
	for _, places := range []int{0, 10} {
		forEachClock(t, func(t *testing.T, m mode) {
			side := &slowSink{&sideSink{in: make(chan any, places)}, make(chan struct{})}
			var r *rig
			wait := func(d time.Duration) {
				if r.mock == nil {
					time.Sleep(d)
				} else {
					r.mock.Add(d)
				}
			}
			r = newRig(t, m, setup{opts: options(asyncop.WithSideOutput(side))})
			r.sendEach("abc")
			r.cancel(errTestOver)
			go func() {
				defer close(side.finish)
				for v := range side.in {
					wait(15 * time.Second)
					side.failures = append(side.failures, v.(failure))
				}
				wait(14 * time.Second)
			}()
			require.ErrorIs(t, r.wait(), errTestOver)
			require.Equal(t, "a b c", side.elements())
		})
	}
}

// deadSink takes what its channel has room for, and does not complete before the end of the test.
type deadSink struct {
	in  chan any
	end chan struct{}
}

func (s *deadSink) In() chan<- any   { return s.in }
func (s *deadSink) AwaitCompletion() { <-s.end }

type inletOnly struct{ in chan any }

func (i inletOnly) In() chan<- any { return i.in }

// A wrong type is no failure of an element: it fails the pipeline under every policy.
func TestWrongTypeFailsThePipelineUnderEveryPolicy(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		side := newSideSink(false)
		for _, policy := range [][]asyncop.Option{{asyncop.WithDropOnFailure()}, {asyncop.WithSideOutput(side)}} {
			r := newRig(t, m, setup{opts: policy})
			r.send(1)
			_, ok := errors.AsType[*asyncop.TypeError](r.wait())
			require.True(t, ok)
		}
		require.Empty(t, side.got())
	})
}

// ---- Stop

// Stop takes no more and drains what it has, as at the end of the input.
func TestStopDrains(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		var causes []error
		r := newRig(t, m, setup{
			timeout: time.Minute, strategy: retryAll(9, 10*time.Second),
			opts: options(asyncop.WithUpstreamCancel(func(cause error) { causes = append(causes, cause) })),
		})
		r.sendEach("ab")
		r.fail("b#1", errBroken)
		stopped := make(chan error)
		go func() { stopped <- r.op.Stop(t.Context()) }()
		require.Equal(t, "a#1@0s b#1@0s b#2@0s", r.callTimes(), "the last attempt, at once")
		require.Equal(t, []error{asyncop.ErrStopped}, causes)
		r.op.In() <- "late" // has a place in In
		r.complete("b#2", "B")
		r.advance(time.Second)
		r.complete("a#1", "A")
		require.NoError(t, <-stopped)
		require.NoError(t, r.op.Err())
		require.Equal(t, m.pick("A B", "B A"), r.outputs())
		r.send("later", "latest")
		r.endInput()
		require.Equal(t, "a#1 b#1 b#2", r.calls())
		s := r.stats()
		require.EqualValues(t, 3, s.Discarded)
		require.EqualValues(t, 2, s.Accepted)
		require.Len(t, causes, 1)
	})
}

// With WithDrainRetries, Stop lets retries run their course, too.
func TestStopDrainsRetries(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{
			timeout: time.Minute, strategy: retryAll(9, 10*time.Second), opts: options(asyncop.WithDrainRetries()),
		})
		r.sendEach("a")
		r.fail("a#1", errBroken)
		stopped := make(chan error)
		go func() { stopped <- r.op.Stop(t.Context()) }()
		r.advance(10 * time.Second)
		require.Equal(t, "a#1@0s a#2@10s", r.callTimes())
		r.complete("a#2", "A")
		require.NoError(t, <-stopped)
	})
}

// When its context ends, Stop cancels what is left and returns.
func TestStopCancelsWhenItsContextEnds(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{})
		r.sendEach("ab")
		r.complete("b#1", "B")
		ctx, cancel := context.WithTimeoutCause(t.Context(), 5*time.Second, errTestOver)
		defer cancel()
		begin := time.Now()
		err := r.op.Stop(ctx)
		require.Equal(t, 5*time.Second, time.Since(begin))
		require.ErrorIs(t, err, errTestOver)
		abandoned, ok := errors.AsType[*asyncop.AbandonedError](err)
		require.True(t, ok, "%v", err)
		require.Equal(t, m.pick("2", "1"), text(abandoned.Abandoned), "in order, b waited for a")
		require.Equal(t, err, r.op.Err())
		require.ErrorIs(t, r.call("a#1").ctx.Err(), context.Canceled)
		require.ErrorIs(t, r.wait(), errTestOver)
	})
}

// Stop of an operator that has ended tells how; any number of Stops at once do.
func TestStopOfAnEndedOperator(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{})
		r.sendEach("a")
		results := make(chan error)
		for range 3 {
			go func() { results <- r.op.Stop(t.Context()) }()
		}
		synctest.Wait()
		r.fail("a#1", errBroken)
		for range 3 {
			require.ErrorIs(t, <-results, errBroken)
		}
		require.ErrorIs(t, r.op.Stop(t.Context()), errBroken)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, r.op.Stop(ended), errBroken)
	})
}

// Stop of an operator that has nothing in flight returns at once, although upstream has not closed In.
func TestStopOfAnIdleOperator(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{})
		require.NoError(t, r.op.Stop(t.Context()))
		<-r.read
		select {
		case <-r.op.Done():
		default:
			t.Fatal("not done")
		}
	})
}

// Stop does not wait for a free slot, as the end of the input does.
func TestStopOfAFullOperator(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		m.capacity = 1
		r := newRig(t, m, setup{timeout: time.Minute, strategy: retryAll(9, time.Second)})
		r.sendEach("abc")
		r.fail("a#1", errBroken)
		stopped := make(chan error)
		go func() { stopped <- r.op.Stop(t.Context()) }()
		require.Equal(t, "a#1@0s a#2@0s", r.callTimes())
		r.complete("a#2", "A")
		require.NoError(t, <-stopped)
		r.endInput()
		require.EqualValues(t, 2, r.stats().Discarded)
	})
}

// An *ElementError of another operator is an error like any other: Err tells this operator's own, and neither the number
// of the elements that were abandoned nor anything else is written into a foreign one.
func TestElementErrorOfAnotherOperator(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		foreign := &asyncop.ElementError{Element: "of another", Err: errBroken}
		before := *foreign
		r := newRig(t, m, setup{})
		r.sendEach("abc")
		r.fail("b#1", foreign)
		err := r.wait()
		own, ok := err.(*asyncop.ElementError) // the outermost one is asked for
		require.True(t, ok, "%T", err)
		require.Equal(t, "b", own.Element)
		require.Equal(t, 2, own.Abandoned)
		require.Same(t, foreign, own.Err)
		require.Equal(t, before, *foreign)

		r = newRig(t, m, setup{})
		r.sendEach("abc")
		err = r.cut(foreign)                           // as in a pipeline whose operators cancel each other
		abandoned, ok := err.(*asyncop.AbandonedError) // the outermost one is asked for
		require.True(t, ok, "%T", err)
		require.Equal(t, 3, abandoned.Abandoned)
		require.Same(t, foreign, abandoned.Cause)
		require.Equal(t, before, *foreign)
	})
}

// What was given up tells why it was not tried again.
func TestFailureTellsTheVerdict(t *testing.T) {
	for want, tt := range map[strategies.Verdict]struct {
		s    strategies.AsyncRetryStrategy[string]
		ends bool
		text string
	}{
		strategies.Final:      {strategies.FixedDelay[string](3, 0).RetryIfResult(predicates.EmptyResult), false, `in 0s: broken`},
		strategies.Refused:    {retryAll(0, 0), false, `in 0s: broken`},
		strategies.Finishing:  {retryAll(3, 0), true, `in 0s, not retried since the input has ended (see WithDrainRetries): broken`},
		strategies.OverBudget: {strategies.PolicyOf[string](retryAll(3, 0)).WithBudget(spent()), false, `in 0s, not retried: over budget: broken`},
		strategies.Failed: {
			strategies.FixedDelay[string](3, 0).RetryIfException(func(error) bool { panic("no answer") }), false,
			"in 0s: asyncop: panic in user code: no answer (at failure_policy_test.go:N asyncop_test.TestFailureTellsTheVerdict.func1)\nbroken",
		},
	} {
		t.Run(want.String(), func(t *testing.T) {
			forEachMode(t, func(t *testing.T, m mode) {
				run := func(opts ...asyncop.Option) error {
					r := newRig(t, m, setup{timeout: time.Minute, strategy: tt.s, opts: opts})
					r.sendEach("a")
					if tt.ends {
						r.endInput()
					}
					r.fail("a#1", errBroken)
					return r.end()
				}
				side := newSideSink(false)
				require.NoError(t, run(asyncop.WithSideOutput(side)))
				require.Len(t, side.got(), 1)
				require.Equal(t, want, side.got()[0].Verdict)
				var failed *asyncop.ElementError
				require.ErrorAs(t, run(), &failed)
				require.Equal(t, want, failed.Verdict)
				require.Equal(t, `asyncop: element "a" failed after 1 attempt `+tt.text, withoutLine(failed.Error()))
			})
		})
	}
}

// withoutLine returns text with an N for the line number of a place in a test.
func withoutLine(text string) string { return placeLine.ReplaceAllString(text, "_test.go:N ") }

var placeLine = regexp.MustCompile(`_test\.go:\d+ `)

// spent is a budget with nothing in it.
func spent() *strategies.Budget {
	b := strategies.NewBudget(0, 0, 1)
	strategiestest.Decide(strategies.PolicyOf[string](retryAll(1, 0)).WithBudget(b), predicates.Attempt[string]{Err: errBroken})
	return b
}

// With two operators in a row it matters whose element it was.
func TestErrorsNameTheOperator(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{opts: options(asyncop.WithName("lookup"))})
		r.sendEach("a")
		r.fail("a#1", errBroken)
		require.EqualError(t, r.end(), `asyncop: lookup: element "a" failed after 1 attempt in 0s: broken`)
		r = newRig(t, m, setup{opts: options(asyncop.WithName("lookup"))})
		r.send(7)
		require.EqualError(t, r.end(), "asyncop: lookup: got an element of type int, want string")
	})
}

// ---- Failure policy: handler

// A handler gets what a side output gets, one failure at a time; a slow one holds slots, and Done waits for it.
func TestFailureHandler(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		m.capacity = 2
		var mu sync.Mutex
		var got []string
		r := newRig(t, m, setup{timeout: time.Minute, opts: options(asyncop.WithFailureHandler(func(f failure) {
			time.Sleep(time.Second)
			mu.Lock()
			defer mu.Unlock()
			got = append(got, fmt.Sprint(f.Element, " ", f.Err, " ", f.Abandoned))
		}))})
		r.answer = func(c *call) error {
			if c.in == "z" {
				return nil
			}
			return errBroken
		}
		r.sendEach("abc")
		require.Equal(t, "a#1@0s b#1@0s c#1@0s", r.callTimes(), "a is being handled, b and c hold slots")
		require.EqualValues(t, 2, r.stats().InFlight)
		r.advance(5 * time.Second)
		require.EqualValues(t, 3, r.stats().SideOutput)
		r.send("z")
		r.cancel(errTestOver)
		err := r.wait()
		require.ErrorIs(t, err, errTestOver)
		require.Equal(t, []string{"a broken false", "b broken false", "c broken false", "z the test is over true"}, got)
		checkBalance(t, r.stats())
	})
}

// A6: a handler that breaks ends the operator, and gets the rest all the same.
func TestFailureHandlerThatBreaks(t *testing.T) {
	for _, b := range breakages {
		forEachMode(t, func(t *testing.T, m mode) {
			var got []string
			r := newRig(t, m, setup{timeout: time.Minute, opts: options(asyncop.WithFailureHandler(func(f failure) {
				if got = append(got, f.Element); f.Element == "a" {
					b.breaks()
				}
			}))})
			r.sendEach("ab")
			r.fail("a#1", errBroken)
			err := r.wait()
			require.ErrorContains(t, err, "asyncop: failure handler: ")
			panicked, ok := errors.AsType[*asyncop.PanicError](err)
			require.True(t, ok)
			require.Equal(t, b.value, panicked.Value)
			require.Equal(t, []string{"a", "b"}, got)
		})
	}
}

// The last one, too, whose handler is still at work when all else is done.
func TestFailureHandlerThatBreaksAtTheEnd(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		r := newRig(t, m, setup{timeout: time.Minute, opts: options(asyncop.WithFailureHandler(func(failure) {
			time.Sleep(time.Second)
			panic("a dead letter is lost")
		}))})
		r.answer = fails
		r.sendEach("a")
		require.ErrorContains(t, r.end(), "a dead letter is lost")
	})
}
