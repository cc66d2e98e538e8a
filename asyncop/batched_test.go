package asyncop_test

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
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/backend"
	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

type answer = asyncop.Result[string]

// bulk is a call for many elements that the test answers by hand, or self does.
type bulk struct {
	t     *testing.T
	hand  *hand // has the clock
	over  chan struct{}
	self  func(c *bulkCall) ([]answer, error)
	mu    sync.Mutex
	calls []*bulkCall // guarded by mu
}

// bulkCall is one call.
type bulkCall struct {
	ctx     context.Context   //nolint:containedctx // what it was given
	members []context.Context // and those of its members
	ins     []string
	name    string // "a#1+b#2"
	at      time.Duration
	outcome chan func() ([]answer, error)
}

// newBulk returns an operator of batches of size elements. s.wrap is not used.
func newBulk(t *testing.T, m mode, size int, wait time.Duration, s setup) (*bulk, *rig) {
	t.Helper()
	b := &bulk{t: t, over: make(chan struct{})}
	s.wrap = b.function(size, wait)
	r := newRig(t, m, s)
	t.Cleanup(func() { close(b.over) })
	return b, r
}

func (b *bulk) function(size int, wait time.Duration) func(h *hand) function {
	return func(h *hand) function {
		b.hand = h
		return asyncop.Batched(b.call, size, wait)
	}
}

func (b *bulk) call(ctx context.Context, ins []string) ([]answer, error) {
	c := &bulkCall{
		ctx: ctx, members: asyncop.MemberContexts(ctx), ins: ins, at: b.hand.now(), outcome: make(chan func() ([]answer, error), 1),
	}
	names := make([]string, len(ins))
	for i, in := range ins {
		names[i] = fmt.Sprintf("%s#%d", in, asyncop.AttemptFromContext(c.members[i]))
	}
	c.name = strings.Join(names, "+")
	b.mu.Lock()
	b.calls = append(b.calls, c)
	b.mu.Unlock()
	if b.self != nil {
		return b.self(c)
	}
	select {
	case outcome := <-c.outcome:
		return outcome()
	case <-b.over:
		return nil, errTestOver
	}
}

// uppers answers each element with its upper case.
func uppers(c *bulkCall) (all []answer, err error) {
	for _, in := range c.ins {
		all = append(all, answer{Value: strings.ToUpper(in)})
	}
	return all, nil
}

// named returns the call of the given name, which must have been made.
func (b *bulk) named(name string) *bulkCall {
	b.t.Helper()
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	i := slices.IndexFunc(b.calls, func(c *bulkCall) bool { return c.name == name })
	require.GreaterOrEqual(b.t, i, 0, "no call %s", name)
	return b.calls[i]
}

// ends lets a call return, or break.
func (b *bulk) ends(name string, outcome func() ([]answer, error)) {
	b.t.Helper()
	b.named(name).outcome <- outcome
	synctest.Wait()
}

// answers lets a call return a result for each member: a value, "!" for errBroken, or "-" for none.
func (b *bulk) answers(name, results string) {
	b.t.Helper()
	var all []answer
	for r := range strings.FieldsSeq(results) {
		switch r {
		case "!":
			all = append(all, answer{Err: errBroken})
		case "-":
			all = append(all, answer{Err: fmt.Errorf("wrapped: %w", asyncop.ErrNoResult)})
		default:
			all = append(all, answer{Value: r})
		}
	}
	b.ends(name, func() ([]answer, error) { return all, nil })
}

// times is what was called and when: "a#1+b#1@1s".
func (b *bulk) times() string {
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	texts := make([]string, len(b.calls))
	for i, c := range b.calls {
		texts[i] = fmt.Sprintf("%s@%v", c.name, c.at)
	}
	return strings.Join(texts, " ")
}

// A batch goes when it has all its members or the first of them has waited long enough. Only members that failed, or have no
// result, are called again, with others.
func TestBatched(t *testing.T) {
	forEachClock(t, func(t *testing.T, m mode) {
		b, r := newBulk(t, m, 3, 10*time.Millisecond, setup{timeout: time.Minute, strategy: retryAll(2, time.Second)})
		r.sendEach("ab")
		r.advance(4 * time.Millisecond)
		require.Empty(t, b.times())
		r.sendEach("cde")
		require.Equal(t, "a#1+b#1+c#1@4ms", b.times())
		r.advance(10*time.Millisecond - 1)
		require.Equal(t, "a#1+b#1+c#1@4ms", b.times())
		r.advance(1)
		require.Equal(t, "a#1+b#1+c#1@4ms d#1+e#1@14ms", b.times())
		require.EqualValues(t, 2, r.stats().Running)
		require.EqualValues(t, 5, r.stats().Attempts)
		b.answers("a#1+b#1+c#1", "! B -")
		require.EqualValues(t, 1, r.stats().Running)
		r.advance(time.Second)
		r.sendEach("f")
		require.Contains(t, b.times(), " a#2+c#2+f#1@1.014s")
		b.answers("a#2+c#2+f#1", "A C F")
		b.answers("d#1+e#1", "D E")
		require.Equal(t, m.pick("A B C D E F", "B A C F D E"), r.outputs())
		require.NoError(t, r.end())
		s := r.stats()
		require.EqualValues(t, 1, s.RetriesOnError)
		require.EqualValues(t, 1, s.RetriesOnResult)
		checkBalance(t, s)
	})
}

