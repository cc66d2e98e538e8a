package calls_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/internal/optest"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/backend"
	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
	"github.com/weirflow/weir/message"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// uppers answers each element with its upper case letter.
func uppers(c *optest.BulkCall) (all []optest.Answer, err error) {
	for _, in := range c.Ins {
		all = append(all, optest.Answer{Value: strings.ToUpper(in)})
	}
	return all, nil
}

// A batch starts when it is full, or when its first member has waited long enough. Only
// members that failed, or have no result, are called again, together with others.
func TestBatched(t *testing.T) {
	optest.ForEachClock(t, func(t *testing.T, m optest.Mode) {
		b, r := optest.NewBulk(t, m, 3, 10*time.Millisecond, optest.Setup{Timeout: time.Minute, Strategy: optest.RetryAll(2, time.Second)})
		r.SendEach("ab")
		r.Advance(4 * time.Millisecond)
		require.Empty(t, b.Times())
		r.SendEach("cde")
		require.Equal(t, "a#1+b#1+c#1@4ms", b.Times())
		r.Advance(10*time.Millisecond - 1)
		require.Equal(t, "a#1+b#1+c#1@4ms", b.Times())
		r.Advance(1)
		require.Equal(t, "a#1+b#1+c#1@4ms d#1+e#1@14ms", b.Times())
		require.EqualValues(t, 2, r.Stats().Running)
		require.EqualValues(t, 5, r.Stats().Attempts)
		b.Answers("a#1+b#1+c#1", "! B -")
		require.EqualValues(t, 1, r.Stats().Running)
		r.Advance(time.Second)
		r.SendEach("f")
		require.Contains(t, b.Times(), " a#2+c#2+f#1@1.014s")
		b.Answers("a#2+c#2+f#1", "A C F")
		b.Answers("d#1+e#1", "D E")
		require.Equal(t, m.Pick("A B C D E F", "B A C F D E"), r.Outputs())
		require.NoError(t, r.End())
		s := r.Stats()
		require.EqualValues(t, 1, s.RetriesOnError)
		require.EqualValues(t, 1, s.RetriesOnResult)
		optest.CheckBalance(t, s)
	})
}

// Law A3: the timeout of a member ends only that member. The context of the call ends
// with the last member, and its deadline is the latest of the members' deadlines. The
// permit is returned when the call returns (A2: its results are late then).
func TestBatchedTimeoutOfMembers(t *testing.T) {
	optest.ForEachClock(t, func(t *testing.T, m optest.Mode) {
		b, r := optest.NewBulk(t, m, 2, time.Second, optest.Setup{
			Timeout: 3 * time.Second, Opts: optest.Options(asyncop.WithDropOnFailure(), asyncop.WithMaxConcurrentCalls(1)),
		})
		r.SendEach("a")
		r.Advance(time.Second / 2)
		r.SendEach("b")
		c := b.Named("a#1+b#1")
		deadline, ok := c.Ctx.Deadline()
		require.Equal(t, !m.Mock, ok, "real clients take that of a mock for one long past")
		if ok {
			require.Equal(t, 3500*time.Millisecond, deadline.Sub(r.Start))
		}
		ended := make(chan struct{})
		stop := context.AfterFunc(c.Ctx, func() { close(ended) })
		r.Advance(2500 * time.Millisecond)
		require.EqualValues(t, 1, r.Stats().Timeouts)
		require.ErrorIs(t, c.Members[0].Err(), context.DeadlineExceeded)
		require.NoError(t, c.Members[1].Err())
		require.NoError(t, c.Ctx.Err())
		r.SendEach("cd")
		r.Advance(time.Second / 2)
		require.EqualValues(t, 2, r.Stats().Timeouts)
		require.ErrorIs(t, c.Ctx.Err(), context.DeadlineExceeded)
		<-c.Ctx.Done()
		<-ended
		require.False(t, stop())
		require.EqualValues(t, 1, r.Stats().Running, "the call has not returned")
		require.Equal(t, "a#1+b#1@500ms", b.Times())
		b.Answers("a#1+b#1", "A B")
		require.EqualValues(t, 2, r.Stats().LateCompletions)
		require.Equal(t, "a#1+b#1@500ms c#1+d#1@3.5s", b.Times())
		b.Answers("c#1+d#1", "C D")
		require.Equal(t, "C D", r.Outputs())
		require.NoError(t, r.End())
		optest.CheckBalance(t, r.Stats())
		require.Zero(t, r.Stats().Running)
	})
}

// Attempts time out individually, and are retried while the call continues.
func TestBatchedAttemptTimeout(t *testing.T) {
	optest.ForEachClock(t, func(t *testing.T, m optest.Mode) {
		b, r := optest.NewBulk(t, m, 2, time.Hour, optest.Setup{
			Timeout: time.Minute, Strategy: optest.RetryAll(1, time.Second), Opts: optest.Options(asyncop.WithAttemptTimeout(time.Second)),
		})
		r.SendEach("ab")
		c := b.Named("a#1+b#1")
		r.Advance(time.Second)
		require.ErrorIs(t, c.Ctx.Err(), context.DeadlineExceeded)
		require.EqualValues(t, 2, r.Stats().AttemptTimeouts)
		require.EqualValues(t, 1, r.Stats().Running)
		r.Advance(time.Second)
		require.Equal(t, "a#1+b#1@0s a#2+b#2@2s", b.Times())
		b.Answers("a#2+b#2", "A B")
		b.Answers("a#1+b#1", "late late")
		require.Equal(t, "A B", r.Outputs())
		require.NoError(t, r.End())
		require.EqualValues(t, 2, r.Stats().LateCompletions)
	})
}

