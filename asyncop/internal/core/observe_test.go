package core

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/internal/counting"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/queue"
	"github.com/weirflow/weir/strategies"
)

// notebook is an observer that records its calls.
type notebook struct {
	tb      require.TestingT // nil if no counter beside it must get the same events
	lines   []string
	on      func(what string) // called first
	counted sheet
	want    sheet // the events that the counter should get, by the calls of the observer
}

type elementKey struct{}

func (o *notebook) write(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	if o.on != nil {
		o.on(line)
	}
	o.lines = append(o.lines, line)
}

func (o *notebook) Accepted(ctx context.Context, element any, restored bool) context.Context {
	if restored {
		panic("an observer with a state is told by Restored")
	}
	o.write("+%s", element)
	return context.WithValue(ctx, elementKey{}, element)
}

func (o *notebook) Restored(ctx context.Context, element any, number int64) context.Context {
	o.write("+%s again %d", element, number)
	return context.WithValue(ctx, elementKey{}, element)
}

func (o *notebook) Restore([]byte, []int64, func()) error { return nil }
func (o *notebook) Number(context.Context) int64          { return 0 }
func (o *notebook) Snapshot(uint64) []byte                { return nil }
func (o *notebook) Completed(uint64)                      {}

func (o *notebook) AttemptStarted(ctx context.Context, attempt int) context.Context {
	o.write("(%s#%d", ctx.Value(elementKey{}), attempt)
	return context.WithValue(ctx, call.NumberKey{}, -1) // the attempt's own value counts
}

func (o *notebook) AttemptEnded(ctx context.Context, end observe.Outcome) {
	how := fmt.Sprint(end.Results)
	if end.Err != nil {
		how = end.Err.Error() + strings.Repeat(" and a result", end.Results)
	}
	if end.Retry {
		how += fmt.Sprintf(" again after %v", end.Delay)
	}
	o.write(")%s#%d %s in %v", ctx.Value(elementKey{}), end.Attempt, how, end.Duration.Round(time.Millisecond))
	o.want.attempts = append(o.want.attempts, counting.AttemptEnd{
		End: counting.EndOf(end.Results, end.Err), Retry: end.Retry, Reason: end.Reason, Duration: end.Duration, Delay: end.Delay,
	})
}

func (o *notebook) Ended(ctx context.Context, end observe.Ending) {
	name := ctx.Value(elementKey{})
	how := [...]string{"emitted", "empty", "handed over", "dropped", "failed", "abandoned", "kept", "discarded"}[end.How]
	o.write("-%v %s %d/%d in %v+%v", name, how, end.Results, end.Attempts, end.Queued.Round(time.Millisecond),
		(end.Total - end.Queued).Round(time.Millisecond))
	o.want.elements = append(o.want.elements, counting.Element{
		How: uint8(end.How), InDoubt: end.InDoubt, Accepted: name != nil, Queued: end.Queued, Total: end.Total,
	})
}

// took returns the lines since its last call, after checking that the counter got the
// same events.
func (o *notebook) took() string {
	if o.tb != nil {
		require.Equal(o.tb, o.want.attempts, o.counted.attempts)
		require.Equal(o.tb, o.want.elements, o.counted.elements)
	}
	s := strings.Join(o.lines, "\n")
	o.lines = nil
	return s
}

// observed returns a rig with an observer, and a counter.
func observed(tb require.TestingT, n int, change func(c *setup)) (*rig, *notebook) {
	o := &notebook{tb: tb}
	r := newRig(tb, retries(n, time.Second), func(c *setup) {
		c.Observers, c.Counters = []observe.Observer{o}, []counting.Counter{&o.counted}
		if change != nil {
			change(c)
		}
	})
	return r, o
}

