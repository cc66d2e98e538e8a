package core

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"
	"weak"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/internal/counting"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// Law Q1: ordered results leave in input order, unordered results in the order of
// completion, and no result crosses a control element.
func TestOrder(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*setup)
		want   []string
	}{
		"ordered":   {nil, []string{"", "a#1 b#1 |5", "c#1"}},
		"unordered": {unordered, []string{"b#1", "a#1 |5 c#1", ""}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil, tt.change)
			r.feed("a b |5 c")
			require.Equal(t, "(a#1 (b#1 (c#1", r.took())
			r.complete("b#1")
			r.step()
			require.Equal(t, tt.want[0], r.took())
			if name == "unordered" {
				r.complete("c#1 a#1")
			} else {
				r.complete("a#1")
			}
			r.step()
			require.Equal(t, tt.want[1], r.took())
			if name == "ordered" {
				r.complete("c#1")
			}
			r.step()
			require.Equal(t, tt.want[2], r.took())
			r.end()
		})
	}
}

// Law Q1: a call that completes immediately does not overtake completions that were taken
// from the mailbox together with the answer that started it.
func TestCompletionAtOnceDoesNotOvertake(t *testing.T) {
	refresh := strategies.ReasonStrategyFunc[string](
		func(context.Context, *predicates.Attempt[string]) (strategies.Action, error) {
			return strategies.Action{Retry: true, Before: func(context.Context) error { return nil }}, nil
		})
	p := strategies.ReasonAware(predicates.ByException[string](predicates.HasException,
		predicates.NewReason("TEST", true, false)), refresh).Immediate()
	r := newRig(t, p, unordered)
	r.answer = func(name string, a *call.Attempt[string]) error {
		switch name {
		case "a#1":
			return errBroken
		case "a#2":
			a.Complete(name)
		}
		return nil
	}
	r.feed("a b")
	r.step()
	r.work() // the Before of a's retry
	r.complete("b#1")
	r.step()
	r.step()
	require.Equal(t, "(a#1 (b#1 (a#2 b#1 a#2", r.took())
	r.end()
}

// Law Q2: an element that waits or is complete, and a control element, each hold a slot.
func TestSlots(t *testing.T) {
	r := newRig(t, nil, func(c *setup) { c.MaxCalls = 1 })
	r.feed("a b |1 c")
	require.False(t, r.HasSlot())
	require.Equal(t, "(a#1", r.took())
	r.complete("a#1")
	r.Step()
	require.Equal(t, 4, r.Len(), "it is complete, and has not left")
	require.Equal(t, "(b#1", r.took())
	r.emit()
	require.Equal(t, 3, r.Len())
	r.complete("b#1")
	r.step()
	r.complete("c#1")
	r.step()
	require.Equal(t, "a#1 (c#1 b#1 |1 c#1", r.took())
	r.end()
}

// Law A2: the first completion of the current attempt counts.
func TestLateCompletions(t *testing.T) {
	r := newRig(t, retries(5, 0), func(c *setup) { c.AttemptTimeout = time.Second })
	r.feed("a")
	r.pass(time.Second)
	r.step()
	require.Equal(t, "(a#1 (a#2", r.took())
	r.complete("a#1") // timed out
	r.step()
	require.Empty(t, r.took())
	r.complete("a#2")
	r.complete("a#2")
	r.fail("a#2")
	r.step()
	require.Equal(t, "a#2", r.took())
	require.EqualValues(t, 3, r.Host.Late())
	r.end()
}

// Law A3: the timeout counts from the time when the element takes its slot, over all
// attempts, and is final. The element leaves although its call never ends.
func TestTimeout(t *testing.T) {
	r := newRig(t, retries(strategies.Unlimited, 400*time.Millisecond), func(c *setup) { c.Timeout = time.Second })
	r.feed("a b")
	r.fail("a#1")
	r.pass(999 * time.Millisecond)
	require.Equal(t, "(a#1 (b#1 (a#2", r.took())
	r.pass(time.Millisecond)
	r.idle()
	require.Equal(t, "!a !b", r.took())
	r.complete("a#2 b#1")
	r.step()
	require.Empty(t, r.took())
	r.end()
}