// A cancel ends the context of the call with the operator's cause. A batch that waits is
// not called.
func TestBatchedCancel(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		permits := optest.Limited(2)
		b, r := optest.NewBulk(t, m, 2, time.Second, optest.Setup{Opts: optest.Options(asyncop.WithBackend(permits))})
		r.SendEach("abc")
		c := b.Named("a#1+b#1")
		derived, cancel := context.WithCancel(c.Ctx)
		defer cancel()
		require.ErrorIs(t, r.Cut(optest.ErrBroken), optest.ErrBroken)
		require.ErrorIs(t, c.Ctx.Err(), context.Canceled)
		require.ErrorIs(t, derived.Err(), context.Canceled)
		require.Equal(t, optest.ErrBroken, context.Cause(c.Ctx))
		require.EqualValues(t, 3, r.Stats().Abandoned)
		require.Equal(t, 1, permits.Stats().InUse, "the call has not returned")
		b.Answers("a#1+b#1", "A B")
		require.Zero(t, permits.Stats().InUse)
		require.Equal(t, "a#1+b#1@0s", b.Times())
	})
}

// An error of the call, a panic, runtime.Goexit, or a wrong number of results is the
// outcome of each member.
func TestBatchedCallsThatFail(t *testing.T) {
	cases := map[string]struct {
		outcome func() ([]optest.Answer, error)
		check   func(t *testing.T, err error)
	}{
		"error": {
			func() ([]optest.Answer, error) { return make([]optest.Answer, 2), optest.ErrBroken },
			func(t *testing.T, err error) { require.ErrorIs(t, err, optest.ErrBroken) },
		},
		"too few": {
			func() ([]optest.Answer, error) { return make([]optest.Answer, 1), nil },
			func(t *testing.T, err error) { require.ErrorContains(t, err, "1 results for 2 elements") },
		},
		"too many": {
			func() ([]optest.Answer, error) { return make([]optest.Answer, 3), nil },
			func(t *testing.T, err error) { require.ErrorContains(t, err, "3 results for 2 elements") },
		},
	}
	for _, b := range optest.Breakages {
		cases[b.Name] = struct {
			outcome func() ([]optest.Answer, error)
			check   func(t *testing.T, err error)
		}{
			func() ([]optest.Answer, error) { b.Breaks(); return nil, nil },
			func(t *testing.T, err error) {
				p, ok := errors.AsType[*asyncop.PanicError](err)
				require.True(t, ok, "%v", err)
				require.Equal(t, b.Value, p.Value)
			},
		}
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
				side := optest.NewSideSink(false)
				b, r := optest.NewBulk(t, m, 2, 1, optest.Setup{
					Timeout: time.Minute, Strategy: optest.RetryAll(1, time.Second), Opts: optest.Options(asyncop.WithFailureSink(side.Take)),
				})
				r.SendEach("ab")
				b.Ends("a#1+b#1", c.outcome)
				r.Advance(time.Second)
				require.Zero(t, r.Stats().Running-1)
				b.Ends("a#2+b#2", c.outcome)
				require.Equal(t, "a b", side.Elements())
				for _, f := range side.Got() {
					c.check(t, f.Err)
					require.Equal(t, 2, f.Attempts)
				}
				r.SendEach("c")
				r.Advance(1)
				b.Answers("c#1", "C")
				require.NoError(t, r.End())
				require.Zero(t, r.Stats().Running)
				require.Zero(t, r.Stats().LateCompletions)
				optest.CheckBalance(t, r.Stats())
			})
		})
	}
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		b, r := optest.NewBulk(t, m, 2, 1, optest.Setup{})
		r.SendEach("ab")
		b.Ends("a#1+b#1", func() ([]optest.Answer, error) { return nil, asyncop.ErrNoResult })
		require.NoError(t, r.End())
		require.EqualValues(t, 2, r.Stats().Completed)
	})
}

// A batch takes one permit of each kind and counts as one call for the rate. Elements
// that wait for their batch hold no permit.
func TestBatchedPermitsAndRate(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		permits := backend.New("limited", backend.Limit(1), backend.Rate(1, time.Second))
		b, r := optest.NewBulk(t, m, 3, time.Second, optest.Setup{Opts: optest.Options(asyncop.WithBackend(permits))})
		r.SendEach("ab")
		require.Zero(t, permits.Stats().InUse)
		r.SendEach("cdefg")
		require.Equal(t, 1, permits.Stats().InUse)
		require.EqualValues(t, 1, r.Stats().Running)
		r.Advance(100 * time.Millisecond)
		b.Answers("a#1+b#1+c#1", "A B C")
		require.Zero(t, permits.Stats().InUse)
		r.Advance(900 * time.Millisecond)
		require.Equal(t, "a#1+b#1+c#1@0s d#1+e#1+f#1@1s", b.Times())
		r.Advance(time.Second)
		require.Equal(t, 1, permits.Stats().InUse)
		b.Answers("d#1+e#1+f#1", "D E F")
		require.Equal(t, "a#1+b#1+c#1@0s d#1+e#1+f#1@1s g#1@2s", b.Times())
		b.Answers("g#1", "G")
		require.NoError(t, r.End())
		require.Zero(t, permits.Stats().InUse)
	})
}

