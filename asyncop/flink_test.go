package asyncop_test

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
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/queue"
	"github.com/weirflow/weir/strategies"
)

// What Flink's AsyncWaitOperator got wrong, or its users miss, and the proof of what weir does instead: DESIGN.md,
// section 5, and the known bugs of FLIP-232 and asynchronous I/O. A nil proof belongs to a later part of weir.
var flink = []struct {
	id     string // what it was called, or the issue
	flink  string // what happened there
	proof  func(t *testing.T, m mode)
	follow string // where a nil proof will be
}{
	// ---- DESIGN.md, section 5

	{
		id:    "completion guards not bound to an attempt",
		flink: "a late duplicate completion of attempt 1 is taken as the result of attempt 2, which is running",
		proof: func(t *testing.T, m mode) {
			r := newRig(t, m, setup{timeout: time.Minute, strategy: retryAll(3, 0)})
			r.sendEach("a")
			r.fail("a#1", errBroken)
			r.complete("a#1", "of attempt 1")
			require.Empty(t, r.outputs())
			r.complete("a#2", "of attempt 2")
			require.NoError(t, r.end())
			require.Equal(t, "of attempt 2", r.outputs())
		},
	},
	{
		id:    "a timeout that races a retry and hangs the element (FLINK-40456)",
		flink: "a timeout whose result is dropped because a retry was just scheduled: the element neither leaves nor fails",
		proof: func(t *testing.T, m mode) {
			for _, outcome := range []time.Duration{time.Second - 1, time.Second, time.Second + 1} {
				for _, delay := range []time.Duration{0, 1, 2} {
					r := newRig(t, m, setup{timeout: time.Second, strategy: retryAll(99, delay), wrap: handled})
					r.sendEach("a")
					c := r.call("a#1")
					time.AfterFunc(outcome, func() { c.CompleteExceptionally(errBroken) })
					r.advance(2 * time.Second)
					require.Equal(t, "a!@1s", r.outputTimes(), "%v, %v", outcome, delay)
					require.NoError(t, r.end())
				}
			}
		},
	},
	{
		id:    "a retry fired from the timeout handler (FLINK-38082)",
		flink: "timeout() that completes exceptionally starts retries after the deadline, with no timer left",
		proof: func(t *testing.T, m mode) {
			r := newRig(t, m, setup{
				timeout: time.Second, strategy: retryAll(9, time.Millisecond),
				wrap: func(h *hand) function {
					return timeoutMethod(h, func(context.Context, string) ([]string, error) { return nil, errBroken })
				},
			})
			r.sendEach("a")
			r.advance(time.Minute)
			require.ErrorIs(t, r.wait(), errBroken)
			require.Equal(t, "a#1", r.calls())
		},
	},
	{
		id:    "a record called twice at drain",
		flink: "a record whose retry is running when the input ends is invoked a second time, concurrently",
		proof: func(t *testing.T, m mode) {
			r := newRig(t, m, setup{timeout: time.Minute, strategy: retryAll(9, time.Second)})
			r.sendEach("a")
			r.fail("a#1", errBroken)
			r.advance(time.Second)
			r.endInput() // a#2 runs
			r.advance(10 * time.Second)
			require.Equal(t, "a#1 a#2", r.calls())
			r.complete("a#2", "A")
			require.NoError(t, r.wait())
		},
	},
	{
		id:    "exponential state shared by all records",
		flink: "the previous delay is one mutable field of the strategy: interleaved records disturb each other's sequence",
		proof: func(t *testing.T, m mode) {
			s := strategies.ExponentialBackoff[string](9, time.Second, time.Hour, 2).RetryIfException(predicates.HasException)
			r := newRig(t, m, setup{timeout: time.Minute, strategy: s})
			r.answer = fails
			r.sendEach("a")
			r.advance(1500 * time.Millisecond)
			r.sendEach("b")
			r.advance(6500 * time.Millisecond)
			require.Equal(t, "a#1@0s a#2@1s b#1@1.5s b#2@2.5s a#3@3s b#3@4.5s a#4@7s", r.callTimes())
			require.ErrorIs(t, r.cut(errTestOver), errTestOver)
		},
	},
	{
		id:    "unvalidated arguments",
		flink: "the exponential builder validates nothing; a nil predicate means absent; sub-millisecond times become 0",
		proof: func(t *testing.T, m mode) {
			fn := newHand(t)
			for _, f := range []func(){
				func() { strategies.ExponentialBackoff[string](-1, 0, 0, 1) },
				func() { strategies.ExponentialBackoff[string](1, 2, 1, 1) },
				func() { strategies.ExponentialBackoff[string](1, 1, 2, 0.5) },
				func() { strategies.ExponentialBackoff[string](1, 1, 2, math.NaN()) },
				func() { strategies.FixedDelay[string](-1, 0) },
				func() { strategies.FixedDelay[string](0, -1) },
				func() { construct[string, string](mode{capacity: 0}, fn, 0, nil) },
				func() { construct[string, string](m, fn, -1, nil) },
				func() { construct[string, string](m, fn, 0, strategy(retryAll(1, 0))) },
				func() { construct[string, string](m, nil, 0, nil) },
			} {
				require.NotEqual(t, "no panic", panicOf(f))
			}
			r := newRig(t, m, setup{timeout: 500 * time.Nanosecond, strategy: retryAll(1, 200*time.Nanosecond), wrap: handled})
			r.answer = fails
			r.script("a#2", func(*call) error { return nil })
			r.sendEach("a")
			r.advance(time.Millisecond)
			require.Equal(t, "a#1@0s a#2@200ns", r.callTimes())
			require.Equal(t, "a!@500ns", r.outputTimes())
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
		proof: func(t *testing.T, m mode) {
			q := queue.NewUnordered[string](8)
			if m.ordered {
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
		proof: func(t *testing.T, m mode) {
			side := newSideSink(false)
			for _, policy := range []asyncop.Option{asyncop.WithDropOnFailure(), asyncop.WithFailureSink(side.take)} {
				r := newRig(t, m, setup{opts: options(policy)})
				r.sendEach("ab")
				r.fail("a#1", errBroken)
				r.complete("b#1", "B")
				require.NoError(t, r.end())
				require.Equal(t, "B", r.outputs())
			}
			require.Equal(t, "a", side.elements())
		},
	},
	{
		id:    "no metrics (FLINK-34046)",
		flink: "the operator registers none of its own: no retries, no drops after exhaustion, no successes after a retry",
		proof: func(t *testing.T, m mode) {
			r := newRig(t, m, setup{timeout: time.Minute, strategy: retryAll(1, 0), opts: options(asyncop.WithDropOnFailure())})
			r.script("a#1", fails)
			r.script("a#2", fails)
			r.script("b#1", empty)
			r.script("b#2", upper)
			r.sendEach("ab")
			require.NoError(t, r.end())
			s := r.stats()
			require.Equal(t, asyncop.Stats{
				Accepted: 2, Completed: 1, Emitted: 1, Attempts: 4, RetriesOnError: 1, RetriesOnResult: 1,
				Exhausted: 1, Failures: 1, Dropped: 1,
			}, s)
		},
	},
	{
		id:    "a scheduled-executor timer and two mails per record",
		flink: "each record registers and cancels a timer of the executor, and costs two mails even if nothing fails",
		proof: func(t *testing.T, m mode) {
			m.capacity = 1000
			c := &countingClock{Clock: clock.New()}
			timers := func() int64 { return c.armed.Load() }
			r := newRig(t, m, setup{
				timeout: time.Hour, strategy: retryAll(3, time.Minute), opts: options(asyncop.WithClock(c)),
			})
			before := runtime.NumGoroutine()
			for range 1000 {
				r.op.In() <- "a"
			}
			synctest.Wait()
			for _, c := range r.callsOf("a")[:500] {
				c.CompleteExceptionally(errBroken)
			}
			require.EqualValues(t, 500, r.stats().WaitingForRetry)
			require.LessOrEqual(t, timers(), int64(2), "one timer of the runtime serves them all")
			require.LessOrEqual(t, runtime.NumGoroutine(), before)
			require.ErrorIs(t, r.cut(errTestOver), errTestOver)
		},
	},

	// ---- Issues of Flink

	{
		id:    "FLINK-30477",
		flink: "the retry timer is still pending when the timeout fires: more retries follow",
		proof: func(t *testing.T, m mode) {
			r := newRig(t, m, setup{timeout: time.Second, strategy: retryAll(9, 999*time.Millisecond), wrap: handled})
			r.script("a#1", fails)
			r.sendEach("b")
			r.script("x#1", func(*call) error { time.Sleep(2 * time.Second); return nil }) // when the loop looks, both are due
			r.op.In() <- "a"
			r.op.In() <- "x"
			r.advance(time.Minute)
			require.Equal(t, "b#1 a#1 x#1", r.calls())
			require.NoError(t, r.end())
			require.ElementsMatch(t, []string{"a!", "b!", "x!"}, strings.Fields(r.outputs()))
		},
	},
	{
		id:    "FLINK-22573",
		flink: "timeout() is called on an element that completed while the mailbox was blocked",
		proof: func(t *testing.T, m mode) {
			r := newRig(t, m, setup{timeout: time.Second, wrap: func(h *hand) function {
				return timeoutMethod(h, func(_ context.Context, in string) ([]string, error) {
					return nil, fmt.Errorf("%s timed out", in)
				})
			}})
			r.script("b#1", func(c *call) error { time.Sleep(10 * time.Second); return upper(c) })
			r.sendEach("a")
			a := r.call("a#1")
			r.op.In() <- "b" // and the loop is away
			time.Sleep(500 * time.Millisecond)
			a.Complete("A")
			require.NoError(t, r.end())
			require.Equal(t, "A B", r.outputs())
		},
	},
	{
		id:    "FLINK-13605 and FLINK-13635",
		flink: "races of completion, timeout and the timer's cancellation",
		proof: func(t *testing.T, m mode) {
			for range 50 { // in the same instant, in random order
				r := newRig(t, m, setup{timeout: time.Second, wrap: handled})
				r.sendEach("a")
				c := r.call("a#1")
				time.AfterFunc(time.Second, func() { c.Complete("A") })
				time.AfterFunc(time.Second, func() { c.CompleteExceptionally(errBroken) })
				r.advance(time.Second)
				err := r.end()
				s := r.stats()
				require.EqualValues(t, 1, s.Completed+s.Failed)
				require.Equal(t, err != nil, s.Failed == 1)
				require.Zero(t, s.Running)
				checkBalance(t, s)
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
		proof: func(t *testing.T, m mode) {
			m.capacity = 1
			r := newRig(t, m, setup{timeout: time.Second, wrap: handled, opts: options(asyncop.WithBuffer(0))})
			r.send("a")
			go func() { r.op.In() <- mark(1) }()
			r.advance(time.Second) // timers go on, and make room
			require.Equal(t, "a! |1|", r.outputs())
			require.NoError(t, r.end())
		},
	},
	{
		id:    "FLINK-6435",
		flink: "an exception or a timeout does not complete its entry, and those behind it wait for ever",
		proof: func(t *testing.T, m mode) {
			r := newRig(t, m, setup{timeout: time.Second, opts: options(asyncop.WithDropOnFailure())})
			r.send("a", "b", mark(1), "c")
			r.complete("c#1", "C")
			r.fail("a#1", errBroken)
			r.advance(time.Second)
			require.Equal(t, "|1| C", r.outputs())
			require.NoError(t, r.end())
		},
	},
	{
		id:    "FLINK-5638 and FLINK-5652",
		flink: "close deadlocks while elements are in flight; timers leak",
		proof: func(t *testing.T, m mode) {
			m.capacity = 2
			c := &countingClock{Clock: clock.New()}
			r := newRig(t, m, setup{
				timeout: time.Hour, blocked: true, opts: options(asyncop.WithClock(c), asyncop.WithBuffer(0)),
			})
			r.sendEach("ab") // full
			r.complete("a#1", "A")
			go func() { r.op.In() <- "c" }()
			require.ErrorIs(t, r.cut(errTestOver), errTestOver)
			r.advance(2 * time.Hour)
			require.Zero(t, c.fired.Load())
		},
	},
	{
		id:    "FLINK-13063, FLINK-16219, FLINK-20444, FLINK-21639",
		flink: "chaining of the operator with others gives inconsistent results and was switched off for years",
		proof: func(t *testing.T, m mode) {
			first, second := construct[int, int](m, slowly(0), 0, nil), construct[int, int](m, slowly(0), 0, nil)
			same(t, m, numbers(20), drain(source(numbers(20)...).Via(first).Via(second)))
		},
	},
	{
		id:    "FLINK-13491",
		flink: "the end of the input does not wait for elements in flight",
		proof: func(t *testing.T, m mode) {
			r := newRig(t, m, setup{})
			r.sendEach("ab")
			r.endInput()
			r.advance(time.Hour)
			require.Empty(t, r.outputs())
			r.complete("b#1", "B")
			r.complete("a#1", "A")
			require.NoError(t, r.wait())
			require.Equal(t, m.pick("A B", "B A"), r.outputs())
		},
	},
	{
		id:    "FLINK-37243",
		flink: "results are converted on the thread of the user's callback",
		proof: func(t *testing.T, m mode) {
			var inPredicate, most int // the loop's: the race detector would see others
			s := strategies.FixedDelay[string](1, 0).RetryIfResult(func([]string) bool {
				inPredicate++
				most = max(most, inPredicate)
				time.Sleep(time.Millisecond)
				inPredicate--
				return false
			})
			r := newRig(t, m, setup{timeout: time.Minute, strategy: s})
			r.sendEach("abcd")
			for _, c := range r.callsOf("abcd") {
				go c.Complete(c.in)
			}
			r.advance(time.Second)
			require.NoError(t, r.end())
			require.Equal(t, 1, most)
		},
	},
	{
		id:    "FLINK-32006, FLINK-29038, FLINK-35810",
		flink: "flaky retry tests: real sleeps",
		proof: func(t *testing.T, m mode) {
			m.mock = true
			r := newRig(t, m, setup{timeout: time.Hour, strategy: retryAll(1, 10*time.Minute)})
			r.sendEach("a")
			r.fail("a#1", errBroken)
			r.advance(10*time.Minute - 1)
			require.Equal(t, "a#1", r.calls())
			r.advance(1)
			require.Equal(t, "a#1@0s a#2@10m0s", r.callTimes())
			r.complete("a#2", "A")
			require.NoError(t, r.end())
		},
	},
	{
		id:    "FLINK-28899",
		flink: "a function with a cache cannot be retried by the operator: the cached empty value would answer",
		proof: func(t *testing.T, m mode) {
			cache := map[string]bool{} // of misses
			r := newRig(t, m, setup{timeout: time.Minute, strategy: retryAll(1, time.Second)})
			r.answer = func(c *call) error {
				if cache[c.in] && asyncop.AttemptFromContext(c.ctx) == 1 { // a retry asks again
					return empty(c)
				}
				if cache[c.in] {
					return upper(c)
				}
				cache[c.in] = true
				return empty(c)
			}
			r.sendEach("a")
			r.advance(time.Second)
			require.NoError(t, r.end())
			require.Equal(t, "A", r.outputs())
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
		proof: func(t *testing.T, m mode) {
			r := newRig(t, m, setup{timeout: time.Second, wrap: handled})
			r.sendEach("a")
			r.advance(time.Second)
			require.NoError(t, r.end())
			require.Equal(t, "a!", r.outputs())
		},
	},

	// ---- Findings and wishes

	{
		id:    "user list 2024-08: throttling",
		flink: "capacity is the only limit, and counts elements that wait",
		proof: func(t *testing.T, m mode) {
			r := newRig(t, m, setup{opts: options(asyncop.WithMaxConcurrentCalls(1))})
			r.sendEach("abc")
			require.Equal(t, "a#1", r.calls())
			require.EqualValues(t, 3, r.stats().InFlight)
			require.ErrorIs(t, r.cut(errTestOver), errTestOver)
		},
	},
	{
		id:    "questions of 2026: granularity of retries",
		flink: "the whole invoke is repeated, and does not know that it is",
		proof: func(t *testing.T, m mode) {
			r := newRig(t, m, setup{timeout: time.Minute, strategy: retryAll(3, 0)})
			var attempts []int
			r.answer = func(c *call) error {
				if attempts = append(attempts, asyncop.AttemptFromContext(c.ctx)); len(attempts) < 3 {
					return errBroken
				}
				return upper(c)
			}
			r.sendEach("a")
			require.NoError(t, r.end())
			require.Equal(t, []int{1, 2, 3}, attempts)
		},
	},
	{
		id:    "handler leak",
		flink: "a timeout in the first back-off leaves the handler in a set for ever, and calls once more at drain",
		proof: func(t *testing.T, m mode) {
			r := newRig(t, m, setup{timeout: time.Second, strategy: retryAll(9, time.Minute), opts: options(asyncop.WithDropOnFailure())})
			r.sendEach("a")
			r.fail("a#1", errBroken)
			r.advance(time.Second)
			require.NoError(t, r.end())
			require.Equal(t, "a#1", r.calls())
			require.Zero(t, r.stats().WaitingForRetry)
		},
	},
	{
		id:    "predicate cost on every completion",
		flink: "predicates are evaluated on timeout results, too, and by default on every completion",
		proof: func(t *testing.T, m mode) {
			asked := 0
			s := strategies.FixedDelay[string](9, 0).RetryIfException(func(error) bool { asked++; return true })
			r := newRig(t, m, setup{timeout: time.Second, strategy: s, wrap: handled})
			r.script("a#1", upper)
			r.sendEach("ab")
			r.advance(time.Second)
			require.NoError(t, r.end())
			require.Zero(t, asked)
		},
	},
	{
		id:    "a synchronous error is not retried",
		flink: "what invoke throws never reaches the predicates and fails the task",
		proof: func(t *testing.T, m mode) {
			for _, broken := range []func(*call) error{fails, func(*call) error { panic(errBroken) }} {
				r := newRig(t, m, setup{timeout: time.Minute, strategy: retryAll(1, 0)})
				r.script("a#1", broken)
				r.script("a#2", upper)
				r.sendEach("a")
				require.NoError(t, r.end())
				require.Equal(t, "A", r.outputs())
			}
		},
	},
	{
		id:    "a predicate that throws",
		flink: "older versions swallow it, and the element is stuck; newer ones fail the task",
		proof: func(t *testing.T, m mode) {
			s := strategies.FixedDelay[string](9, 0).RetryIfResult(func([]string) bool { panic("broken") })
			r := newRig(t, m, setup{timeout: time.Minute, strategy: s, opts: options(asyncop.WithDropOnFailure())})
			r.answer = upper
			r.sendEach("a")
			require.NoError(t, r.end())
			require.EqualValues(t, 1, r.stats().Dropped)
		},
	},
	{
		id:    "a timeout handler that completes nothing",
		flink: "the element is stuck: there is no second timer",
		proof: func(t *testing.T, m mode) {
			r := newRig(t, m, setup{timeout: time.Second, wrap: func(h *hand) function {
				return timeoutMethod(h, func(ctx context.Context, _ string) ([]string, error) {
					<-ctx.Done()
					return nil, nil
				})
			}})
			r.sendEach("a")
			r.advance(time.Minute)
			require.ErrorContains(t, r.wait(), string(errHandlerLimit))
		},
	},
	{
		id:    "nil result",
		flink: "a null collection is an error that is thrown at the caller",
		proof: func(t *testing.T, m mode) {
			r := newRig(t, m, setup{})
			r.sendEach("a")
			r.complete("a#1", []string(nil)...)
			require.NoError(t, r.end())
			require.EqualValues(t, 1, r.stats().Completed)
		},
	},
	{
		id:    "complete() after close",
		flink: "the mailbox refuses, which is swallowed at debug level",
		proof: func(t *testing.T, m mode) {
			r := newRig(t, m, setup{})
			r.sendEach("a")
			require.ErrorIs(t, r.cut(errTestOver), errTestOver)
			r.complete("a#1", "A")
			require.EqualValues(t, 1, r.stats().LateCompletions)
		},
	},
	{
		id:    "no per-attempt timeout, no cancellation of lost attempts",
		flink: "the total timeout is the only one, and the call it gave up on goes on",
		proof: func(t *testing.T, m mode) {
			r := newRig(t, m, setup{timeout: time.Minute, strategy: retryAll(9, 0), opts: options(asyncop.WithAttemptTimeout(time.Second))})
			r.sendEach("a")
			r.advance(time.Second)
			require.Equal(t, "a#1@0s a#2@1s", r.callTimes())
			require.ErrorIs(t, r.call("a#1").ctx.Err(), context.DeadlineExceeded)
			require.NoError(t, r.call("a#2").ctx.Err())
			require.ErrorIs(t, r.cut(errTestOver), errTestOver)
			require.ErrorIs(t, r.call("a#2").ctx.Err(), context.Canceled)
		},
	},
	{
		id:    "maxAttempts is the number of retries, and nobody says so",
		flink: "total invocations are maxAttempts + 1",
		proof: func(t *testing.T, m mode) {
			s := retryAll(2, 0)
			require.Equal(t, 2, s.MaxRetries())
			r := newRig(t, m, setup{timeout: time.Minute, strategy: s})
			r.answer = fails
			r.sendEach("a")
			failed, _ := errors.AsType[*asyncop.ElementError](r.wait())
			require.Equal(t, 3, failed.Attempts)
		},
	},
}

// Every item of the table, in both orders.
func TestWhatFlinkGotWrong(t *testing.T) {
	for _, item := range flink {
		t.Run(item.id, func(t *testing.T) {
			if item.proof == nil {
				t.Skip("belongs to " + item.follow)
			}
			forEachMode(t, item.proof)
		})
	}
}