// Law A3: the answer of the timeout handler is final, and so is a missing answer.
func TestTimeoutHandler(t *testing.T) {
	for name, tt := range map[string]struct {
		answer []string
		err    error
		work   bool
		want   string
	}{
		"result": {[]string{"A"}, nil, true, "A"}, "error": {nil, errBroken, true, "!a"}, "limit": {nil, nil, false, "!a"},
		"control element": {[]string{"control"}, nil, true, "!a"}, "nothing": {nil, nil, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, retries(9, 0), func(c *setup) {
				c.Handle = func(context.Context, Report[string], bool) ([]string, error) { return tt.answer, tt.err }
			})
			r.feed("a")
			r.took()
			r.pass(time.Minute)
			r.step()
			if tt.work {
				r.work()
			}
			r.pass(time.Second)
			r.idle()
			require.Equal(t, tt.want, r.took())
			r.work()
			r.idle()
			r.end()
		})
	}
}

// Law A3: with HandlesAll every failure is handled once. Meanwhile its element has a slot
// and no permit, and a checkpoint saves it as an element whose last attempt runs.
func TestHandledFailures(t *testing.T) {
	r := newRig(t, retries(1, 0), func(c *setup) {
		c.MaxCalls, c.HandlesAll = 1, true
		c.Handle = func(_ context.Context, f Report[string], timedOut bool) ([]string, error) {
			r := fmt.Sprintf("%s#%d:%v:%v", f.Element, f.Attempts, f.Err, timedOut)
			if f.Element == "b" {
				return nil, errors.New(r)
			}
			return []string{r}, nil
		}
	})
	r.feed("a b c")
	r.fail("a#1")
	r.step()
	r.fail("a#2")
	r.step()
	require.Equal(t, "(a#1 (a#2 (b#1", r.took())
	require.Equal(t, "handling", r.Oldest())
	items := r.Items(nil, false)
	require.Len(t, items, 3)
	require.EqualValues(t, 1, items[0].Attempts)
	r.work()
	r.step()
	require.Equal(t, "a#2:broken:false", r.took())
	r.fail("b#1")
	r.step()
	r.fail("b#2")
	r.step()
	r.work()
	r.step()
	require.Equal(t, "(b#2 (c#1 !b", r.took())
	r.pass(time.Minute)
	r.step()
	r.work()
	r.step()
	require.Equal(t, "c#1:timed out after 1m0s, early false: context deadline exceeded:true", r.took())
	c, _ := r.Counts()
	require.EqualValues(t, 1, c.Failures)
	r.end()
}

// Law A4: attempts count from 1, and n retries are n + 1 calls.
func TestAttempts(t *testing.T) {
	r := newRig(t, retries(2, time.Second), nil)
	r.answer = func(string, *call.Attempt[string]) error { return errBroken }
	r.feed("a")
	r.pass(time.Hour)
	require.Equal(t, "(a#1 (a#2 (a#3 !a", r.took())
	r.end()
}