// Operators of batches share permits. No permit is lost, whatever ends the calls.
func TestBatchedSharedPermits(t *testing.T) {
	for _, limit := range []int{1, 3} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				permits := optest.Limited(limit)
				var all gauge
				var calls atomic.Int64
				var wg sync.WaitGroup
				start := time.Now()
				for range 3 {
					fn := asyncop.Batched(func(ctx context.Context, ins []int) ([]asyncop.Result[int], error) {
						all.enter()
						defer all.leave()
						calls.Add(1)
						time.Sleep(time.Second)
						return make([]asyncop.Result[int], len(ins)), ctx.Err()
					}, 5, time.Millisecond)
					op := asyncop.OrderedWait(fn, time.Hour, 10, asyncop.WithBackend(permits))
					wg.Go(func() { assert.Equal(t, 50, consume(t, op, 50)) })
				}
				wg.Wait()
				require.EqualValues(t, limit, all.most.Load())
				require.EqualValues(t, 30, calls.Load(), "batches are small")
				// One operator may be left with its last three batches, and has slots for
				// two.
				require.InDelta(t, 30/limit, time.Since(start).Seconds(), 1, "permits lie idle")
				synctest.Wait()
				require.Zero(t, permits.Stats().InUse)
			})
		})
	}
}

// Values of one element are in the context of the member: the number of its attempt, and
// values of observers.
func TestBatchedContexts(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		o := optest.NewTally(t)
		b, r := optest.NewBulk(t, m, 2, 1, optest.Setup{Timeout: time.Minute, Strategy: optest.RetryAll(1, time.Second), Opts: optest.Options(asyncop.WithObserver(o))})
		r.SendEach("ab")
		c := b.Named("a#1+b#1")
		require.Equal(t, "a", c.Members[0].Value(optest.TallyKey{}))
		require.Equal(t, "b", c.Members[1].Value(optest.TallyKey{}))
		require.Nil(t, c.Ctx.Value(optest.TallyKey{}))
		require.Zero(t, asyncop.AttemptFromContext(c.Ctx))
		require.Equal(t, "of the operator", c.Ctx.Value(optest.ValueKey{}))
		require.Equal(t, "of the operator", c.Members[0].Value(optest.ValueKey{}))
		require.Nil(t, asyncop.MemberContexts(c.Members[0]))
		require.Nil(t, asyncop.MemberContexts(t.Context()))
		b.Answers("a#1+b#1", "! B")
		require.ErrorIs(t, c.Ctx.Err(), context.Canceled)
		require.NotNil(t, asyncop.MemberContexts(c.Ctx))
		r.Advance(time.Second + 1)
		b.Answers("a#2", "A")
		require.NoError(t, r.End())
		require.Equal(t, 3, o.Attempts)
		require.Equal(t, map[observe.EndKind]int{observe.Emitted: 2}, o.Over)
	})
}

// Any maxSize works: an operator that waits for a shared permit gets it when the permit
// is returned.
func TestBatchedWithoutALimitWaitsForAPermit(t *testing.T) {
	for _, size := range []int{1, 2, 3, math.MaxInt} {
		synctest.Test(t, func(t *testing.T) {
			permits := optest.Limited(1)
			first := asyncop.OrderedWait(asyncop.Blocking(func(context.Context, int) (int, error) {
				time.Sleep(time.Second)
				return 0, nil
			}), time.Hour, 1, asyncop.WithBackend(permits))
			ended := make(chan error)
			go func() {
				for range first.Results(slices.Values([]int{0})) {
				}
				ended <- first.Wait()
			}()
			synctest.Wait()
			start := time.Now()
			second := asyncop.OrderedWait(asyncop.Batched(func(_ context.Context, ins []int) ([]asyncop.Result[int], error) {
				return make([]asyncop.Result[int], len(ins)), nil
			}, size, 0), time.Minute, 4, asyncop.WithBackend(permits))
			for _, err := range second.Results(slices.Values([]int{1, 2})) {
				require.NoError(t, err)
			}
			require.Equal(t, time.Second, time.Since(start))
			require.NoError(t, <-ended)
		})
	}
}

// cancelling is a wrapper that has cancelled the context of element a, and whose future
// for a ends its goroutine.
type cancelling struct{ optest.Function }

func (c cancelling) Unwrap() any { return c.Function }

func (c cancelling) AsyncInvoke(ctx context.Context, in string, result optest.Future) error {
	if in == "a" {
		ended, cancel := context.WithCancel(ctx)
		cancel()
		ctx, result = ended, spitefulFuture{runtime.Goexit}
	}
	return c.Function.AsyncInvoke(ctx, in, result)
}

// Law A6: a future that breaks when its element is left out of the call fails that
// element, and the others are called.
func TestBatchedFutureOfALateMemberThatBreaks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fn := asyncop.Batched(func(_ context.Context, ins []string) ([]asyncop.Result[string], error) {
			require.Equal(t, []string{"b", "c"}, ins)
			return []asyncop.Result[string]{{Value: "B"}, {Value: "C"}}, nil
		}, 3, 0)
		op := asyncop.OrderedWait(cancelling{fn}, 0, 4, asyncop.WithDropOnFailure(), asyncop.WithLogger(slog.New(slog.DiscardHandler)))
		var got []string
		for v, err := range op.Results(slices.Values([]string{"a", "b", "c"})) {
			require.NoError(t, err)
			got = append(got, v)
		}
		require.Equal(t, []string{"B", "C"}, got)
		require.EqualValues(t, 1, op.Stats().Dropped)
	})
}

