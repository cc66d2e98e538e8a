package observing_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/internal/optest"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/backend"
	"github.com/weirflow/weir/internal/ctxkey"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// The outcomes of the attempts of a failed element are kept, and the failure sink gets
// them. The timeline of an element that succeeds after a retry is not kept.
func TestTimelinesOfElementsThatFail(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		shown := map[string][]observe.Step{}
		r := optest.NewRig(t, m, optest.Setup{Timeout: time.Minute, Strategy: optest.RetryAll(2, time.Second), Opts: optest.Options(
			asyncop.WithFailureSink(func(ctx context.Context, f optest.Failure) error {
				shown[f.Element], _ = ctx.Value(ctxkey.Timeline{}).([]observe.Step)
				return nil
			}),
		)})
		begun := r.Hand.Start
		r.Send("a", "b", "c")
		r.Complete("a#1", "x")
		r.Complete("b#1") // empty: retried
		r.Advance(500 * time.Millisecond)
		r.Fail("c#1", optest.ErrBroken)
		r.Advance(time.Second)
		r.Complete("b#2", "y")
		r.Fail("c#2", optest.ErrBroken)
		r.Advance(time.Second)
		r.Advance(time.Minute) // c times out
		require.NoError(t, r.End())

		timelines := r.Op.Timelines()
		require.Len(t, timelines, 1)
		w := timelines[0]
		require.Equal(t, "c", w.Element)
		require.Equal(t, observe.HandedOver, w.How)
		require.Equal(t, 3, w.Attempts)
		require.Equal(t, time.Minute, w.Total)
		require.Equal(t, begun, w.Accepted)
		require.ErrorAs(t, w.Err, new(*asyncop.TimeoutError))
		at := func(d time.Duration) time.Time { return begun.Add(d) }
		require.Equal(t, []observe.Step{
			{Outcome: observe.Outcome{Attempt: 1, Err: optest.ErrBroken, Duration: 500 * time.Millisecond, Retry: true, Delay: time.Second}, Begun: at(0)},
			{Outcome: observe.Outcome{Attempt: 2, Err: optest.ErrBroken, Retry: true, Delay: time.Second}, Begun: at(1500 * time.Millisecond)},
			{
				Outcome: observe.Outcome{Attempt: 3, Err: context.DeadlineExceeded, Duration: 57500 * time.Millisecond},
				Begun:   at(2500 * time.Millisecond),
			},
		}, w.Steps)
		require.Equal(t, map[string][]observe.Step{"c": w.Steps}, shown)
	})
}

// An element whose timeout passed before its first call has no timeline.
func TestTimelinesOfElementsWithoutACall(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{Timeout: time.Minute, Strategy: optest.RetryAll(1, time.Second), Opts: optest.Options(
			asyncop.WithMaxConcurrentCalls(1), asyncop.WithDropOnFailure(),
		)})
		r.Send("called", "waiting")
		r.Advance(time.Minute)
		require.NoError(t, r.End())
		require.EqualValues(t, 2, r.Op.Stats().Timeouts)
		timelines := r.Op.Timelines()
		require.Len(t, timelines, 1)
		require.Equal(t, "called", timelines[0].Element)
		require.Len(t, timelines[0].Steps, 1)
	})
}

// The timeline of a slow element is kept although the element succeeds.
func TestTimelinesOfElementsThatSucceed(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{Timeout: 10 * time.Second, Strategy: optest.RetryAll(9, 2*time.Second)})
		r.Send("quick")
		r.Complete("quick#1", "x")
		r.Send("slow", "retried")
		r.Fail("retried#1", optest.ErrBroken)
		r.Advance(2 * time.Second)
		r.Fail("retried#2", optest.ErrBroken)
		r.Advance(2 * time.Second)
		r.Advance(1500 * time.Millisecond)
		r.Complete("slow#1", "x")
		r.Complete("retried#3", "x")
		require.NoError(t, r.End())
		got := map[string]string{}
		for _, w := range r.Op.Timelines() {
			require.Equal(t, observe.Emitted, w.How)
			require.NoError(t, w.Err)
			got[w.Element] = fmt.Sprintf("%d in %v, %d result", len(w.Steps), w.Total, w.Steps[len(w.Steps)-1].Results)
		}
		require.Equal(t, map[string]string{"slow": "1 in 5.5s, 1 result", "retried": "3 in 5.5s, 1 result"}, got)
	})
}

// A step has the number of its results even if they were retried.
func TestTimelinesOfResultsThatAreRetried(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		asksAgain := func(results []string) bool { return len(results) == 2 }
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: 3 * time.Second, Strategy: strategies.FixedDelay[string](2, time.Second).RetryIfResult(asksAgain),
		})
		r.Send("a")
		r.Complete("a#1", "x", "y")
		r.Advance(time.Second)
		r.Complete("a#2", "x", "y")
		r.Advance(time.Second)
		r.Complete("a#3", "x") // slow
		require.NoError(t, r.End())
		require.Len(t, r.Op.Timelines(), 1)
		var got []int
		for _, step := range r.Op.Timelines()[0].Steps {
			got = append(got, step.Results)
		}
		require.Equal(t, []int{2, 2, 1}, got)
	})
}

