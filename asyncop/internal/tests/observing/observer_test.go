package observing_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/internal/optest"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// Law O1: each end of an element is reported once, however the element ends.
func TestObserverHearsEveryEnd(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		o := optest.NewTally(t)
		var taken []string
		r := optest.NewRig(t, m, optest.Setup{Timeout: 10 * time.Second, Strategy: optest.RetryAll(2, time.Second), Opts: optest.Options(
			asyncop.WithObserver(o), asyncop.WithFailureSink(func(_ context.Context, f optest.Failure) error {
				taken = append(taken, f.Element)
				return nil
			}),
		)})
		r.Send("a", "b", "c", "d", "e")
		r.Complete("a#1", "x")
		r.Complete("b#1")               // empty: retried
		r.Fail("c#1", optest.ErrBroken) // retried
		r.Advance(time.Second)
		r.Complete("b#2", "y", "z")
		r.Fail("c#2", optest.ErrBroken)
		r.Advance(time.Second)
		r.Fail("c#3", optest.ErrBroken)
		r.Advance(time.Minute) // d and e time out
		require.NoError(t, r.End())
		assert.Equal(t, map[observe.EndKind]int{observe.Emitted: 2, observe.HandedOver: 3}, o.Over)
		assert.Equal(t, 5, o.Begun)
		assert.EqualValues(t, r.Stats().Attempts, o.Attempts)
		assert.Equal(t, 2, o.Endings["b"].Results)
		assert.Equal(t, 2, o.Endings["b"].Attempts)
		assert.Equal(t, time.Second, o.Endings["b"].Total)
		assert.Equal(t, optest.ErrBroken, o.Endings["c"].Err)
		assert.Equal(t, 2*time.Second, o.Endings["c"].Total)
		assert.ErrorIs(t, o.Endings["d"].Err, context.DeadlineExceeded)
		assert.True(t, o.Endings["d"].InDoubt)
		assert.False(t, o.Endings["a"].InDoubt)
		slices.Sort(taken)
		assert.Equal(t, []string{"c", "d", "e"}, taken)
	})
}

// Law O1: a success, even without results, resolves the doubt about an earlier attempt
// that may have taken effect.
func TestObserverOfASuccessAfterDoubt(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		o := optest.NewTally(t)
		again := optest.Always(true, strategies.RetryAfter(time.Second))
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: 10 * time.Second, Strategy: optest.Because(optest.UnsafeReason, again), Opts: optest.Options(asyncop.WithObserver(o)),
		})
		r.Send("a", "b")
		r.Fail("a#1", optest.ErrBroken)
		r.Fail("b#1", optest.ErrBroken)
		r.Advance(time.Second)
		r.Complete("a#2")
		r.Complete("b#2", "x")
		require.NoError(t, r.End())
		assert.Equal(t, map[observe.EndKind]int{observe.Empty: 1, observe.Emitted: 1}, o.Over)
		assert.False(t, o.Endings["a"].InDoubt)
		assert.False(t, o.Endings["b"].InDoubt)
	})
}

// Elements that the end of the operator cuts off, and elements that come later.
func TestObserverOfACutOperator(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		o := optest.NewTally(t)
		r := optest.NewRig(t, m, optest.Setup{Blocked: true, Opts: optest.Options(asyncop.WithObserver(o), asyncop.WithBuffer(0))})
		r.Send("a", "b", "c")
		r.Complete("a#1", "x") // downstream is blocked
		synctest.Wait()
		cause := errors.New("cut")
		require.ErrorIs(t, r.Cut(cause), cause)
		r.Send("d", optest.Mark(1)) // a watermark is not an element
		r.EndInputOnce()
		synctest.Wait()
		assert.Equal(t, map[observe.EndKind]int{observe.Abandoned: 3, observe.Discarded: 1}, o.Over)
		assert.ErrorIs(t, o.Endings["b"].Err, cause)
		assert.True(t, o.Endings["a"].InDoubt, "nobody else knows that it has taken effect")
	})
}

// slowlyClosed takes a second to close.
type slowlyClosed struct {
	asyncop.AsyncFunction[int, int]
}

func (slowlyClosed) Close() error { time.Sleep(time.Second); return nil }