// The slice of the members' contexts is a copy, as is the slice of elements: changes by
// the caller have no effect.
func TestBatchedMemberContextsAreACopy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fn := asyncop.Batched(func(ctx context.Context, ins []string) ([]asyncop.Result[string], error) {
			clear(asyncop.MemberContexts(ctx))
			<-ctx.Done()
			return make([]asyncop.Result[string], len(ins)), nil
		}, 2, time.Second)
		op := asyncop.OrderedWait(fn, time.Minute, 4, asyncop.WithDropOnFailure(), asyncop.WithLogger(slog.New(slog.DiscardHandler)))
		for _, err := range op.Results(slices.Values([]string{"a", "b"})) {
			require.NoError(t, err)
		}
		require.EqualValues(t, 2, op.Stats().Timeouts)
	})
}

// A member that is a message has its history. The call has no history.
func TestBatchedMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fn := asyncop.Batched(func(ctx context.Context, ins []string) ([]asyncop.Result[string], error) {
			_, ok := message.MetaFromContext(ctx)
			require.False(t, ok)
			results := make([]asyncop.Result[string], 0, len(ins))
			for _, m := range asyncop.MemberContexts(ctx) {
				meta, _ := message.MetaFromContext(m)
				results = append(results, asyncop.Result[string]{Value: meta.ID})
			}
			return results, nil
		}, 2, time.Second)
		var v optest.Settlements
		op := asyncop.OrderedWait(fn, time.Minute, 4)
		var got []string
		for m, err := range op.Messages(optest.Received(v.Message("a"), v.Message("b"), v.Message("c"))) {
			require.NoError(t, err)
			got = append(got, m.Value)
			m.Ack()
		}
		require.Equal(t, []string{"a", "b", "c"}, got)
		require.Equal(t, map[string]string{"a": "done", "b": "done", "c": "done"}, v.All())
	})
}

// An operator inside a call has neither the members nor the batch of that call.
func TestBatchedAroundAnOperator(t *testing.T) {
	inner := func(ctx context.Context) (of []context.Context) {
		op := asyncop.OrderedWait(asyncop.Blocking(func(ctx context.Context, in string) (string, error) {
			of = asyncop.MemberContexts(ctx)
			return in, nil
		}), 0, 1, asyncop.WithContext(ctx))
		for range op.Results(slices.Values([]string{"x"})) {
		}
		return of
	}
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		b, r := optest.NewBulk(t, m, 2, time.Hour, optest.Setup{})
		b.Self = func(c *optest.BulkCall) ([]optest.Answer, error) {
			assert.Empty(t, inner(c.Ctx))
			assert.Empty(t, inner(c.Members[0]))
			return uppers(c)
		}
		r.SendEach("ab")
		require.NoError(t, r.End())
		require.Equal(t, "A B", r.Outputs())
	})
}

// With checkpoints, members are treated like other elements: a barrier does not flush a
// batch, and unsettled elements are redelivered in batches.
func TestBatchedCheckpoints(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		store := checkpointtest.NewMemoryStore()
		b := &optest.Bulk{T: t, Over: make(chan struct{})}
		r := optest.NewCheckRig(t, m, optest.Setup{Wrap: b.Function(3, time.Hour)}, store)
		t.Cleanup(func() { close(b.Over) })
		r.SendEach("abcd")
		r.Save()
		require.Equal(t, "a b c d", optest.StateIn(t, store, nil))
		b.Answers("a#1+b#1+c#1", "- B C")
		r.Save()
		require.Equal(t, "d", optest.StateIn(t, store, nil))
		require.Equal(t, "a#1+b#1+c#1@0s", b.Times())
		r.SendEach("e")
		r.Save()
		_ = r.Cut(optest.ErrBroken)

		again := &optest.Bulk{T: t, Over: make(chan struct{})}
		r = optest.NewCheckRig(t, m, optest.Setup{Wrap: again.Function(3, time.Hour)}, store.Reopen())
		t.Cleanup(func() { close(again.Over) })
		synctest.Wait()
		require.Empty(t, again.Times())
		r.SendEach("f")
		again.Answers("d#1+e#1+f#1", "D E F")
		r.SendEach("g")
		drain, done := r.Trigger(checkpoint.Drain)
		r.Send(drain)
		again.Answers("g#1", "G")
		require.NoError(t, r.Finish(done))
		require.NoError(t, r.Wait())
		require.Equal(t, "D E F G <end> <5>", r.Outputs())
	})
}