// An operator with fewer slots than a batch has members does not wait for more. At the end of the input, whatever ends it, no
// batch waits.
func TestBatchedDoesNotWaitForWhatCannotCome(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		b, r := newBulk(t, m, 100, time.Hour, setup{timeout: 2 * time.Hour})
		b.self = uppers
		r.sendEach("abcde")
		require.Equal(t, "a#1+b#1@0s c#1+d#1@0s", b.times())
		r.endInput()
		require.Equal(t, "a#1+b#1@0s c#1+d#1@0s e#1@0s", b.times())
		require.NoError(t, r.wait())
		require.Equal(t, "A B C D E", r.outputs())
	}, 2)
	forEachMode(t, func(t *testing.T, m mode) {
		b, r := newBulk(t, m, 100, time.Hour, setup{timeout: 2 * time.Hour})
		b.self = uppers
		r.sendEach("abc")
		require.Empty(t, b.times())
		require.NoError(t, r.op.Stop(t.Context()))
		require.Equal(t, "a#1+b#1+c#1@0s", b.times())
	})
}

// Retries that go on after the end of the input do not wait for a batch either.
func TestBatchedDrain(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		b, r := newBulk(t, m, 100, 10*time.Second, setup{
			timeout: time.Minute, strategy: retryAll(1, time.Second), opts: options(asyncop.WithDrainRetries()),
		})
		r.sendEach("ab")
		r.endInput()
		b.answers("a#1+b#1", "! B")
		r.advance(time.Second)
		b.answers("a#2", "A")
		require.NoError(t, r.wait())
		require.Equal(t, "a#1+b#1@0s a#2@1s", b.times())
	})
}

// A3: the timeout of a member ends that only. The context of the call ends with the last member, and its deadline is the
// latest. The permit comes back when the call returns (A2: what it brings then is late).
func TestBatchedTimeoutOfMembers(t *testing.T) {
	forEachClock(t, func(t *testing.T, m mode) {
		b, r := newBulk(t, m, 2, time.Second, setup{
			timeout: 3 * time.Second, opts: options(asyncop.WithDropOnFailure(), asyncop.WithMaxConcurrentCalls(1)),
		})
		r.sendEach("a")
		r.advance(time.Second / 2)
		r.sendEach("b")
		c := b.named("a#1+b#1")
		deadline, ok := c.ctx.Deadline()
		require.Equal(t, !m.mock, ok, "real clients take that of a mock for one long past")
		if ok {
			require.Equal(t, 3500*time.Millisecond, deadline.Sub(r.start))
		}
		ended := make(chan struct{})
		stop := context.AfterFunc(c.ctx, func() { close(ended) })
		r.advance(2500 * time.Millisecond)
		require.EqualValues(t, 1, r.stats().Timeouts)
		require.ErrorIs(t, c.members[0].Err(), context.DeadlineExceeded)
		require.NoError(t, c.members[1].Err())
		require.NoError(t, c.ctx.Err())
		r.sendEach("cd")
		r.advance(time.Second / 2)
		require.EqualValues(t, 2, r.stats().Timeouts)
		require.ErrorIs(t, c.ctx.Err(), context.DeadlineExceeded)
		<-c.ctx.Done()
		<-ended
		require.False(t, stop())
		require.EqualValues(t, 1, r.stats().Running, "the call has not returned")
		require.Equal(t, "a#1+b#1@500ms", b.times())
		b.answers("a#1+b#1", "A B")
		require.EqualValues(t, 2, r.stats().LateCompletions)
		require.Equal(t, "a#1+b#1@500ms c#1+d#1@3.5s", b.times())
		b.answers("c#1+d#1", "C D")
		require.Equal(t, "C D", r.outputs())
		require.NoError(t, r.end())
		checkBalance(t, r.stats())
		require.Zero(t, r.stats().Running)
	})
}

// A member whose time runs out before its call begins is not part of it (A5).
func TestBatchedMembersThatAreLate(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		b, r := newBulk(t, m, 2, 1, setup{timeout: time.Second, opts: options(asyncop.WithDropOnFailure(), asyncop.WithMaxConcurrentCalls(1))})
		r.sendEach("ab")
		r.advance(time.Second / 2)
		r.sendEach("c")
		r.advance(time.Second / 2)
		b.answers("a#1+b#1", "A B")
		require.Equal(t, "a#1+b#1@0s c#1@1s", b.times())
		r.advance(time.Second / 2)
		require.EqualValues(t, 3, r.stats().Timeouts)
	})
}

