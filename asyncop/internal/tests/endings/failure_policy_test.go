package endings_test

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
	"github.com/weirflow/weir/asyncop/internal/optest"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/backend"
	"github.com/weirflow/weir/internal/gate"
	"github.com/weirflow/weir/message"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// ---- Failure policy: fail the pipeline

// By default the first failure fails the pipeline immediately. Nothing is emitted after
// it, not even complete results that wait for their predecessors.
func TestFailure_NothingIsEmittedAfterIt(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{Blocked: true, Opts: optest.Options(asyncop.WithBuffer(0))})
		r.Send("a", "b", "c", optest.Mark(1), "d")
		r.Complete("b#1", "B") // in order it waits for a, else for downstream
		r.Complete("c#1", "C")
		r.Complete("d#1", "D")
		r.Fail("a#1", optest.ErrBroken)
		require.ErrorIs(t, r.Wait(), optest.ErrBroken)
		require.Empty(t, r.Outputs())
		s := r.Stats()
		require.EqualValues(t, 3, s.Abandoned)
		require.Zero(t, s.Emitted)
		optest.CheckBalance(t, s)
	})
}

// The same applies to results that were posted before the failure, in the same step.
func TestFailure_NothingIsEmittedInItsStep(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{})
		r.Script("x#1", func(*optest.Call) error { time.Sleep(time.Second); return nil }) // the loop is busy
		r.SendEach("abc")
		a, b, c := r.Call("a#1"), r.Call("b#1"), r.Call("c#1")
		r.Op.In() <- "x"
		a.Complete("A")
		b.CompleteExceptionally(optest.ErrBroken)
		c.CompleteExceptionally(errors.New("another"))
		require.ErrorIs(t, r.Wait(), optest.ErrBroken)
		require.Empty(t, r.Outputs())
		s := r.Stats()
		require.EqualValues(t, 1, s.Failed, "the first failure counts")
		require.EqualValues(t, 3, s.Abandoned)
	})
}

// The error reports the element, its attempts, the time since it took its slot, and the
// cause.
func TestElementError(t *testing.T) {
	optest.ForEachClock(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{Timeout: time.Minute, Strategy: optest.RetryAll(1, time.Second)})
		r.Advance(time.Hour)
		r.Answer = optest.Fails
		r.SendEach("a")
		r.Advance(time.Second)
		err := r.Wait()
		failed, ok := errors.AsType[*asyncop.ElementError](err)
		require.True(t, ok, "%v", err)
		require.Equal(t, "a", failed.Element)
		require.Equal(t, 2, failed.Attempts)
		require.Equal(t, time.Second, failed.Elapsed)
		require.Equal(t, optest.ErrBroken, failed.Err)
		require.Zero(t, failed.Abandoned)
		require.EqualError(t, err, `asyncop: element "a" failed after 2 attempts in 1s, 1 of 1 retries used: broken`)
	})
}

// The time before the first attempt counts, too.
func TestElapsedCountsTheWaitForAPermit(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{Opts: optest.Options(asyncop.WithMaxConcurrentCalls(1))})
		r.SendEach("ab")
		r.Advance(time.Second)
		r.Complete("a#1", "A")
		r.Advance(time.Second)
		r.Fail("b#1", optest.ErrBroken)
		failed, ok := errors.AsType[*asyncop.ElementError](r.Wait())
		require.True(t, ok)
		require.Equal(t, 2*time.Second, failed.Elapsed)
	})
}

// The time of a call on the loop counts, too.
func TestElapsedCountsTheCallItself(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{})
		r.Script("a#1", func(*optest.Call) error { time.Sleep(time.Second); return optest.ErrBroken })
		r.SendEach("a")
		failed, ok := errors.AsType[*asyncop.ElementError](r.Wait())
		require.True(t, ok)
		require.Equal(t, time.Second, failed.Elapsed)
	})
}

// ---- Failure policy: drop

