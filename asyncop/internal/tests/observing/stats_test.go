package observing_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/internal/optest"
)

// ---- Stats at any time

// A scenario that changes every number.
func TestStatsTellTheStory(t *testing.T) {
	optest.ForEachClock(t, func(t *testing.T, m optest.Mode) {
		side := optest.NewSideSink(false)
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: 10 * time.Second, Strategy: optest.RetryAll(1, time.Second),
			Opts: optest.Options(asyncop.WithMaxConcurrentCalls(3), asyncop.WithAttemptTimeout(4*time.Second),
				asyncop.WithFailureSink(side.Take)),
		})
		require.Equal(t, asyncop.Stats{}, r.Stats())

		r.Send("a", "b", optest.Mark(1), "c", "d")
		want := asyncop.Stats{Accepted: 4, InFlight: 4, Running: 3, Attempts: 3}
		require.Equal(t, want, r.Stats())

		r.Advance(time.Second)
		r.Complete("a#1") // empty: a retry on a result
		r.Fail("b#1", optest.ErrBroken)
		want.WaitingForRetry, want.Running, want.Attempts, want.OldestAge = 2, 2, 4, time.Second
		require.Equal(t, want, r.Stats())

		r.Advance(time.Second) // a goes first; c and d run, so b has to wait
		want.WaitingForRetry, want.Running, want.Attempts, want.RetriesOnResult, want.OldestAge = 1, 3, 5, 1, 2*time.Second
		require.Equal(t, want, r.Stats())

		r.Complete("a#2", "A1", "A2")
		r.Complete("a#2", "late")
		want.WaitingForRetry, want.Attempts, want.RetriesOnError = 0, 6, 1
		want.Completed, want.Emitted, want.InFlight, want.LateCompletions = 1, 2, 3, 1
		require.Equal(t, want, r.Stats())

		r.Fail("b#2", optest.ErrBroken) // exhausted
		want.Exhausted, want.Failures, want.HandedOver, want.InFlight, want.Running = 1, 1, 1, 2, 2
		require.Equal(t, want, r.Stats())

		r.Advance(3 * time.Second) // c#1 and d#1 time out: c at 4 s, d, which began at 1 s, at 5 s
		want.AttemptTimeouts, want.Attempts, want.RetriesOnError = 2, 7, 2
		want.Running, want.WaitingForRetry, want.OldestAge = 1, 1, 5*time.Second
		require.Equal(t, want, r.Stats())

		r.Advance(4 * time.Second) // c#2, begun at 5 s, at 9 s, for good; d#2, begun at 6 s, still runs
		want.AttemptTimeouts, want.Attempts, want.RetriesOnError = 3, 8, 3
		want.Exhausted, want.Failures, want.HandedOver, want.InFlight = 2, 2, 2, 1
		want.Running, want.WaitingForRetry, want.OldestAge = 1, 0, 9*time.Second
		require.Equal(t, want, r.Stats())

		r.Advance(time.Second) // both its timeouts pass at 10 s: the total counts
		want.Timeouts, want.Failures, want.HandedOver, want.InFlight, want.Running, want.OldestAge = 1, 3, 3, 0, 0, 0
		require.Equal(t, want, r.Stats())

		r.Send("e", "f")
		require.ErrorIs(t, r.Cut(optest.ErrTestOver), optest.ErrTestOver)
		r.Send("late", optest.Mark(2))
		want.Accepted, want.Attempts, want.Abandoned, want.Discarded = 6, 10, 2, 1 // a watermark is not an element
		require.Equal(t, want, r.Stats())
		require.EqualValues(t, 4, want.Retries())
	})
}