// Attempts time out each for itself, and are retried while the call goes on.
func TestBatchedAttemptTimeout(t *testing.T) {
	forEachClock(t, func(t *testing.T, m mode) {
		b, r := newBulk(t, m, 2, time.Hour, setup{
			timeout: time.Minute, strategy: retryAll(1, time.Second), opts: options(asyncop.WithAttemptTimeout(time.Second)),
		})
		r.sendEach("ab")
		c := b.named("a#1+b#1")
		r.advance(time.Second)
		require.ErrorIs(t, c.ctx.Err(), context.DeadlineExceeded)
		require.EqualValues(t, 2, r.stats().AttemptTimeouts)
		require.EqualValues(t, 1, r.stats().Running)
		r.advance(time.Second)
		require.Equal(t, "a#1+b#1@0s a#2+b#2@2s", b.times())
		b.answers("a#2+b#2", "A B")
		b.answers("a#1+b#1", "late late")
		require.Equal(t, "A B", r.outputs())
		require.NoError(t, r.end())
		require.EqualValues(t, 2, r.stats().LateCompletions)
	})
}

// A cancel ends the context of the call with the operator's cause. A batch that waits is not called.
func TestBatchedCancel(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		permits := limited(2)
		b, r := newBulk(t, m, 2, time.Second, setup{opts: options(asyncop.WithBackend(permits))})
		r.sendEach("abc")
		c := b.named("a#1+b#1")
		derived, cancel := context.WithCancel(c.ctx)
		defer cancel()
		require.ErrorIs(t, r.cut(errBroken), errBroken)
		require.ErrorIs(t, c.ctx.Err(), context.Canceled)
		require.ErrorIs(t, derived.Err(), context.Canceled)
		require.Equal(t, errBroken, context.Cause(c.ctx))
		require.EqualValues(t, 3, r.stats().Abandoned)
		require.Equal(t, 1, permits.Stats().InUse, "the call has not returned")
		b.answers("a#1+b#1", "A B")
		require.Zero(t, permits.Stats().InUse)
		require.Equal(t, "a#1+b#1@0s", b.times())
	})
}

// An error of the call, a panic, runtime.Goexit, and results that are not as many as the elements, are the outcome of each
// member.
func TestBatchedCallsThatFail(t *testing.T) {
	cases := map[string]struct {
		outcome func() ([]answer, error)
		check   func(t *testing.T, err error)
	}{
		"error": {
			func() ([]answer, error) { return make([]answer, 2), errBroken },
			func(t *testing.T, err error) { require.ErrorIs(t, err, errBroken) },
		},
		"too few": {
			func() ([]answer, error) { return make([]answer, 1), nil },
			func(t *testing.T, err error) { require.ErrorContains(t, err, "1 results for 2 elements") },
		},
		"too many": {
			func() ([]answer, error) { return make([]answer, 3), nil },
			func(t *testing.T, err error) { require.ErrorContains(t, err, "3 results for 2 elements") },
		},
	}
	for _, b := range breakages {
		cases[b.name] = struct {
			outcome func() ([]answer, error)
			check   func(t *testing.T, err error)
		}{
			func() ([]answer, error) { b.breaks(); return nil, nil },
			func(t *testing.T, err error) {
				p, ok := errors.AsType[*asyncop.PanicError](err)
				require.True(t, ok, "%v", err)
				require.Equal(t, b.value, p.Value)
			},
		}
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			forEachMode(t, func(t *testing.T, m mode) {
				side := newSideSink(false)
				b, r := newBulk(t, m, 2, 1, setup{
					timeout: time.Minute, strategy: retryAll(1, time.Second), opts: options(asyncop.WithFailureSink(side.take)),
				})
				r.sendEach("ab")
				b.ends("a#1+b#1", c.outcome)
				r.advance(time.Second)
				require.Zero(t, r.stats().Running-1)
				b.ends("a#2+b#2", c.outcome)
				require.Equal(t, "a b", side.elements())
				for _, f := range side.got() {
					c.check(t, f.Err)
					require.Equal(t, 2, f.Attempts)
				}
				r.sendEach("c")
				r.advance(1)
				b.answers("c#1", "C")
				require.NoError(t, r.end())
				require.Zero(t, r.stats().Running)
				require.Zero(t, r.stats().LateCompletions)
				checkBalance(t, r.stats())
			})
		})
	}
	forEachMode(t, func(t *testing.T, m mode) {
		b, r := newBulk(t, m, 2, 1, setup{})
		r.sendEach("ab")
		b.ends("a#1+b#1", func() ([]answer, error) { return nil, asyncop.ErrNoResult })
		require.NoError(t, r.end())
		require.EqualValues(t, 2, r.stats().Completed)
	})
}

// A batch takes one permit of each kind, and is one call for the rate. Elements that wait for their batch have none.
func TestBatchedPermitsAndRate(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		permits := backend.New("limited", backend.Limit(1), backend.Rate(1, time.Second))
		b, r := newBulk(t, m, 3, time.Second, setup{opts: options(asyncop.WithBackend(permits))})
		r.sendEach("ab")
		require.Zero(t, permits.Stats().InUse)
		r.sendEach("cdefg")
		require.Equal(t, 1, permits.Stats().InUse)
		require.EqualValues(t, 1, r.stats().Running)
		r.advance(100 * time.Millisecond)
		b.answers("a#1+b#1+c#1", "A B C")
		require.Zero(t, permits.Stats().InUse)
		r.advance(900 * time.Millisecond)
		require.Equal(t, "a#1+b#1+c#1@0s d#1+e#1+f#1@1s", b.times())
		r.advance(time.Second)
		require.Equal(t, 1, permits.Stats().InUse)
		b.answers("d#1+e#1+f#1", "D E F")
		require.Equal(t, "a#1+b#1+c#1@0s d#1+e#1+f#1@1s g#1@2s", b.times())
		b.answers("g#1", "G")
		require.NoError(t, r.end())
		require.Zero(t, permits.Stats().InUse)
	})
}

