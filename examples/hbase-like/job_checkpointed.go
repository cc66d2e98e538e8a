package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/examples/hbase-like/internal/cli"
	"github.com/weirflow/weir/examples/hbase-like/internal/data"
	"github.com/weirflow/weir/examples/hbase-like/internal/flights"
	"github.com/weirflow/weir/examples/hbase-like/internal/ledger"
)

// runCheckpointed is run with -checkpoint.
func (j *job) runCheckpointed() (_ *cli.Summary, err error) {
	airports, err := flights.ReadAirports("airports.csv", data.Airports())
	if err != nil {
		return nil, err
	}
	j.book = ledger.New(j.cfg.Ordered, airports)
	in, err := openFileInput(j.cfg.In)
	if err != nil {
		return nil, err
	}
	in.book = j.book
	out, err := newFileOutput(j.cfg, in, j.book, func() { j.pipe.syncSides() })
	if err != nil {
		return nil, errors.Join(err, in.Close())
	}
	checks, err := openCheckpoints(j.cfg, slog.New(slog.NewTextHandler(j.stderr, nil)))
	if err != nil {
		return nil, errors.Join(err, in.Close())
	}
	defer func() { err = errors.Join(err, checks.close()) }()
	if err := j.startStore(airports); err != nil {
		return nil, errors.Join(err, in.Close())
	}
	defer j.closeStore()

	// When a look-up ends early, the coordinator ends the source.
	j.pipe = newPipeline(j.cfg, j.client, j.book, func(error) {}, checks.option())
	checks.attach(j.pipe, in, out)
	j.before = out.lines

	begun := time.Now()
	progress := cli.StartProgress(j.stderr, j.cfg.Progress, in.rows, j.sample)
	finished := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() { j.watchToSuspend(checks, finished) })
	err = checks.run(j.pipe)
	close(finished)
	watch.Wait()
	elapsed := time.Since(begun)
	progress.Stop()
	if refused, ok := errors.AsType[*checkpoint.StateError](err); ok && in.at.Flights == in.begin {
		return nil, refused
	}
	if err != nil {
		return nil, fmt.Errorf("%w\nstart again with the same flags to go on from the last checkpoint in %s", err, j.cfg.Checkpoint)
	}
	return j.summaryCheckpointed(checks, airports, elapsed)
}

// watchToSuspend suspends the pipeline at the first interrupt, and cuts it off if
// that takes too long or at the second: the last checkpoint stays what it was.
func (j *job) watchToSuspend(checks *checkpointed, finished <-chan struct{}) {
	select {
	case <-finished:
		return
	case <-j.interrupts:
	}
	_, _ = fmt.Fprintf(j.stderr, "\ninterrupted: taking a checkpoint for up to %v; interrupt again to stop at once\n", j.cfg.Drain)
	ctx, cutOff := context.WithTimeoutCause(context.Background(), j.cfg.Drain, errCutOff)
	defer cutOff()
	var again sync.WaitGroup
	stopped := make(chan struct{})
	again.Go(func() {
		select {
		case <-stopped:
		case <-j.interrupts:
			cutOff()
		}
	})
	suspended, err := checks.suspend(ctx)
	if err != nil {
		cutOff()
		j.pipe.stop(ctx)
	}
	j.interrupted.Store(suspended)
	close(stopped)
	again.Wait()
}

// summaryCheckpointed adds up all runs, by the files.
func (j *job) summaryCheckpointed(checks *checkpointed, airports []flights.Airport, elapsed time.Duration) (*cli.Summary, error) {
	p, err := prove(checks.in, checks.out, airports)
	if err != nil {
		return nil, err
	}
	s := j.summary(checks.in.name, elapsed)
	s.Books.Read, s.Books.Enriched, s.Books.Missing = p.read, p.enriched, p.missing
	s.Books.Problems = append(s.Books.Problems, p.problems...)
	s.NotTaken = 0
	if s.Interrupted {
		s.NotTaken = p.missing
	}
	s.Proof = s.Books.Prove(s.NotTaken)

	c := &cli.Checkpoints{Before: checks.out.before}
	c.Resumed, _ = checks.coordinator.Restored()
	if c.Last, err = checks.last(context.Background()); err != nil {
		return nil, err
	}
	c.Nothing = c.Resumed > 0 && !s.Interrupted && checks.in.at.Flights == checks.in.begin && s.Lookups[0].Accepted+s.Lookups[1].Accepted == 0
	s.Checkpoints = c
	return s, nil
}
