package exactlyonce_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/files"
	"github.com/weirflow/weir/exactlyonce/caller"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// TestCountingPipeline is the client of TestKilledPipelines, run as a separate process.
// Each run has a different order and capacity.
func TestCountingPipeline(t *testing.T) {
	c := newCountingClient(t, "TestKilledPipelines")
	store, err := files.OpenDir(filepath.Join(c.Dir, "checkpoints"))
	require.NoError(t, err)
	coordinator, err := checkpoint.NewCoordinator(store, checkpoint.WithInterval(30*time.Millisecond),
		checkpoint.WithLogger(slog.New(slog.DiscardHandler)))
	require.NoError(t, err)
	defer func() { require.NoError(t, coordinator.Close()) }()

	source := checkpoint.NewSource(coordinator, "positions", &countingInput{client: c})
	build := asyncop.UnorderedWaitWithRetry[int64, string]
	if rand.IntN(2) == 0 {
		build = asyncop.OrderedWaitWithRetry[int64, string]
	}
	op := build(asyncop.Blocking(c.postAll), time.Minute, 1+rand.IntN(100),
		strategies.FixedDelay[string](10_000, time.Millisecond).RetryIfException(predicates.HasException),
		asyncop.WithName("calls"), asyncop.WithCheckpoints(coordinator, asyncop.State[int64, string]{
			Overflow: 50, Retries: asyncop.RetryState(rand.IntN(3)),
		}), asyncop.WithMaxConcurrentCalls(16),
		asyncop.WithDrainRetries(),
		asyncop.WithObserver(caller.NewTracker(caller.Config{Window: 100})))
	sink := checkpoint.NewSink(coordinator, "output", files.NewLineOutput(filepath.Join(c.Dir, "output")))

	require.NoError(t, coordinator.Start())
	source.Via(op).To(sink)
	require.NoError(t, coordinator.Wait())
	require.NoError(t, op.Wait())
}

// postAll is the operator's function.
func (c *countingClient) postAll(ctx context.Context, position int64) (string, error) {
	for _, step := range steps {
		if !c.post(caller.WithStep(ctx, step), position) {
			return "", errors.New("no answer")
		}
	}
	return strconv.FormatInt(position, 10), nil
}

// countingInput contains the positions from 1 to the limit.
type countingInput struct {
	client   *countingClient
	position int64
	limit    int64 // 0 while unknown
}

func (in *countingInput) Next() (int64, error) {
	if in.limit == 0 && in.position%50 == 0 {
		in.limit = in.client.limit(in.position)
	}
	if in.limit > 0 && in.position >= in.limit {
		return 0, io.EOF
	}
	in.position++
	return in.position, nil
}

func (in *countingInput) Position() []byte { return binary.AppendVarint(nil, in.position) }

func (in *countingInput) Seek(position []byte) error {
	n, size := binary.Varint(position)
	if size != len(position) {
		return errors.New("not a position")
	}
	in.position = n
	return nil
}

func (in *countingInput) Close() error { return nil }