// Elements that arrive while the operator ends are reported when it has ended.
func TestObserverOfElementsThatComeAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := optest.NewTally(t)
		ctx, cancel := context.WithCancel(t.Context())
		op := asyncop.OrderedWait[int, int](slowlyClosed{asyncop.Func(optest.Double)}, 0, 4, asyncop.WithObserver(o), asyncop.WithContext(ctx))
		in := op.In()
		cancel()
		<-op.Out()
		in <- 1
		close(in)
		require.ErrorIs(t, op.Wait(), context.Canceled)
		synctest.Wait()
		assert.Equal(t, map[observe.EndKind]int{observe.Discarded: 1}, o.Over)
	})
}

// Law O1: with Results, an element has left when the body of the loop returns from its
// results. Results in the ring when the loop is left are discarded.
func TestObserverOfResults(t *testing.T) {
	for _, c := range []struct {
		name string
		loop func(t *testing.T, results iter.Seq2[int, error])
		n    int
		want map[observe.EndKind]int // the rest is Discarded
	}{
		{"whole", func(t *testing.T, results iter.Seq2[int, error]) {
			for _, err := range results {
				require.NoError(t, err)
			}
		}, 1000, map[observe.EndKind]int{observe.Emitted: 1000}},
		{"break", func(t *testing.T, results iter.Seq2[int, error]) {
			for v, err := range results {
				require.NoError(t, err)
				if v == 20 {
					break
				}
			}
		}, 1000, map[observe.EndKind]int{observe.Emitted: 11}},
		{"panic", func(t *testing.T, results iter.Seq2[int, error]) {
			defer func() { _ = recover() }()
			for v, err := range results {
				require.NoError(t, err)
				if v == 20 {
					panic("body")
				}
			}
		}, 1000, map[observe.EndKind]int{observe.Emitted: 10}},
		{"goexit", func(t *testing.T, results iter.Seq2[int, error]) {
			done := make(chan struct{})
			go func() {
				defer close(done)
				for v, err := range results {
					require.NoError(t, err)
					if v == 20 {
						runtime.Goexit()
					}
				}
			}()
			<-done
		}, 1000, map[observe.EndKind]int{observe.Emitted: 10}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := optest.NewTally(t)
				op := asyncop.OrderedWait(asyncop.Func(optest.Double), 0, 8, asyncop.WithObserver(o), asyncop.WithBuffer(16))
				received := 0
				c.loop(t, op.Results(func(yield func(int) bool) {
					for i := range optest.UpTo(c.n) {
						received++
						if !yield(i) {
							return
						}
					}
				}))
				synctest.Wait() // the input has noticed
				for how, n := range c.want {
					assert.Equal(t, n, o.Over[how], how)
				}
				assert.Equal(t, received, o.Sum(), o.Over)
				assert.Equal(t, c.name != "whole", o.Over[observe.Discarded] > 0)
				assert.Equal(t, c.name != "whole", o.Doubt, "what was called and not taken is in doubt")
				delete(o.Over, observe.Emitted)
				delete(o.Over, observe.Discarded)
				delete(o.Over, observe.Abandoned)
				assert.Empty(t, o.Over)
			})
		})
	}
}

// While the body of the loop is busy, elements whose results wait in the ring are not
// reported. They are reported when the body returns.
func TestObserverOfSlowReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := optest.NewTally(t)
		op := asyncop.OrderedWait(asyncop.Func(optest.Double), 0, 8, asyncop.WithObserver(o), asyncop.WithBuffer(4))
		n := 0
		for _, err := range op.Results(optest.UpTo(3)) {
			require.NoError(t, err)
			synctest.Wait()
			assert.Equal(t, n, o.Over[observe.Emitted])
			n++
		}
		assert.Equal(t, 3, o.Over[observe.Emitted])
	})
	synctest.Test(t, func(t *testing.T) {
		o := optest.NewTally(t)
		first := asyncop.OrderedWait(asyncop.Func(optest.Double), 0, 8, asyncop.WithObserver(o))
		next := &optest.Inlet{Input: make(chan any)}
		go first.To(next)
		synctest.Wait() // results go through its ring
		first.In() <- 1
		first.In() <- 2
		close(first.In())
		synctest.Wait()
		assert.Zero(t, o.Sum())
		select {
		case <-first.Done():
			t.Error("done, and it is not known what becomes of the results")
		default:
		}
		<-next.Input
		synctest.Wait()
		assert.Equal(t, 1, o.Over[observe.Emitted])
		<-next.Input
		require.NoError(t, first.Wait())
		assert.Equal(t, 2, o.Over[observe.Emitted])
	})
}

