package core

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/message"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

type testAttempt = call.Attempt[string]

// atOnce completes calls with lower case names immediately, and calls that begin with "-"
// without a result.
func atOnce(name string, a *testAttempt) error {
	switch {
	case name[0] == '-':
		a.Complete()
	case name[0] >= 'a':
		a.Complete(name)
	}
	return nil
}

// Laws Q1 and Q2: calls that end immediately are handled in place, and have slots until
// they leave.
func TestCallsThatEndAtOnceHaveSlots(t *testing.T) {
	for name, change := range map[string]func(*setup){"ordered": nil, "unordered": unordered} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil, change)
			r.answer = atOnce
			r.feed("a -")
			require.True(t, r.Host.Mail.Empty())
			require.Equal(t, 2, r.Len())
			require.Equal(t, 2, r.FreeSlots())
			require.Equal(t, "done", r.Oldest())
			c, oldest := r.Counts()
			require.EqualValues(t, 2, c.Accepted)
			require.EqualValues(t, 2, c.InFlight)
			require.Zero(t, c.Running)
			require.Zero(t, oldest)
			r.balance()
			r.feed("B c")
			require.False(t, r.HasSlot())
			require.Equal(t, 1, r.Running())
			r.complete("B#1")
			r.step()
			if change == nil {
				require.Equal(t, "(a#1 (-#1 (B#1 (c#1 a#1 B#1 c#1", r.took())
			} else {
				require.Equal(t, "(a#1 (-#1 (B#1 (c#1 a#1 c#1 B#1", r.took())
			}
			c, _ = r.Counts()
			require.EqualValues(t, 4, c.Completed)
			r.feed("d |1 e")
			require.Equal(t, 3, r.Len())
			r.step()
			require.Equal(t, "(d#1 (e#1 d#1 |1 e#1", r.took())
			r.end()
		})
	}
}

// Law A3: an element whose call continues has its deadlines.
func TestCallThatGoesOnTimesOut(t *testing.T) {
	r := newRig(t, nil, nil)
	r.feed("A")
	r.pass(time.Minute)
	require.Equal(t, "(A#1 !A", r.took())
	r.complete("A#1")
	require.EqualValues(t, 1, r.Host.Late())
	r.end()

	r = newRig(t, retries(1, 0), func(c *setup) { c.AttemptTimeout = time.Second })
	r.answer = atOnce
	r.feed("a B")
	require.Equal(t, "(a#1 (B#1", r.took())
	r.pass(time.Second)
	require.Equal(t, "a#1 (B#2", r.took())
	r.complete("B#2")
	r.step()
	require.Equal(t, "B#2", r.took())
	r.end()
}

// A call that another goroutine completes before its function returns has ended
// immediately, too. A call that is completed later has not.
func TestCallEndsOnAnotherGoroutine(t *testing.T) {
	r := newRig(t, nil, nil)
	r.answer = func(name string, a *testAttempt) error {
		done := make(chan struct{})
		go func() {
			defer close(done)
			a.Complete(name)
		}()
		<-done
		return nil
	}
	r.feed("a")
	require.True(t, r.Host.Mail.Empty())
	require.Equal(t, "done", r.Oldest())
	r.step()
	require.Equal(t, "(a#1 a#1", r.took())
	r.answer = nil
	for range 1000 {
		r.answer = func(name string, a *testAttempt) error {
			go a.Complete(name)
			return nil
		}
		r.feed("b")
		for r.Len() > 0 {
			r.step()
			runtime.Gosched()
		}
		require.Equal(t, "(b#1 b#1", r.took())
	}
	r.end()
}