// WithDropOnFailure counts the failure and continues.
func TestDropOnFailure(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{Timeout: time.Second, Opts: optest.Options(asyncop.WithDropOnFailure())})
		r.SendEach("abcd")
		r.Fail("a#1", optest.ErrBroken)
		r.Complete("b#1", "B")
		r.Complete("d#1", "D")
		r.Advance(time.Second) // c
		require.NoError(t, r.End())
		require.Equal(t, "B D", r.Outputs())
		s := r.Stats()
		require.EqualValues(t, 2, s.Dropped)
		require.EqualValues(t, 2, s.Failures)
		require.Zero(t, s.Failed)
		optest.CheckBalance(t, s)
	})
}

// ---- Failure policy: failure sink

// The failure sink gets the element, its error, its attempts, and when they began.
func TestFailureSinkGetsFailures(t *testing.T) {
	optest.ForEachClock(t, func(t *testing.T, m optest.Mode) {
		side := optest.NewSideSink(false)
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: 10 * time.Second, Strategy: optest.RetryAll(2, time.Second), Opts: optest.Options(asyncop.WithFailureSink(side.Take)),
		})
		r.Script("b#1", optest.Upper)
		r.Advance(time.Second)
		r.SendEach("ab")
		r.Advance(500 * time.Millisecond)
		r.Answer = optest.Fails
		r.Fail("a#1", errors.New("another"))
		r.Advance(5 * time.Second)
		require.NoError(t, r.End())
		require.Equal(t, "B", r.Outputs())
		require.Equal(t, []optest.Failure{{
			Element: "a", Err: optest.ErrBroken, Attempts: 3, Elapsed: 2500 * time.Millisecond,
			FirstAttempt: r.Start.Add(time.Second), LastAttempt: r.Start.Add(3500 * time.Millisecond),
			NoRetryReason: strategies.Refused, // no retry remains
			InDoubt:       true,
		}}, plain(side.Got()))
		s := r.Stats()
		require.EqualValues(t, 1, s.HandedOver)
		require.EqualValues(t, 1, s.Failures)
		optest.CheckBalance(t, s)
	})
}

// inUTC removes the monotonic part and the zone from times, which require.Equal compares.
// plain returns failures with their visible data and with comparable times.
func plain(fs []optest.Failure) (all []optest.Failure) {
	for _, f := range fs {
		all = append(all, optest.Failure{
			Element: f.Element, Err: f.Err, Abandoned: f.Abandoned, Attempts: f.Attempts, Elapsed: f.Elapsed,
			FirstAttempt: f.FirstAttempt.Round(0), LastAttempt: f.LastAttempt.Round(0),
			NoRetryReason: f.NoRetryReason, Reason: f.Reason, Reasons: f.Reasons, InDoubt: f.InDoubt,
		})
	}
	return all
}

// Law O1: an element that the sink takes while the run ends was handed over. The sink is
// not called again for it.
func TestWithFailureSink_TakesAnElementWhileTheRunEnds(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		side, o := optest.NewSideSink(true), optest.NewTally(t)
		takes := make(chan struct{})
		r := optest.NewRig(t, m, optest.Setup{Opts: optest.Options(asyncop.WithObserver(o), asyncop.WithFailureSink(
			func(_ context.Context, f optest.Failure) error { // ignores the end of its context
				<-takes
				return side.Take(context.Background(), f)
			}))})
		side.Unblock()
		r.SendEach("a")
		r.Fail("a#1", optest.ErrBroken)
		synctest.Wait() // the sink has the element
		r.Cancel(optest.ErrTestOver)
		synctest.Wait()
		close(takes)
		require.ErrorIs(t, r.Wait(), optest.ErrTestOver)
		require.Equal(t, "a", side.Elements())
		s := r.Stats()
		require.EqualValues(t, 1, s.HandedOver)
		require.Zero(t, s.Abandoned)
		require.Equal(t, 1, o.Over[observe.HandedOver])
		optest.CheckBalance(t, s)
	})
}