// Results that are downstream when the operator is cancelled count as emitted if
// downstream returns. Done waits for that.
func TestObserverOfReadersAtACancel(t *testing.T) {
	start := func(t *testing.T) (o *optest.Tally, op *asyncop.AsyncWaitOperator[int, int], cancel func()) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		o = optest.NewTally(t)
		return o, asyncop.OrderedWait(asyncop.Func(optest.Double), 0, 8, asyncop.WithObserver(o), asyncop.WithContext(ctx)), cancel
	}
	t.Run("the body of a loop", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			o, op, cancel := start(t)
			n := 0
			for _, err := range op.Results(optest.UpTo(3)) {
				if err != nil {
					require.ErrorIs(t, err, context.Canceled)
					break
				}
				if n++; n == 1 {
					synctest.Wait()
					cancel()
					synctest.Wait()
					assert.Zero(t, o.Over[observe.Emitted])
				}
			}
			<-op.Done()
			assert.Equal(t, observe.Emitted, o.Endings["0"].How)
		})
	})
	t.Run("the next flow", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			o, op, cancel := start(t)
			next := &optest.Inlet{Input: make(chan any)}
			go op.To(next)
			synctest.Wait() // results go through its ring
			op.In() <- 1
			synctest.Wait()
			cancel()
			synctest.Wait()
			assert.Zero(t, o.Sum())
			<-next.Input
			close(op.In())
			for range next.Input {
				t.Error("nothing is left")
			}
			require.ErrorIs(t, op.Wait(), context.Canceled)
			assert.Equal(t, map[observe.EndKind]int{observe.Emitted: 1}, o.Over)
		})
	})
}

// Calls and the timeout handler find the values that observers add in their contexts.
// Blocking calls keep their permit.
func TestObserverContextsReachCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		running, most := 0, 0
		fn := optest.TimeoutMethod(asyncop.Blocking(func(ctx context.Context, in int) (string, error) {
			running++
			most = max(most, running)
			defer func() { running-- }()
			if in == 3 {
				<-ctx.Done()
				return "", ctx.Err()
			}
			return fmt.Sprintf("%d: %v, attempt %d", in, ctx.Value(optest.TallyKey{}), asyncop.AttemptFromContext(ctx)), nil
		}), func(ctx context.Context, in int) ([]string, error) {
			return []string{fmt.Sprintf("%d late: %v", in, ctx.Value(optest.TallyKey{}))}, nil
		})
		op := asyncop.OrderedWait(fn, time.Second, 8, asyncop.WithObserver(optest.NewTally(t)), asyncop.WithMaxConcurrentCalls(1))
		var got []string
		for v, err := range op.Results(optest.UpTo(4)) {
			require.NoError(t, err)
			got = append(got, v)
		}
		assert.Equal(t, "0: 0, attempt 1; 1: 1, attempt 1; 2: 2, attempt 1; 3 late: 3", strings.Join(got, "; "))
		assert.Equal(t, 1, most)
	})
}

// The same for a plain blocking function, whose calls take a shorter path.
func TestObserverContextsReachBlockingCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fn := asyncop.Blocking(func(ctx context.Context, in int) (string, error) {
			return fmt.Sprint(in, ctx.Value(optest.TallyKey{})), nil
		})
		op := asyncop.OrderedWait(fn, time.Second, 8, asyncop.WithObserver(optest.NewTally(t)))
		var got []string
		for v, err := range op.Results(optest.UpTo(3)) {
			require.NoError(t, err)
			got = append(got, v)
		}
		assert.Equal(t, []string{"0 0", "1 1", "2 2"}, got)
	})
}

// Several observers are called in order. If one breaks, the others are still called.
func TestWithObserver_Several(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		first, second := optest.NewTally(t), optest.NewTally(t)
		breaking := &breaks{}
		op := asyncop.OrderedWait(asyncop.Func(optest.Double), 0, 4, asyncop.WithObserver(first), asyncop.WithObserver(breaking),
			asyncop.WithObserver(second), asyncop.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		n := 0
		for _, err := range op.Results(optest.UpTo(10)) {
			require.NoError(t, err)
			n++
		}
		assert.Equal(t, 10, n)
		assert.Equal(t, map[observe.EndKind]int{observe.Emitted: 10}, first.Over)
		assert.Equal(t, first.Over, second.Over)
		assert.Contains(t, log.String(), "an observer broke")
		assert.Contains(t, log.String(), "ended: broken")
	})
	assert.PanicsWithValue(t, "asyncop: WithObserver: nil observer", func() { asyncop.WithObserver(nil) })
}

