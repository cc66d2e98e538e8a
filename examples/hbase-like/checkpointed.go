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

// checkpointed adds -checkpoint to the pipeline:
//
//	Input ─▶ Source ─▶ origin ─▶ destination ─▶ format ─▶ Sink ─▶ Output
//	           └──────────┴───── Coordinator ───────────────┘
//	                                  └─▶ DirStore
//
// Each checkpoint contains the position in the input, the flights in flight in both
// look-ups, and the output's length together with the flights that were given up.
type checkpointed struct {
	coordinator *checkpoint.Coordinator
	source      *checkpoint.Source[flights.Flight]
	sink        *checkpoint.Sink[[]byte]
}

// openCheckpoints opens the directory. Parts that register with its coordinator resume
// from the newest checkpoint, if there is one.
func openCheckpoints(cfg cli.Config, logger *slog.Logger) (*checkpointed, error) {
	failpoint.Arm()
	store, err := files.OpenDir(cfg.Checkpoint)
	if err != nil {
		return nil, err // for example, another process has the directory open
	}
	coordinator, err := checkpoint.NewCoordinator(store,
		checkpoint.WithInterval(cfg.Interval), checkpoint.WithLogger(logger))
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	return &checkpointed{coordinator: coordinator}, nil
}

// option registers an operator, under its name, with the coordinator.
func (c *checkpointed) option() asyncop.Option { return asyncop.WithCheckpoints(c.coordinator) }

// attach registers the source and the sink, which return to the checkpoint. The input
// comes first, because the output relies on the flights that it has read.
func (c *checkpointed) attach(in *durable.Input, out *durable.Output) {
	c.source = checkpoint.NewSource(c.coordinator, "flights", in)
	c.sink = checkpoint.NewSink(c.coordinator, "output", out)
}

// start starts the pipeline. It fails if the checkpoint does not fit. Even then the
// caller must call run, which returns at once.
func (c *checkpointed) start() error { return c.coordinator.Start() }

// run streams all flights through p and returns when the final checkpoint is
// complete: at the end of the input, or after suspend.
func (c *checkpointed) run(p *pipeline) error {
	// go-streams' own Map would panic on a barrier.
	err := p.run(c.source, flow.NewMap(p.write), c.sink)
	if failed := c.coordinator.Wait(); failed != nil {
		return failed // the other errors are consequences
	}
	return errors.Join(err, c.sink.Err())
}

// suspend ends the pipeline with a checkpoint that contains everything in flight, even if
// the whole input was read. A later run can resume from it. It returns false if the
// pipeline had already completed.
func (c *checkpointed) suspend(ctx context.Context) (bool, error) {
	err := c.coordinator.Finish(ctx, checkpoint.Suspend)
	if errors.Is(err, checkpoint.ErrEnded) {
		return false, nil
	}
	return err == nil, err
}

// resumed is the number of the checkpoint that the run resumed from, or 0 for a fresh
// start.
func (c *checkpointed) resumed() uint64 {
	id, _ := c.coordinator.Restored()
	return id
}

// close releases the directory.
func (c *checkpointed) close() error { return c.coordinator.Close() }
