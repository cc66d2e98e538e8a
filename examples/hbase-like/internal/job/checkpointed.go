package job

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/files"
	"github.com/weirflow/weir/examples/hbase-like/internal/cli"
	"github.com/weirflow/weir/examples/hbase-like/internal/durable"
	"github.com/weirflow/weir/examples/hbase-like/internal/failpoint"
	"github.com/weirflow/weir/examples/hbase-like/internal/flights"
	"github.com/weirflow/weir/flow"
	"github.com/weirflow/weir/progress"
)

// checkpointed is the mode of -checkpoint. It adds a coordinator to the pipeline:
//
//	Input ─▶ Source ─▶ origin ─▶ destination ─▶ format ─▶ Sink ─▶ Output
//	           └──────────┴───── Coordinator ───────────────┘
//	                                  └─▶ DirStore
//
// Each checkpoint contains the position in the input, the flights in flight in both
// look-ups, and the output's length together with the flights that were given up.
type checkpointed struct {
	coordinator *checkpoint.Coordinator
	in          *durable.Input
	out         *durable.Output
	source      *checkpoint.Source[flights.Flight]
	sink        *checkpoint.Sink[[]byte]
}

// errInterrupted is returned by an interrupted run that took no last checkpoint.
var errInterrupted = errors.New("interrupted, without a last checkpoint")

// open opens the files and the directory. Parts that register with its coordinator resume
// from the newest checkpoint, if there is one.
func (c *checkpointed) open(j *job) (err error) {
	c.in, err = durable.OpenInput(j.cfg.In, j.parts.Book)
	if err != nil {
		return err
	}
	j.input, j.total = c.in.Name(), c.in.Total()
	c.out, err = durable.NewOutput(j.cfg.Out, j.cfg.Format, j.cfg.Ordered, c.in)
	if err != nil {
		return err
	}
	failpoint.Arm()
	store, err := files.OpenDir(j.cfg.Checkpoint)
	if err != nil {
		return err // for example, another process has the directory open
	}
	c.coordinator, err = checkpoint.NewCoordinator(store, checkpoint.WithInterval(j.cfg.Interval),
		checkpoint.WithLogger(slog.New(slog.NewTextHandler(j.stderr, nil))))
	if err != nil {
		return errors.Join(err, store.Close())
	}
	return nil
}

// option registers an operator, under its name, with the coordinator.
func (c *checkpointed) option() asyncop.Option { return asyncop.WithCheckpoints(c.coordinator) }

func (c *checkpointed) begin(j *job) error {
	before, err := c.start(j.pipe, j.parts)
	if err != nil {
		return err
	}
	j.before = before
	if resumed := c.resumed(); resumed > 0 && j.cfg.Progress != progress.Off {
		_, _ = fmt.Fprintf(j.stderr, "resuming from checkpoint %d\n", resumed)
	}
	return nil
}

// start registers the source and the sink, which return to the checkpoint, and starts the
// pipeline. The input comes first, because the output relies on the flights that it has
// read. before is the number of flights that earlier runs have written.
func (c *checkpointed) start(pipe *Pipeline, parts *Parts) (before int, err error) {
	c.source = checkpoint.NewSource(c.coordinator, "flights", c.in) // closes the input at the end
	c.sink = checkpoint.NewSink(c.coordinator, "output", c.out)
	err = c.coordinator.Start()
	if err != nil {
		_ = c.run(pipe, parts) // returns at once
		return 0, err
	}
	return c.out.ResumedLines(), nil
}

func (c *checkpointed) stream(j *job) error { return c.run(j.pipe, j.parts) }

// run streams all flights and returns when the final checkpoint is complete: at the end of
// the input, or after a suspension.
func (c *checkpointed) run(pipe *Pipeline, parts *Parts) error {
	// go-streams' own Map would panic on a barrier.
	err := pipe.Run(c.source, flow.NewMap(parts.write), c.sink)
	if failed := c.coordinator.Wait(); failed != nil {
		return failed // the other errors are consequences
	}
	return errors.Join(err, c.sink.Err())
}

// interrupt suspends the pipeline with a checkpoint that contains everything in flight,
// even if the whole input was read. A later run can resume from it. At the second
// interrupt, or if suspending takes too long, it cuts the pipeline off and keeps the
// previous checkpoint.
func (c *checkpointed) interrupt(j *job) {
	_, _ = fmt.Fprintf(j.stderr, "\ninterrupted: taking a last checkpoint for up to %v; interrupt again to stop at once\n", j.cfg.Drain)
	j.withGrace(func(ctx context.Context, cutOff func()) {
		err := c.coordinator.Finish(ctx, checkpoint.Suspend)
		if errors.Is(err, checkpoint.ErrEnded) {
			return // the pipeline had already completed
		}
		if err != nil {
			cutOff()
			j.cutOff.Store(true)
			j.pipe.stop(ctx)
		}
		j.interrupted.Store(err == nil)
	})
}

// prove replaces the counts in s by the proof from the files, which covers all runs.
func (c *checkpointed) prove(j *job, s *cli.Summary, err error) (*cli.Summary, error) {
	if j.cutOff.Load() && err != nil {
		err = errInterrupted
	}
	if err != nil {
		return nil, fmt.Errorf("%w\nstart again with the same flags to continue from the last checkpoint in %s", err, j.cfg.Checkpoint)
	}
	accepted := int64(0)
	for _, st := range s.Lookups {
		accepted += st.Accepted
	}
	s.Checkpoints = &cli.Checkpoints{Resumed: c.resumed(), Before: c.out.Resumed()}
	s.Checkpoints.Nothing = s.Checkpoints.Resumed > 0 && c.in.Resumed() == c.in.Total() && accepted == 0
	p, err := durable.Prove(c.in, c.out, j.airports)
	if err != nil {
		return s, err
	}
	s.Books = j.parts.Book.Balance()
	s.Books.Read, s.Books.Enriched, s.Books.Missing = p.Read, p.Enriched, p.Missing
	s.Books.Problems = append(s.Books.Problems, p.Problems...)
	if s.Interrupted {
		s.NotTaken = p.Missing // they are in the checkpoint, or after its position
	}
	s.Proof = s.Books.Prove(s.NotTaken)
	return s, nil
}

// resumed is the number of the checkpoint that the run resumed from, or 0 for a fresh
// start.
func (c *checkpointed) resumed() uint64 {
	id, _ := c.coordinator.Restored()
	return id
}

// close releases the directory.
func (c *checkpointed) close() (err error) {
	if c.in != nil && c.source == nil { // otherwise the source closes the input
		err = c.in.Close()
	}
	if c.coordinator != nil {
		err = errors.Join(err, c.coordinator.Close())
	}
	return err
}