// Law A5: no attempt starts at the deadline, after a cancel or after the end of the
// element. After the end of the input, an element that waits for a permit gets its first
// attempt, and an element in back-off gets one more attempt immediately.
func TestAttempt_NoneTooLate(t *testing.T) {
	few := func(c *setup) { c.MaxCalls = 1 }
	t.Run("deadline", func(t *testing.T) {
		r := newRig(t, nil, few)
		r.feed("a b")
		r.clock.at = r.clock.at.Add(time.Minute)
		r.complete("a#1") // its permit is free, and a's completion came in time
		r.step()
		require.Equal(t, "(a#1 !b a#1", r.took())
		r.end()
	})
	t.Run("cancel", func(t *testing.T) {
		r := newRig(t, nil, few)
		r.feed("a b")
		r.complete("a#1")
		r.stop(errOver)
		r.step()
		require.Equal(t, "(a#1 a#1", r.took())
		cause, err := r.Failure()
		require.Equal(t, ByCancel, cause)
		require.Equal(t, errOver, err)
		cut := r.Abandon()
		require.Len(t, cut, 1)
		require.Equal(t, "b", r.Describe(cut[0]).Element)
		r.Ended(cut[0], observe.Abandoned)
		r.balance()
	})
	// The Before ends in time, but the core is notified too late.
	again := strategies.ReasonStrategyFunc[string](func(context.Context, *predicates.Attempt[string]) (strategies.Action, error) {
		return strategies.RetryAfter(time.Second).WithBefore(func(context.Context) error { return nil }), nil
	})
	policy := strategies.ReasonAware(
		predicates.ByException[string](predicates.HasException, predicates.NewReason("TEST", true, false)), again).Immediate()
	prepared := func(t *testing.T) *rig {
		t.Helper()
		r := newRig(t, policy, nil)
		r.feed("a")
		r.calls["a#1"].CompleteExceptionally(&predicates.StageError{Stage: predicates.ClientDispatch, Err: errBroken})
		r.pass(time.Second)
		r.idle()
		require.Equal(t, "preparing", r.Oldest())
		r.work()
		r.took()
		return r
	}
	t.Run("deadline of a prepared attempt", func(t *testing.T) {
		r := prepared(t)
		r.clock.at = r.clock.at.Add(time.Minute)
		r.step()
		require.Equal(t, "!a", r.took())
		begun, failed := r.Attempts()
		require.EqualValues(t, 2, begun)
		require.EqualValues(t, 2, failed)
		require.ErrorIs(t, r.State().Stats.LastError, context.DeadlineExceeded)
		r.end()
	})
	t.Run("cancel before a prepared attempt", func(t *testing.T) {
		r := prepared(t)
		r.stop(errOver)
		r.step()
		require.Empty(t, r.took())
		cut := r.Abandon()
		require.Len(t, cut, 1)
		require.False(t, r.Describe(cut[0]).InDoubt, "nothing was sent")
		r.Ended(cut[0], observe.Abandoned)
		r.balance()
	})
	t.Run("end of input", func(t *testing.T) {
		r := newRig(t, retries(9, time.Second), few)
		r.feed("a b c")
		r.fail("a#1")
		r.step()
		r.EndRetries()
		r.fail("b#1")
		r.step()
		r.fail("a#2")
		r.step()
		r.complete("c#1")
		r.step()
		require.Equal(t, "(a#1 (b#1 !b (a#2 !a (c#1 c#1", r.took())
		c, _ := r.Counts()
		require.EqualValues(t, 2, c.CutByEndOfInput)
		r.end()
	})
}

// Law T1: no timer fires early. A completion in the mailbox precedes a timer that is due.
func TestTimers(t *testing.T) {
	r := newRig(t, retries(1, time.Second), nil)
	r.feed("a b")
	require.Equal(t, time.Minute, r.Next())
	r.fail("a#1 b#1")
	r.step()
	require.Equal(t, time.Second, r.Next())
	r.pass(time.Second - 1)
	require.Equal(t, "(a#1 (b#1", r.took())
	r.pass(1)
	r.idle()
	require.Equal(t, "(a#2 (b#2", r.took(), "in the order of arming")
	r.clock.at = r.clock.at.Add(time.Minute)
	r.complete("a#2") // exactly at its deadline
	r.step()
	require.Equal(t, "!b a#2", r.took())
	r.end()
}