// In key order a batch has at most one element of a key. The next element of the key
// waits until the first has ended, retries included, and its call has returned (law K1).
func TestBatchedInKeyOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, r := optest.NewBulk(t, optest.KeyMode, 2, time.Millisecond, optest.Setup{Timeout: time.Minute, Strategy: optest.RetryAll(1, time.Second), Key: optest.FirstLetter})
		r.Send("a1", "a2", "a3", "b1")
		require.Equal(t, "a1#1+b1#1@0s", b.Times())
		b.Answers("a1#1+b1#1", "! B")
		r.Advance(time.Second + time.Millisecond)
		b.Answers("a1#2", "A1")
		r.Advance(time.Millisecond)
		require.Equal(t, "a1#1+b1#1@0s a1#2@1.001s a2#1@1.002s", b.Times())
		b.Answers("a2#1", "A2")
		r.Send("b2")
		b.Answers("a3#1+b2#1", "A3 B2")
		require.NoError(t, r.End())
		require.Equal(t, "B A1 A2 A3 B2", r.Outputs())
	})
	synctest.Test(t, func(t *testing.T) {
		b, r := optest.NewBulk(t, optest.KeyMode, 2, time.Millisecond, optest.Setup{
			Timeout: 3 * time.Second, Key: optest.FirstLetter, Opts: optest.Options(asyncop.WithDropOnFailure()),
		})
		r.Send("a1", "b1")
		r.Advance(2 * time.Second)
		r.Send("a2")
		r.Advance(time.Second)
		require.EqualValues(t, 2, r.Stats().Timeouts)
		r.Advance(time.Second)
		require.Equal(t, "a1#1+b1#1@0s", b.Times(), "the call has not returned")
		b.Answers("a1#1+b1#1", "late late")
		r.Advance(time.Millisecond)
		b.Answers("a2#1", "A2")
		require.NoError(t, r.End())
		require.Equal(t, "A2", r.Outputs())
	})
}

// An operator inside a batch call runs on the permit of that call, under the context of
// the call or of a member.
func TestBatchedAroundAnOperatorWithTheSamePermits(t *testing.T) {
	for _, ofMember := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			permits := optest.Limited(1)
			fn := asyncop.Batched(func(ctx context.Context, ins []int) ([]asyncop.Result[int], error) {
				if ofMember {
					ctx = asyncop.MemberContexts(ctx)[0]
				}
				inner := asyncop.OrderedWait(asyncop.Func(optest.Double), time.Minute, 2, asyncop.WithContext(ctx), asyncop.WithBackend(permits))
				assert.Equal(t, 3, consume(t, inner, 3))
				return make([]asyncop.Result[int], len(ins)), nil
			}, 2, 0)
			require.Equal(t, 4, consume(t, asyncop.OrderedWait(fn, time.Minute, 4, asyncop.WithBackend(permits)), 4))
			synctest.Wait() // the last call returns
			require.Zero(t, permits.Stats().InUse)
		})
	}
}

// hits is a wrapper with a cache of the elements that end in 1.
type hits struct{ optest.Function }

func (h hits) Unwrap() any { return h.Function }

func (h hits) AsyncInvoke(ctx context.Context, in string, result optest.Future) error {
	if strings.HasSuffix(in, "1") {
		result.Complete("hit")
		return nil
	}
	return h.Function.AsyncInvoke(ctx, in, result)
}

// A suspend saves a batch in the checkpoint, whether the batch waits or is about to be
// called.
func TestBatchedSuspend(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		store := checkpointtest.NewMemoryStore()
		b := &optest.Bulk{T: t, Over: make(chan struct{})}
		r := optest.NewCheckRig(t, m, optest.Setup{Wrap: b.Function(2, time.Hour)}, store)
		t.Cleanup(func() { close(b.Over) })
		r.SendEach("abc")
		require.Equal(t, "a#1+b#1@0s", b.Times())
		suspend, done := r.Trigger(checkpoint.Suspend)
		r.Send(suspend)
		require.NoError(t, r.Finish(done))
		require.NoError(t, r.Wait())
		require.Equal(t, "a b c", optest.StateIn(t, store, nil))
		require.Equal(t, "a#1+b#1@0s", b.Times())
	})
}

// The Before of each member runs before the call of the batch, for all members
// concurrently. If it fails for one member, the others are called.
func TestBatchedBefore(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		var mu sync.Mutex
		var did []string
		s := optest.Decides(func(_ context.Context, a *optest.View) (strategies.Action, error) {
			in := a.Input.(string)
			return strategies.RetryAfter(time.Second).WithBefore(func(ctx context.Context) error {
				time.Sleep(time.Second)
				mu.Lock()
				defer mu.Unlock()
				did = append(did, fmt.Sprintf("%s#%d", in, asyncop.AttemptFromContext(ctx)))
				if in == "b" && asyncop.AttemptFromContext(ctx) == 2 {
					return optest.ErrBroken
				}
				return nil
			}), nil
		})
		b, r := optest.NewBulk(t, m, 3, 1, optest.Setup{Timeout: time.Minute, Strategy: optest.Because(optest.SafeReason, s)})
		r.SendEach("abc")
		b.Answers("a#1+b#1+c#1", "! ! C")
		r.Advance(time.Second + 1)
		require.EqualValues(t, 1, r.Stats().Running)
		r.Advance(time.Second)
		require.Equal(t, "a#1+b#1+c#1@0s a#2@2.000000001s", b.Times())
		b.Answers("a#2", "A")
		r.Advance(2*time.Second + 1)
		b.Answers("b#3", "B")
		require.ElementsMatch(t, []string{"a#2", "b#2", "b#3"}, did)
		require.NoError(t, r.End())
	})
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) { // a slow Before delays the other members until its own timeout
		s := optest.Decides(func(_ context.Context, a *optest.View) (strategies.Action, error) {
			action := strategies.RetryAfter(time.Second)
			if a.Input == "a" {
				action = action.WithBefore(func(context.Context) error { time.Sleep(time.Hour); return nil })
			}
			return action, nil
		})
		b, r := optest.NewBulk(t, m, 2, 0, optest.Setup{
			Timeout: time.Minute, Strategy: optest.Because(optest.SafeReason, s), Opts: optest.Options(asyncop.WithAttemptTimeout(10*time.Second), asyncop.WithDropOnFailure()),
		})
		r.SendEach("a")
		r.Advance(time.Second)
		r.SendEach("b")
		b.Answers("a#1", "!")
		r.Advance(time.Second / 2)
		b.Answers("b#1", "!")
		r.Advance(time.Second)
		require.NoError(t, r.End())
		time.Sleep(2 * time.Hour) // lets the slow Before end
		optest.CheckBalance(t, r.Stats())
	})
}