// Retries and failures of calls that end immediately.
func TestCallThatEndsAtOnceIsRetried(t *testing.T) {
	r := newRig(t, retries(1, time.Second), func(c *setup) { c.AttemptTimeout = time.Second / 2 })
	r.answer = func(name string, a *testAttempt) error {
		switch name {
		case "a#1", "c#1", "c#2":
			return errBroken
		case "b#1":
			a.Complete()
		default:
			a.Complete(name)
		}
		return nil
	}
	for _, name := range []string{"a", "b", "c", "d"} {
		r.feed(name)
		r.step()
		require.Equal(t, map[bool]int{true: 0, false: 1}[name == "d"], r.Len())
		r.pass(time.Second)
	}
	require.Equal(t, "(a#1 (a#2 a#2 (b#1 (b#2 b#2 (c#1 (c#2 !c (d#1 d#1", r.took())
	c, _ := r.Counts()
	require.EqualValues(t, 1, c.RetriesOnResult)
	require.EqualValues(t, 2, c.RetriesOnError)
	r.end()
}

// Facts about one element do not leak to the next element.
func TestDoubtOfCallsThatEndAtOnce(t *testing.T) {
	inDoubt := map[string]bool{}
	r := newRig(t, retries(0, 0), func(c *setup) {
		c.GivenUp = func(f Report[string], _ observe.EndKind) { inDoubt[f.Element] = f.InDoubt }
	})
	r.answer = func(name string, a *testAttempt) error {
		switch name[0] {
		case 'B':
			(*call.Stages)(&a.Token).ReportStage(predicates.ClientDispatch)
			return errBroken
		case 'C':
			return errBroken
		}
		return atOnce(name, a)
	}
	r.feed("a B a")
	r.step()
	require.Equal(t, map[string]bool{"B": false}, inDoubt)
	r.feed("C B")
	r.step()
	require.Equal(t, map[string]bool{"B": false, "C": true}, inDoubt)
	r.end()
}

// Law X1: the attempt with the weakest evidence decides. The server of a later request
// does not recognise an earlier request.
func TestDoubtOfAllAttempts(t *testing.T) {
	deduplicated := map[string]bool{}
	r := newRig(t, retries(1, 0), func(c *setup) {
		c.GivenUp = func(f Report[string], _ observe.EndKind) {
			require.True(t, f.InDoubt)
			deduplicated[f.Element] = f.Deduplicated
		}
	})
	r.answer = func(name string, a *testAttempt) error {
		isDeduplicated := name[0] == 'a' || name == "b#2" || name == "c#1"
		(*call.Stages)(&a.Token).ReportSent(isDeduplicated)
		return errBroken
	}
	r.feed("a b c d")
	r.step()
	require.Equal(t, map[string]bool{"a": true, "b": false, "c": false, "d": false}, deduplicated)
	r.end()
}

// A result whose retry is refused is emitted after the predicate was called once.
func TestCallThatEndsAtOnceIsExhausted(t *testing.T) {
	r := newRig(t, retries(0, 0), nil)
	r.answer = atOnce
	r.feed("- a")
	r.step()
	require.Equal(t, "(-#1 (a#1 a#1", r.took())
	c, _ := r.Counts()
	require.EqualValues(t, 1, c.Exhausted)
	r.end()
}

// Law A6: a function may break after it has completed its call, or before.
func TestCallThatEndsAtOnceBreaks(t *testing.T) {
	for name, tt := range map[string]struct {
		answer func(name string, a *testAttempt) error
		want   string
		late   int64
	}{
		"panics":            {func(string, *testAttempt) error { panic("boom") }, "(a#1 !a", 0},
		"completes, panics": {func(name string, a *testAttempt) error { a.Complete(name); panic("boom") }, "(a#1 a#1", 1},
		"fails":             {func(string, *testAttempt) error { return errBroken }, "(a#1 !a", 0},
		"completes, fails":  {func(name string, a *testAttempt) error { a.Complete(name); return errBroken }, "(a#1 a#1", 1},
		"control element":   {func(_ string, a *testAttempt) error { a.Complete("control"); return nil }, "(a#1 !a", 0},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil, nil)
			r.answer = tt.answer
			r.feed("a")
			r.step()
			require.Equal(t, tt.want, r.took())
			require.Equal(t, tt.late, r.Host.Late())
			r.answer = atOnce
			r.feed("b")
			r.step()
			require.Equal(t, "(b#1 b#1", r.took())
			r.end()
		})
	}
}

