package main

import (
	"context"
	"errors"
	"log/slog"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/files"
	"github.com/weirflow/weir/examples/hbase-like/internal/cli"
	"github.com/weirflow/weir/examples/hbase-like/internal/durable"
	"github.com/weirflow/weir/examples/hbase-like/internal/failpoint"
	"github.com/weirflow/weir/examples/hbase-like/internal/flights"
	"github.com/weirflow/weir/flow"
)

// checkpointed is what -checkpoint puts around the pipeline:
//
//	Input ─▶ Source ─▶ origin ─▶ destination ─▶ format ─▶ Sink ─▶ Output
//	           └──────────┴───── Coordinator ───────────────┘
//	                                  └─▶ DirStore
//
// In every checkpoint are the position in the input, the flights in flight of both
// look-ups, and how far the output goes together with the flights given up.
type checkpointed struct {
	coordinator *checkpoint.Coordinator
	source      *checkpoint.Source[flights.Flight]
	sink        *checkpoint.Sink[[]byte]
}

// openCheckpoints opens the directory. What registers with its coordinator goes on
// from the newest checkpoint there, if there is one.
func openCheckpoints(cfg cli.Config, logger *slog.Logger) (*checkpointed, error) {
	failpoint.Arm()
	store, err := files.OpenDir(cfg.Checkpoint)
	if err != nil {
		return nil, err // also if another process has it open
	}
	coordinator, err := checkpoint.NewCoordinator(store,
		checkpoint.WithInterval(cfg.Interval), checkpoint.WithLogger(logger))
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	return &checkpointed{coordinator: coordinator}, nil
}

// option makes an operator take part, under its name.
func (c *checkpointed) option() asyncop.Option { return asyncop.WithCheckpoints(c.coordinator) }

// attach makes the ends, which go back to where the checkpoint was taken: first the
// input, for what it has read is what the output may know of.
func (c *checkpointed) attach(in *durable.Input, out *durable.Output) {
	c.source = checkpoint.NewSource(c.coordinator, "flights", in)
	c.sink = checkpoint.NewSink(c.coordinator, "output", out)
}

// start lets the pipeline begin. It fails if the checkpoint does not fit: run must be
// called all the same, and returns at once.
func (c *checkpointed) start() error { return c.coordinator.Start() }

// run streams all flights through p and returns when the final checkpoint is
// complete: at the end of the input, or after suspend.
func (c *checkpointed) run(p *pipeline) error {
	// go-streams' own Map would panic on a barrier.
	err := p.run(c.source, flow.NewMap(p.write), c.sink)
	if failed := c.coordinator.Wait(); failed != nil {
		return failed // the others are consequences
	}
	return errors.Join(err, c.sink.Err())
}

// suspend ends the pipeline with a checkpoint that has all that is in flight, to be
// resumed from, also when all of the input was read. It reports false if the pipeline
// came to its end by itself before.
func (c *checkpointed) suspend(ctx context.Context) (bool, error) {
	err := c.coordinator.Finish(ctx, checkpoint.Suspend)
	if errors.Is(err, checkpoint.ErrEnded) {
		return false, nil
	}
	return err == nil, err
}

// resumed is the number of the checkpoint that the run went on from; 0: none.
func (c *checkpointed) resumed() uint64 {
	id, _ := c.coordinator.Restored()
	return id
}

// close gives the directory back.
func (c *checkpointed) close() error { return c.coordinator.Close() }