// hooked is a wrapper around another function, as users write it.
type hooked struct {
	optest.Function
	before func(ctx context.Context, in string, result optest.Future) (done bool)
}

func (w hooked) AsyncInvoke(ctx context.Context, in string, result optest.Future) error {
	if w.before != nil && w.before(ctx, in, result) {
		return nil
	}
	return w.Function.AsyncInvoke(ctx, in, result)
}

type hookedOpenly struct{ hooked }

func (w hookedOpenly) Unwrap() any { return w.Function }

// A wrapper with Unwrap is applied to each member, even if it uses its own future and
// context.
func TestBatchedInsideOfWrappers(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		b := &optest.Bulk{T: t, Over: make(chan struct{})}
		b.Self = uppers
		r := optest.NewRig(t, m, optest.Setup{Timeout: time.Minute, Wrap: func(h *optest.Hand) optest.Function {
			fn := b.Function(3, 1)(h)
			w := hookedOpenly{hooked{Function: fn, before: func(_ context.Context, in string, result optest.Future) bool {
				if in == "b" {
					result.Complete("known")
				}
				return in == "b"
			}}}
			return asyncop.HandleFailure[string, string](w, func(context.Context, optest.Failure) ([]string, error) { return nil, nil })
		}})
		r.SendEach("abc")
		require.NoError(t, r.End())
		require.Equal(t, "a#1+c#1@0s", b.Times())
		require.Equal(t, m.Pick("A known C", "known A C"), r.Outputs())
	})
}

// exclaiming is the future of a wrapper.
type exclaiming struct {
	optest.Future
	breaks func()
}

func (e exclaiming) Complete(results ...string) {
	if e.breaks != nil {
		e.breaks()
	}
	e.Future.Complete(results[0] + "!")
}

// A future of a wrapper that breaks fails its own element only (law A6).
func TestBatchedFuturesThatBreak(t *testing.T) {
	for _, breakage := range optest.Breakages {
		t.Run(breakage.Name, func(t *testing.T) {
			optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
				side := optest.NewSideSink(false)
				b := &optest.Bulk{T: t, Over: make(chan struct{})}
				b.Self = uppers
				r := optest.NewRig(t, m, optest.Setup{Timeout: time.Minute, Opts: optest.Options(asyncop.WithFailureSink(side.Take)), Wrap: func(h *optest.Hand) optest.Function {
					fn := b.Function(4, 1)(h)
					w := hookedOpenly{hooked{Function: fn}}
					w.before = func(ctx context.Context, in string, result optest.Future) bool {
						e := exclaiming{Future: result}
						if in == "b" || in == "c" {
							e.breaks = breakage.Breaks
						}
						assert.NoError(t, fn.AsyncInvoke(ctx, in, e))
						return true
					}
					return w
				}})
				r.SendEach("abcd")
				require.NoError(t, r.End())
				require.Equal(t, "A! D!", r.Outputs())
				require.Equal(t, "b c", side.Elements())
				require.Zero(t, r.Stats().Running)
			})
		})
	}
}

// A wrapper that breaks while a batch is formed fails its element only (law A6).
func TestBatchedWrappersThatBreak(t *testing.T) {
	for _, breakage := range optest.Panics() {
		t.Run(breakage.Name, func(t *testing.T) {
			optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
				side := optest.NewSideSink(false)
				b := &optest.Bulk{T: t, Over: make(chan struct{})}
				b.Self = uppers
				r := optest.NewRig(t, m, optest.Setup{Timeout: time.Minute, Opts: optest.Options(asyncop.WithFailureSink(side.Take)), Wrap: func(h *optest.Hand) optest.Function {
					return hookedOpenly{hooked{Function: b.Function(4, 10*time.Millisecond)(h), before: func(_ context.Context, in string, _ optest.Future) bool {
						if in == "b" {
							breakage.Breaks()
						}
						return false
					}}}
				}})
				r.SendEach("abcd")
				r.Advance(10 * time.Millisecond)
				require.NoError(t, r.End())
				require.Equal(t, "A C D", r.Outputs())
				require.Equal(t, "b", side.Elements())
				require.Zero(t, r.Stats().Running)
			})
		})
	}
}

// A wrapper without Unwrap, or one that calls too late, fails its elements with an error
// that explains the problem.
func TestBatchedWrappersThatAreRefused(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		b := &optest.Bulk{T: t, Over: make(chan struct{})}
		r := optest.NewRig(t, m, optest.Setup{Wrap: func(h *optest.Hand) optest.Function { return hooked{Function: b.Function(3, 0)(h)} }})
		r.SendEach("a")
		require.ErrorContains(t, r.Wait(), "needs a method Unwrap() any")
	})
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		b := &optest.Bulk{T: t, Over: make(chan struct{})}
		r := optest.NewRig(t, m, optest.Setup{Timeout: time.Minute, Wrap: func(h *optest.Hand) optest.Function {
			fn := b.Function(3, 0)(h)
			return hookedOpenly{hooked{Function: fn, before: func(ctx context.Context, in string, result optest.Future) bool {
				time.AfterFunc(time.Second, func() {
					if err := fn.AsyncInvoke(ctx, in, result); err != nil {
						result.CompleteExceptionally(err)
					}
				})
				return true
			}}}
		}})
		r.SendEach("a")
		r.Advance(time.Second)
		require.ErrorContains(t, r.Wait(), "before its own AsyncInvoke returns")
		require.Zero(t, r.Stats().Running)
	})
}

