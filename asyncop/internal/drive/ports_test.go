package drive

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/asyncop/internal/core"
	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/queue"
	"github.com/weirflow/weir/strategies"
)

// idleDriver returns a driver that was not started, of an operator without options.
func idleDriver(t *testing.T) *Driver[int, int] {
	t.Helper()
	return New(Config[int, int]{
		Core: core.Config[int, int]{
			Queue:  queue.NewOrdered[*core.Slot[int, int]](4),
			Policy: decision.StepsOf(strategies.PolicyOf(strategies.NoRetry[int]())),
		},
		User:    echo{},
		Context: t.Context(), Clock: clock.NewMock(),
	})
}

// echo is a user whose function returns its element. The driver calls only these methods
// of it.
type echo struct{ User[int, int] }

func (echo) Invoke(_ context.Context, in int, a *call.Attempt[int]) error { a.Complete(in); return nil }

func (echo) Log(context.Context, slog.Level, string, ...slog.Attr) {}

func (echo) FlushLines(bool) {}

func (echo) LinesDue() time.Duration { return core.Never }

// A loop that asks for the operator's goroutine to end attaches itself after the
// attachment was read and before the switch. The operator's goroutine must not take the
// port: the body and the input of the loop would run on it.
func TestSwitchPort_LoopAttachesBetweenLookAndSwitch(t *testing.T) {
	d := idleDriver(t)
	flow := d.attached.Load()
	d.attach(&attachment[int, int]{port: &bodyPort[int, int]{flowPort: flowPort[int, int]{d}}, moved: make(chan struct{})})
	d.switchPort(flow) // as checkSignals continues
	require.Same(t, flow, d.current)
	require.True(t, d.switchGoroutine(), "the next step")
	require.Same(t, d.attached.Load(), d.current)
	d.finish()
	<-d.done
}