// Law O1: events are reported in order, with the counts, and each element ends once.
func TestObserver(t *testing.T) {
	r, o := observed(t, 1, func(c *setup) { c.MaxCalls = 1 })
	r.feed("a b c d")
	r.Report()
	require.Equal(t, "+a\n(a#1\n+b\n+c\n+d", o.took())
	r.pass(time.Second)
	r.calls["a#1"].Complete("x", "y")
	r.step()
	r.Report()
	require.Equal(t, ")a#1 2 in 1s\n(b#1\n-a emitted 2/1 in 0s+1s", sortedStarts(o.took()))
	r.fail("b#1")
	r.idle()
	r.Report()
	require.Equal(t, ")b#1 broken again after 1s in 0s\n(c#1", sortedStarts(o.took()))
	r.calls["c#1"].Complete() // empty asks for a retry
	r.idle()
	r.Report()
	require.Equal(t, ")c#1 0 again after 1s in 0s\n(d#1", sortedStarts(o.took()))
	r.complete("d#1")
	r.pass(time.Second)
	r.Report()
	require.Equal(t, ")d#1 1 in 0s\n(b#2", sortedStarts(o.took()))
	r.fail("b#2")
	r.idle()
	r.calls["c#2"].Complete()
	r.idle()
	r.Report()
	require.Equal(t, strings.Join([]string{
		")b#2 broken in 0s", "(c#2", "-b dropped 0/2 in 1s+1s", ")c#2 0 in 0s",
		"-c empty 0/2 in 1s+1s", "-d emitted 1/1 in 1s+1s",
	}, "\n"), sortedStarts(o.took()))
	r.end()
}

// sortedStarts moves starts behind ends that were reported before them. Starts are
// reported immediately, ends a little later.
func sortedStarts(s string) string {
	lines := strings.Split(s, "\n")
	for i := 0; i+1 < len(lines); i++ {
		if strings.HasPrefix(lines[i], "(") && strings.HasPrefix(lines[i+1], ")") {
			lines[i], lines[i+1] = lines[i+1], lines[i]
			i = max(-1, i-2)
		}
	}
	return strings.Join(lines, "\n")
}

// An attempt that does not return ends before its element does.
func TestObserverOfTimeouts(t *testing.T) {
	r, o := observed(t, 5, func(c *setup) {
		c.Timeout, c.AttemptTimeout, c.MaxCalls = 10*time.Second, 4*time.Second, 1
	})
	r.feed("a b")
	r.pass(time.Minute)
	r.Report()
	got := o.took()
	for _, want := range []string{
		")a#1 attempt 1 timed out again after 1s in 4s", "-a dropped 0/2 in 0s+10s", "-b dropped 0/1 in 4s+6s", ")a#2 context deadline exceeded",
	} {
		require.Contains(t, got, want)
	}
	require.Equal(t, strings.Count(got, "("), strings.Count(got, ")"), got)
	r.end()
}

// An attempt ends with its own outcome, even if its element times out while the strategy
// decides.
func TestObserverOfATimeoutWhileDeciding(t *testing.T) {
	o := &notebook{}
	again := strategies.ReasonStrategyFunc[string](func(context.Context, *predicates.Attempt[string]) (strategies.Action, error) {
		return strategies.RetryAfter(time.Second), nil
	})
	r := newRig(t, strategies.ReasonAware(
		predicates.ByException[string](predicates.HasException, predicates.NewReason("TEST", true, false)), again),
		func(c *setup) { c.Observers = []observe.Observer{o} })
	r.feed("a")
	r.fail("a#1")
	r.idle()
	require.Equal(t, "deciding", r.Oldest())
	r.pass(time.Minute)
	r.idle()
	require.Equal(t, "+a\n(a#1\n)a#1 broken in 0s\n-a dropped 0/1 in 0s+1m0s", o.took())
	r.end()
}

// The duration of an attempt that is completed immediately is the duration of its
// function.
func TestObserverOfAFunctionThatTakesItsTime(t *testing.T) {
	r, o := observed(t, 0, nil)
	r.answer = func(_ string, a *call.Attempt[string]) error {
		r.clock.at = r.clock.at.Add(50 * time.Millisecond)
		a.Complete("x")
		return nil
	}
	r.feed("a")
	r.idle()
	require.Equal(t, "+a\n(a#1\n)a#1 1 in 50ms\n-a emitted 1/1 in 0s+50ms", o.took())
	r.end()
}