// misleading unwraps to a different function than the function that it calls.
type misleading struct{ optest.Function }

func (m misleading) Unwrap() any { return asyncop.Batched(noBatch, 3, 0) }

func noBatch(context.Context, []string) ([]asyncop.Result[string], error) {
	return nil, optest.ErrBroken
}

// An element is not put into a batch of another function.
func TestBatchedOfAnotherFunction(t *testing.T) {
	fn := misleading{asyncop.Batched(noBatch, 3, 0)}
	_, err := asyncop.Map(t.Context(), []string{"a"}, fn, nil, asyncop.WithLogger(slog.New(slog.DiscardHandler)))
	require.ErrorContains(t, err, "no operator forms a batch for this call")
}

// hasty does not wait for its calls.
type hasty struct{ optest.Function }

func (h hasty) AsyncInvoke(ctx context.Context, in string, result optest.Future) error {
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	return h.Function.AsyncInvoke(ctx, in, result)
}

func (h hasty) Unwrap() any { return h.Function }

// An element whose wrapper does not wait for the batch has failed: it does not hang
// (law A3).
func TestBatchedWrapperThatDoesNotWait(t *testing.T) {
	_, err := asyncop.Map[string, string](t.Context(), []string{"a"}, hasty{asyncop.Batched(noBatch, 3, 0)}, nil,
		asyncop.WithLogger(slog.New(slog.DiscardHandler)))
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, optest.ErrBroken)
}

// A blocking call is not made in this case either.
func TestBlockingWrapperThatDoesNotWait(t *testing.T) {
	fn := hasty{asyncop.Blocking(func(context.Context, string) (string, error) { return "", optest.ErrBroken })}
	_, err := asyncop.Map[string, string](t.Context(), []string{"a"}, fn, nil, asyncop.WithLogger(slog.New(slog.DiscardHandler)))
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, optest.ErrBroken)
}

// noMessages is an observer of elements that are not messages.
type noMessages struct {
	optest.Mute
	t *testing.T
}

func (o noMessages) Accepted(ctx context.Context, _ any, _ bool) context.Context {
	assert.False(o.t, isMessage(ctx))
	return ctx
}

func isMessage(ctx context.Context) bool {
	_, ok := message.MetaFromContext(ctx)
	return ok
}

// An operator of batches inside the call for a message has neither the message nor the
// number of that attempt, but it has its permit. An operator inside the call of a batch
// has that permit, too.
func TestBatchedInsideOfACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		permits := optest.Limited(1)
		within := func(ctx context.Context, fn optest.Function, ins []string, opts ...asyncop.Option) (results []asyncop.Result[string]) {
			op := asyncop.OrderedWait(fn, time.Minute, 4, append(opts, asyncop.WithContext(ctx), asyncop.WithBackend(permits))...)
			for v, err := range op.Results(slices.Values(ins)) {
				results = append(results, asyncop.Result[string]{Value: v, Err: err})
			}
			return results
		}
		batches := asyncop.Batched(func(ctx context.Context, ins []string) ([]asyncop.Result[string], error) {
			assert.False(t, isMessage(ctx))
			assert.Zero(t, asyncop.AttemptFromContext(ctx))
			for _, m := range asyncop.MemberContexts(ctx) {
				assert.False(t, isMessage(m))
				assert.Equal(t, 1, asyncop.AttemptFromContext(m))
			}
			return within(ctx, asyncop.Blocking(func(_ context.Context, in string) (string, error) { return in + "!", nil }), ins), nil
		}, 2, 0)
		outer := asyncop.BlockingMany(func(ctx context.Context, in string) (all []string, err error) {
			assert.True(t, isMessage(ctx))
			for _, r := range within(ctx, batches, []string{in + "1", in + "2"}, asyncop.WithObserver(noMessages{t: t})) {
				all, err = append(all, r.Value), errors.Join(err, r.Err)
			}
			return all, err
		})
		var v optest.Settlements
		op := asyncop.OrderedWait(outer, time.Minute, 4, asyncop.WithBackend(permits))
		var got []string
		for m, err := range op.Messages(optest.Received(v.Message("a"))) {
			require.NoError(t, err)
			got = append(got, m.Value)
			m.Ack()
		}
		require.Equal(t, []string{"a1!", "a2!"}, got)
		synctest.Wait()
		require.Zero(t, permits.Stats().InUse)
	})
}