// The number of timelines is bounded per second and in all, and so is the number of steps
// of a timeline.
func TestTimelinesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fn := asyncop.Blocking(func(_ context.Context, in int) (int, error) { return 0, fmt.Errorf("broken %d", in) })
		op := asyncop.UnorderedWaitWithRetry(fn, time.Hour, 1000,
			optest.RetryAllOf[int](49, time.Millisecond), asyncop.WithDropOnFailure(), asyncop.WithLogger(slog.New(slog.DiscardHandler)))
		for i := range 800 {
			op.In() <- i
		}
		synctest.Wait()
		time.Sleep(time.Second)
		synctest.Wait()
		timelines := op.Timelines()
		require.Len(t, timelines, 10)
		steps := timelines[0].Steps
		require.Len(t, steps, 32)
		require.Equal(t, []int{1, 8, 27, 50}, []int{steps[0].Attempt, steps[7].Attempt, steps[8].Attempt, steps[31].Attempt})
		for range 30 {
			for i := range 30 {
				op.In() <- i
			}
			synctest.Wait()
			time.Sleep(2 * time.Second)
		}
		close(op.In())
		for range op.Out() {
		}
		require.NoError(t, op.Wait())
		require.Len(t, op.Timelines(), 256)
		require.True(t, op.Timelines()[0].Accepted.Before(op.Timelines()[255].Accepted))
	})
}

// At most 512 of the elements in flight have timelines.
func TestTimelinesInFlightAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		proceed := make(chan struct{})
		fn := asyncop.Blocking(func(ctx context.Context, in int) (int, error) {
			switch {
			case asyncop.AttemptFromContext(ctx) == 1:
				return 0, optest.ErrBroken
			case in < 512:
				<-proceed
				return in, nil
			}
			return 0, errors.New("broken again")
		})
		op := asyncop.UnorderedWaitWithRetry(fn, time.Hour, 600,
			optest.RetryAllOf[int](1, time.Millisecond), asyncop.WithDropOnFailure(), asyncop.WithLogger(slog.New(slog.DiscardHandler)))
		for i := range 520 {
			if i == 512 {
				time.Sleep(time.Second) // the others have failed once
			}
			op.In() <- i
		}
		time.Sleep(time.Second)
		synctest.Wait()
		require.EqualValues(t, 8, op.Stats().Dropped)
		require.Empty(t, op.Timelines())
		close(proceed)
		close(op.In())
		for range op.Out() {
		}
		require.NoError(t, op.Wait())
	})
}

// A step includes the state of the backend.
func TestTimelinesAtABackend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := errors.New("connection refused")
		fn := asyncop.Blocking(func(context.Context, int) (int, error) {
			return 0, predicates.WithReason(down, predicates.NewReason("DOWN", true, false))
		})
		b := backend.New("payments")
		op := asyncop.OrderedWait(fn, time.Minute, 1, asyncop.WithBackend(b), asyncop.WithDropOnFailure(), asyncop.WithLogger(slog.New(slog.DiscardHandler)))
		op.In() <- 1
		close(op.In())
		for range op.Out() {
		}
		require.NoError(t, op.Wait())
		timelines := op.Timelines()
		require.Len(t, timelines, 1)
		assert.Equal(t, "up", timelines[0].Steps[0].Backend)
	})
}

// asking is an element that may ask for its timeline.
type asking int

func (a asking) KeepsTimeline() bool {
	if a == 0 {
		panic("broken")
	}
	return a > 5
}

// The timeline of an element that asks for it is kept, even after a retry.
func TestTimelinesOfElementsThatAsk(t *testing.T) {
	fn := asyncop.Blocking(func(ctx context.Context, in asking) (int, error) {
		if in%2 == 1 && asyncop.AttemptFromContext(ctx) == 1 {
			return 0, optest.ErrBroken
		}
		return 0, nil
	})
	op := asyncop.OrderedWaitWithRetry(fn, time.Hour, 4, optest.RetryAllOf[int](1, 0), asyncop.WithDrainRetries())
	go func() {
		for i := range asking(8) {
			op.In() <- i
		}
		close(op.In())
	}()
	for range op.Out() {
	}
	require.NoError(t, op.Wait())
	timelines := op.Timelines()
	require.Len(t, timelines, 2)
	require.Equal(t, "6", timelines[0].Element)
	require.Len(t, timelines[0].Steps, 1)
	require.Equal(t, "7", timelines[1].Element)
	require.Len(t, timelines[1].Steps, 2)
}
