package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/reugn/go-streams"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/examples/hbase-like/internal/cli"
	"github.com/weirflow/weir/examples/hbase-like/internal/flights"
	"github.com/weirflow/weir/examples/hbase-like/internal/hclient"
	"github.com/weirflow/weir/examples/hbase-like/internal/ledger"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// pipeline looks up the two airports of every flight, one after the other:
//
//	flights ─▶ origin ─▶ destination ─▶ format ─▶ output
//	             └──────────┴─ given up ─▶ dead letters, ledger
//
// A flight keeps one type all the way, so both look-ups use the same function. Each
// retries separately: a late destination does not repeat the look-up of the origin.
type pipeline struct {
	client *hclient.Client
	book   *ledger.Ledger
	dead   *deadLetters
	format flights.Format

	origin, destination *lookup
}

type (
	lookup  = asyncop.AsyncWaitOperator[flights.Flight, flights.Flight]
	failure = asyncop.Failure[flights.Flight]
)

// newPipeline starts the two operators. more can register them with a checkpoint
// coordinator, under their names.
func newPipeline(cfg cli.Config, client *hclient.Client, book *ledger.Ledger, dead *deadLetters, more ...asyncop.Option) *pipeline {
	p := &pipeline{client: client, book: book, dead: dead, format: cfg.Format}
	wait := asyncop.OrderedWaitWithRetry[flights.Flight, flights.Flight]
	if !cfg.Ordered {
		wait = asyncop.UnorderedWaitWithRetry[flights.Flight, flights.Flight]
	}
	start := func(name string, airport func(*flights.Flight) *flights.Airport) *lookup {
		return wait(p.get(airport), cfg.Timeout, cfg.Capacity, strategy(cfg.Retry), append([]asyncop.Option{
			asyncop.WithName(name),
			asyncop.WithMaxConcurrentCalls(cfg.Calls),
			asyncop.WithDrainRetries(),                        // the airports of the last flights may be late, too
			asyncop.WithExhaustedAsFailure(),                  // a flight without its airport is given up, not emitted …
			asyncop.WithFailureSink(p.takeGivenUp),            // … and the other flights continue
			asyncop.WithLogger(slog.New(slog.DiscardHandler)), // the summary reports everything
		}, more...)...)
	}
	p.origin = start("origin", func(f *flights.Flight) *flights.Airport { return &f.Origin })
	p.destination = start("destination", func(f *flights.Flight) *flights.Airport { return &f.Destination })
	return p
}

// get is the asynchronous function. It starts a Get and returns; the client calls back
// with the row.
func (p *pipeline) get(of func(*flights.Flight) *flights.Airport) asyncop.AsyncFunction[flights.Flight, flights.Flight] {
	return asyncop.Func(func(ctx context.Context, f flights.Flight, result asyncop.ResultFuture[flights.Flight]) error {
		p.book.Attempt(f, asyncop.AttemptFromContext(ctx))
		airport := of(&f) // a field of our copy, so the element is unchanged for the next attempt
		p.client.Get(ctx, airport.IATA, func(row hclient.Result, err error) {
			if err == nil && row.Empty() {
				result.Complete() // no result: predicates.EmptyResult retries it
				return
			}
			if err == nil {
				*airport, err = flights.AirportFromCells(airport.IATA, row.Value)
			}
			if err != nil {
				result.CompleteExceptionally(err)
				return
			}
			result.Complete(f)
		})
		return nil
	})
}

// strategy retries errors that can heal: missing rows, regions that have moved, broken
// connections. Other errors, such as an invalid row, are permanent.
func strategy(r cli.Retry) strategies.Retry[flights.Flight] {
	jitter := map[string]strategies.Jitter{"equal": strategies.EqualJitter, "full": strategies.FullJitter}[r.Jitter]
	trouble := predicates.AnyOf(
		predicates.ErrorAs[*hclient.NotServingRegionError](), predicates.ErrorAs[*hclient.ConnectionError]())
	if r.Strategy == "fixed" {
		return strategies.FixedDelay[flights.Flight](r.Retries, r.Delay).
			RetryIfResult(predicates.EmptyResult).RetryIfException(trouble).WithJitter(jitter)
	}
	return strategies.ExponentialBackoff[flights.Flight](r.Retries, r.Delay, r.MaxDelay, r.Multiplier).
		RetryIfResult(predicates.EmptyResult).RetryIfException(trouble).WithJitter(jitter)
}

// run streams all flights from in to out and returns when the last one has come out.
// format must call write for one flight at a time, because parallel calls would mix up
// the order.
func (p *pipeline) run(in streams.Source, format streams.Flow, out streams.Sink) error {
	in.
		Via(p.origin).
		Via(p.destination).
		Via(format).
		To(out)
	return errors.Join(p.origin.Wait(), p.destination.Wait())
}

func (p *pipeline) write(f flights.Flight) []byte {
	p.book.Enriched(f)
	return p.format.Line(f)
}

// takeGivenUp is the failure sink of both look-ups.
func (p *pipeline) takeGivenUp(ctx context.Context, f failure) error {
	if errors.Is(f.Err, errCutOff) { // the cause of the context passed to stop
		p.book.Abandoned(f.Element)
		return nil
	}
	if err := p.dead.take(ctx, f); err != nil {
		return err // the flight is offered again
	}
	switch {
	case errors.Is(f.Err, asyncop.ErrRetriesExhausted):
		p.book.GivenUp(f.Element, fmt.Errorf("no such row, attempts: %d", f.Attempts))
	case errors.Is(f.Err, context.DeadlineExceeded):
		p.book.GivenUp(f.Element, errors.New("timed out"))
	default:
		p.book.GivenUp(f.Element, f.Err)
	}
	return nil
}

// stop stops accepting flights, lets the flights in flight complete until ctx ends, and
// cuts off the rest. The first look-up drains into the second, which then ends by itself,
// so the second is stopped only when the time has passed.
func (p *pipeline) stop(ctx context.Context) {
	_ = p.origin.Stop(ctx) // run returns the error
	select {
	case <-p.destination.Done():
	case <-ctx.Done():
	}
	_ = p.destination.Stop(ctx)
}