// A blocked failure sink holds slots only: timers fire on time, and other elements
// continue.
func TestBlockedFailureSinkHoldsSlotsNotTimers(t *testing.T) {
	optest.ForEachClock(t, func(t *testing.T, m optest.Mode) {
		m.Capacity = 4
		side := optest.NewSideSink(true)
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: 3 * time.Second, Strategy: optest.RetryAll(1, time.Second), Opts: optest.Options(asyncop.WithFailureSink(side.Take)),
		})
		r.Script("a#1", optest.Fails)
		r.Script("a#2", optest.Fails)
		r.Script("b#1", optest.Fails)
		r.SendEach("abcd") // b#2, c and d time out
		r.Advance(10 * time.Second)
		r.SendEach("e")
		require.Equal(t, "a#1@0s b#1@0s c#1@0s d#1@0s a#2@1s b#2@1s", r.CallTimes())
		s := r.Stats()
		require.EqualValues(t, 3, s.Timeouts)
		require.EqualValues(t, 4, s.InFlight)
		require.Zero(t, s.HandedOver)
		side.Unblock()
		require.Equal(t, "a b c d", side.Elements())
		r.Complete("e#1", "E")
		require.NoError(t, r.End())
		require.Equal(t, "E", r.Outputs())
		optest.CheckBalance(t, r.Stats())
	})
}

// While the failure sink is blocked, the results of other elements leave, except where
// the order requires them to wait.
func TestBlockedFailureSinkAndTheResultsOfOthers(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		side := optest.NewSideSink(true)
		r := optest.NewRig(t, m, optest.Setup{Opts: optest.Options(asyncop.WithFailureSink(side.Take))})
		r.SendEach("abc")
		r.Complete("a#1", "A")
		r.Fail("b#1", optest.ErrBroken)
		r.Complete("c#1", "C")
		require.Equal(t, m.Pick("A", "A C"), r.Outputs())
		side.Unblock()
		require.NoError(t, r.End())
		require.Equal(t, "A C", r.Outputs())
	})
}

// A cancelled operator ends although its failure sink is blocked: Out is closed and Err
// is set. Only Done waits for the sink.
func TestCancelWithABlockedFailureSink(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		side := optest.NewSideSink(true)
		r := optest.NewRig(t, m, optest.Setup{Opts: optest.Options(asyncop.WithFailureSink(side.Take))})
		r.Script("a#1", optest.Fails)
		r.SendEach("ab")
		r.Cancel(optest.ErrTestOver)
		<-r.Read
		require.ErrorIs(t, r.Op.Err(), optest.ErrTestOver)
		side.Unblock()
		require.ErrorIs(t, r.Wait(), optest.ErrTestOver)
		require.Equal(t, "a b", side.Elements())
		require.Equal(t, optest.ErrBroken, side.Got()[0].Err)
		require.ErrorIs(t, side.Got()[1].Err, optest.ErrTestOver)
		optest.CheckBalance(t, r.Stats())
	})
}

// A wrong type does not count as a failure of an element. It fails the pipeline under
// every policy.
func TestFailurePolicy_WrongType(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		side := optest.NewSideSink(false)
		for _, policy := range [][]asyncop.Option{{asyncop.WithDropOnFailure()}, {asyncop.WithFailureSink(side.Take)}} {
			r := optest.NewRig(t, m, optest.Setup{Opts: policy})
			r.Send(1)
			_, ok := errors.AsType[*asyncop.TypeError](r.Wait())
			require.True(t, ok)
		}
		require.Empty(t, side.Got())
	})
}

