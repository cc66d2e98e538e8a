package timeouts_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/internal/optest"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/queue"
	"github.com/weirflow/weir/strategies"
)

// Faults of Flink's AsyncWaitOperator and features that its users miss, with a test of
// weir's behavior: docs/from-flink.md, and the known bugs of FLIP-232 and asynchronous
// I/O. A nil proof belongs to a later part of weir.
var flink = []struct {
	id     string // the name of the fault, or the issue
	flink  string // the behavior of Flink
	proof  func(t *testing.T, m optest.Mode)
	follow string // where a nil proof will be implemented
}{
	// ---- docs/from-flink.md

	{
		id:    "completion guards not bound to an attempt",
		flink: "a late duplicate completion of attempt 1 is taken as the result of attempt 2, which is running",
		proof: func(t *testing.T, m optest.Mode) {
			r := optest.NewRig(t, m, optest.Setup{Timeout: time.Minute, Strategy: optest.RetryAll(3, 0)})
			r.SendEach("a")
			r.Fail("a#1", optest.ErrBroken)
			r.Complete("a#1", "of attempt 1")
			require.Empty(t, r.Outputs())
			r.Complete("a#2", "of attempt 2")
			require.NoError(t, r.End())
			require.Equal(t, "of attempt 2", r.Outputs())
		},
	},
	{
		id:    "a timeout that races a retry and hangs the element (FLINK-40456)",
		flink: "a timeout whose result is dropped because a retry was just scheduled: the element neither leaves nor fails",
		proof: func(t *testing.T, m optest.Mode) {
			for _, failsAfter := range []time.Duration{time.Second - 1, time.Second, time.Second + 1} {
				for _, delay := range []time.Duration{0, 1, 2} {
					r := optest.NewRig(t, m, optest.Setup{Timeout: time.Second, Strategy: optest.RetryAll(99, delay), Wrap: optest.Handled})
					r.SendEach("a")
					c := r.Call("a#1")
					time.AfterFunc(failsAfter, func() { c.CompleteExceptionally(optest.ErrBroken) })
					r.Advance(2 * time.Second)
					require.Equal(t, "a!@1s", r.OutputTimes(), "%v, %v", failsAfter, delay)
					require.NoError(t, r.End())
				}
			}
		},
	},
	{
		id:    "a retry fired from the timeout handler (FLINK-38082)",
		flink: "timeout() that completes exceptionally starts retries after the deadline, with no timer left",
		proof: func(t *testing.T, m optest.Mode) {
			r := optest.NewRig(t, m, optest.Setup{
				Timeout: time.Second, Strategy: optest.RetryAll(9, time.Millisecond),
				Wrap: func(h *optest.Hand) optest.Function {
					return optest.TimeoutMethod(h, func(context.Context, string) ([]string, error) { return nil, optest.ErrBroken })
				},
			})
			r.SendEach("a")
			r.Advance(time.Minute)
			require.ErrorIs(t, r.Wait(), optest.ErrBroken)
			require.Equal(t, "a#1", r.Calls())
		},
	},
	{
		id:    "a record called twice at drain",
		flink: "a record whose retry is running when the input ends is invoked a second time, concurrently",
		proof: func(t *testing.T, m optest.Mode) {
			r := optest.NewRig(t, m, optest.Setup{Timeout: time.Minute, Strategy: optest.RetryAll(9, time.Second)})
			r.SendEach("a")
			r.Fail("a#1", optest.ErrBroken)
			r.Advance(time.Second)
			r.EndInput() // a#2 runs
			r.Advance(10 * time.Second)
			require.Equal(t, "a#1 a#2", r.Calls())
			r.Complete("a#2", "A")
			require.NoError(t, r.Wait())
		},
	},
	{
		id:    "exponential state shared by all records",
		flink: "the previous delay is one mutable field of the strategy: interleaved records disturb each other's sequence",
		proof: func(t *testing.T, m optest.Mode) {
			s := strategies.ExponentialBackoff[string](9, time.Second, time.Hour, 2).RetryIfException(predicates.HasException)
			r := optest.NewRig(t, m, optest.Setup{Timeout: time.Minute, Strategy: s})
			r.Answer = optest.Fails
			r.SendEach("a")
			r.Advance(1500 * time.Millisecond)
			r.SendEach("b")
			r.Advance(6500 * time.Millisecond)
			require.Equal(t, "a#1@0s a#2@1s b#1@1.5s b#2@2.5s a#3@3s b#3@4.5s a#4@7s", r.CallTimes())
			require.ErrorIs(t, r.Cut(optest.ErrTestOver), optest.ErrTestOver)
		},
	},
	{
		id:    "unvalidated arguments",
		flink: "the exponential builder validates nothing; a nil predicate means absent; sub-millisecond times become 0",
		proof: func(t *testing.T, m optest.Mode) {
			fn := optest.NewHand(t)
			for _, f := range []func(){
				func() { strategies.ExponentialBackoff[string](-1, 0, 0, 1) },
				func() { strategies.ExponentialBackoff[string](1, 2, 1, 1) },
				func() { strategies.ExponentialBackoff[string](1, 1, 2, 0.5) },
				func() { strategies.ExponentialBackoff[string](1, 1, 2, math.NaN()) },
				func() { strategies.FixedDelay[string](-1, 0) },
				func() { strategies.FixedDelay[string](0, -1) },
				func() { optest.Construct[string, string](optest.Mode{Capacity: 0}, fn, 0, nil) },
				func() { optest.Construct[string, string](m, fn, -1, nil) },
				func() { optest.Construct[string, string](m, fn, 0, optest.Strategy(optest.RetryAll(1, 0))) },
				func() { optest.Construct[string, string](m, nil, 0, nil) },
			} {
				require.NotEqual(t, "no panic", optest.PanicOf(f))
			}
			r := optest.NewRig(t, m, optest.Setup{Timeout: 500 * time.Nanosecond, Strategy: optest.RetryAll(1, 200*time.Nanosecond), Wrap: optest.Handled})
			r.Answer = optest.Fails
			r.Script("a#2", func(*optest.Call) error { return nil })
			r.SendEach("a")
			r.Advance(time.Millisecond)
			require.Equal(t, "a#1@0s a#2@200ns", r.CallTimes())
			require.Equal(t, "a!@500ns", r.OutputTimes())
		},
	},
	{
		id:     "retry state lost at restore",
		flink:  "after a restore every record begins again with attempt 1 and its full timeout",
		follow: "the checkpoint issue",
	},
	{
		id:    "unordered snapshots that forget the input order",
		flink: "inside a segment a snapshot lists complete records first and the others in the order of a hash set",
		proof: func(t *testing.T, m optest.Mode) {
			q := queue.NewUnordered[string](8)
			if m.Ordered {
				q = queue.NewOrdered[string](8)
			}
			var entries []*queue.Entry[string]
			for _, v := range []string{"a", "b", "c"} {
				entries = append(entries, q.Put(v))
			}
			q.PutControl("|")
			entries = append(entries, q.Put("d"))
			q.Complete(entries[2])
			q.Complete(entries[3])
			q.Complete(entries[1])
			var snapshot []string
			for e := range q.All() {
				snapshot = append(snapshot, e.Value)
			}
			require.Equal(t, "a b c | d", strings.Join(snapshot, " "))
		},
	},
	{
		id:    "a failing element can only fail the job",
		flink: "no skip, no dead letters, no failure sink: the user must complete with a marker value",
		proof: func(t *testing.T, m optest.Mode) {
			side := optest.NewSideSink(false)
			for _, policy := range []asyncop.Option{asyncop.WithDropOnFailure(), asyncop.WithFailureSink(side.Take)} {
				r := optest.NewRig(t, m, optest.Setup{Opts: optest.Options(policy)})
				r.SendEach("ab")
				r.Fail("a#1", optest.ErrBroken)
				r.Complete("b#1", "B")
				require.NoError(t, r.End())
				require.Equal(t, "B", r.Outputs())
			}
			require.Equal(t, "a", side.Elements())
		},
	},
	{
		id:    "no metrics (FLINK-34046)",
		flink: "the operator registers none of its own: no retries, no drops after exhaustion, no successes after a retry",
		proof: func(t *testing.T, m optest.Mode) {
			r := optest.NewRig(t, m, optest.Setup{Timeout: time.Minute, Strategy: optest.RetryAll(1, 0), Opts: optest.Options(asyncop.WithDropOnFailure())})
			r.Script("a#1", optest.Fails)
			r.Script("a#2", optest.Fails)
			r.Script("b#1", optest.Empty)
			r.Script("b#2", optest.Upper)
			r.SendEach("ab")
			require.NoError(t, r.End())
			s := r.Stats()
			require.Equal(t, asyncop.Stats{
				Accepted: 2, Completed: 1, Emitted: 1, Attempts: 4, RetriesOnError: 1, RetriesOnResult: 1,
				Exhausted: 1, Failures: 1, Dropped: 1,
			}, s)
		},
	},
	{
		id:    "a scheduled-executor timer and two mails per record",
		flink: "each record registers and cancels a timer of the executor, and costs two mails even if nothing fails",
		proof: func(t *testing.T, m optest.Mode) {
			m.Capacity = 1000
			c := &countingClock{Clock: clock.New()}
			timers := func() int64 { return c.armed.Load() }
			r := optest.NewRig(t, m, optest.Setup{
				Timeout: time.Hour, Strategy: optest.RetryAll(3, time.Minute), Opts: optest.Options(asyncop.WithClock(c)),
			})
			before := runtime.NumGoroutine()
			for range 1000 {
				r.Op.In() <- "a"
			}
			synctest.Wait()
			for _, c := range r.CallsOf("a")[:500] {
				c.CompleteExceptionally(optest.ErrBroken)
			}
			require.EqualValues(t, 500, r.Stats().WaitingForRetry)
			require.LessOrEqual(t, timers(), int64(2), "one timer of the runtime serves them all")
			require.LessOrEqual(t, runtime.NumGoroutine(), before)
			require.ErrorIs(t, r.Cut(optest.ErrTestOver), optest.ErrTestOver)
		},
	},

	// ---- Issues of Flink

	{
		id:    "FLINK-30477",
		flink: "the retry timer is still pending when the timeout fires: more retries follow",
		proof: func(t *testing.T, m optest.Mode) {
			r := optest.NewRig(t, m, optest.Setup{Timeout: time.Second, Strategy: optest.RetryAll(9, 999*time.Millisecond), Wrap: optest.Handled})
			r.Script("a#1", optest.Fails)
			r.SendEach("b")
			r.Script("x#1", func(*optest.Call) error { time.Sleep(2 * time.Second); return nil }) // when the loop checks, both are due
			r.Op.In() <- "a"
			r.Op.In() <- "x"
			r.Advance(time.Minute)
			require.Equal(t, "b#1 a#1 x#1", r.Calls())
			require.NoError(t, r.End())
			require.ElementsMatch(t, []string{"a!", "b!", "x!"}, strings.Fields(r.Outputs()))
		},
	},
	{
		id:    "FLINK-22573",
		flink: "timeout() is called on an element that completed while the mailbox was blocked",
		proof: func(t *testing.T, m optest.Mode) {
			r := optest.NewRig(t, m, optest.Setup{Timeout: time.Second, Wrap: func(h *optest.Hand) optest.Function {
				return optest.TimeoutMethod(h, func(_ context.Context, in string) ([]string, error) {
					return nil, fmt.Errorf("%s timed out", in)
				})
			}})
			r.Script("b#1", func(c *optest.Call) error { time.Sleep(10 * time.Second); return optest.Upper(c) })
			r.SendEach("a")
			a := r.Call("a#1")
			r.Op.In() <- "b" // the loop is busy meanwhile
			time.Sleep(500 * time.Millisecond)
			a.Complete("A")
			require.NoError(t, r.End())
			require.Equal(t, "A B", r.Outputs())
		},
	},
	{
		id:    "FLINK-13605 and FLINK-13635",
		flink: "races of completion, timeout and the timer's cancellation",
		proof: func(t *testing.T, m optest.Mode) {
			for range 50 { // at the same instant, in random order
				r := optest.NewRig(t, m, optest.Setup{Timeout: time.Second, Wrap: optest.Handled})
				r.SendEach("a")
				c := r.Call("a#1")
				time.AfterFunc(time.Second, func() { c.Complete("A") })
				time.AfterFunc(time.Second, func() { c.CompleteExceptionally(optest.ErrBroken) })
				r.Advance(time.Second)
				err := r.End()
				s := r.Stats()
				require.EqualValues(t, 1, s.Completed+s.Failed)
				require.Equal(t, err != nil, s.Failed == 1)
				require.Zero(t, s.Running)
				optest.CheckBalance(t, s)
			}
		},
	},
	{
		id:     "FLINK-39680, FLINK-39835, FLINK-34704",
		flink:  "an unaligned checkpoint is blocked while the queue is full",
		follow: "the checkpoint issue",
	},
	{
		id:     "FLINK-7949",
		flink:  "a restore into a full queue deadlocks",
		follow: "the checkpoint issue; what the operator has of it is the next item",
	},
	{
		id:    "a watermark that meets a full queue",
		flink: "processWatermark blocks inside the mailbox",
		proof: func(t *testing.T, m optest.Mode) {
			m.Capacity = 1
			r := optest.NewRig(t, m, optest.Setup{Timeout: time.Second, Wrap: optest.Handled, Opts: optest.Options(asyncop.WithBuffer(0))})
			r.Send("a")
			go func() { r.Op.In() <- optest.Mark(1) }()
			r.Advance(time.Second) // timers continue and free the slot
			require.Equal(t, "a! |1|", r.Outputs())
			require.NoError(t, r.End())
		},
	},
	{
		id:    "FLINK-6435",
		flink: "an exception or a timeout does not complete its entry, and those behind it wait for ever",
		proof: func(t *testing.T, m optest.Mode) {
			r := optest.NewRig(t, m, optest.Setup{Timeout: time.Second, Opts: optest.Options(asyncop.WithDropOnFailure())})
			r.Send("a", "b", optest.Mark(1), "c")
			r.Complete("c#1", "C")
			r.Fail("a#1", optest.ErrBroken)
			r.Advance(time.Second)
			require.Equal(t, "|1| C", r.Outputs())
			require.NoError(t, r.End())
		},
	},
	{
		id:    "FLINK-5638 and FLINK-5652",
		flink: "close deadlocks while elements are in flight; timers leak",
		proof: func(t *testing.T, m optest.Mode) {
			m.Capacity = 2
			c := &countingClock{Clock: clock.New()}
			r := optest.NewRig(t, m, optest.Setup{
				Timeout: time.Hour, Blocked: true, Opts: optest.Options(asyncop.WithClock(c), asyncop.WithBuffer(0)),
			})
			r.SendEach("ab") // full
			r.Complete("a#1", "A")
			go func() { r.Op.In() <- "c" }()
			require.ErrorIs(t, r.Cut(optest.ErrTestOver), optest.ErrTestOver)
			r.Advance(2 * time.Hour)
			require.Zero(t, c.fired.Load())
		},
	},
	{
		id:    "FLINK-13063, FLINK-16219, FLINK-20444, FLINK-21639",
		flink: "chaining of the operator with others gives inconsistent results and was switched off for years",
		proof: func(t *testing.T, m optest.Mode) {
			first, second := optest.Construct[int, int](m, optest.Slowly(0), 0, nil), optest.Construct[int, int](m, optest.Slowly(0), 0, nil)
			optest.Same(t, m, optest.Numbers(20), optest.Drain(optest.Source(optest.Numbers(20)...).Via(first).Via(second)))
		},
	},
	{
		id:    "FLINK-13491",
		flink: "the end of the input does not wait for elements in flight",
		proof: func(t *testing.T, m optest.Mode) {
			r := optest.NewRig(t, m, optest.Setup{})
			r.SendEach("ab")
			r.EndInput()
			r.Advance(time.Hour)
			require.Empty(t, r.Outputs())
			r.Complete("b#1", "B")
			r.Complete("a#1", "A")
			require.NoError(t, r.Wait())
			require.Equal(t, m.Pick("A B", "B A"), r.Outputs())
		},
	},
	{
		id:    "FLINK-37243",
		flink: "results are converted on the thread of the user's callback",
		proof: func(t *testing.T, m optest.Mode) {
			var inPredicate, most int // owned by the loop, which the race detector checks
			s := strategies.FixedDelay[string](1, 0).RetryIfResult(func([]string) bool {
				inPredicate++
				most = max(most, inPredicate)
				time.Sleep(time.Millisecond)
				inPredicate--
				return false
			})
			r := optest.NewRig(t, m, optest.Setup{Timeout: time.Minute, Strategy: s})
			r.SendEach("abcd")
			for _, c := range r.CallsOf("abcd") {
				go c.Complete(c.In)
			}
			r.Advance(time.Second)
			require.NoError(t, r.End())
			require.Equal(t, 1, most)
		},
	},
	{
		id:    "FLINK-32006, FLINK-29038, FLINK-35810",
		flink: "flaky retry tests: real sleeps",
		proof: func(t *testing.T, m optest.Mode) {
			m.Mock = true
			r := optest.NewRig(t, m, optest.Setup{Timeout: time.Hour, Strategy: optest.RetryAll(1, 10*time.Minute)})
			r.SendEach("a")
			r.Fail("a#1", optest.ErrBroken)
			r.Advance(10*time.Minute - 1)
			require.Equal(t, "a#1", r.Calls())
			r.Advance(1)
			require.Equal(t, "a#1@0s a#2@10m0s", r.CallTimes())
			r.Complete("a#2", "A")
			require.NoError(t, r.End())
		},
	},
	{
		id:    "FLINK-28899",
		flink: "a function with a cache cannot be retried by the operator: the cached empty value would answer",
		proof: func(t *testing.T, m optest.Mode) {
			cache := map[string]bool{} // of misses
			r := optest.NewRig(t, m, optest.Setup{Timeout: time.Minute, Strategy: optest.RetryAll(1, time.Second)})
			r.Answer = func(c *optest.Call) error {
				if cache[c.In] && asyncop.AttemptFromContext(c.Ctx) == 1 { // a retry asks again
					return optest.Empty(c)
				}
				if cache[c.In] {
					return optest.Upper(c)
				}
				cache[c.In] = true
				return optest.Empty(c)
			}
			r.SendEach("a")
			r.Advance(time.Second)
			require.NoError(t, r.End())
			require.Equal(t, "A", r.Outputs())
		},
	},
	{
		id:     "FLINK-37981",
		flink:  "the key-ordered operator does not send the last watermark",
		follow: "a key-ordered operator, if there is one",
	},
	{
		id:    "FLINK-7789",
		flink: "a timeout could only fail the job, before there was a handler",
		proof: func(t *testing.T, m optest.Mode) {
			r := optest.NewRig(t, m, optest.Setup{Timeout: time.Second, Wrap: optest.Handled})
			r.SendEach("a")
			r.Advance(time.Second)
			require.NoError(t, r.End())
			require.Equal(t, "a!", r.Outputs())
		},
	},

	// ---- Findings and wishes

	{
		id:    "user list 2024-08: throttling",
		flink: "capacity is the only limit, and counts elements that wait",
		proof: func(t *testing.T, m optest.Mode) {
			r := optest.NewRig(t, m, optest.Setup{Opts: optest.Options(asyncop.WithMaxConcurrentCalls(1))})
			r.SendEach("abc")
			require.Equal(t, "a#1", r.Calls())
			require.EqualValues(t, 3, r.Stats().InFlight)
			require.ErrorIs(t, r.Cut(optest.ErrTestOver), optest.ErrTestOver)
		},
	},
	{
		id:    "questions of 2026: granularity of retries",
		flink: "the whole invoke is repeated, and does not know that it is",
		proof: func(t *testing.T, m optest.Mode) {
			r := optest.NewRig(t, m, optest.Setup{Timeout: time.Minute, Strategy: optest.RetryAll(3, 0)})
			var attempts []int
			r.Answer = func(c *optest.Call) error {
				if attempts = append(attempts, asyncop.AttemptFromContext(c.Ctx)); len(attempts) < 3 {
					return optest.ErrBroken
				}
				return optest.Upper(c)
			}
			r.SendEach("a")
			require.NoError(t, r.End())
			require.Equal(t, []int{1, 2, 3}, attempts)
		},
	},
	{
		id:    "handler leak",
		flink: "a timeout in the first back-off leaves the handler in a set for ever, and calls once more at drain",
		proof: func(t *testing.T, m optest.Mode) {
			r := optest.NewRig(t, m, optest.Setup{Timeout: time.Second, Strategy: optest.RetryAll(9, time.Minute), Opts: optest.Options(asyncop.WithDropOnFailure())})
			r.SendEach("a")
			r.Fail("a#1", optest.ErrBroken)
			r.Advance(time.Second)
			require.NoError(t, r.End())
			require.Equal(t, "a#1", r.Calls())
			require.Zero(t, r.Stats().WaitingForRetry)
		},
	},
	{
		id:    "predicate cost on every completion",
		flink: "predicates are evaluated on timeout results, too, and by default on every completion",
		proof: func(t *testing.T, m optest.Mode) {
			asked := 0
			s := strategies.FixedDelay[string](9, 0).RetryIfException(func(error) bool { asked++; return true })
			r := optest.NewRig(t, m, optest.Setup{Timeout: time.Second, Strategy: s, Wrap: optest.Handled})
			r.Script("a#1", optest.Upper)
			r.SendEach("ab")
			r.Advance(time.Second)
			require.NoError(t, r.End())
			require.Zero(t, asked)
		},
	},
	{
		id:    "a synchronous error is not retried",
		flink: "what invoke throws never reaches the predicates and fails the task",
		proof: func(t *testing.T, m optest.Mode) {
			for _, broken := range []func(*optest.Call) error{optest.Fails, func(*optest.Call) error { panic(optest.ErrBroken) }} {
				r := optest.NewRig(t, m, optest.Setup{Timeout: time.Minute, Strategy: optest.RetryAll(1, 0)})
				r.Script("a#1", broken)
				r.Script("a#2", optest.Upper)
				r.SendEach("a")
				require.NoError(t, r.End())
				require.Equal(t, "A", r.Outputs())
			}
		},
	},
	{
		id:    "a predicate that throws",
		flink: "older versions swallow it, and the element is stuck; newer ones fail the task",
		proof: func(t *testing.T, m optest.Mode) {
			s := strategies.FixedDelay[string](9, 0).RetryIfResult(func([]string) bool { panic("broken") })
			r := optest.NewRig(t, m, optest.Setup{Timeout: time.Minute, Strategy: s, Opts: optest.Options(asyncop.WithDropOnFailure())})
			r.Answer = optest.Upper
			r.SendEach("a")
			require.NoError(t, r.End())
			require.EqualValues(t, 1, r.Stats().Dropped)
		},
	},
	{
		id:    "a timeout handler that completes nothing",
		flink: "the element is stuck: there is no second timer",
		proof: func(t *testing.T, m optest.Mode) {
			r := optest.NewRig(t, m, optest.Setup{Timeout: time.Second, Wrap: func(h *optest.Hand) optest.Function {
				return optest.TimeoutMethod(h, func(ctx context.Context, _ string) ([]string, error) {
					<-ctx.Done()
					return nil, nil
				})
			}})
			r.SendEach("a")
			r.Advance(time.Minute)
			require.ErrorContains(t, r.Wait(), string(optest.ErrHandlerLimit))
		},
	},
	{
		id:    "nil result",
		flink: "a null collection is an error that is thrown at the caller",
		proof: func(t *testing.T, m optest.Mode) {
			r := optest.NewRig(t, m, optest.Setup{})
			r.SendEach("a")
			r.Complete("a#1", []string(nil)...)
			require.NoError(t, r.End())
			require.EqualValues(t, 1, r.Stats().Completed)
		},
	},
	{
		id:    "complete() after close",
		flink: "the mailbox refuses, which is swallowed at debug level",
		proof: func(t *testing.T, m optest.Mode) {
			r := optest.NewRig(t, m, optest.Setup{})
			r.SendEach("a")
			require.ErrorIs(t, r.Cut(optest.ErrTestOver), optest.ErrTestOver)
			r.Complete("a#1", "A")
			require.EqualValues(t, 1, r.Stats().LateCompletions)
		},
	},
	{
		id:    "no per-attempt timeout, no cancellation of lost attempts",
		flink: "the total timeout is the only one, and the call it gave up on goes on",
		proof: func(t *testing.T, m optest.Mode) {
			r := optest.NewRig(t, m, optest.Setup{Timeout: time.Minute, Strategy: optest.RetryAll(9, 0), Opts: optest.Options(asyncop.WithAttemptTimeout(time.Second))})
			r.SendEach("a")
			r.Advance(time.Second)
			require.Equal(t, "a#1@0s a#2@1s", r.CallTimes())
			require.ErrorIs(t, r.Call("a#1").Ctx.Err(), context.DeadlineExceeded)
			require.NoError(t, r.Call("a#2").Ctx.Err())
			require.ErrorIs(t, r.Cut(optest.ErrTestOver), optest.ErrTestOver)
			require.ErrorIs(t, r.Call("a#2").Ctx.Err(), context.Canceled)
		},
	},
	{
		id:    "maxAttempts is the number of retries, and nobody says so",
		flink: "total invocations are maxAttempts + 1",
		proof: func(t *testing.T, m optest.Mode) {
			s := optest.RetryAll(2, 0)
			require.Equal(t, 2, s.MaxRetries())
			r := optest.NewRig(t, m, optest.Setup{Timeout: time.Minute, Strategy: s})
			r.Answer = optest.Fails
			r.SendEach("a")
			failed, _ := errors.AsType[*asyncop.ElementError](r.Wait())
			require.Equal(t, 3, failed.Attempts)
		},
	},
}

// Every item of the table, in both orders.
func TestTimeout_WhatFlinkGotWrong(t *testing.T) {
	for _, item := range flink {
		t.Run(item.id, func(t *testing.T) {
			if item.proof == nil {
				t.Skip("belongs to " + item.follow)
			}
			optest.ForEachMode(t, item.proof)
		})
	}
}
