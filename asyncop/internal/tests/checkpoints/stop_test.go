package checkpoints_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/internal/optest"
	"github.com/weirflow/weir/checkpoint"
)

// Law A5: Stop ends retries of the backlog, too.
func TestStopEndsRetriesOfTheBacklog(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := restart(t, m, "abc", optest.Setup{
			Timeout: 24 * time.Hour, Strategy: optest.RetryAgain(9, time.Hour), Opts: optest.Options(asyncop.WithDropOnFailure()),
		})
		r.Fail("a#1", optest.ErrAgain)
		go func() { _ = r.Op.Stop(context.Background()) }()
		synctest.Wait()
		require.Equal(t, "a#1 a#2", r.Calls())
		for _, name := range []string{"a#2", "b#1", "c#1"} {
			r.Fail(name, optest.ErrAgain)
		}
		require.Equal(t, "a#1 a#2 b#1 c#1", r.Calls())
		require.EqualValues(t, 3, r.Stats().Dropped)
		require.NoError(t, r.Wait())
		require.ErrorContains(t, r.Coordinator.Err(), "use the Coordinator's Finish")
	}, 1)
}

// During a drain, Stop has no effect of its own and does not prevent the final
// checkpoint.
func TestStopDuringADrain(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewCheckRig(t, m, optest.Setup{}, nil)
		r.Send("a")
		marker, done := r.Trigger(checkpoint.Drain)
		r.Send(marker)
		stopped := make(chan error, 1)
		go func() { stopped <- r.Op.Stop(t.Context()) }()
		synctest.Wait()
		r.Save()
		r.Complete("a#1", "A")
		require.NoError(t, r.Finish(done))
		require.NoError(t, <-stopped)
		require.NoError(t, r.Coordinator.Err())
		require.Equal(t, "<2> A <end> <3>", r.Outputs())
	})
}

// A slow codec delays neither Stop nor a cancel, only Done.
func TestStopDoesNotWaitForACodec(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		release := make(chan struct{})
		texts := codecOf(func() { <-release }, func() {})
		r := optest.NewCheckRig(t, m, optest.Setup{State: asyncop.State[string, string]{Inputs: texts}}, nil)
		r.Send("a")
		b, done := r.Trigger(checkpoint.Periodic)
		r.Send(b)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, r.Op.Stop(ctx), context.Canceled)
		synctest.Wait()
		select {
		case <-r.Op.Done():
			t.Error("done, and a codec is at work")
		default:
		}
		close(release)
		require.Error(t, <-done)
		require.ErrorIs(t, r.Wait(), context.Canceled)
	})
}