// An *ElementError of another operator is treated like any other error. Err returns this
// operator's own error, and the other error is not modified: the number of abandoned
// elements is not written into it.
func TestElementErrorOfAnotherOperator(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		other := &asyncop.ElementError{Element: "of another", Err: optest.ErrBroken}
		before := *other
		r := optest.NewRig(t, m, optest.Setup{})
		r.SendEach("abc")
		r.Fail("b#1", other)
		err := r.Wait()
		own, ok := err.(*asyncop.ElementError) // on purpose only the outermost error
		require.True(t, ok, "%T", err)
		require.Equal(t, "b", own.Element)
		require.Equal(t, 2, own.Abandoned)
		require.Same(t, other, own.Err)
		require.Equal(t, before, *other)

		r = optest.NewRig(t, m, optest.Setup{})
		r.SendEach("abc")
		err = r.Cut(other)                             // as in a pipeline whose operators cancel each other
		abandoned, ok := err.(*asyncop.AbandonedError) // on purpose only the outermost error
		require.True(t, ok, "%T", err)
		require.Equal(t, 3, abandoned.Abandoned)
		require.Same(t, other, abandoned.Cause)
		require.Equal(t, before, *other)
	})
}

// The error of a failure gives the reason why it was not retried.
func TestFailure_NoRetryReason(t *testing.T) {
	for want, tt := range map[strategies.NoRetryReason]struct {
		s    strategies.Retry[string]
		ends bool
		text string
	}{
		strategies.Final:      {strategies.FixedDelay[string](3, 0).RetryIfResult(predicates.EmptyResult), false, `in 0s: broken`},
		strategies.Refused:    {optest.RetryAll(0, 0), false, `in 0s: broken`},
		strategies.Finishing:  {optest.RetryAll(3, 0), true, `in 0s, not retried since the input has ended (see WithDrainRetries): broken`},
		strategies.OverBudget: {optest.RetryAll(3, 0), false, `in 0s, not retried: over budget: broken`},
		strategies.Failed: {
			strategies.FixedDelay[string](3, 0).RetryIfException(func(error) bool { panic("no answer") }), false,
			"in 0s: strategies: panic in user code: no answer (at failure_policy_test.go:N endings_test.TestFailure_NoRetryReason.func1)\nbroken",
		},
	} {
		t.Run(want.String(), func(t *testing.T) {
			optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
				run := func(opts ...asyncop.Option) error {
					if want == strategies.OverBudget {
						opts = append(opts, asyncop.WithBackend(spent()))
					}
					r := optest.NewRig(t, m, optest.Setup{Timeout: time.Minute, Strategy: tt.s, Opts: opts})
					r.SendEach("a")
					if tt.ends {
						r.EndInput()
					}
					r.Fail("a#1", optest.ErrBroken)
					return r.End()
				}
				side := optest.NewSideSink(false)
				require.NoError(t, run(asyncop.WithFailureSink(side.Take)))
				require.Len(t, side.Got(), 1)
				require.Equal(t, want, side.Got()[0].NoRetryReason)
				var failed *asyncop.ElementError
				require.ErrorAs(t, run(), &failed)
				require.Equal(t, want, failed.NoRetryReason)
				require.Equal(t, `asyncop: element "a" failed after 1 attempt `+tt.text, withoutLine(failed.Error()))
			})
		})
	}
}

// withoutLine replaces the line numbers of test files in text by N.
func withoutLine(text string) string { return placeLine.ReplaceAllString(text, "_test.go:N ") }

var placeLine = regexp.MustCompile(`_test\.go:\d+ `)

// spent returns a backend whose retry budget is empty.
func spent() *backend.Backend {
	b := backend.New("spent", backend.RetryBudget(0))
	place := gate.Of(b).Attach(nil, gate.Caller{})
	for place.MayRetry(time.Now()) {
	}
	return b
}

// With two operators in a row, the error names the operator to which the element belongs.
func TestErrorsNameTheOperator(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{Opts: optest.Options(asyncop.WithName("lookup"))})
		r.SendEach("a")
		r.Fail("a#1", optest.ErrBroken)
		require.EqualError(t, r.End(), `asyncop: lookup: element "a" failed after 1 attempt in 0s: broken`)
		r = optest.NewRig(t, m, optest.Setup{Opts: optest.Options(asyncop.WithName("lookup"))})
		r.Send(7)
		require.EqualError(t, r.End(), "asyncop: lookup: got an element of type int, want string")
	})
}