// Operators of batches share permits, and none is lost, whatever ends the calls.
func TestBatchedSharedPermits(t *testing.T) {
	for _, limit := range []int{1, 3} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				permits := limited(limit)
				var all gauge
				var wg sync.WaitGroup
				start := time.Now()
				for range 3 {
					fn := asyncop.Batched(func(ctx context.Context, ins []int) ([]asyncop.Result[int], error) {
						all.enter()
						defer all.leave()
						time.Sleep(time.Second)
						return make([]asyncop.Result[int], len(ins)), ctx.Err()
					}, 5, time.Millisecond)
					op := asyncop.OrderedWait(fn, time.Hour, 10, asyncop.WithBackend(permits))
					wg.Go(func() { assert.Equal(t, 50, consume(t, op, 50)) })
				}
				wg.Wait()
				require.EqualValues(t, limit, all.most.Load())
				require.Equal(t, time.Duration(30/limit)*time.Second, time.Since(start), "permits lie idle, or batches are small")
				require.Zero(t, permits.Stats().InUse)
			})
		})
	}
}

// What belongs to one element is in the context of the member: the number of its attempt, and values of observers.
func TestBatchedContexts(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		o := newTally(t)
		b, r := newBulk(t, m, 2, 1, setup{timeout: time.Minute, strategy: retryAll(1, time.Second), opts: options(asyncop.WithObserver(o))})
		r.sendEach("ab")
		c := b.named("a#1+b#1")
		require.Equal(t, "a", c.members[0].Value(tallyKey{}))
		require.Equal(t, "b", c.members[1].Value(tallyKey{}))
		require.Nil(t, c.ctx.Value(tallyKey{}))
		require.Zero(t, asyncop.AttemptFromContext(c.ctx))
		require.Equal(t, "of the operator", c.ctx.Value(valueKey{}))
		require.Equal(t, "of the operator", c.members[0].Value(valueKey{}))
		require.Nil(t, asyncop.MemberContexts(c.members[0]))
		require.Nil(t, asyncop.MemberContexts(t.Context()))
		b.answers("a#1+b#1", "! B")
		require.ErrorIs(t, c.ctx.Err(), context.Canceled)
		require.NotNil(t, asyncop.MemberContexts(c.ctx))
		r.advance(time.Second + 1)
		b.answers("a#2", "A")
		require.NoError(t, r.end())
		require.Equal(t, 3, o.attempts)
		require.Equal(t, map[observe.EndKind]int{observe.Emitted: 2}, o.ended)
	})
}

// Any maxSize is good: an operator that waits for a permit that others share gets it when it comes back.
func TestBatchedWithoutALimitWaitsForAPermit(t *testing.T) {
	for _, size := range []int{1, 2, 3, math.MaxInt} {
		synctest.Test(t, func(t *testing.T) {
			permits := limited(1)
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

// cancelling is a wrapper that has cancelled the context of the element a, and whose future for that ends its goroutine.
type cancelling struct{ function }

func (c cancelling) Unwrap() any { return c.function }

func (c cancelling) AsyncInvoke(ctx context.Context, in string, result future) error {
	if in == "a" {
		ended, cancel := context.WithCancel(ctx)
		cancel()
		ctx, result = ended, spitefulFuture{runtime.Goexit}
	}
	return c.function.AsyncInvoke(ctx, in, result)
}

// Law A6: a future that breaks when its element is left out of the call fails that element; the others are called.
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

// The contexts of the members are the caller's, as the elements are: what it makes of the slice changes nothing.
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

// A member that is a message has its history; the call has none.
func TestBatchedMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fn := asyncop.Batched(func(ctx context.Context, ins []string) ([]asyncop.Result[string], error) {
			_, ok := delivery.MetaFromContext(ctx)
			require.False(t, ok)
			results := make([]asyncop.Result[string], 0, len(ins))
			for _, m := range asyncop.MemberContexts(ctx) {
				meta, _ := delivery.MetaFromContext(m)
				results = append(results, asyncop.Result[string]{Value: meta.ID})
			}
			return results, nil
		}, 2, time.Second)
		var v verdicts
		op := asyncop.OrderedWait(fn, time.Minute, 4)
		var got []string
		for m, err := range op.Messages(received(v.message("a"), v.message("b"), v.message("c"))) {
			require.NoError(t, err)
			got = append(got, m.Value)
			m.Ack()
		}
		require.Equal(t, []string{"a", "b", "c"}, got)
		require.Equal(t, map[string]string{"a": "acked", "b": "acked", "c": "acked"}, v.all())
	})
}

// An operator inside of a call has neither the members nor the batch of that.
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
	forEachMode(t, func(t *testing.T, m mode) {
		b, r := newBulk(t, m, 2, time.Hour, setup{})
		b.self = func(c *bulkCall) ([]answer, error) {
			assert.Empty(t, inner(c.ctx))
			assert.Empty(t, inner(c.members[0]))
			return uppers(c)
		}
		r.sendEach("ab")
		require.NoError(t, r.end())
		require.Equal(t, "A B", r.outputs())
	})
}