// Reports under the context of the call count for all members. A request that was refused
// counts for no member.
func TestBatchedStages(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		var mu sync.Mutex
		seen := map[string]string{}
		s := optest.Decides(func(_ context.Context, a *optest.View) (strategies.Action, error) {
			mu.Lock()
			defer mu.Unlock()
			seen[fmt.Sprintf("%v#%d", a.Input, a.Number)] = fmt.Sprintf("%v %v %v", a.Stage, a.InDoubt, a.Idempotent)
			return strategies.RetryAfter(time.Second), nil
		})
		b, r := optest.NewBulk(t, m, 2, 1, optest.Setup{Timeout: time.Minute, Strategy: optest.Because(optest.SafeReason, s)})
		b.Self = func(c *optest.BulkCall) ([]optest.Answer, error) {
			predicates.ReportStage(c.Ctx, predicates.ClientDispatch)
			switch asyncop.AttemptFromContext(c.Members[0]) {
			case 1:
			case 2:
				predicates.ReportSent(c.Ctx).Refused()
			case 3:
				predicates.ReportSent(predicates.WithDeduplicated(c.Ctx)) // under an identity that belongs to no member
			case 4:
				predicates.ReportSent(predicates.WithDeduplicated(c.Members[slices.Index(c.Ins, "a")]))
			default:
				return uppers(c)
			}
			return nil, optest.ErrBroken
		}
		r.SendEach("ab")
		r.Advance(time.Minute / 2)
		require.NoError(t, r.End())
		dispatched := fmt.Sprintf("%v false false", predicates.ClientDispatch)
		inDoubt := fmt.Sprintf("%v true false", predicates.NetworkTime)
		deduplicated := fmt.Sprintf("%v true true", predicates.NetworkTime)
		require.Equal(t, map[string]string{
			"a#1": dispatched, "b#1": dispatched, "a#2": dispatched, "b#2": dispatched,
			"a#3": inDoubt, "b#3": inDoubt, "a#4": deduplicated, "b#4": dispatched,
		}, seen)
	})
}

func TestBatchedPanics(t *testing.T) {
	call := func(context.Context, []string) ([]optest.Answer, error) { return nil, nil }
	require.PanicsWithValue(t, "asyncop: Batched: maxSize must be at least 1, got 0", func() { asyncop.Batched(call, 0, 0) })
	require.PanicsWithValue(t, "asyncop: Batched: negative maxWait: -1ns", func() { asyncop.Batched(call, 1, -1) })
	require.PanicsWithValue(t, "asyncop: OrderedWait: nil function", func() {
		asyncop.OrderedWait(asyncop.Batched[string, string](nil, 1, 0), 0, 1)
	})
	other := asyncop.Batched(func(context.Context, []int) ([]asyncop.Result[int], error) { return nil, nil }, 1, 0)
	defer func() {
		require.Contains(t, fmt.Sprint(recover()), "HandleFailure inside of a wrapper with other types")
	}()
	asyncop.OrderedWait[string, string](converting{asyncop.HandleFailure(other,
		func(context.Context, asyncop.Failure[int]) ([]int, error) { return nil, nil })}, 0, 1)
}

// converting is a wrapper around a function of other types.
type converting struct {
	asyncop.AsyncFunction[int, int]
}

func (converting) AsyncInvoke(context.Context, string, optest.Future) error { return nil }
func (c converting) Unwrap() any                                            { return c.AsyncFunction }

// With every driver of the operator, each element ends once, and is called again only if
// it has failed (law A1).
func TestBatchedUnderLoad(t *testing.T) {
	const n = 3000
	elements := make([]int, n)
	for i := range elements {
		elements[i] = i
	}
	for _, ordered := range []bool{true, false} {
		for _, driver := range []string{"Results", "ResultsOf", "flow"} {
			t.Run(fmt.Sprintf("%s/ordered=%t", driver, ordered), func(t *testing.T) {
				var calls, members atomic.Int64
				var mu sync.Mutex
				succeeded := map[int]int{}
				fn := asyncop.Batched(func(ctx context.Context, ins []int) ([]asyncop.Result[int], error) {
					calls.Add(1)
					members.Add(int64(len(ins)))
					results := make([]asyncop.Result[int], len(ins))
					of := asyncop.MemberContexts(ctx)
					<-time.After(time.Duration(rand.IntN(500)) * time.Microsecond)
					mu.Lock()
					defer mu.Unlock()
					for i, in := range ins {
						if in%7 == 0 && asyncop.AttemptFromContext(of[i]) == 1 {
							results[i].Err = optest.ErrBroken
							continue
						}
						results[i].Value = -in
						succeeded[in]++
					}
					return results, nil
				}, 16, 5*time.Millisecond)
				m := optest.Mode{Ordered: ordered, Capacity: 200}
				op := optest.Construct(m, fn, time.Minute, optest.RetryAllOf[int](2, time.Millisecond), asyncop.WithDrainRetries(), asyncop.WithMaxConcurrentCalls(20),
					asyncop.WithLogger(slog.New(slog.DiscardHandler)))
				var got []int
				take := func(v int, err error) bool {
					require.NoError(t, err)
					got = append(got, v)
					return true
				}
				switch driver {
				case "Results":
					op.Results(slices.Values(elements))(take)
				case "ResultsOf":
					op.ResultsOf(asyncop.FromSlice(elements))(take)
				default:
					go func() {
						for _, e := range elements {
							op.In() <- e
						}
						close(op.In())
					}()
					for v := range op.Out() {
						take(v.(int), nil)
					}
				}
				require.NoError(t, op.Wait())
				if !ordered {
					slices.SortFunc(got, func(a, b int) int { return b - a })
				}
				require.Len(t, got, n)
				for i, v := range got {
					require.Equal(t, -i, v)
					require.Equal(t, 1, succeeded[i])
				}
				require.EqualValues(t, n+(n+6)/7, members.Load())
				require.Less(t, calls.Load(), members.Load()/3, "batches are small")
				require.Eventually(t, func() bool { return op.Stats().Running == 0 }, time.Minute, time.Millisecond, "a call counts until it has returned")
				optest.CheckBalance(t, op.Stats())
			})
		}
	}
}