// Law T1: an element that is late when it would start times out with the others, in the
// order of arming, after the completions.
func TestDeadlinesDuringACall(t *testing.T) {
	for _, pace := range []bool{false, true} {
		r := newRig(t, retries(1, time.Second), nil)
		minute := func() {
			r.clock.at = r.clock.at.Add(time.Minute)
			r.complete("c#1")
		}
		if pace {
			r.setup.Cost = func(string) float64 {
				if r.calls["a#2"] != nil { // the cost of b
					minute()
				}
				return 0
			}
			r.share(newHouse(3))
		} else {
			r.answer = func(name string, _ *call.Attempt[string]) error {
				if name == "a#2" {
					minute()
				}
				return nil
			}
		}
		r.feed("a b c")
		r.fail("a#1 b#1")
		r.step()
		r.clock.at = r.clock.at.Add(time.Second)
		r.step()
		r.step()
		require.Equal(t, "(a#1 (b#1 (c#1 (a#2 !a !b c#1", r.took())
		r.end()
	}
}

// Law C1: a checkpoint has the elements that were accepted and not settled, in input
// order, in both modes.
func TestItems(t *testing.T) {
	onError := strategies.FixedDelay[string](9, 10*time.Second).RetryIfException(predicates.HasException)
	for _, change := range []func(*setup){nil, unordered} {
		r := newRig(t, onError, change)
		r.feed("a b |5 c")
		r.fail("c#1")
		r.calls["b#1"].Complete()
		r.Step()
		require.Equal(t, "a |5 c+10s", names(r.Items(nil, false)))
		r.pass(4 * time.Second)
		r.complete("a#1")
		r.Step()
		require.Equal(t, "a=[a#1] |5 c+6s", names(r.Items(nil, true)))
		require.Equal(t, "a |5 c+6s", names(r.Items(nil, false)))

		again := newRig(t, onError, change)
		for _, it := range r.Items(nil, true) {
			again.Restore(it, 0)
		}
		again.pass(6*time.Second - 1)
		require.Equal(t, "a#1 |5", again.took())
		again.pass(1)
		again.idle()
		require.Equal(t, "(c#1", again.took())
		again.complete("c#1")
		again.step()
		again.end()
	}
}

func names(items []Item[string, string]) string {
	text := ""
	for _, it := range items {
		switch {
		case it.Kind == Control:
			text += fmt.Sprintf(" |%d", it.Rest)
		case it.Kind == Completed:
			text += fmt.Sprintf(" %s=%v", it.In, it.Results())
		case it.Wait > 0:
			text += fmt.Sprintf(" %s+%v", it.In, it.Wait)
		default:
			text += " " + it.In
		}
	}
	return text[1:]
}

// Law A1: failed elements end as the policy specifies.
func TestFailurePolicies(t *testing.T) {
	t.Run("hand over", func(t *testing.T) {
		var refuse error
		var r *rig
		r = newRig(t, nil, func(c *setup) {
			c.OnFailure = toSink
			c.Sink = func(ctx context.Context, f Report[string]) error {
				require.NoError(t, ctx.Err())
				require.False(t, f.CutOff)
				require.Equal(t, errBroken, f.Err)
				r.note("take " + f.Element)
				return refuse
			}
		})
		r.feed("a b")
		r.fail("b#1 a#1")
		r.step()
		require.Equal(t, 2, r.Len())
		refuse = errOver
		r.work() // b, the first one that failed
		refuse = nil
		r.pass(99 * time.Millisecond)
		require.Len(t, r.tasks, 1, "one at a time")
		r.work() // a, while b waits
		r.pass(0)
		require.Equal(t, "(a#1 (b#1 take b ?b+100ms take a !a", r.took())
		require.Empty(t, r.tasks)
		refuse = errOver
		r.pass(time.Millisecond)
		r.work()
		r.pass(200*time.Millisecond - 1)
		require.Empty(t, r.tasks)
		r.pass(1)
		require.Equal(t, "take b ?b+200ms", r.took())
		refuse = nil
		r.work()
		r.idle()
		require.Equal(t, "take b !b", r.took())
		r.end()
	})
	t.Run("fail the run", func(t *testing.T) {
		r := newRig(t, nil, func(c *setup) { c.OnFailure = failRun })
		r.feed("a b c d")
		r.fail("b#1 a#1")
		r.calls["c#1"].Complete()
		r.step()
		cause, err := r.Failure()
		require.Equal(t, ByElement, cause)
		require.Equal(t, errBroken, err)
		for _, e := range r.Abandon() {
			r.Ended(e, observe.Abandoned)
		}
		require.Equal(t, "(a#1 (b#1 (c#1 (d#1 !b", r.took())
		c, _ := r.Counts()
		require.EqualValues(t, 1, c.Failed)
		require.EqualValues(t, 3, c.Abandoned)
		require.Zero(t, c.InFlight)
		r.balance()
	})
}