// With checkpoints members are elements as any: a barrier flushes nothing, and what was not settled comes again in batches.
func TestBatchedCheckpoints(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		store := checkpointtest.NewMemoryStore()
		b := &bulk{t: t, over: make(chan struct{})}
		r := newCheckRig(t, m, setup{wrap: b.function(3, time.Hour)}, store)
		t.Cleanup(func() { close(b.over) })
		r.sendEach("abcd")
		r.save()
		require.Equal(t, "a b c d", stateIn(t, store, nil))
		b.answers("a#1+b#1+c#1", "- B C")
		r.save()
		require.Equal(t, "d", stateIn(t, store, nil))
		require.Equal(t, "a#1+b#1+c#1@0s", b.times())
		r.sendEach("e")
		r.save()
		_ = r.cut(errBroken)

		again := &bulk{t: t, over: make(chan struct{})}
		r = newCheckRig(t, m, setup{wrap: again.function(3, time.Hour)}, store.Reopen())
		t.Cleanup(func() { close(again.over) })
		synctest.Wait()
		require.Empty(t, again.times())
		r.sendEach("f")
		again.answers("d#1+e#1+f#1", "D E F")
		r.sendEach("g")
		drain, done := r.trigger(checkpoint.Drain)
		r.send(drain)
		again.answers("g#1", "G")
		require.NoError(t, r.finish(done))
		require.NoError(t, r.wait())
		require.Equal(t, "D E F G <end> <5>", r.outputs())
	})
}

// That no element follows is known also of those that have waited for a slot.
func TestBatchedEndOfInputBehindTheBacklog(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		store := checkpointtest.NewMemoryStore()
		r := newCheckRig(t, mode{ordered: m.ordered, capacity: 16}, setup{}, store)
		r.sendEach("abc")
		r.save()
		_ = r.cut(errTestOver)
		b := &bulk{t: t, over: make(chan struct{})}
		r = newCheckRig(t, m, setup{wrap: b.function(3, time.Hour)}, store.Reopen())
		t.Cleanup(func() { close(b.over) })
		drain, done := r.trigger(checkpoint.Drain)
		r.send(drain)
		b.answers("a#1+b#1", "A B")
		b.answers("c#1", "C")
		require.NoError(t, r.finish(done))
		require.NoError(t, r.wait())
		require.Equal(t, "a#1+b#1@0s c#1@0s", b.times())
	}, 2)
}

// In key order at most one element of a key is in a batch, and the next one waits until it has ended, retries included, and its
// call has returned (law K1).
func TestBatchedInKeyOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, r := newBulk(t, keyMode, 2, time.Millisecond, setup{timeout: time.Minute, strategy: retryAll(1, time.Second), key: firstLetter})
		r.send("a1", "a2", "a3", "b1")
		require.Equal(t, "a1#1+b1#1@0s", b.times())
		b.answers("a1#1+b1#1", "! B")
		r.advance(time.Second + time.Millisecond)
		b.answers("a1#2", "A1")
		r.advance(time.Millisecond)
		require.Equal(t, "a1#1+b1#1@0s a1#2@1.001s a2#1@1.002s", b.times())
		b.answers("a2#1", "A2")
		r.send("b2")
		b.answers("a3#1+b2#1", "A3 B2")
		require.NoError(t, r.end())
		require.Equal(t, "B A1 A2 A3 B2", r.outputs())
	})
	synctest.Test(t, func(t *testing.T) {
		b, r := newBulk(t, keyMode, 2, time.Millisecond, setup{
			timeout: 3 * time.Second, key: firstLetter, opts: options(asyncop.WithDropOnFailure()),
		})
		r.send("a1", "b1")
		r.advance(2 * time.Second)
		r.send("a2")
		r.advance(time.Second)
		require.EqualValues(t, 2, r.stats().Timeouts)
		r.advance(time.Second)
		require.Equal(t, "a1#1+b1#1@0s", b.times(), "the call has not returned")
		b.answers("a1#1+b1#1", "late late")
		r.advance(time.Millisecond)
		b.answers("a2#1", "A2")
		require.NoError(t, r.end())
		require.Equal(t, "A2", r.outputs())
	})
}

// An operator inside of a call for many runs on the permit of that, under the context of the call or of a member.
func TestBatchedAroundAnOperatorWithTheSamePermits(t *testing.T) {
	for _, ofMember := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			permits := limited(1)
			fn := asyncop.Batched(func(ctx context.Context, ins []int) ([]asyncop.Result[int], error) {
				if ofMember {
					ctx = asyncop.MemberContexts(ctx)[0]
				}
				inner := asyncop.OrderedWait(asyncop.Func(double), time.Minute, 2, asyncop.WithContext(ctx), asyncop.WithBackend(permits))
				assert.Equal(t, 3, consume(t, inner, 3))
				return make([]asyncop.Result[int], len(ins)), nil
			}, 2, 0)
			require.Equal(t, 4, consume(t, asyncop.OrderedWait(fn, time.Minute, 4, asyncop.WithBackend(permits)), 4))
			require.Zero(t, permits.Stats().InUse)
		})
	}
}

