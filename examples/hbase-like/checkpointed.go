package main

import (
	"context"
	"errors"
	"log/slog"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/examples/hbase-like/internal/cli"
	"github.com/weirflow/weir/examples/hbase-like/internal/flights"
)

// checkpointed is what -checkpoint puts around the pipeline:
//
//	fileInput ─▶ Source ─▶ origin ─▶ destination ─▶ format ─▶ Sink ─▶ fileOutput
//	               └──────────┴───── Coordinator ─────────────┘
//	                                      └─▶ DirStore
//
// In every checkpoint are where the input is, the flights in flight of both
// look-ups, and how far the output goes together with the flights given up.
type checkpointed struct {
	store       checkpoint.Store
	coordinator *checkpoint.Coordinator
	in          *fileInput
	out         *fileOutput
	source      *checkpoint.Source[flights.Flight]
	sink        *checkpoint.Sink[[]byte]
}

// openCheckpoints opens the directory. The pipeline goes on from its newest
// checkpoint, if it has any.
func openCheckpoints(cfg cli.Config, logger *slog.Logger) (*checkpointed, error) {
	store, err := checkpoint.OpenDir(cfg.Checkpoint, append(failpoints(), checkpoint.WithStoreLogger(logger))...)
	if err != nil {
		return nil, err
	}
	coordinator, err := checkpoint.NewCoordinator(store,
		checkpoint.WithInterval(cfg.Interval), checkpoint.WithLogger(logger))
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	return &checkpointed{store: store, coordinator: coordinator}, nil
}

// attach puts the ends to a pipeline that was made with c's option. The source
// comes first: what it has read is what the output may know of.
func (c *checkpointed) attach(p *pipeline, in *fileInput, out *fileOutput) {
	c.in, c.out = in, out
	c.source = checkpoint.NewSource(c.coordinator, "flights", in)
	c.sink = checkpoint.NewSink(c.coordinator, "output", out)
}

// option makes an operator take part. It goes by its name.
func (c *checkpointed) option() asyncop.Option { return asyncop.WithCheckpoints(c.coordinator) }

// run streams all flights and returns when the final checkpoint is complete: at
// the end of the input, or after suspend.
func (c *checkpointed) run(p *pipeline) error {
	_ = c.coordinator.Start() // Wait returns the error; the pipeline ends by itself, but must be put together
	c.source.
		Via(p.origin).
		Via(p.destination).
		Via(checkpoint.NewMap(p.write)). // go-streams' own Map would panic on a barrier
		To(c.sink)
	err := c.coordinator.Wait()
	for _, lookup := range []*lookup{p.origin, p.destination} {
		if lookupErr := lookup.Wait(); err == nil {
			err = lookupErr // otherwise it is a consequence
		}
	}
	if err == nil {
		err = c.sink.Err()
	}
	return err
}

// suspend ends the pipeline with a checkpoint that has all that is in flight, and
// reports whether it did: not if the flights came to their end before.
func (c *checkpointed) suspend(ctx context.Context) (bool, error) {
	err := c.coordinator.Finish(ctx, checkpoint.Suspend)
	if err != nil && c.ended() {
		return false, c.coordinator.Err()
	}
	return err == nil, err
}

func (c *checkpointed) ended() bool {
	select {
	case <-c.coordinator.Ended():
		return true
	default:
		return false
	}
}

// last is the number of the newest checkpoint.
func (c *checkpointed) last(ctx context.Context) (uint64, error) {
	s, _, err := checkpoint.Latest(ctx, c.store)
	if err != nil {
		return 0, err
	}
	return s.ID, nil
}

// close gives the directory back.
func (c *checkpointed) close() error { return c.coordinator.Close() }

// syncSides returns when everything that came out of the side outputs so far is in
// the books.
func (p *pipeline) syncSides() {
	for _, s := range p.sides {
		s.sync()
	}
}
