package endings_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/internal/optest"
)

// ---- Stop

// Stop accepts no further elements and drains the operator, as at the end of the input.
func TestStopDrains(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		var causes []error
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Minute, Strategy: optest.RetryAll(9, 10*time.Second),
			Opts: optest.Options(asyncop.WithUpstreamCancel(func(cause error) { causes = append(causes, cause) })),
		})
		r.SendEach("ab")
		r.Fail("b#1", optest.ErrBroken)
		stopped := make(chan error)
		go func() { stopped <- r.Op.Stop(t.Context()) }()
		require.Equal(t, "a#1@0s b#1@0s b#2@0s", r.CallTimes(), "the last attempt, at once")
		require.Equal(t, []error{asyncop.ErrStopped}, causes)
		r.Op.In() <- "late" // is buffered in In
		r.Complete("b#2", "B")
		r.Advance(time.Second)
		r.Complete("a#1", "A")
		require.NoError(t, <-stopped)
		require.NoError(t, r.Op.Err())
		require.Equal(t, m.Pick("A B", "B A"), r.Outputs())
		r.Send("later", "latest")
		r.EndInput()
		require.Equal(t, "a#1 b#1 b#2", r.Calls())
		s := r.Stats()
		require.EqualValues(t, 3, s.Discarded)
		require.EqualValues(t, 2, s.Accepted)
		require.Len(t, causes, 1)
	})
}

// With WithDrainRetries, retries run to their end after Stop, too.
func TestStopDrainsRetries(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Minute, Strategy: optest.RetryAll(9, 10*time.Second), Opts: optest.Options(asyncop.WithDrainRetries()),
		})
		r.SendEach("a")
		r.Fail("a#1", optest.ErrBroken)
		stopped := make(chan error)
		go func() { stopped <- r.Op.Stop(t.Context()) }()
		r.Advance(10 * time.Second)
		require.Equal(t, "a#1@0s a#2@10s", r.CallTimes())
		r.Complete("a#2", "A")
		require.NoError(t, <-stopped)
	})
}

// When its context ends, Stop cancels the remaining elements and returns.
func TestStopCancelsWhenItsContextEnds(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{})
		r.SendEach("ab")
		r.Complete("b#1", "B")
		ctx, cancel := context.WithTimeoutCause(t.Context(), 5*time.Second, optest.ErrTestOver)
		defer cancel()
		begin := time.Now()
		err := r.Op.Stop(ctx)
		require.Equal(t, 5*time.Second, time.Since(begin))
		require.ErrorIs(t, err, optest.ErrTestOver)
		abandoned, ok := errors.AsType[*asyncop.AbandonedError](err)
		require.True(t, ok, "%v", err)
		require.Equal(t, m.Pick("2", "1"), optest.Text(abandoned.Abandoned), "in order, b waited for a")
		require.Equal(t, err, r.Op.Err())
		require.ErrorIs(t, r.Call("a#1").Ctx.Err(), context.Canceled)
		require.ErrorIs(t, r.Wait(), optest.ErrTestOver)
	})
}

// Stop of an operator that has ended returns how it ended. This holds for any number of
// concurrent Stops.
func TestStopOfAnEndedOperator(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{})
		r.SendEach("a")
		results := make(chan error)
		for range 3 {
			go func() { results <- r.Op.Stop(t.Context()) }()
		}
		synctest.Wait()
		r.Fail("a#1", optest.ErrBroken)
		for range 3 {
			require.ErrorIs(t, <-results, optest.ErrBroken)
		}
		require.ErrorIs(t, r.Op.Stop(t.Context()), optest.ErrBroken)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, r.Op.Stop(ended), optest.ErrBroken)
	})
}

// Stop of an operator without elements in flight returns immediately, although upstream
// has not closed In.
func TestStopOfAnIdleOperator(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{})
		require.NoError(t, r.Op.Stop(t.Context()))
		<-r.Read
		select {
		case <-r.Op.Done():
		default:
			t.Fatal("not done")
		}
	})
}

// Stop does not wait for a free slot, as the end of the input does.
func TestStopOfAFullOperator(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		m.Capacity = 1
		r := optest.NewRig(t, m, optest.Setup{Timeout: time.Minute, Strategy: optest.RetryAll(9, time.Second)})
		r.SendEach("abc")
		r.Fail("a#1", optest.ErrBroken)
		stopped := make(chan error)
		go func() { stopped <- r.Op.Stop(t.Context()) }()
		require.Equal(t, "a#1@0s a#2@0s", r.CallTimes())
		r.Complete("a#2", "A")
		require.NoError(t, <-stopped)
		r.EndInput()
		require.EqualValues(t, 2, r.Stats().Discarded)
	})
}

// Law A5: no attempt starts after a cancel, even if the loop is busy and the operator's
// own context has not ended: the context of Stop has ended, or the loop over the results
// was left.
func TestStop_NoAttemptAfterItsCancel(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{Timeout: time.Hour, Strategy: optest.SlowPredicate("A"), Opts: optest.Options(asyncop.WithMaxConcurrentCalls(1))})
		r.SendEach("ab")
		r.Call("a#1").Complete("A") // the predicate takes a second
		time.Sleep(500 * time.Millisecond)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, r.Op.Stop(ctx), context.Canceled)
		require.Equal(t, "a#1@0s", r.CallTimes())
	})
}