// hits is a cache that has what ends with 1.
type hits struct{ function }

func (h hits) Unwrap() any { return h.function }

func (h hits) AsyncInvoke(ctx context.Context, in string, result future) error {
	if strings.HasSuffix(in, "1") {
		result.Complete("hit")
		return nil
	}
	return h.function.AsyncInvoke(ctx, in, result)
}

// A batch that makes no call, since a wrapper has completed all its members, gives the keys and the permits back (law K1).
func TestBatchedWithoutACallInKeyOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		permits := limited(1)
		start := time.Now()
		fn := asyncop.Batched(func(_ context.Context, ins []string) ([]asyncop.Result[string], error) {
			return make([]asyncop.Result[string], len(ins)), nil
		}, 2, time.Second)
		op := asyncop.KeyOrderedWait(hits{fn}, firstLetter, time.Minute, 4, nil, asyncop.WithBackend(permits), asyncop.WithMaxConcurrentCalls(1))
		var got []string
		for v, err := range op.Results(slices.Values([]string{"a1", "a2", "b1", "a1", "b2"})) {
			require.NoError(t, err)
			got = append(got, v)
		}
		slices.Sort(got)
		require.Equal(t, []string{"", "", "hit", "hit", "hit"}, got)
		require.LessOrEqual(t, time.Since(start), 5*time.Second)
		require.Zero(t, permits.Stats().InUse)
	})
}

// A suspend leaves a batch to the checkpoint, whether it waits or is about to be called.
func TestBatchedSuspend(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		store := checkpointtest.NewMemoryStore()
		b := &bulk{t: t, over: make(chan struct{})}
		r := newCheckRig(t, m, setup{wrap: b.function(2, time.Hour)}, store)
		t.Cleanup(func() { close(b.over) })
		r.sendEach("abc")
		require.Equal(t, "a#1+b#1@0s", b.times())
		suspend, done := r.trigger(checkpoint.Suspend)
		r.send(suspend)
		require.NoError(t, r.finish(done))
		require.NoError(t, r.wait())
		require.Equal(t, "a b c", stateIn(t, store, nil))
		require.Equal(t, "a#1+b#1@0s", b.times())
	})
}

// What a strategy wants done first is done before the call of the batch, for all at a time. If it fails for one, the others are
// called.
func TestBatchedBefore(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		var mu sync.Mutex
		var did []string
		s := decides(func(_ context.Context, a *view) (strategies.Action, error) {
			in := a.Input.(string)
			return strategies.RetryAfter(time.Second).WithBefore(func(ctx context.Context) error {
				time.Sleep(time.Second)
				mu.Lock()
				defer mu.Unlock()
				did = append(did, fmt.Sprintf("%s#%d", in, asyncop.AttemptFromContext(ctx)))
				if in == "b" && asyncop.AttemptFromContext(ctx) == 2 {
					return errBroken
				}
				return nil
			}), nil
		})
		b, r := newBulk(t, m, 3, 1, setup{timeout: time.Minute, strategy: because(safeReason, s)})
		r.sendEach("abc")
		b.answers("a#1+b#1+c#1", "! ! C")
		r.advance(time.Second + 1)
		require.EqualValues(t, 1, r.stats().Running)
		r.advance(time.Second)
		require.Equal(t, "a#1+b#1+c#1@0s a#2@2.000000001s", b.times())
		b.answers("a#2", "A")
		r.advance(2*time.Second + 1)
		b.answers("b#3", "B")
		require.ElementsMatch(t, []string{"a#2", "b#2", "b#3"}, did)
		require.NoError(t, r.end())
	})
	forEachMode(t, func(t *testing.T, m mode) { // one that takes too long keeps the others until its own timeout
		s := decides(func(_ context.Context, a *view) (strategies.Action, error) {
			action := strategies.RetryAfter(time.Second)
			if a.Input == "a" {
				action = action.WithBefore(func(context.Context) error { time.Sleep(time.Hour); return nil })
			}
			return action, nil
		})
		b, r := newBulk(t, m, 2, 0, setup{
			timeout: time.Minute, strategy: because(safeReason, s), opts: options(asyncop.WithAttemptTimeout(10*time.Second), asyncop.WithDropOnFailure()),
		})
		r.sendEach("a")
		r.advance(time.Second)
		r.sendEach("b")
		b.answers("a#1", "!")
		r.advance(time.Second / 2)
		b.answers("b#1", "!")
		r.advance(time.Second)
		require.NoError(t, r.end())
		time.Sleep(2 * time.Hour) // lets what runs first end
		checkBalance(t, r.stats())
	})
}

// hooked is a function around another one, as users write them.
type hooked struct {
	function
	before func(ctx context.Context, in string, result future) (done bool)
}

func (w hooked) AsyncInvoke(ctx context.Context, in string, result future) error {
	if w.before != nil && w.before(ctx, in, result) {
		return nil
	}
	return w.function.AsyncInvoke(ctx, in, result)
}

type hookedOpenly struct{ hooked }

func (w hookedOpenly) Unwrap() any { return w.function }

