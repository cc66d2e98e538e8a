package core

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/queue"
	"github.com/weirflow/weir/strategies"
)

type testBatch = call.Batch[string, string]

// batchRig makes the calls of a rig for several elements. It records a batch as
// "(a#1+b#1" when the batch is handed out. The test makes the call, which then returns.
type batchRig struct {
	*rig
	forming []string // names of members that have joined and were not handed out
	formed  []func()
	called  []string        // members that the last call was made for
	broken  map[string]bool // members whose call fails
}

// withBatches returns a rig whose batches have size members, or start after wait.
func withBatches(
	tb require.TestingT, size int, wait time.Duration, strategy strategies.Retry[string], change func(c *setup),
) *batchRig {
	b := &batchRig{broken: make(map[string]bool)}
	b.rig = newRig(tb, strategy, func(c *setup) {
		c.Batching, c.RunBatch = &Batching{Of: b, MaxSize: size, MaxWait: wait}, b.call
		c.Invoke = func(ctx context.Context, in string, a *call.Attempt[string]) error {
			name := fmt.Sprintf("%s#%v", in, ctx.Value(call.NumberKey{}))
			b.forming = append(b.forming, name)
			require.True(tb, ctx.Value(call.BatchKey{Of: b}).(*testBatch).Join(ctx, name, a))
			return nil
		}
		if change != nil {
			change(c)
		}
	})
	return b
}

func (b *batchRig) call(batch *testBatch) {
	b.called = nil
	empty := b.Host.Mail.Empty()
	batch.Run(func(_ context.Context, names []string) func(int, call.Future[string]) {
		b.called = slices.Clone(names)
		return func(i int, out call.Future[string]) {
			require.Equal(b.tb, empty, b.Host.Mail.Empty(), "the loop gets to know all outcomes at once")
			if b.broken[names[i]] {
				out.CompleteExceptionally(errBroken)
			} else {
				out.Complete(names[i])
			}
		}
	})
}

// handOut takes the batches that were formed.
func (b *batchRig) handOut() {
	n := b.Jobs(func(jobs ...call.Job[string, string]) {
		for _, j := range jobs {
			b.formed = append(b.formed, j.Task)
		}
	})
	switch {
	case n == 1:
		b.note("(" + strings.Join(b.forming, "+"))
	case n > 1:
		b.note(fmt.Sprintf("%d(%s", n, strings.Join(b.forming, "+")))
	}
	b.forming = nil
}

func (b *batchRig) feed(elements string) {
	for in := range strings.FieldsSeq(elements) {
		b.rig.feed(in)
		b.handOut()
	}
}

func (b *batchRig) step() {
	b.Step()
	b.handOut()
	b.emit()
}

// pass lets time pass, from one due step to the next.
func (b *batchRig) pass(d time.Duration) {
	end := b.Timers.Now() + d
	for {
		for b.Next() <= b.Timers.Now() {
			b.step()
		}
		b.emit()
		next := b.Next()
		if next <= b.Timers.Now() {
			continue
		}
		b.clock.at = b.clock.at.Add(min(next, end) - b.Timers.Now())
		b.NoteSlept()
		if next > end {
			return
		}
	}
}

// returns makes the oldest call begin and return.
func (b *batchRig) returns() {
	job := b.formed[0]
	b.formed = b.formed[1:]
	job()
}

