package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/weirflow/weir/examples/hbase-like/internal/cli"
	"github.com/weirflow/weir/examples/hbase-like/internal/data"
	"github.com/weirflow/weir/examples/hbase-like/internal/durable"
	"github.com/weirflow/weir/examples/hbase-like/internal/flights"
	"github.com/weirflow/weir/examples/hbase-like/internal/ledger"
	"github.com/weirflow/weir/progress"
)

// errInterrupted is returned by an interrupted run that took no last checkpoint.
var errInterrupted = errors.New("interrupted, without a last checkpoint")

// runCheckpointed runs the job with -checkpoint.
func (j *job) runCheckpointed() (_ *cli.Summary, err error) {
	airports, err := flights.ReadAirports("airports.csv", data.Airports())
	if err != nil {
		return nil, err
	}
	j.book = ledger.New(j.cfg.Ordered, airports)
	in, err := durable.OpenInput(j.cfg.In, j.book)
	if err != nil {
		return nil, err
	}
	out, err := durable.NewOutput(j.cfg.Out, j.cfg.Format, j.cfg.Ordered, in)
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

	dead, err := openDeadLetters(j.cfg.Dead, in.Name())
	if err != nil {
		return nil, errors.Join(err, in.Close())
	}
	defer func() { err = errors.Join(err, dead.close()) }()
	j.pipe = newPipeline(j.cfg, j.client, j.book, dead, checks.option())
	checks.attach(in, out) // which also closes the input at the end
	_, resumedEnded := j.book.Progress()
	j.before = out.Resumed() - resumedEnded

	if err := checks.start(); err != nil {
		_ = checks.run(j.pipe)
		return nil, err
	}
	if resumed := checks.resumed(); resumed > 0 && j.cfg.Progress != progress.Off {
		_, _ = fmt.Fprintf(j.stderr, "resuming from checkpoint %d\n", resumed)
	}
	begun := time.Now()
	j.total = in.Total()
	stopProgress := j.startProgress(j.sample)
	finished := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() { j.watchToSuspend(checks, finished) })
	err = checks.run(j.pipe)
	close(finished)
	watch.Wait()
	elapsed := time.Since(begun)
	stopProgress()

	if j.cutOff.Load() && err != nil {
		err = errInterrupted
	}
	if err != nil {
		return nil, fmt.Errorf("%w\nstart again with the same flags to go on from the last checkpoint in %s", err, j.cfg.Checkpoint)
	}
	s := j.summary(in.Name(), elapsed)
	s.Checkpoints = &cli.Checkpoints{Resumed: checks.resumed(), Before: out.Resumed()}
	s.Checkpoints.Nothing = s.Checkpoints.Resumed > 0 && in.Resumed() == in.Total() && !j.began()
	return s, j.proveFiles(s, in, out, airports)
}

// began reports whether the look-ups received any flight.
func (j *job) began() bool {
	for _, st := range j.stats() {
		if st.Accepted > 0 {
			return true
		}
	}
	return false
}

// proveFiles replaces the counts in s by the proof from the files, which covers all runs.
func (j *job) proveFiles(s *cli.Summary, in *durable.Input, out *durable.Output, airports []flights.Airport) error {
	p, err := durable.Prove(in, out, airports)
	if err != nil {
		return err
	}
	s.Books = j.book.Balance()
	s.Books.Read, s.Books.Enriched, s.Books.Missing = p.Read, p.Enriched, p.Missing
	s.Books.Problems = append(s.Books.Problems, p.Problems...)
	if s.Interrupted {
		s.NotTaken = p.Missing // they are in the checkpoint, or after its position
	}
	s.Proof = s.Books.Prove(s.NotTaken)
	return nil
}

// watchToSuspend suspends the pipeline at the first interrupt. At the second interrupt,
// or if suspending takes too long, it cuts the pipeline off and keeps the previous
// checkpoint.
func (j *job) watchToSuspend(checks *checkpointed, finished <-chan struct{}) {
	select {
	case <-finished:
		return
	case <-j.interrupts:
	}
	_, _ = fmt.Fprintf(j.stderr, "\ninterrupted: taking a last checkpoint for up to %v; interrupt again to stop at once\n", j.cfg.Drain)
	j.withGrace(func(ctx context.Context, cutOff func()) {
		suspended, err := checks.suspend(ctx)
		if err != nil {
			cutOff()
			j.cutOff.Store(true)
			j.pipe.stop(ctx)
		}
		j.interrupted.Store(suspended)
	})
}