// ---- Failure policy: sink

// refusing is a failure sink that refuses an element as often as refusals specifies.
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

func (s *refusing) take(_ context.Context, f optest.Failure) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.offers = append(s.offers, fmt.Sprintf("%s@%v", f.Element, time.Since(s.start)))
	if s.refusals[f.Element] > 0 {
		s.refusals[f.Element]--
		return optest.ErrBroken
	}
	return nil
}

// An element that the sink does not take is offered again, after a back-off that grows up
// to 10 s, while others are taken. It holds its slot, and a clean end waits for it.
func TestFailureSinkThatRefuses(t *testing.T) {
	optest.ForEachClock(t, func(t *testing.T, m optest.Mode) {
		var lines strings.Builder
		sink := &refusing{refusals: map[string]int{"a": 9}}
		r := optest.NewRig(t, m, optest.Setup{Timeout: time.Second, Opts: optest.Options(asyncop.WithFailureSink(sink.take),
			asyncop.WithLogger(slog.New(slog.NewTextHandler(&lines, nil))))})
		sink.start = time.Now()
		r.Answer = optest.Fails
		r.SendEach("ab")
		r.EndInput()
		require.EqualValues(t, 1, r.Stats().InFlight)
		require.EqualValues(t, 1, r.Stats().HandedOver)
		r.Advance(100 * time.Millisecond)
		r.Advance(200 * time.Millisecond)
		r.Advance(400 * time.Millisecond)
		require.Len(t, sink.offered(), 5)
		for _, d := range []int{800, 1600, 3200, 6400, 10_000} {
			r.Advance(time.Duration(d)*time.Millisecond - 1)
			before := len(sink.offered())
			r.Advance(1)
			require.Len(t, sink.offered(), before+1, "after %d ms", d)
			require.EqualValues(t, 1, r.Stats().InFlight)
		}
		r.Advance(10 * time.Second)
		require.NoError(t, r.Wait())
		require.Len(t, sink.offered(), 11)
		require.EqualValues(t, 2, r.Stats().HandedOver)
		optest.CheckBalance(t, r.Stats())
		require.Contains(t, lines.String(), `msg="asyncop: the failure sink did not take an element" error=broken again=100ms element=a`)
		if r.Mock == nil {
			require.Equal(t, []string{"a@0s", "b@0s", "a@100ms", "a@300ms", "a@700ms", "a@1.5s"}, sink.offered()[:6])
		}
	})
}