// Law A6: a function that ends the goroutine of the loop fails the run, whether it has
// completed its call or not.
func TestCallThatEndsAtOnceExits(t *testing.T) {
	for _, completes := range []bool{false, true} {
		r := newRig(t, nil, nil)
		r.answer = func(name string, a *testAttempt) error {
			if completes {
				a.Complete(name)
			}
			runtime.Goexit()
			return nil
		}
		onGoroutine(func() { r.feed("a") })
		r.exitedBy("AsyncInvoke")
		require.Equal(t, "(a#1", r.took())
	}
}

// Law A6: a predicate that breaks on the outcome of a call that has ended immediately.
func TestPredicateBreaksOnACallThatEndsAtOnce(t *testing.T) {
	for name, breaks := range map[string]func(){"panics": func() { panic("boom") }, "exits": runtime.Goexit} {
		for outcome, err := range map[string]error{"error": errBroken, "result": nil} {
			t.Run(name+" on "+outcome, func(t *testing.T) {
				asked := 0
				broken := true
				ask := func() bool {
					asked++
					if broken {
						breaks()
					}
					return false
				}
				strategy := strategies.FixedDelay[string](1, 0).
					RetryIfException(func(error) bool { return ask() }).RetryIfResult(func([]string) bool { return ask() })
				r := newRig(t, strategy, nil)
				r.answer = func(name string, a *testAttempt) error {
					if err == nil {
						a.Complete(name)
					}
					return err
				}
				onGoroutine(func() { r.feed("a") })
				require.Equal(t, "(a#1 !a", r.took())
				require.Equal(t, 1, asked)
				if name == "exits" {
					r.exitedBy("the retry strategy or one of its predicates")
					return
				}
				r.step()
				broken, err = false, nil
				r.feed("b")
				r.step()
				require.Equal(t, "(b#1 b#1", r.took())
				r.end()
			})
		}
	}
}

// Law A1: an element that completed immediately and has not left is abandoned like every
// other element, in input order. The same holds for an element whose function has ended
// the goroutine of a driver that does not resume.
func TestAbandonAfterCallsThatEndAtOnce(t *testing.T) {
	for name, exits := range map[string]bool{"waiting": false, "exited": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil, func(c *setup) { c.OnFailure = failRun })
			r.answer = atOnce
			r.feed("a -")
			if exits {
				r.answer = func(string, *testAttempt) error { runtime.Goexit(); return nil }
			}
			done := make(chan struct{})
			go func() {
				defer close(done)
				r.feed("B")
			}()
			<-done
			if exits {
				require.True(t, r.Failed())
			}
			require.Equal(t, 3, r.Len())
			r.End(errOver)
			var got []string
			for _, e := range r.Abandon() {
				d := r.Describe(e)
				got = append(got, d.Element)
				require.Equal(t, 1, d.Attempts)
				require.True(t, d.InDoubt)
				require.Equal(t, r.clock.at, d.First)
				r.Ended(e, observe.Abandoned)
			}
			require.Equal(t, []string{"a", "B"}, got)
			c, _ := r.Counts()
			require.EqualValues(t, 2, c.Abandoned)
			require.EqualValues(t, 1, c.Completed)
			require.Zero(t, c.InFlight)
			r.Forget()
		})
	}
}

// Law C1: a checkpoint holds elements that have ended immediately and have not left.
func TestItemsOfCallsThatEndAtOnce(t *testing.T) {
	r := newRig(t, nil, nil)
	r.answer = atOnce
	r.feed("a - B")
	for _, withResults := range []bool{true, false} {
		items := r.Items(nil, withResults)
		require.Len(t, items, 2)
		require.Equal(t, "a", items[0].In)
		require.NotZero(t, items[0].First)
		if withResults {
			require.Equal(t, Completed, items[0].Kind)
			require.Equal(t, []string{"a#1"}, items[0].Results())
			require.EqualValues(t, 1, items[0].Attempts)
		} else {
			require.Equal(t, Record, items[0].Kind)
			require.Zero(t, items[0].Attempts)
		}
		require.Equal(t, "B", items[1].In)
	}
}