// breaks panics when an attempt or an element ends.
type breaks struct{ optest.Tally }

func (*breaks) Accepted(ctx context.Context, _ any, _ bool) context.Context { return nil }
func (*breaks) AttemptStarted(ctx context.Context, _ int) context.Context   { return nil }
func (*breaks) AttemptEnded(context.Context, observe.Outcome)               { panic("attempt ended: broken") }

func (*breaks) Ended(context.Context, observe.Ending) { panic("ended: broken") }

// A gate holds the input back until it reports that it is open.
func TestGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &optest.Door{Tally: *optest.NewTally(t)}
		op := asyncop.OrderedWait(asyncop.Func(optest.Double), 0, 4, asyncop.WithObserver(d), asyncop.WithBuffer(0))
		go op.To(&optest.Inlet{Input: make(chan any, 10)})
		in := op.In()
		go func() {
			for i := range 3 {
				in <- i
			}
			close(in)
		}()
		synctest.Wait()
		assert.Zero(t, op.Stats().Accepted)
		d.Open.Store(true)
		d.Bell()
		require.NoError(t, op.Wait())
		assert.Equal(t, 3, d.Over[observe.Emitted])
	})
	synctest.Test(t, func(t *testing.T) {
		op := asyncop.OrderedWait(asyncop.Func(optest.Double), 0, 4, asyncop.WithObserver(&optest.Door{Tally: *optest.NewTally(t), Breaks: true}))
		var last error
		for _, err := range op.Results(optest.UpTo(3)) {
			last = err
		}
		assert.ErrorContains(t, last, "gate")
		assert.ErrorContains(t, last, "the door is stuck")
	})
}

// turnstile is a gate that admits as many elements as the test allows.
type turnstile struct {
	optest.Mute
	free     int
	notified int // number of calls of Notify
	notify   func()
}

func (g *turnstile) Accepted(ctx context.Context, _ any, _ bool) context.Context {
	g.free--
	return ctx
}
func (g *turnstile) TryAdmit() bool  { return g.free > 0 }
func (g *turnstile) Notify(f func()) { g.notified++; g.notify = f }

// The loop registers once at a closed gate, however often it checks the gate, and again
// after the gate has closed again.
func TestGateIsWaitedForOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &turnstile{free: 1}
		op := asyncop.OrderedWaitWithRetry(asyncop.Func(func(ctx context.Context, in int, result asyncop.ResultFuture[int]) error {
			if asyncop.AttemptFromContext(ctx) <= 3 { // keeps the loop busy
				return optest.ErrBroken
			}
			result.Complete(in)
			return nil
		}), time.Hour, 4, strategies.FixedDelay[int](3, time.Second).RetryIfException(predicates.HasException), asyncop.WithObserver(g))
		go op.To(&optest.Inlet{Input: make(chan any, 10)})
		for i := range 3 {
			op.In() <- i
			time.Sleep(5 * time.Second)
			synctest.Wait()
			assert.EqualValues(t, i+1, op.Stats().Accepted)
			assert.Equal(t, i+1, g.notified)
			g.free++
			g.notify()
		}
		close(op.In())
		require.NoError(t, op.Wait())
	})
}

// revolving is a gate that admits each element at its third request. Notify calls its
// function immediately.
type revolving struct {
	optest.Mute
	asked int
}

func (g *revolving) Accepted(ctx context.Context, _ any, _ bool) context.Context {
	g.asked = 0
	return ctx
}
func (g *revolving) TryAdmit() bool { g.asked++; return g.asked > 2 }
func (*revolving) Notify(f func())  { f() }

// An opening of the gate while the loop is about to sleep is noticed.
func TestGateThatOpensAtOnce(t *testing.T) {
	gated := func() *optest.Operator {
		return asyncop.OrderedWait(optest.UpperFunc(), 0, 4, asyncop.WithObserver(&revolving{}), asyncop.WithBuffer(0))
	}
	t.Run("chained", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { require.Equal(t, "A B C", <-optest.Chain(gated(), optest.ElementsOf("abc"), nil)) })
	})
	t.Run("results", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var got []string
			for v, err := range gated().Results(slices.Values([]string{"a", "b", "c"})) {
				require.NoError(t, err)
				got = append(got, v)
			}
			require.Equal(t, []string{"A", "B", "C"}, got)
		})
	})
	t.Run("flow", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			op := gated()
			go func() {
				for _, v := range []string{"a", "b", "c"} {
					op.In() <- v
				}
				close(op.In())
			}()
			var got []any
			for v := range op.Out() {
				got = append(got, v)
			}
			require.Equal(t, []any{"A", "B", "C"}, got)
		})
	})
}