// A call does not wait for the Before of a member that has ended, even if the Before
// ignores its context.
func TestBatchDoesNotWaitForMembersThatAreOver(t *testing.T) {
	again := strategies.ReasonStrategyFunc[string](func(_ context.Context, a *predicates.Attempt[string]) (strategies.Action, error) {
		action := strategies.RetryAfter(time.Second)
		if a.Input == "a" {
			action = action.WithBefore(func(context.Context) error { return nil })
		}
		return action, nil
	})
	policy := strategies.ReasonAware(
		predicates.ByException[string](predicates.HasException, predicates.NewReason("TEST", true, false)), again).Immediate()
	b := withBatches(t, 2, 0, policy, func(c *setup) {
		c.TimeoutFor = func(in string) time.Duration { return map[string]time.Duration{"a": 3 * time.Second}[in] }
	})
	b.broken["a#1"], b.broken["b#1"] = true, true
	b.feed("a b")
	b.returns()
	b.pass(time.Second)
	require.Equal(t, "(a#1+b#1 (a#2+b#2", b.took())
	require.Len(t, b.tasks, 1, "it does not come back")
	b.pass(2 * time.Second)
	require.Equal(t, "!a", b.took())
	b.returns()
	require.Equal(t, []string{"b#2"}, b.called)
	b.work()
	b.pass(0)
	require.Equal(t, "b#2", b.took())
	b.end()
}

// Law T1: timers that are due precede a full batch in the step in which its permit is
// returned.
func TestTimersGoBeforeAFullBatch(t *testing.T) {
	b := withBatches(t, 2, time.Second, nil, func(c *setup) { c.MaxCalls, c.Timeout = 1, 4*time.Second })
	b.feed("a b")
	b.pass(time.Second)
	b.feed("c d")
	require.Equal(t, "(a#1+b#1", b.took())
	b.clock.at = b.clock.at.Add(3 * time.Second)
	b.NoteSlept()
	b.returns() // too late to be called
	require.Empty(t, b.called)
	b.step()
	require.Equal(t, "!a !b (c#1+d#1", b.took())
	b.returns()
	b.step()
	require.Equal(t, "c#1 d#1", b.took())
	b.end()
}

// Law A5: if a wrapper of the function takes some time with one member, the next member
// does not start at its deadline.
func TestMemberDoesNotStartAtItsDeadline(t *testing.T) {
	var b *batchRig
	b = withBatches(t, 2, time.Second, nil, func(c *setup) {
		join := c.Invoke
		c.Invoke = func(ctx context.Context, in string, a *call.Attempt[string]) error {
			b.clock.at = b.clock.at.Add(c.Timeout)
			return join(ctx, in, a)
		}
	})
	b.feed("a b")
	require.Equal(t, "(a#1", b.took())
	b.step()
	require.Equal(t, "!a !b", b.took())
	b.returns()
	b.step()
	b.end()
}

// A member that fails the run ends the forming of its batch.
func TestBatchWhoseMemberFailsTheRun(t *testing.T) {
	b := withBatches(t, 2, 0, nil, func(c *setup) { c.OnFailure = failRun })
	b.setup.Invoke = func(context.Context, string, *call.Attempt[string]) error {
		return errBroken
	}
	b.feed("a b")
	require.True(t, b.Failed())
	require.Equal(t, "!a", b.took())
	for _, e := range b.Abandon() {
		b.Ended(e, observe.Abandoned)
	}
	b.balance()
	require.Zero(t, b.Running())
}

// A batch returns its permits if a member ends the goroutine of the loop.
func TestBatchBrokenOffAtTheEnd(t *testing.T) {
	permits := newHouse(1)
	b := withBatches(t, 2, 0, nil, nil)
	b.share(permits)
	invoke := b.setup.Invoke
	b.setup.Invoke = func(ctx context.Context, in string, a *call.Attempt[string]) error {
		if in == "b" {
			runtime.Goexit()
		}
		return invoke(ctx, in, a)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.feed("a b")
	}()
	<-done
	require.Equal(t, 1, permits.Used())
	_, err := b.Failure()
	require.ErrorAs(t, err, new(*GoexitError))
	for _, e := range b.Abandon() {
		b.Ended(e, observe.Abandoned)
	}
	b.handOut()
	b.returns()
	require.Empty(t, b.called, "they are late")
	require.Equal(t, 4, b.FreePermits())
	require.Zero(t, permits.Used())
}