// Law C1: the results in a checkpoint stay there after they have left the operator,
// because the state is encoded meanwhile.
func TestItemsKeepTheResultsOfCallsThatEndAtOnce(t *testing.T) {
	r := newRig(t, nil, nil)
	r.answer = atOnce
	r.feed("a b")
	items := r.Items(nil, true)
	r.step()
	require.Equal(t, "(a#1 (b#1 a#1 b#1", r.took())
	require.Len(t, items, 2)
	require.Equal(t, []string{"a#1"}, items[0].Results())
	require.Equal(t, []string{"b#1"}, items[1].Results())
	r.end()
}

// Law A5: no call starts after a cancel, or without a permit.
func TestCallAtOnce_MayNotStart(t *testing.T) {
	r := newRig(t, nil, func(c *setup) { c.MaxCalls = 1 })
	var first *testAttempt
	r.answer = func(name string, a *testAttempt) error {
		if first == nil {
			first = a
			a.RunBlocking(a, func(error) {})
			a.Complete(name)
		}
		return nil
	}
	r.feed("a") // the call continues and keeps the permit
	r.step()
	require.Zero(t, r.Len())
	r.feed("b")
	require.Equal(t, "(a#1 a#1", r.took())
	r.work()
	r.step()
	require.Equal(t, "(b#1", r.took())
	r.complete("b#1")
	r.step()
	r.stop(errOver)
	r.feed("c")
	require.Equal(t, "b#1", r.took())
	require.True(t, r.Failed())
	require.Equal(t, 1, r.Len())
}

// The number of an attempt that ends immediately is 1, and its context ends with it.
func TestContextOfACallThatEndsAtOnce(t *testing.T) {
	r := newRig(t, nil, nil)
	var ctx context.Context
	r.setup.Invoke = func(c context.Context, _ string, a *testAttempt) error {
		ctx = c
		require.Equal(t, 1, c.Value(call.NumberKey{}))
		require.NoError(t, c.Err())
		a.Complete("x")
		require.Error(t, c.Err())
		return nil
	}
	r.feed("a")
	<-ctx.Done()
	r.step()
	require.Equal(t, Never, r.Next())
}

// Law D2: an element that is not a message, and leaves before a message, does not pass on
// that message.
func TestMessageBehindACallThatEndsAtOnce(t *testing.T) {
	r := newRig(t, nil, nil)
	r.answer = atOnce
	r.feed("a")
	r.messages.NoteCarried() // as a driver of messages calls it for all results
	var settlements []message.Settlement
	r.Accept("b", settled(func(v message.Settlement) { settlements = append(settlements, v) }))
	r.messages.NoteCarried()
	results, m, _ := r.head3()
	require.Equal(t, []string{"a#1"}, results)
	require.Zero(t, m)
	r.PopHead(observe.Emitted)
	_, m, _ = r.head3()
	require.True(t, m.Pending())
	r.End(errOver)
	for _, e := range r.Abandon() {
		require.True(t, r.messages.ComesAgain(e))
		r.Ended(e, observe.Abandoned)
	}
	r.SettleMessages()
	require.Equal(t, []message.Settlement{{Kind: message.Released}}, settlements)
}

// The times of an element are its own, whether or not its call ended immediately.
func TestTimesOfCallsThatEndAtOnce(t *testing.T) {
	for _, name := range []string{"a", "B"} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil, nil)
			r.answer = atOnce
			r.feed("x")
			r.step()
			r.pass(time.Second)
			at := r.clock.at
			r.feed(name)
			c, oldest := r.Counts()
			require.EqualValues(t, 2, c.Attempts)
			require.Equal(t, time.Second, oldest)
			require.Equal(t, time.Second+time.Minute, r.calls[name+"#1"].Until)
			r.clock.at = at.Add(2 * time.Second)
			items := r.Items(nil, true)
			require.Len(t, items, 1)
			require.Equal(t, at.UnixNano(), items[0].First)
			require.Equal(t, 2*time.Second, items[0].Spent)
			r.End(errOver)
			cut := r.Abandon()
			require.Len(t, cut, 1)
			d := r.Describe(cut[0])
			require.Equal(t, at, d.First)
			require.Equal(t, at, d.Last)
			require.Equal(t, 2*time.Second, d.Elapsed)
			r.Forget()
		})
	}
	t.Run("attempt timeout", func(t *testing.T) {
		r := newRig(t, nil, func(c *setup) { c.AttemptTimeout = time.Second })
		r.pass(time.Second)
		r.feed("B")
		require.Equal(t, 2*time.Second, r.calls["B#1"].Until)
		r.pass(time.Second)
		require.Equal(t, "(B#1 !B", r.took())
		r.end()
	})
}