// The last error is the error of an attempt, its timeout, or the error of its element.
func TestLastErrorOfStats(t *testing.T) {
	optest.ForEachClock(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: 10 * time.Second, Strategy: optest.RetryAll(1, time.Second),
			Opts: optest.Options(asyncop.WithAttemptTimeout(6*time.Second), asyncop.WithDropOnFailure()),
		})
		last := func() error {
			r.Stats()
			return r.Op.Stats().LastError
		}
		r.Send("a")
		require.NoError(t, last())
		r.Fail("a#1", optest.ErrBroken)
		require.ErrorIs(t, last(), optest.ErrBroken)
		r.Advance(time.Second)
		r.Complete("a#2", "A")
		require.ErrorIs(t, last(), optest.ErrBroken, "it stays")
		r.Send("b")
		r.Advance(6 * time.Second)
		_, ok := errors.AsType[*asyncop.AttemptTimeoutError](last())
		require.True(t, ok)
		r.Advance(4 * time.Second) // its second attempt began after 7 s
		_, ok = errors.AsType[*asyncop.TimeoutError](last())
		require.True(t, ok)
		require.NoError(t, r.End())
	})
}

// The age belongs to the oldest element in flight, and grows while the operator is idle.
func TestOldestAge(t *testing.T) {
	optest.ForEachClock(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{})
		r.SendEach("a")
		r.Advance(time.Second)
		r.SendEach("b")
		r.Advance(time.Second)
		require.Equal(t, 2*time.Second, r.Stats().OldestAge)
		r.Complete("a#1", "A")
		require.Equal(t, time.Second, r.Stats().OldestAge)
		r.Complete("b#1", "B")
		require.Zero(t, r.Stats().OldestAge)
	})
}

// The account balances at any time, even if it is read under load. The test does not run
// in a bubble.
func TestStatsBalanceAtAnyTime(t *testing.T) {
	blocking := asyncop.Blocking(func(_ context.Context, in int) (int, error) { return in, nil })
	fn := asyncop.Func(func(ctx context.Context, in int, result asyncop.ResultFuture[int]) error {
		switch {
		case in%2 == 0:
			return blocking.AsyncInvoke(ctx, in, result)
		case in%7 == 0:
			return optest.ErrBroken
		case in%3 == 0 && asyncop.AttemptFromContext(ctx) == 1:
			result.Complete()
		case in%5 == 0: // never
		default:
			go result.Complete(in)
		}
		return nil
	})
	s := optest.RetryAllOf[int](1, 100*time.Microsecond)
	op := asyncop.UnorderedWaitWithRetry(fn, 2*time.Millisecond, 32, s, asyncop.WithDropOnFailure(),
		asyncop.WithLogger(slog.New(slog.DiscardHandler)))
	go func() {
		defer close(op.In())
		for i := range 1000 {
			op.In() <- i
		}
	}()
	go func() {
		for range op.Out() {
		}
	}()
	for done := false; !done; {
		select {
		case <-op.Done():
			done = true
		default:
		}
		s := op.Stats()
		optest.CheckBalance(t, s)
		require.GreaterOrEqual(t, s.InFlight, int64(0))
		require.LessOrEqual(t, s.InFlight, int64(32))
		require.GreaterOrEqual(t, s.Running, int64(0))
		require.GreaterOrEqual(t, s.WaitingForRetry, int64(0))
		require.GreaterOrEqual(t, s.OldestAge, time.Duration(0))
	}
	require.NoError(t, op.Wait())
	require.EqualValues(t, 1000, op.Stats().Accepted)
	require.Zero(t, op.Stats().InFlight)
}

// The statistics contain the limits as well as the current numbers.
func TestStatsOfLimits(t *testing.T) {
	fn := asyncop.Blocking(func(context.Context, int) (int, error) { return 0, nil })
	for calls, opts := range map[int64][]asyncop.Option{7: nil, 3: {asyncop.WithMaxConcurrentCalls(3)}} {
		op := asyncop.OrderedWait(fn, 0, 7, opts...)
		require.EqualValues(t, 7, op.Stats().Capacity)
		require.Equal(t, calls, op.Stats().MaxCalls)
		require.NoError(t, op.Stop(t.Context()))
	}
}