// Law A6: a panic ends the attempt with an error, and runtime.Goexit ends the run.
func TestBrokenUserCode(t *testing.T) {
	r := newRig(t, nil, nil)
	r.answer = func(name string, a *call.Attempt[string]) error {
		switch name {
		case "a#1":
			panic("no a")
		case "b#1":
			runtime.Goexit()
		default:
			a.Complete(name)
		}
		return nil
	}
	r.feed("a c")
	r.step()
	require.Equal(t, "(a#1 !a (c#1 c#1", r.took())
	onGoroutine(func() { r.feed("b") })
	require.Equal(t, "(b#1", r.took())
	r.exitedBy("AsyncInvoke")
}

// Forget releases everything that user code could reach through a future that it keeps.
func TestForget(t *testing.T) {
	r := newRig(t, nil, nil)
	r.feed("a b")
	r.End(errors.New("over"))
	r.Abandon()
	r.Forget()
	require.Nil(t, r.Queue)
	require.Nil(t, r.live)
	late := func() weak.Pointer[call.Letter] { // the letter of a call that returned just before the end
		l := new(call.Letter)
		r.Host.Post(l, l)
		return weak.Make(l)
	}()
	runtime.GC()
	require.Nil(t, late.Value())
	runtime.KeepAlive(r)
}

// A core without limits reads the clock once per step.
func TestClockWithoutLimits(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*setup)
		exact  bool
	}{
		"nothing":         {func(*setup) {}, false},
		"timeout":         {func(c *setup) { c.Timeout = time.Hour }, true},
		"own timeouts":    {func(c *setup) { c.TimeoutFor = func(string) time.Duration { return 0 } }, true},
		"attempt timeout": {func(c *setup) { c.AttemptTimeout = time.Hour }, true},
		"backend":         {func(c *setup) { c.Host.Seat = door{newHouse(9)} }, true},
		"observer":        {func(c *setup) { c.Observers = []observe.Observer{quiet{}} }, true},
		"counter":         {func(c *setup) { c.Counters = []counting.Counter{&tally{}} }, true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil, func(c *setup) {
				c.Timeout = 0
				tt.change(c)
			})
			r.answer = func(name string, a *call.Attempt[string]) error {
				r.clock.at = r.clock.at.Add(time.Second)
				a.Complete(name)
				return nil
			}
			began := r.Timers.Now()
			r.Step()
			r.feed("a b c d")
			if tt.exact {
				require.GreaterOrEqual(t, r.Present(), began+3*time.Second)
			} else {
				require.Equal(t, began, r.Present())
			}
			r.idle()
			now := r.Timers.Now()
			require.Equal(t, now, r.Present(), "a step reads the clock")
			r.clock.at = r.clock.at.Add(time.Second)
			r.NoteSlept()
			r.feed("e")
			require.GreaterOrEqual(t, r.Present(), now+time.Second, "so does whoever has slept")
			r.idle()
			r.end()
		})
	}
}

// quiet is an observer without effect.
type quiet struct{}

func (quiet) Accepted(context.Context, any, bool) context.Context { return nil }
func (quiet) AttemptStarted(context.Context, int) context.Context { return nil }
func (quiet) AttemptEnded(context.Context, observe.Outcome)       {}
func (quiet) Ended(context.Context, observe.Ending)               {}