// Calls of a blocking function are made by workers.
func TestMakesJobs_NotCalledAtOnce(t *testing.T) {
	r := newRig(t, nil, func(c *setup) { c.MakesJobs = true })
	r.feed("a b")
	require.Equal(t, 2, r.Queue.Len())
	var called []string
	require.Equal(t, 2, r.Jobs(func(jobs ...call.Job[string, string]) {
		for _, j := range jobs {
			called = append(called, j.In)
			j.Attempt.Complete(j.In)
			j.Attempt.Returned()
		}
	}))
	r.step()
	require.Equal(t, []string{"a", "b"}, called)
	require.Equal(t, "a b", r.took())
	r.end()
}

// A strategy that decides on a worker about the result of a call that has ended
// immediately.
func TestStrategyIsAskedAboutACallThatEndsAtOnce(t *testing.T) {
	policy := strategies.ReasonAware(
		predicates.ByResult[string](predicates.EmptyResult, predicates.NewReason("EMPTY", true, false)),
		strategies.ReasonStrategyFunc[string](func(_ context.Context, a *predicates.Attempt[string]) (strategies.Action, error) {
			if a.Number > 1 {
				return strategies.Action{}, nil
			}
			return strategies.RetryAfter(time.Second), nil
		}))
	r := newRig(t, policy, nil)
	r.answer = atOnce
	r.feed("-")
	require.Equal(t, "deciding", r.Oldest())
	r.work()
	r.step()
	require.Equal(t, "backoff", r.Oldest())
	r.pass(time.Second)
	r.work()
	r.step()
	require.Equal(t, "(-#1 (-#2", r.took())
	c, _ := r.Counts()
	require.EqualValues(t, 1, c.RetriesOnResult)
	r.feed("a")
	r.step()
	require.Equal(t, "(a#1 a#1", r.took())
	r.end()
}

// Law A2: of several completions the first counts, in the call and after it.
func TestCallThatEndsAtOnceIsCompletedTwice(t *testing.T) {
	r := newRig(t, retries(1, time.Second), nil)
	r.answer = func(name string, a *testAttempt) error {
		if name == "b#1" {
			a.CompleteExceptionally(errBroken)
		}
		a.Complete(name)
		a.CompleteExceptionally(errOver)
		return errOver
	}
	r.feed("a b")
	require.EqualValues(t, 2+3, r.Host.Late())
	r.complete("a#1 b#1")
	require.EqualValues(t, 2+3+2, r.Host.Late())
	r.pass(time.Second)
	r.complete("a#1 b#1 b#2")
	require.EqualValues(t, 2+3+2+2+3, r.Host.Late())
	require.Equal(t, "(a#1 (b#1 a#1 (b#2 b#2", r.took())
	require.True(t, r.Host.Mail.Empty())
	r.end()
}

// Law A5: a call that cancels its operator and ends immediately is the last call.
func TestCallThatEndsAtOnceCancels(t *testing.T) {
	r := newRig(t, nil, nil)
	r.answer = func(name string, a *testAttempt) error {
		if name == "b#1" {
			r.stop(errOver)
		}
		return atOnce(name, a)
	}
	r.feed("a b c")
	require.Equal(t, "(a#1 (b#1", r.took())
	_, err := r.Failure()
	require.ErrorIs(t, err, errOver)
	var got []string
	for _, e := range r.Abandon() {
		got = append(got, r.Describe(e).Element)
		r.Ended(e, observe.Abandoned)
	}
	require.Equal(t, []string{"a", "b", "c"}, got)
	r.balance()
}