// A wrapper with Unwrap does what it does for each member, also with a future and a context of its own.
func TestBatchedInsideOfWrappers(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		b := &bulk{t: t, over: make(chan struct{})}
		b.self = uppers
		r := newRig(t, m, setup{timeout: time.Minute, wrap: func(h *hand) function {
			fn := b.function(3, 1)(h)
			w := hookedOpenly{hooked{function: fn, before: func(_ context.Context, in string, result future) bool {
				if in == "b" {
					result.Complete("known")
				}
				return in == "b"
			}}}
			return asyncop.HandleFailure[string, string](w, func(context.Context, failure) ([]string, error) { return nil, nil })
		}})
		r.sendEach("abc")
		require.NoError(t, r.end())
		require.Equal(t, "a#1+c#1@0s", b.times())
		require.Equal(t, m.pick("A known C", "known A C"), r.outputs())
	})
}

// exclaiming is a wrapper's future.
type exclaiming struct {
	future
	breaks func()
}

func (e exclaiming) Complete(results ...string) {
	if e.breaks != nil {
		e.breaks()
	}
	e.future.Complete(results[0] + "!")
}

// A future of a wrapper that breaks fails its own element only (A6).
func TestBatchedFuturesThatBreak(t *testing.T) {
	for _, breakage := range breakages {
		t.Run(breakage.name, func(t *testing.T) {
			forEachMode(t, func(t *testing.T, m mode) {
				side := newSideSink(false)
				b := &bulk{t: t, over: make(chan struct{})}
				b.self = uppers
				r := newRig(t, m, setup{timeout: time.Minute, opts: options(asyncop.WithFailureSink(side.take)), wrap: func(h *hand) function {
					fn := b.function(4, 1)(h)
					w := hookedOpenly{hooked{function: fn}}
					w.before = func(ctx context.Context, in string, result future) bool {
						e := exclaiming{future: result}
						if in == "b" || in == "c" {
							e.breaks = breakage.breaks
						}
						assert.NoError(t, fn.AsyncInvoke(ctx, in, e))
						return true
					}
					return w
				}})
				r.sendEach("abcd")
				require.NoError(t, r.end())
				require.Equal(t, "A! D!", r.outputs())
				require.Equal(t, "b c", side.elements())
				require.Zero(t, r.stats().Running)
			})
		})
	}
}

// A wrapper that breaks while a batch is formed fails its element only (A6).
func TestBatchedWrappersThatBreak(t *testing.T) {
	for _, breakage := range breakages {
		t.Run(breakage.name, func(t *testing.T) {
			forEachMode(t, func(t *testing.T, m mode) {
				side := newSideSink(false)
				b := &bulk{t: t, over: make(chan struct{})}
				b.self = uppers
				r := newRig(t, m, setup{timeout: time.Minute, opts: options(asyncop.WithFailureSink(side.take)), wrap: func(h *hand) function {
					return hookedOpenly{hooked{function: b.function(4, 10*time.Millisecond)(h), before: func(_ context.Context, in string, _ future) bool {
						if in == "b" {
							breakage.breaks()
						}
						return false
					}}}
				}})
				r.sendEach("abcd")
				r.advance(10 * time.Millisecond)
				require.NoError(t, r.end())
				require.Equal(t, "A C D", r.outputs())
				require.Equal(t, "b", side.elements())
				require.Zero(t, r.stats().Running)
			})
		})
	}
}

// A wrapper that the operator does not see through, or that comes later, fails its elements with what is wrong.
func TestBatchedWrappersThatAreRefused(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		b := &bulk{t: t, over: make(chan struct{})}
		r := newRig(t, m, setup{wrap: func(h *hand) function { return hooked{function: b.function(3, 0)(h)} }})
		r.sendEach("a")
		require.ErrorContains(t, r.wait(), "needs a method Unwrap() any")
	})
	forEachMode(t, func(t *testing.T, m mode) {
		b := &bulk{t: t, over: make(chan struct{})}
		r := newRig(t, m, setup{timeout: time.Minute, wrap: func(h *hand) function {
			fn := b.function(3, 0)(h)
			return hookedOpenly{hooked{function: fn, before: func(ctx context.Context, in string, result future) bool {
				time.AfterFunc(time.Second, func() {
					if err := fn.AsyncInvoke(ctx, in, result); err != nil {
						result.CompleteExceptionally(err)
					}
				})
				return true
			}}}
		}})
		r.sendEach("a")
		r.advance(time.Second)
		require.ErrorContains(t, r.wait(), "before its own AsyncInvoke returns")
		require.Zero(t, r.stats().Running)
	})
}

// misleading shows another function than the one that it calls.
type misleading struct{ function }

func (m misleading) Unwrap() any { return asyncop.Batched(noBatch, 3, 0) }

func noBatch(context.Context, []string) ([]asyncop.Result[string], error) { return nil, errBroken }

// An element does not get into a batch of another function.
func TestBatchedOfAnotherFunction(t *testing.T) {
	fn := misleading{asyncop.Batched(noBatch, 3, 0)}
	_, err := asyncop.Map(t.Context(), []string{"a"}, fn, nil, asyncop.WithLogger(slog.New(slog.DiscardHandler)))
	require.ErrorContains(t, err, "no operator forms a batch for this call")
}

