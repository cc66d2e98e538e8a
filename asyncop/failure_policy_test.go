package asyncop_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/backend"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
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

// The error reports the element, its attempts, the time since it took its slot, and the cause.
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

// ---- Failure policy: failure sink

// The failure sink gets the element, its error, its attempts, and when they began.
func TestFailureSinkGetsFailures(t *testing.T) {
	forEachClock(t, func(t *testing.T, m mode) {
		side := newSideSink(false)
		r := newRig(t, m, setup{
			timeout: 10 * time.Second, strategy: retryAll(2, time.Second), opts: options(asyncop.WithFailureSink(side.take)),
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
		require.EqualValues(t, 1, s.HandedOver)
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

// A blocked failure sink holds slots, and nothing else: timers fire on time, other elements go on.
func TestBlockedFailureSinkHoldsSlotsNotTimers(t *testing.T) {
	forEachClock(t, func(t *testing.T, m mode) {
		m.capacity = 4
		side := newSideSink(true)
		r := newRig(t, m, setup{
			timeout: 3 * time.Second, strategy: retryAll(1, time.Second), opts: options(asyncop.WithFailureSink(side.take)),
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
		require.Zero(t, s.HandedOver)
		side.unblock()
		require.Equal(t, "a b c d", side.elements())
		r.complete("e#1", "E")
		require.NoError(t, r.end())
		require.Equal(t, "E", r.outputs())
		checkBalance(t, r.stats())
	})
}

// A blocked failure sink does not keep the results of others from leaving, unless the order wants it.
func TestBlockedFailureSinkAndTheResultsOfOthers(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		side := newSideSink(true)
		r := newRig(t, m, setup{opts: options(asyncop.WithFailureSink(side.take))})
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

// A cancelled operator ends although its failure sink takes nothing: Out is closed, Err is set; only Done waits.
func TestCancelWithABlockedFailureSink(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		side := newSideSink(true)
		r := newRig(t, m, setup{opts: options(asyncop.WithFailureSink(side.take))})
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

// A wrong type is no failure of an element: it fails the pipeline under every policy.
func TestWrongTypeFailsThePipelineUnderEveryPolicy(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		side := newSideSink(false)
		for _, policy := range [][]asyncop.Option{{asyncop.WithDropOnFailure()}, {asyncop.WithFailureSink(side.take)}} {
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

// Stop of an operator that has ended reports how; any number of Stops at once do.
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

// What was given up says why it was not tried again.
func TestFailureTellsTheVerdict(t *testing.T) {
	for want, tt := range map[strategies.Verdict]struct {
		s    strategies.AsyncRetryStrategy[string]
		ends bool
		text string
	}{
		strategies.Final:      {strategies.FixedDelay[string](3, 0).RetryIfResult(predicates.EmptyResult), false, `in 0s: broken`},
		strategies.Refused:    {retryAll(0, 0), false, `in 0s: broken`},
		strategies.Finishing:  {retryAll(3, 0), true, `in 0s, not retried since the input has ended (see WithDrainRetries): broken`},
		strategies.OverBudget: {retryAll(3, 0), false, `in 0s, not retried: over budget: broken`},
		strategies.Failed: {
			strategies.FixedDelay[string](3, 0).RetryIfException(func(error) bool { panic("no answer") }), false,
			"in 0s: asyncop: panic in user code: no answer (at failure_policy_test.go:N asyncop_test.TestFailureTellsTheVerdict.func1)\nbroken",
		},
	} {
		t.Run(want.String(), func(t *testing.T) {
			forEachMode(t, func(t *testing.T, m mode) {
				run := func(opts ...asyncop.Option) error {
					if want == strategies.OverBudget {
						opts = append(opts, asyncop.WithBackend(spent()))
					}
					r := newRig(t, m, setup{timeout: time.Minute, strategy: tt.s, opts: opts})
					r.sendEach("a")
					if tt.ends {
						r.endInput()
					}
					r.fail("a#1", errBroken)
					return r.end()
				}
				side := newSideSink(false)
				require.NoError(t, run(asyncop.WithFailureSink(side.take)))
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

// spent is a backend with nothing in its retry budget.
func spent() *backend.Backend {
	b := backend.New("spent", backend.RetryBudget(0))
	place := b.Attach(nil, 0)
	for place.MayRetry(time.Now()) {
	}
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

// ---- Failure policy: sink

// refusing is a failure sink that does not take an element as often as refusals says.
type refusing struct {
	start    time.Time
	refusals map[string]int

	mu     sync.Mutex
	offers []string // guarded by mu: "a@1s"
}

func (s *refusing) offered() []string {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.offers)
}

func (s *refusing) take(_ context.Context, f failure) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.offers = append(s.offers, fmt.Sprintf("%s@%v", f.Element, time.Since(s.start)))
	if s.refusals[f.Element] > 0 {
		s.refusals[f.Element]--
		return errBroken
	}
	return nil
}

// An element that the sink does not take is offered again, after a back-off that grows up to 10 s, while others are taken. It
// holds its slot, and a clean end waits for it.
func TestFailureSinkThatRefuses(t *testing.T) {
	forEachClock(t, func(t *testing.T, m mode) {
		var lines strings.Builder
		sink := &refusing{refusals: map[string]int{"a": 9}}
		r := newRig(t, m, setup{timeout: time.Second, opts: options(asyncop.WithFailureSink(sink.take),
			asyncop.WithLogger(slog.New(slog.NewTextHandler(&lines, nil))))})
		sink.start = time.Now()
		r.answer = fails
		r.sendEach("ab")
		r.endInput()
		require.EqualValues(t, 1, r.stats().InFlight)
		require.EqualValues(t, 1, r.stats().HandedOver)
		r.advance(100 * time.Millisecond)
		r.advance(200 * time.Millisecond)
		r.advance(400 * time.Millisecond)
		require.Len(t, sink.offered(), 5)
		for _, d := range []int{800, 1600, 3200, 6400, 10_000} {
			r.advance(time.Duration(d)*time.Millisecond - 1)
			before := len(sink.offered())
			r.advance(1)
			require.Len(t, sink.offered(), before+1, "after %d ms", d)
			require.EqualValues(t, 1, r.stats().InFlight)
		}
		r.advance(10 * time.Second)
		require.NoError(t, r.wait())
		require.Len(t, sink.offered(), 11)
		require.EqualValues(t, 2, r.stats().HandedOver)
		checkBalance(t, r.stats())
		require.Contains(t, lines.String(), `msg="asyncop: the failure sink did not take an element" error=broken again=100ms element=a`)
		if r.mock == nil {
			require.Equal(t, []string{"a@0s", "b@0s", "a@100ms", "a@300ms", "a@700ms", "a@1.5s"}, sink.offered()[:6])
		}
	})
}

// Regression (law W2): what the sink can never take was offered for ever, and held its slot.
func TestFailureSinkThatCanNeverTake(t *testing.T) {
	var offers atomic.Int64
	sink := asyncop.WithFailureSink(func(_ context.Context, f asyncop.Failure[string]) error {
		offers.Add(1)
		return fmt.Errorf("%s is too large: %w", f.Element, delivery.ErrRefused)
	})
	broken := asyncop.Blocking(func(context.Context, string) (string, error) { return "", errBroken })
	quiet := asyncop.WithLogger(slog.New(slog.DiscardHandler))
	construct := func() *operator { return asyncop.OrderedWait(broken, time.Second, 1, sink, quiet) }
	t.Run("messages are rejected", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			offers.Store(0)
			var got []delivery.Verdict
			op := construct()
			for _, err := range op.Messages(func(yield func(delivery.Message[string], error) bool) {
				for i := range 3 {
					m := delivery.New("a", &delivery.Meta{ID: strconv.Itoa(i)}, func(v delivery.Verdict) { got = append(got, v) })
					if !yield(m, nil) {
						return
					}
				}
			}) {
				t.Error("a result", err)
			}
			require.EqualValues(t, 3, offers.Load())
			require.Len(t, got, 3)
			for _, v := range got {
				require.Equal(t, delivery.Rejected, v.Kind)
				require.True(t, v.OutcomeUnknown, "the call may have taken effect")
				require.ErrorIs(t, v.Err, delivery.ErrRefused)
				require.ErrorIs(t, v.Err, errBroken)
			}
			require.EqualValues(t, 3, op.Stats().HandedOver)
			checkBalance(t, op.Stats())
		})
	})
	// Regression: a rejected element was of unknown outcome even where its call may happen twice.
	t.Run("the outcome is unknown as the failure says", func(t *testing.T) {
		idempotent := func(is func(any) bool) strategies.AsyncRetryStrategy[string] {
			return because(unsafeReason, always(false, strategies.Action{})).IdempotentIf(is)
		}
		for name, tt := range map[string]struct {
			strategy strategies.AsyncRetryStrategy[string]
			want     bool
		}{
			"idempotent":               {idempotent(func(any) bool { return true }), false},
			"not idempotent":           {idempotent(func(any) bool { return false }), true},
			"the policy breaks":        {idempotent(func(any) bool { panic("no idea") }), true},
			"a predicate asked for it": {strategies.FixedDelay[string](1, 0).RetryIfException(predicates.HasException), false},
		} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var got []delivery.Verdict
					op := asyncop.OrderedWaitWithRetry(broken, time.Second, 1, tt.strategy, sink, quiet)
					for _, err := range op.Messages(func(yield func(delivery.Message[string], error) bool) {
						yield(delivery.New("a", &delivery.Meta{ID: "a"}, func(v delivery.Verdict) { got = append(got, v) }), nil)
					}) {
						t.Error("a result", err)
					}
					require.Len(t, got, 1)
					require.Equal(t, delivery.Rejected, got[0].Kind)
					require.Equal(t, tt.want, got[0].OutcomeUnknown)
				})
			})
		}
	})
	t.Run("other elements fail the pipeline", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			op := construct()
			var err error
			for _, err = range op.Results(slices.Values([]string{"a", "b"})) {
				continue
			}
			require.ErrorIs(t, err, delivery.ErrRefused)
			require.ErrorIs(t, err, errBroken)
			require.EqualValues(t, 1, op.Stats().Failed)
		})
	})
}

// The sink is called for one failure at a time, and may block; a slow one holds slots, and Done waits for it.
func TestSlowFailureSink(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		m.capacity = 2
		var mu sync.Mutex
		var got []string
		r := newRig(t, m, setup{timeout: time.Minute, opts: options(asyncop.WithFailureSink(func(_ context.Context, f failure) error {
			time.Sleep(time.Second)
			mu.Lock()
			defer mu.Unlock()
			got = append(got, fmt.Sprint(f.Element, " ", f.Err, " ", f.Abandoned))
			return nil
		}))})
		r.answer = func(c *call) error {
			if c.in == "z" {
				return nil
			}
			return errBroken
		}
		r.sendEach("abc")
		require.Equal(t, "a#1@0s b#1@0s", r.callTimes(), "a is being taken, and b waits: both hold their slots")
		require.EqualValues(t, 2, r.stats().InFlight)
		r.advance(5 * time.Second)
		require.EqualValues(t, 3, r.stats().HandedOver)
		r.send("z")
		r.cancel(errTestOver)
		err := r.wait()
		require.ErrorIs(t, err, errTestOver)
		require.Equal(t, []string{"a broken false", "b broken false", "c broken false", "z the test is over true"}, got)
		checkBalance(t, r.stats())
	})
}

// A6: a sink that breaks has not taken the element, and is called again.
func TestFailureSinkThatBreaks(t *testing.T) {
	for _, b := range breakages {
		forEachMode(t, func(t *testing.T, m mode) {
			var got []string
			r := newRig(t, m, setup{timeout: time.Minute, opts: options(asyncop.WithFailureSink(func(_ context.Context, f failure) error {
				if got = append(got, f.Element); len(got) == 1 {
					b.breaks()
				}
				return nil
			}))})
			r.sendEach("ab")
			r.fail("a#1", errBroken)
			r.fail("b#1", errBroken)
			r.advance(time.Second)
			require.NoError(t, r.end())
			require.Equal(t, []string{"a", "b", "a"}, got)
			require.EqualValues(t, 2, r.stats().HandedOver)
		})
	}
}

// The context of the sink ends with the operator. What it takes nevertheless is taken; what it does not take is offered once
// more, for 30 s, and then given up: counted, and logged.
func TestFailureSinkAtACancel(t *testing.T) {
	forEachClock(t, func(t *testing.T, m mode) {
		var lines strings.Builder
		var offers []string
		r := newRig(t, m, setup{opts: options(
			asyncop.WithLogger(slog.New(slog.NewTextHandler(&lines, nil))),
			asyncop.WithFailureSink(func(ctx context.Context, f failure) error {
				offers = append(offers, f.Element)
				<-ctx.Done()
				if f.Element == "a" {
					return nil
				}
				return context.Cause(ctx)
			}))})
		r.answer = func(c *call) error {
			if c.in == "d" {
				return nil
			}
			return errBroken
		}
		r.sendEach("abcd")
		r.cancel(errTestOver)
		<-r.read
		require.ErrorIs(t, r.op.Err(), errTestOver)
		synctest.Wait()
		require.Equal(t, []string{"a", "b"}, offers, "one at a time")
		r.advance(30*time.Second - 1)
		select {
		case <-r.op.Done():
			t.Fatal("it gave up early")
		default:
		}
		r.advance(1)
		require.ErrorIs(t, r.wait(), errTestOver)
		require.Equal(t, []string{"a", "b"}, offers, "the time is over")
		s := r.stats()
		checkBalance(t, s)
		require.EqualValues(t, 1, s.HandedOver)
		require.EqualValues(t, 3, s.Abandoned)
		require.Contains(t, lines.String(), `level=ERROR msg="asyncop: the failure sink has not taken all failures: they are lost" lost=2`)
		require.Equal(t, 2, strings.Count(lines.String(), `level=ERROR msg="asyncop: the failure sink did not take an element at the end"`))
	})
}

// The context of the sink has the values of the observers' and of the operator's context.
func TestContextOfTheFailureSink(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		type key struct{ int }
		var got []any
		o := &contextObserver{key{1}}
		r := newRig(t, m, setup{
			opts: options(asyncop.WithObserver(o), asyncop.WithContext(context.WithValue(t.Context(), key{2}, "operator")),
				asyncop.WithFailureSink(func(ctx context.Context, f failure) error {
					got = append(got, f.Element, ctx.Value(key{1}), ctx.Value(key{2}), asyncop.AttemptFromContext(ctx), ctx.Err())
					_, limited := ctx.Deadline()
					require.False(t, limited)
					return nil
				})),
		})
		r.answer = fails
		r.sendEach("a")
		require.NoError(t, r.end())
		require.Equal(t, []any{"a", "observer", "operator", 0, nil}, got)
	})
}

// contextObserver gives elements a value.
type contextObserver struct{ key any }

func (o *contextObserver) Accepted(ctx context.Context, _ any, _ bool) context.Context {
	return context.WithValue(ctx, o.key, "observer")
}

func (*contextObserver) AttemptStarted(ctx context.Context, _ int) context.Context { return ctx }
func (*contextObserver) AttemptEnded(context.Context, observe.Outcome)             {}
func (*contextObserver) Ended(context.Context, observe.Ending)                     {}