// Law Q1: an element that was complete before a call that ends immediately leaves first,
// whatever else is in flight.
func TestCallThatEndsAtOnceWaitsForTheMail(t *testing.T) {
	r := newRig(t, nil, unordered)
	r.answer = atOnce
	r.feed("A B C")
	r.complete("B#1 A#1")
	r.feed("d")
	require.True(t, r.Host.Mail.Empty(), "no step was needed")
	require.Equal(t, 1, r.Running())
	r.emit()
	require.Equal(t, "(A#1 (B#1 (C#1 (d#1 B#1 A#1 d#1", r.took())
	r.complete("C#1")
	r.step()
	require.Equal(t, "C#1", r.took())
	r.end()
}

// Laws A6 and Q1: a predicate that breaks on an earlier completion does not lose a later
// call that has ended immediately.
func TestPredicateBreaksBeforeACallThatEndsAtOnce(t *testing.T) {
	for name, breaks := range map[string]func(){"panics": func() { panic("boom") }, "exits": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			strategy := strategies.FixedDelay[string](1, 0).RetryIfResult(func(results []string) bool {
				if results[0] == "A#1" {
					breaks()
				}
				return false
			})
			r := newRig(t, strategy, unordered)
			r.answer = atOnce
			r.feed("A B")
			r.complete("A#1 B#1")
			onGoroutine(func() { r.feed("c") })
			if name == "exits" {
				require.Equal(t, "(A#1 (B#1 (c#1 !A", r.took())
				r.exitedBy("the retry strategy or one of its predicates")
				return
			}
			r.step()
			require.Equal(t, "(A#1 (B#1 (c#1 !A B#1 c#1", r.took())
			r.end()
		})
	}
}

// Law C1: a wait that is cut to its element's time is cut to the time that remains after
// a call that has blocked the loop.
func TestWaitAfterACallThatBlockedTheLoop(t *testing.T) {
	for name, complete := range outcomesToRetry {
		r := newRig(t, retryingBoth(time.Hour), nil)
		r.answer = func(_ string, a *call.Attempt[string]) error {
			r.clock.at = r.clock.at.Add(20 * time.Second)
			complete(a)
			return nil
		}
		r.feed("a")
		items := r.Items(nil, true)
		require.Len(t, items, 1)
		require.Equal(t, 40*time.Second, items[0].Wait, "of its minute, after %s", name)
		r.answer = nil
		r.pass(time.Minute)
		require.Equal(t, "(a#1 !a", r.took())
		r.end()
	}
}

// A back-off begins after a call that has blocked the loop, even if no limit depends on
// the clock.
func TestBackOffAfterACallThatBlockedTheLoop(t *testing.T) {
	for name, complete := range outcomesToRetry {
		r := newRig(t, retryingBoth(10*time.Second), func(c *setup) { c.Timeout = 0 })
		r.answer = func(_ string, a *call.Attempt[string]) error {
			r.clock.at = r.clock.at.Add(20 * time.Second)
			complete(a)
			return nil
		}
		r.feed("a")
		r.answer = nil
		r.pass(10*time.Second - 1)
		require.Equal(t, "(a#1", r.took(), name)
		r.pass(1)
		require.Equal(t, "(a#2", r.took(), name)
		r.calls["a#2"].Complete()
		r.step()
		r.end()
	}
}

// outcomesToRetry are completions that retryingBoth retries.
var outcomesToRetry = map[string]func(a *call.Attempt[string]){
	"an error":  func(a *call.Attempt[string]) { a.CompleteExceptionally(errBroken) },
	"no result": func(a *call.Attempt[string]) { a.Complete() },
}

// retryingBoth retries errors and empty results once, after d.
func retryingBoth(d time.Duration) strategies.AsyncRetryStrategy[string] {
	return strategies.FixedDelay[string](1, d).RetryIfException(predicates.HasException).RetryIfResult(predicates.EmptyResult[string])
}