// hasty does not wait for its calls.
type hasty struct{ function }

func (h hasty) AsyncInvoke(ctx context.Context, in string, result future) error {
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	return h.function.AsyncInvoke(ctx, in, result)
}

func (h hasty) Unwrap() any { return h.function }

// An element whose wrapper does not wait for the batch has failed: it does not hang (law A3).
func TestBatchedWrapperThatDoesNotWait(t *testing.T) {
	_, err := asyncop.Map[string, string](t.Context(), []string{"a"}, hasty{asyncop.Batched(noBatch, 3, 0)}, nil,
		asyncop.WithLogger(slog.New(slog.DiscardHandler)))
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, errBroken)
}

// Nor is a blocking call made.
func TestBlockingWrapperThatDoesNotWait(t *testing.T) {
	fn := hasty{asyncop.Blocking(func(context.Context, string) (string, error) { return "", errBroken })}
	_, err := asyncop.Map[string, string](t.Context(), []string{"a"}, fn, nil, asyncop.WithLogger(slog.New(slog.DiscardHandler)))
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, errBroken)
}

// noMessages is an observer of elements that are no messages.
type noMessages struct {
	mute
	t *testing.T
}

func (o noMessages) Accepted(ctx context.Context, _ any, _ bool) context.Context {
	assert.False(o.t, isMessage(ctx))
	return ctx
}

func isMessage(ctx context.Context) bool {
	_, ok := delivery.MetaFromContext(ctx)
	return ok
}

// An operator of batches in the call for a message: neither the message nor the number of that attempt is theirs, but its
// permit is. An operator in the call of a batch has that permit, too.
func TestBatchedInsideOfACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		permits := limited(1)
		within := func(ctx context.Context, fn function, ins []string, opts ...asyncop.Option) (results []asyncop.Result[string]) {
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
		var v verdicts
		op := asyncop.OrderedWait(outer, time.Minute, 4, asyncop.WithBackend(permits))
		var got []string
		for m, err := range op.Messages(received(v.message("a"))) {
			require.NoError(t, err)
			got = append(got, m.Value)
			m.Ack()
		}
		require.Equal(t, []string{"a1!", "a2!"}, got)
		synctest.Wait()
		require.Zero(t, permits.Stats().InUse)
	})
}

// Reports under the context of the call count for all members; a request that was taken back for none.
func TestBatchedStages(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode) {
		var mu sync.Mutex
		seen := map[string]string{}
		s := decides(func(_ context.Context, a *view) (strategies.Action, error) {
			mu.Lock()
			defer mu.Unlock()
			seen[fmt.Sprintf("%v#%d", a.Input, a.Number)] = fmt.Sprintf("%v %v %v", a.Stage, a.InDoubt, a.Idempotent)
			return strategies.RetryAfter(time.Second), nil
		})
		b, r := newBulk(t, m, 2, 1, setup{timeout: time.Minute, strategy: because(safeReason, s)})
		b.self = func(c *bulkCall) ([]answer, error) {
			predicates.ReportStage(c.ctx, predicates.ClientDispatch)
			switch asyncop.AttemptFromContext(c.members[0]) {
			case 1:
			case 2:
				predicates.ReportSent(c.ctx).Refused()
			case 3:
				predicates.ReportSent(predicates.WithTracked(c.ctx)) // under an identity that is none of a member
			case 4:
				predicates.ReportSent(predicates.WithTracked(c.members[slices.Index(c.ins, "a")]))
			default:
				return uppers(c)
			}
			return nil, errBroken
		}
		r.sendEach("ab")
		r.advance(time.Minute / 2)
		require.NoError(t, r.end())
		dispatched := fmt.Sprintf("%v false false", predicates.ClientDispatch)
		inDoubt := fmt.Sprintf("%v true false", predicates.NetworkTime)
		tracked := fmt.Sprintf("%v true true", predicates.NetworkTime)
		require.Equal(t, map[string]string{
			"a#1": dispatched, "b#1": dispatched, "a#2": dispatched, "b#2": dispatched,
			"a#3": inDoubt, "b#3": inDoubt, "a#4": tracked, "b#4": dispatched,
		}, seen)
	})
}

func TestBatchedPanics(t *testing.T) {
	call := func(context.Context, []string) ([]answer, error) { return nil, nil }
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

// converting wraps a function of other types.
type converting struct {
	asyncop.AsyncFunction[int, int]
}

func (converting) AsyncInvoke(context.Context, string, future) error { return nil }
func (c converting) Unwrap() any                                     { return c.AsyncFunction }

// Whatever drives the operator, each element ends once, and is called again only if it has failed (A1).
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
							results[i].Err = errBroken
							continue
						}
						results[i].Value = -in
						succeeded[in]++
					}
					return results, nil
				}, 16, 5*time.Millisecond)
				m := mode{ordered: ordered, capacity: 200}
				op := construct(m, fn, time.Minute, retryAllOf[int](2, time.Millisecond), asyncop.WithDrainRetries(), asyncop.WithMaxConcurrentCalls(20),
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
				checkBalance(t, op.Stats())
			})
		}
	}
}
