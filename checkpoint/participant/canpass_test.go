package participant_test

import (
	"testing"
	"time"

	"github.com/reugn/go-streams/extension"
	"github.com/reugn/go-streams/flow"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/participant"
	weirflow "github.com/weirflow/weir/flow"
	"github.com/weirflow/weir/queue"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestIsControl(t *testing.T) {
	w, b := queue.Watermark{Timestamp: time.Unix(1, 0)}, participant.NewBarrier(1, participant.Periodic, nil)
	require.True(t, participant.IsControl(w) && participant.IsControl(b) && !participant.IsControl(&b) && !participant.IsControl(nil))
}

func TestCanPass(t *testing.T) {
	for _, next := range []any{
		nil, (*flow.PassThrough)(nil), (*extension.ChanSink)(nil), (*extension.IgnoreSink)(nil),
		(*weirflow.Flow)(nil), (*checkpoint.Sink[int])(nil), 5,
	} {
		require.NoError(t, participant.CanPass(next), "%T", next)
	}
	for _, next := range []any{
		(*flow.Map[int, int])(nil), (*flow.Filter[int])(nil), (*flow.FlatMap[int, int])(nil), (*flow.Batch[int])(nil),
		(*flow.Fold[int, int])(nil), (*flow.Reduce[int])(nil), (*flow.Keyed[int, int])(nil), (*flow.SlidingWindow[int])(nil),
		(*flow.TumblingWindow[int])(nil), (*flow.SessionWindow[int])(nil), (*extension.FileSink)(nil),
		(*extension.StdoutSink)(nil), (*extension.WriterSink)(nil), (*flow.Throttler)(nil),
	} {
		require.Error(t, participant.CanPass(next), "%T", next)
	}
}

// passer is a Passer around a flow that CanPass rejects.
type passer struct {
	*flow.Throttler
	passes bool
}

func (p passer) PassesBarriers() bool { return p.passes }

// C2: CanPass uses the result of a Passer rather than its type.
func TestCanPassAsksPassers(t *testing.T) {
	require.NoError(t, participant.CanPass(passer{passes: true}))
	require.ErrorContains(t, participant.CanPass(passer{}), "participant_test.passer does not pass")
	require.ErrorContains(t, participant.CanPass((*flow.Throttler)(nil)), "see participant.Passer")
}