// Regression (law W2): an element that the sink could never take was offered for ever and
// held its slot.
func TestFailureSinkThatCanNeverTake(t *testing.T) {
	var offers atomic.Int64
	sink := asyncop.WithFailureSink(func(_ context.Context, f asyncop.Failure[string]) error {
		offers.Add(1)
		return fmt.Errorf("%s is too large: %w", f.Element, message.ErrRefused)
	})
	broken := asyncop.Blocking(func(context.Context, string) (string, error) { return "", optest.ErrBroken })
	quiet := asyncop.WithLogger(slog.New(slog.DiscardHandler))
	construct := func() *optest.Operator { return asyncop.OrderedWait(broken, time.Second, 1, sink, quiet) }
	t.Run("messages are rejected", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			offers.Store(0)
			var got []message.Settlement
			op := construct()
			for _, err := range op.Messages(func(yield func(message.Message[string], error) bool) {
				for i := range 3 {
					m := message.New("a", &message.Meta{ID: strconv.Itoa(i)}, func(v message.Settlement) { got = append(got, v) })
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
				require.Equal(t, message.Rejected, v.Kind)
				require.True(t, v.UnsafeToRepeat, "the call may have taken effect")
				require.ErrorIs(t, v.Err, message.ErrRefused)
				require.ErrorIs(t, v.Err, optest.ErrBroken)
			}
			require.EqualValues(t, 3, op.Stats().HandedOver)
			optest.CheckBalance(t, op.Stats())
		})
	})
	// Regression: a rejected element was in doubt even if its call was idempotent.
	t.Run("the settlement is as unsafe to repeat as the failure", func(t *testing.T) {
		idempotent := func(is func(any) bool) strategies.Retry[string] {
			return optest.Because(optest.UnsafeReason, optest.Always(false, strategies.Action{})).IdempotentIf(is)
		}
		for name, tt := range map[string]struct {
			strategy strategies.Retry[string]
			want     bool
		}{
			"idempotent":               {idempotent(func(any) bool { return true }), false},
			"not idempotent":           {idempotent(func(any) bool { return false }), true},
			"the policy breaks":        {idempotent(func(any) bool { panic("no idea") }), true},
			"a predicate asked for it": {strategies.FixedDelay[string](1, 0).RetryIfException(predicates.HasException), false},
		} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var got []message.Settlement
					op := asyncop.OrderedWaitWithRetry(broken, time.Second, 1, tt.strategy, sink, quiet)
					for _, err := range op.Messages(func(yield func(message.Message[string], error) bool) {
						yield(message.New("a", &message.Meta{ID: "a"}, func(v message.Settlement) { got = append(got, v) }), nil)
					}) {
						t.Error("a result", err)
					}
					require.Len(t, got, 1)
					require.Equal(t, message.Rejected, got[0].Kind)
					require.Equal(t, tt.want, got[0].UnsafeToRepeat)
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
			require.ErrorIs(t, err, message.ErrRefused)
			require.ErrorIs(t, err, optest.ErrBroken)
			require.EqualValues(t, 1, op.Stats().Failed)
		})
	})
}

// The sink is called for one failure at a time and may block. A slow sink holds slots,
// and Done waits for it.
func TestSlowFailureSink(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		m.Capacity = 2
		var mu sync.Mutex
		var got []string
		r := optest.NewRig(t, m, optest.Setup{Timeout: time.Minute, Opts: optest.Options(asyncop.WithFailureSink(func(_ context.Context, f optest.Failure) error {
			time.Sleep(time.Second)
			mu.Lock()
			defer mu.Unlock()
			got = append(got, fmt.Sprint(f.Element, " ", f.Err, " ", f.Abandoned))
			return nil
		}))})
		r.Answer = func(c *optest.Call) error {
			if c.In == "z" {
				return nil
			}
			return optest.ErrBroken
		}
		r.SendEach("abc")
		require.Equal(t, "a#1@0s b#1@0s", r.CallTimes(), "a is being taken, and b waits: both hold their slots")
		require.EqualValues(t, 2, r.Stats().InFlight)
		r.Advance(5 * time.Second)
		require.EqualValues(t, 3, r.Stats().HandedOver)
		r.Send("z")
		r.Cancel(optest.ErrTestOver)
		err := r.Wait()
		require.ErrorIs(t, err, optest.ErrTestOver)
		require.Equal(t, []string{"a broken false", "b broken false", "c broken false", "z the test is over true"}, got)
		optest.CheckBalance(t, r.Stats())
	})
}

// Law A6: a sink that breaks has not taken the element, and is called again.
func TestFailureSinkThatBreaks(t *testing.T) {
	for _, b := range optest.Breakages {
		optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
			var got []string
			r := optest.NewRig(t, m, optest.Setup{Timeout: time.Minute, Opts: optest.Options(asyncop.WithFailureSink(func(_ context.Context, f optest.Failure) error {
				if got = append(got, f.Element); len(got) == 1 {
					b.Breaks()
				}
				return nil
			}))})
			r.SendEach("ab")
			r.Fail("a#1", optest.ErrBroken)
			r.Fail("b#1", optest.ErrBroken)
			r.Advance(time.Second)
			require.NoError(t, r.End())
			require.Equal(t, []string{"a", "b", "a"}, got)
			require.EqualValues(t, 2, r.Stats().HandedOver)
		})
	}
}