// slowGate takes a second to admit an element.
type slowGate struct {
	optest.Mute
	took []time.Duration // times of attempts
}

func (*slowGate) TryAdmit() bool { time.Sleep(time.Second); return true }
func (*slowGate) Notify(func())  { panic("it is open") }
func (g *slowGate) AttemptEnded(_ context.Context, o observe.Outcome) {
	g.took = append(g.took, o.Duration)
}

// The time that a gate takes does not count as time of the element.
func TestSlowGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &slowGate{}
		op := asyncop.OrderedWait(asyncop.Func(optest.Double), time.Minute, 4, asyncop.WithObserver(g))
		for _, err := range op.Results(optest.UpTo(3)) {
			require.NoError(t, err)
		}
		require.Len(t, g.took, 3)
		for _, d := range g.took {
			require.Less(t, d, time.Second)
		}
	})
}

// Law O1 with checkpoints: elements in the final checkpoint end as Kept, whether or not
// they have a slot, and are accepted again as restored. A gate holds back neither
// restored elements nor barriers.
func TestObserverOfCheckpoints(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		store := checkpointtest.NewMemoryStore()
		suspend := func(m optest.Mode, o observe.Observer, elements ...any) {
			r := optest.NewCheckRig(t, m, optest.Setup{Timeout: time.Hour, Opts: optest.Options(asyncop.WithObserver(o))}, store)
			r.Send(elements...)
			b, done := r.Trigger(checkpoint.Suspend)
			r.Send(b)
			require.NoError(t, <-done)
			require.NoError(t, r.Wait())
		}
		first := optest.NewTally(t)
		suspend(m, first, "a", "b")
		assert.Equal(t, map[observe.EndKind]int{observe.Kept: 2}, first.Over)
		assert.Zero(t, first.Restored)

		m.Capacity = 1 // one of the elements has no slot
		shut := &optest.Door{Tally: *optest.NewTally(t)}
		suspend(m, shut)
		assert.Equal(t, map[observe.EndKind]int{observe.Kept: 2}, shut.Over)
		assert.Equal(t, 1, shut.Begun)
		assert.Equal(t, 1, shut.Restored)
	}, 2)
}

// breaksAtOnce is an observer that panics for every element.
type breaksAtOnce struct{ optest.Mute }

func (breaksAtOnce) Accepted(context.Context, any, bool) context.Context { panic("accepted: broken") }

// Laws A3, A6: an element has its own timeout even if an observer panicked when the
// element was accepted.
func TestOwnTimeoutAfterAnObserverThatBreaks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fn := asyncop.Blocking(func(_ context.Context, in string) (string, error) { return in, nil })
		began := time.Now()
		op := asyncop.OrderedWaitWithRetry(fn, time.Hour, 4,
			strategies.FixedDelay[string](1000, time.Second).RetryIfException(predicates.HasException),
			asyncop.WithObserver(breaksAtOnce{}), asyncop.WithDrainRetries(),
			asyncop.WithTimeoutFor(func(string) time.Duration { return 10500 * time.Millisecond }))
		in := op.In()
		in <- "a"
		close(in)
		require.Error(t, op.Wait())
		require.Equal(t, 10500*time.Millisecond, time.Since(began))
	})
}

// In the failure sink, the contexts of elements that the end of the operator cuts off
// also have the values of observers.
func TestObserverContextsReachTheLastOffer(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		ctx, cancel := context.WithCancel(t.Context())
		seen := map[string]any{}
		r := optest.NewRig(t, m, optest.Setup{Opts: optest.Options(asyncop.WithObserver(optest.NewTally(t)), asyncop.WithContext(ctx),
			asyncop.WithFailureSink(func(ctx context.Context, f optest.Failure) error {
				assert.True(t, f.Abandoned)
				seen[f.Element] = ctx.Value(optest.TallyKey{})
				return nil
			}))})
		r.Send("a", "b")
		synctest.Wait()
		cancel()
		require.ErrorIs(t, r.Wait(), context.Canceled)
		assert.Equal(t, map[string]any{"a": "a", "b": "b"}, seen)
	})
}
