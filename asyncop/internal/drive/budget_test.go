package drive

import (
	"errors"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop/internal/core"
	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/internal/gate"
	"github.com/weirflow/weir/queue"
	"github.com/weirflow/weir/strategies"
)

var errSpent = errors.New("spent")

// frugal is an echo with a budget.
type frugal struct{ echo }

func (frugal) BudgetError(float64) error { return errSpent }

// costly is a backend that admits all calls. A call costs 1.
type costly struct {
	gate.Backend
	gate.Seat
}

func (c costly) Attach(gate.Sleeper, gate.Caller) gate.Seat { return c }

func (costly) Start(time.Time, *gate.Request) gate.Answer { return gate.Answer{} }

func (costly) Release(gate.Stamp) {}

func (costly) AttemptEnded(_ time.Time, e *gate.Evidence) gate.Effect {
	e.Cost = 1
	return gate.Counts
}

func (costly) DoneAsking(time.Time, bool) {}

// slowPort is the port of a downstream that takes results from time to time.
type slowPort struct {
	flowPort[int, int]
	takes  bool
	sleeps int
}

func (p *slowPort) put() bool { return p.takes }

func (p *slowPort) sleep() { p.sleeps++ }

// The loop sleeps while a result waits for downstream, although the checkpoint with the
// sum is complete. Then the run ends without another sleep.
func TestBudget_LoopSleepsWhileAResultWaits(t *testing.T) {
	d := New(Config[int, int]{
		Core: core.Config[int, int]{
			Queue:  queue.NewOrdered[*core.Slot[int, int]](4),
			Policy: decision.StepsOf(strategies.PolicyOf(strategies.NoRetry[int]())),
			Calls:  &core.BackendCalls{Budget: 1},
		},
		User: frugal{}, Backend: costly{},
		Context: t.Context(), Clock: clock.NewMock(),
	})
	p := &slowPort{flowPort: flowPort[int, int]{d}}
	d.current = &attachment[int, int]{port: p}
	d.attached.Store(d.current)
	d.checkpoints = &checkpointing[int, int]{d: d}
	d.core.Accept(1)
	d.core.Accept(2)
	d.checkpoints.budget.isStored.Store(true)
	for range 10 {
		require.True(t, d.step())
	}
	require.True(t, d.loaded, "the result waits")
	require.True(t, d.core.MustEndForBudget())
	require.GreaterOrEqual(t, p.sleeps, 8, "of 10 steps")
	p.takes = true
	before := p.sleeps
	d.step()
	require.False(t, d.loaded, "the result has left")
	require.True(t, d.signalled(), "the loop must not sleep before the next step")
	d.step()
	require.Equal(t, before, p.sleeps)
	require.Equal(t, errSpent, d.core.State().Failure)
}