// The context of the sink ends with the operator. An element that the sink takes
// nevertheless is handed over. Then it has 30 s for the last offers. Elements that it has
// not taken by then are abandoned: they are counted and logged.
func TestFailureSinkAtACancel(t *testing.T) {
	optest.ForEachClock(t, func(t *testing.T, m optest.Mode) {
		var lines strings.Builder
		var offers []string
		r := optest.NewRig(t, m, optest.Setup{Opts: optest.Options(
			asyncop.WithLogger(slog.New(slog.NewTextHandler(&lines, nil))),
			asyncop.WithFailureSink(func(ctx context.Context, f optest.Failure) error {
				offers = append(offers, f.Element)
				<-ctx.Done()
				if f.Element == "a" {
					return nil
				}
				return context.Cause(ctx)
			}))})
		r.Answer = func(c *optest.Call) error {
			if c.In == "d" {
				return nil
			}
			return optest.ErrBroken
		}
		r.SendEach("abcd")
		r.Cancel(optest.ErrTestOver)
		<-r.Read
		require.ErrorIs(t, r.Op.Err(), optest.ErrTestOver)
		synctest.Wait()
		require.Equal(t, []string{"a", "b"}, offers, "one at a time")
		r.Advance(30*time.Second - 1)
		select {
		case <-r.Op.Done():
			t.Fatal("it gave up early")
		default:
		}
		r.Advance(1)
		require.ErrorIs(t, r.Wait(), optest.ErrTestOver)
		require.Equal(t, []string{"a", "b"}, offers, "the time is over")
		s := r.Stats()
		optest.CheckBalance(t, s)
		require.EqualValues(t, 1, s.HandedOver)
		require.EqualValues(t, 3, s.Abandoned)
		require.Contains(t, lines.String(), `level=ERROR msg="asyncop: the failure sink has not taken all failures: they are lost" lost=2`)
		const notTaken = `level=ERROR msg="asyncop: the failure sink did not take an element at the end`
		require.Regexp(t, notTaken+`" .* element=b\n`, lines.String())
		require.Regexp(t, notTaken+`, and others for the same reason" .* elements=1 element=c\n`, lines.String())
	})
}

// The context of the sink has the values of the observers' and of the operator's context.
func TestContextOfTheFailureSink(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		type key struct{ int }
		var got []any
		o := &contextObserver{key{1}}
		r := optest.NewRig(t, m, optest.Setup{
			Opts: optest.Options(asyncop.WithObserver(o), asyncop.WithContext(context.WithValue(t.Context(), key{2}, "operator")),
				asyncop.WithFailureSink(func(ctx context.Context, f optest.Failure) error {
					got = append(got, f.Element, ctx.Value(key{1}), ctx.Value(key{2}), asyncop.AttemptFromContext(ctx), ctx.Err())
					_, limited := ctx.Deadline()
					require.False(t, limited)
					return nil
				})),
		})
		r.Answer = optest.Fails
		r.SendEach("a")
		require.NoError(t, r.End())
		require.Equal(t, []any{"a", "observer", "operator", 0, nil}, got)
	})
}

// contextObserver adds a value to the contexts of elements.
type contextObserver struct{ key any }

func (o *contextObserver) Accepted(ctx context.Context, _ any, _ bool) context.Context {
	return context.WithValue(ctx, o.key, "observer")
}

func (*contextObserver) AttemptStarted(ctx context.Context, _ int) context.Context { return ctx }
func (*contextObserver) AttemptEnded(context.Context, observe.Outcome)             {}
func (*contextObserver) Ended(context.Context, observe.Ending)                     {}