// The wait of a batch begins with the first retry that is due, or with the first head of
// a key, and not with the last.
func TestBatchWaitsFromTheFirst(t *testing.T) {
	t.Run("retries", func(t *testing.T) {
		b := withBatches(t, 3, 10*time.Second, retries(1, time.Second), func(c *setup) {
			c.Queue = queue.NewOrdered[*Slot[string, string]](100)
		})
		b.broken["a#1"], b.broken["b#1"] = true, true
		b.feed("a")
		b.pass(10 * time.Second)
		b.feed("b")
		b.pass(10 * time.Second)
		require.Equal(t, "(a#1 (b#1", b.took())
		b.returns() // a is due a second later
		b.pass(4 * time.Second)
		b.returns()
		b.pass(7*time.Second - 1)
		require.Empty(t, b.took(), "b is due, too")
		b.pass(1)
		require.Equal(t, "(a#2+b#2", b.took())
		b.returns()
		b.pass(0)
		b.end()
	})
	t.Run("heads", func(t *testing.T) {
		b := withBatches(t, 3, 10*time.Second, nil, func(c *setup) {
			byFirstLetter(c)
			c.Queue = queue.NewUnordered[*Slot[string, string]](100)
		})
		b.feed("a1")
		b.pass(4 * time.Second)
		b.feed("b1")
		b.pass(6*time.Second - 1)
		require.Empty(t, b.took())
		b.pass(1)
		require.Equal(t, "(a1#1+b1#1", b.took())
		b.returns()
		b.pass(0)
		b.end()
	})
}

// A batch starts when it is full and takes one permit, and the remaining elements wait
// for their full time (law T1).
func TestBatchGoesBySizeAndWait(t *testing.T) {
	b := withBatches(t, 3, 10*time.Second, retries(1, time.Second), func(c *setup) {
		c.Queue = queue.NewOrdered[*Slot[string, string]](100)
	})
	b.feed("a b")
	require.Equal(t, 10*time.Second, b.Next())
	b.pass(4 * time.Second)
	require.Empty(t, b.took())
	b.feed("c d")
	require.Equal(t, "(a#1+b#1+c#1", b.took(), "at once")
	require.Equal(t, 1, b.Running(), "one permit")
	require.Equal(t, 14*time.Second, b.Next(), "the time of d")
	b.pass(10*time.Second - 1)
	require.Empty(t, b.took())
	b.pass(1)
	require.Equal(t, "(d#1", b.took())
	require.Equal(t, 2, b.Running())

	b.broken["b#1"] = true
	b.returns()
	b.step()
	require.Equal(t, "a#1", b.took())
	b.feed("e")
	b.pass(time.Second)
	require.Empty(t, b.took(), "a retry waits, too")
	b.feed("f")
	require.Equal(t, "(b#2+e#1+f#1", b.took(), "the retry goes first")
	b.returns()
	b.returns()
	b.step()
	require.Equal(t, "b#2 c#1 d#1 e#1 f#1", b.took())
	b.end()
}

// Without a wait, a step makes a batch of all elements that came before it. Elements that
// wait for a permit make large batches.
func TestBatchWithoutWait(t *testing.T) {
	b := withBatches(t, 10, 0, nil, func(c *setup) {
		c.Queue, c.MaxCalls = queue.NewOrdered[*Slot[string, string]](100), 1
	})
	b.feed("a b")
	require.Equal(t, Now, b.Next())
	b.step()
	require.Equal(t, "(a#1+b#1", b.took())
	b.feed("c d e")
	require.Equal(t, time.Minute, b.Next(), "no permit")
	b.returns()
	b.step()
	require.Equal(t, "(c#1+d#1+e#1 a#1 b#1", b.took())
	b.returns()
	b.step()
	b.end()
}