// Law A6: if an observer ends the goroutine of the loop, its attempt is cut off like any
// other.
func TestObserverThatExitsAtTheEnd(t *testing.T) {
	permits := newHouse(1)
	r, o := observed(t, 0, nil)
	r.share(permits)
	o.on = func(what string) {
		if what == "(a#1" {
			runtime.Goexit()
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.feed("a")
	}()
	<-done
	r.exitedBy("an observer")
	require.Zero(t, r.Running())
	require.Zero(t, permits.Used())
}

// An attempt has ended when its element is offered to the sink, which may be slow.
func TestObserverOfFailuresThatAreOffered(t *testing.T) {
	r, o := observed(t, 0, func(c *setup) {
		c.OnFailure, c.Sink = toSink, func(context.Context, Report[string]) error { return nil }
	})
	r.feed("a")
	r.fail("a#1")
	r.step()
	require.Equal(t, "+a\n(a#1\n)a#1 broken in 0s", o.took())
	r.work()
	r.step()
	require.Equal(t, "-a handed over 0/1 in 0s+0s", o.took())
	r.end()
}

// A retry that could not start before the deadline is not reported.
func TestObserverOfARetryThatIsTooLate(t *testing.T) {
	r, o := observed(t, 1, func(c *setup) { c.Timeout = time.Second })
	r.feed("a")
	r.fail("a#1")
	r.pass(time.Second)
	r.idle()
	require.Equal(t, "+a\n(a#1\n)a#1 broken in 0s\n-a dropped 0/1 in 0s+1s", o.took())
	r.end()
}

// The last attempt has ended when the handler of its failure begins, which may be slow.
func TestObserverOfHandledFailures(t *testing.T) {
	r, o := observed(t, 0, func(c *setup) {
		c.HandlesAll, c.Handle = true, func(context.Context, Report[string], bool) ([]string, error) { return []string{"x"}, nil }
	})
	r.feed("a")
	r.fail("a#1")
	r.step()
	require.Equal(t, "+a\n(a#1\n)a#1 broken in 0s", o.took())
	r.work()
	r.step()
	require.Equal(t, "-a emitted 1/1 in 0s+0s", o.took())
	r.end()
}

// An attempt with a control element among its results has failed, and its results do not
// count.
func TestObserverOfControlElements(t *testing.T) {
	r, o := observed(t, 0, nil)
	r.feed("a")
	r.calls["a#1"].Complete("x", "control")
	r.step()
	require.Equal(t, "+a\n(a#1\n)a#1 control element in 0s\n-a dropped 0/1 in 0s+0s", o.took())
	r.end()
}

// Elements that the end of the run cuts off are reported when the driver has decided how
// they end.
func TestObserverOfTheEnd(t *testing.T) {
	r, o := observed(t, 1, func(c *setup) { c.MaxCalls = 2 })
	r.feed("a b c d")
	r.complete("b#1")
	r.calls["a#1"].Complete("1")
	r.Step() // not emitted
	r.fail("c#1")
	r.Step()
	r.Report()
	o.took()
	r.End(errOver)
	for i, e := range r.Abandon() {
		r.Ended(e, []observe.EndKind{observe.Abandoned, observe.Kept, observe.HandedOver, observe.Abandoned}[i])
	}
	r.observing.Refused(observe.Discarded)
	r.Report()
	require.Equal(t, strings.Join([]string{
		")d#1 context canceled in 0s",
		"-a abandoned 0/1 in 0s+0s", "-b kept 0/1 in 0s+0s", "-c handed over 0/1 in 0s+0s", "-d abandoned 0/1 in 0s+0s",
		"-<nil> discarded 0/0 in 0s+0s",
	}, "\n"), o.took())
}

// A restored element is accepted again and reported as restored. An element that was only
// read ahead is not reported as restored.
func TestObserverOfRestoredElements(t *testing.T) {
	r, o := observed(t, 3, func(c *setup) { c.Restored.Keep = KeepSpent })
	done := Item[string, string]{In: "a", Restored: true}
	done.SetResults([]string{"x"})
	r.Restore(done, 4)
	r.Restore(Item[string, string]{In: "b", Restored: true, First: 1, Spent: time.Second, Attempts: 2}, 5)
	r.Restore(Item[string, string]{In: "c", Restored: true, First: 1, Wait: time.Second, Attempts: 1}, -1)
	r.Restore(Item[string, string]{In: "d"}, 0)
	r.Report()
	r.emit()
	r.Report()
	require.Equal(t, "+a again 4\n+b again 5\n(b#3\n+c again -1\n+d\n(d#1\n-a emitted 1/0 in 0s+0s", o.took())
	r.pass(time.Second)
	r.complete("b#3 c#2 d#1")
	r.idle()
	r.Report()
	require.Contains(t, o.took(), "-c emitted 1/2 in 1s+0s")
	r.end()
}

// Numbers covers exactly the elements that Items returns, in the same order.
func TestNumbersFitItems(t *testing.T) {
	r, _ := observed(t, 0, func(c *setup) { c.Queue = queue.NewOrdered[*Slot[string, string]](5) })
	r.feed("a bb |0 ccc |7")
	r.calls["a#1"].Complete() // it is settled, and at the head
	r.Step()
	items := r.Items(nil, false)
	require.Len(t, items, 3)
	require.Equal(t, "bb", items[0].In)
	require.Equal(t, []int64{2, 3, 0}, r.observing.Numbers(func(ctx context.Context) int64 { return int64(len(fmt.Sprint(ctx.Value(elementKey{})))) }))
	r.End(errOver)
	r.Abandon()
}

// Calls see the values of the observer's contexts. Values of the attempt itself are not
// replaced.
func TestObserverContexts(t *testing.T) {
	r, _ := observed(t, 1, nil)
	var ctxs []context.Context
	invoke := r.setup.Invoke
	r.setup.Invoke = func(ctx context.Context, in string, a *call.Attempt[string]) error {
		ctxs = append(ctxs, ctx)
		return invoke(ctx, in, a)
	}
	r.feed("a")
	require.Equal(t, "a", ctxs[0].Value(elementKey{}))
	require.Equal(t, 1, ctxs[0].Value(call.NumberKey{}))
	derived, cancel := context.WithCancelCause(ctxs[0])
	defer cancel(nil)
	r.End(errOver)
	r.Host.Cancel(errOver)
	r.Abandon()
	<-derived.Done()
	require.Equal(t, errOver, context.Cause(derived))
}

// Law A6: an observer that breaks fails the attempt for which it was called. Without an
// attempt, the failure is logged.
func TestObserverBreaks(t *testing.T) {
	for _, c := range []struct{ at, want string }{
		{"+a", "broke it: broken"},
		{"(a#1", "broke it: broken"},
		{")a#1 1 in 0s", "broke: asyncop: panic in user code: broken"},
		{"-a emitted 1/1 in 0s+0s", "broke: asyncop: panic in user code: broken"},
	} {
		for _, how := range []string{"panic", "goexit"} {
			t.Run(how+" at "+c.at, func(t *testing.T) {
				r, o := observed(t, 0, func(c *setup) {
					c.RunFailed, c.OnFailure = func(f Report[string]) error { return f.Err }, drop
					c.GivenUp = func(f Report[string], _ observe.EndKind) {}
				})
				broke := false
				o.on = func(what string) {
					if what == c.at {
						broke = true
						if how == "goexit" {
							runtime.Goexit()
						}
						panic("broken")
					}
				}
				onGoroutine(func() { r.Accept("a", call.Message{}) })
				for range 3 {
					if r.Failed() {
						break
					}
					onGoroutine(func() { r.Step(); r.emit(); r.Report() })
					if a := r.calls["a#1"]; a != nil && !a.Completed() {
						a.Complete("x")
					}
				}
				require.True(t, broke)
				r.balance()
				if how == "goexit" {
					r.exitedBy("an observer")
					return
				}
				counts, _ := r.Counts()
				if strings.HasPrefix(c.want, "broke it") {
					require.EqualValues(t, 1, counts.Dropped)
				} else {
					require.EqualValues(t, 1, counts.Completed)
					require.Contains(t, r.took(), c.want)
				}
				require.Equal(t, Never, r.Next())
			})
		}
	}
}

// Law O1, at random: every accepted element ends once, after all its attempts. A counter
// gets the same events as an observer, both beside an observer and alone.
func TestObserverAtRandom(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		alone := rapid.Bool().Draw(t, "alone")
		r, o := observed(t, 2, func(c *setup) {
			if alone {
				c.Observers = nil
			}
			c.MaxCalls = rapid.IntRange(0, 2).Draw(t, "calls")
			c.AttemptTimeout = rapid.SampledFrom([]time.Duration{0, 3 * time.Second}).Draw(t, "limit")
			c.Timeout = 10 * time.Second
			if order := rapid.SampledFrom([]func(*setup){nil, unordered, byFirstLetter}).Draw(t, "order"); order != nil {
				order(c)
			}
			c.OnFailure = rapid.SampledFrom([]onFailure{drop, toSink}).Draw(t, "policy")
			c.Sink = func(context.Context, Report[string]) error {
				if rapid.Bool().Draw(t, "refuses") {
					return errBroken
				}
				return nil
			}
		})
		n := 0
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 4).Draw(t, "step") {
			case 0:
				if r.HasSlot() {
					r.Accept(fmt.Sprintf("%c%d", 'a'+n%3, n), call.Message{})
					n++
				}
			case 1:
				for name, a := range r.calls {
					if rapid.Bool().Draw(t, "complete "+name) {
						a.Complete("x")
					} else {
						a.CompleteExceptionally(errBroken)
					}
				}
				clear(r.calls)
			case 2:
				r.pass(time.Duration(rapid.IntRange(0, 5000).Draw(t, "ms")) * time.Millisecond)
			case 3:
				r.step()
			case 4:
				r.work()
			}
			r.Report()
		}
		counts, _ := r.Counts()
		r.End(errOver)
		for _, e := range r.Abandon() {
			r.Ended(e, observe.Abandoned)
		}
		r.Report()
		r.stop(nil)

		require.EqualValues(t, counts.Attempts, len(o.counted.attempts))
		retried := 0
		for _, a := range o.counted.attempts {
			if a.Retry {
				retried++
			}
		}
		require.LessOrEqual(t, int(counts.RetriesOnError+counts.RetriesOnResult), retried)
		require.Len(t, o.counted.elements, n)
		for _, e := range o.counted.elements {
			require.True(t, e.Accepted)
		}
		if alone {
			return
		}
		lines := o.lines
		o.took()
		state := map[string]string{}
		for _, line := range lines {
			name := strings.FieldsFunc(line[1:], func(c rune) bool { return c == ' ' || c == '#' })[0]
			want := map[byte]string{'+': "", '(': "+", ')': "(", '-': "+"}[line[0]]
			require.Equal(t, want, state[name], "%s in %v", line, lines)
			state[name] = map[byte]string{'+': "+", '(': "(", ')': "+", '-': "-"}[line[0]]
		}
		require.Len(t, state, n)
		for name, at := range state {
			require.Equal(t, "-", at, name)
		}
	})
}

// Law C3: an element from a checkpoint keeps its results and the rest of its back-off,
// even if the observer breaks when the element is accepted.
func TestObserverThatBreaksAtARestoredElement(t *testing.T) {
	for how, breaks := range map[string]func(){"panics": func() { panic("broken") }, "exits": runtime.Goexit} {
		t.Run(how, func(t *testing.T) {
			r, o := observed(t, 1, nil)
			o.on = func(what string) {
				if strings.HasPrefix(what, "+") {
					breaks()
				}
			}
			it := Item[string, string]{In: "a", Restored: true, First: 1, Attempts: 1}
			waits := it
			it.SetResults([]string{"kept"})
			waits.In, waits.Wait = "b", 5*time.Second
			for _, it := range []Item[string, string]{it, waits} {
				onGoroutine(func() { r.Restore(it, 0) })
				if how == "exits" {
					r.exitedBy("an observer")
					return
				}
			}
			r.idle()
			require.Equal(t, []string{"kept"}, r.history, "neither is called")
			require.Equal(t, later(r.Present(), 5*time.Second), r.Next())
		})
	}
}
