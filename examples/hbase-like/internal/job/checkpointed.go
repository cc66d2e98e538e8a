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
	"github.com/weirflow/weir/examples/hbase-like/internal/flights"
	"github.com/weirflow/weir/flow"
	"github.com/weirflow/weir/progress"
)

// checkpointed adds a coordinator to the pipeline:
//
//	Input ─▶ Source ─▶ origin ─▶ destination ─▶ format ─▶ Sink ─▶ Output
//	           └──────────┴───── Coordinator ───────────────┘
//	                                  └─▶ DirStore
//
// Each checkpoint has the input's position, the flights in flight in both look-ups, the
// output's length, and the flights given up.
type checkpointed struct {
	coordinator *checkpoint.Coordinator
	in          *durable.Input
	out         *durable.Output
	pipe        *Pipeline
	line        func(flights.Flight) []byte
	source      *checkpoint.Source[flights.Flight]
	sink        *checkpoint.Sink[[]byte]
}

// start registers the source and the sink, which return to the newest checkpoint, and
// starts the coordinator. The input comes first: the output relies on the flights that it
// has read.
func (c *checkpointed) start() error {
	c.source = checkpoint.NewSource(c.coordinator, "flights", c.in)
	c.sink = checkpoint.NewSink(c.coordinator, "output", c.out)
	err := c.coordinator.Start()
	if err != nil {
		_ = c.run() // returns at once
	}
	return err
}

// run streams all flights and returns when the final checkpoint is complete, at the end
// of the input or after a suspension.
func (c *checkpointed) run() error {
	// go-streams' own Map would panic on a barrier.
	err := c.pipe.Run(c.source, flow.NewMap(c.line), c.sink)
	failed := c.coordinator.Wait()
	if failed != nil {
		return failed // the others are consequences
	}
	return errors.Join(err, c.sink.Err())
}

// errInterrupted ends an interrupted run that can be started again.
var errInterrupted = errors.New("interrupted")

// runCheckpointed runs the pipeline with checkpoints in a directory, from the newest one
// if there is one.
func (j *job) runCheckpointed() (text string, status int, err error) {
	c := &checkpointed{line: formatted(j.book, j.cfg.Format)}
	c.in, err = durable.OpenInput(j.cfg.In, 0, 1, j.book)
	if err != nil {
		return "", exitFailed, err
	}
	j.input, j.total = c.in.Name(), c.in.Total()
	c.out, err = durable.NewOutput(j.cfg.Out, j.cfg.Format, j.cfg.Ordered, c.in)
	if err != nil {
		return "", exitFailed, err
	}
	dir, err := files.OpenDir(j.cfg.Checkpoint)
	if err != nil {
		return "", exitFailed, err // for example, another process uses the directory
	}
	c.coordinator, err = checkpoint.NewCoordinator(dir, checkpoint.WithInterval(j.cfg.Interval),
		checkpoint.WithLogger(slog.New(slog.NewTextHandler(j.stderr, nil))))
	if err != nil {
		return "", exitFailed, errors.Join(err, dir.Close())
	}
	defer func() { err = errors.Join(err, c.coordinator.Close()) }()
	if err := j.startStore(); err != nil {
		return "", exitFailed, err
	}
	defer j.closeStore()
	j.startPipeline(asyncop.WithCheckpoints(c.coordinator))
	c.pipe = j.pipe
	if err := c.start(); err != nil {
		return "", exitFailed, err
	}
	j.before = c.out.ResumedLines()
	resumed, _ := c.coordinator.Restored()
	if resumed > 0 && j.cfg.Progress != progress.Off {
		_, _ = fmt.Fprintf(j.stderr, "resuming from checkpoint %d\n", resumed)
	}
	err = j.watch(c.run, func(ctx context.Context, cutOff func()) { j.suspend(ctx, cutOff, c.coordinator) })
	if j.cutOff.Load() && err != nil {
		err = fmt.Errorf("%w, without a last checkpoint", errInterrupted)
	}
	if err != nil {
		return "", exitFailed, fmt.Errorf("%w\nstart again with the same flags to continue from the last checkpoint in %s", err, j.cfg.Checkpoint)
	}
	s := j.summary()
	s.Checkpoints = &cli.Checkpoints{Resumed: resumed, Before: c.out.Resumed()}
	s.Checkpoints.Nothing = resumed > 0 && c.in.Resumed() == c.in.Total() && s.Lookups.Accepted == 0
	if err := j.proveFiles(c, s); err != nil {
		return s.String(), exitFailed, err
	}
	text, status = result(s)
	return text, status, nil
}

// suspend ends the pipeline with a checkpoint that contains everything in flight. A later
// run can resume from it. At the second interrupt, or if suspending takes too long, it
// cuts the pipeline off and keeps the previous checkpoint.
func (j *job) suspend(ctx context.Context, cutOff func(), coordinator *checkpoint.Coordinator) {
	_, _ = fmt.Fprintf(j.stderr, "\ninterrupted: taking a last checkpoint for up to %v; interrupt again to stop at once\n", j.cfg.Drain)
	err := coordinator.Finish(ctx, checkpoint.Suspend)
	if errors.Is(err, checkpoint.ErrEnded) {
		return
	}
	if err != nil {
		cutOff()
		j.cutOff.Store(true)
		j.pipe.stop(ctx)
	}
	j.interrupted.Store(err == nil)
}

// proveFiles replaces the books' counts by the proof from the files, which covers all
// runs.
func (j *job) proveFiles(c *checkpointed, s *cli.Summary) error {
	p, err := durable.Prove(c.in, c.out, j.airports)
	if err != nil {
		return err
	}
	s.Books = j.book.Balance()
	s.Books.Read = p.Read
	s.Books.Enriched = p.Enriched
	s.Books.Missing = p.Missing
	s.Books.Problems = append(s.Books.Problems, p.Problems...)
	if s.Interrupted {
		s.NotTaken = p.Missing // in the checkpoint, or after its position
	}
	s.Proof = s.Books.Prove(s.NotTaken)
	return nil
}