// A permit that is returned goes to a full batch before the outcomes of the call are
// handled, which takes as long as a short call. A batch that is not full waits for the
// retries among these outcomes.
func TestFullBatchGoesBeforeOutcomes(t *testing.T) {
	b := withBatches(t, 2, time.Hour, retries(1, 0), func(c *setup) {
		c.Queue, c.MaxCalls = queue.NewOrdered[*Slot[string, string]](100), 1
	})
	b.feed("a b c d e")
	require.Equal(t, "(a#1+b#1", b.took())
	b.broken["b#1"] = true
	b.returns()
	b.step()
	require.Equal(t, "(c#1+d#1", b.took())
	require.Equal(t, Now, b.Next(), "the outcomes of a and b wait")
	b.step()
	require.Equal(t, "a#1", b.took())
	b.returns()
	b.step()
	require.Equal(t, "(b#2+e#1", b.took())
	b.step()
	b.returns()
	b.step()
	require.Equal(t, "b#2 c#1 d#1 e#1", b.took())
	b.end()
}

// A batch starts when all slots are taken and no slot will become free without it.
// Elements that only wait for downstream do free their slots.
func TestBatchOfFullOperator(t *testing.T) {
	b := withBatches(t, 10, time.Hour, nil, func(c *setup) { c.Timeout = 0 })
	b.feed("a b c")
	require.Equal(t, time.Hour, b.Next())
	b.feed("d")
	require.Equal(t, "(a#1+b#1+c#1+d#1", b.took())
	b.returns()
	b.Step()
	b.PopHead(observe.Emitted)
	b.feed("e")
	require.Equal(t, time.Hour, b.Next(), "b, c and d make room as soon as downstream takes them")
	b.emit()
	b.feed("f g |1")
	require.Equal(t, Now, b.Next(), "a control element has the last slot")
	b.step()
	require.Equal(t, "b#1 c#1 d#1 (e#1+f#1+g#1", b.took())
	b.returns()
	b.step()
	b.end()
}

// At the end of the input, a batch does not wait, and neither do retries that continue.
func TestBatchAtEndOfInput(t *testing.T) {
	b := withBatches(t, 10, 40*time.Second, retries(1, time.Second), nil)
	b.feed("a b")
	b.batches.EndInput()
	require.Equal(t, Now, b.Next())
	b.step()
	require.Equal(t, "(a#1+b#1", b.took())
	b.broken["a#1"] = true
	b.returns()
	b.pass(time.Second)
	require.Equal(t, "(a#2", b.took())
	b.returns()
	b.step()
	require.Equal(t, "a#2 b#1", b.took())
	b.end()
}

// A restored element that was accepted before the start of the clock waits like any other
// element.
func TestBatchOfRestoredElements(t *testing.T) {
	b := withBatches(t, 3, 10*time.Second, retries(3, time.Second), func(c *setup) { c.Restored.Keep = KeepSpent })
	b.Restore(Item[string, string]{In: "a", Restored: true, First: 1, Spent: 20 * time.Second, Attempts: 1}, 0)
	b.Restore(Item[string, string]{In: "b", Restored: true, First: 1, Spent: 20 * time.Second, Attempts: 1, Wait: 9 * time.Second}, 0)
	require.Equal(t, 9*time.Second, b.Next())
	b.pass(10*time.Second - 1)
	require.Empty(t, b.took())
	b.pass(1)
	require.Equal(t, "(b#2+a#2", b.took(), "a retry that is due goes first")
	b.returns()
	b.step()
	require.Equal(t, "a#2 b#2", b.took())
	b.end()
}

// A batch makes no call if wrappers of the function have completed all its members. Its
// permits are returned.
func TestBatchWithoutCall(t *testing.T) {
	permits := newHouse(1)
	b := withBatches(t, 2, time.Second, nil, nil)
	b.share(permits)
	join := b.setup.Invoke
	b.setup.Invoke = func(ctx context.Context, in string, a *call.Attempt[string]) error {
		if in == "c" {
			return join(ctx, in, a)
		}
		a.Complete("known " + in)
		return nil
	}
	b.feed("a b")
	b.step()
	require.Equal(t, "known a known b", b.took())
	require.Zero(t, b.Running())
	b.feed("c a")
	b.step()
	require.Equal(t, "(c#1", b.took())
	b.returns()
	b.step()
	require.Equal(t, "c#1 known a", b.took())
	b.end()
	require.Zero(t, permits.Used())
}
