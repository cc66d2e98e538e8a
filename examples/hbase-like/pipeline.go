package main

import (
	"context"
	"errors"
	"log/slog"

	"github.com/reugn/go-streams"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/examples/hbase-like/internal/cli"
	"github.com/weirflow/weir/examples/hbase-like/internal/flights"
	"github.com/weirflow/weir/examples/hbase-like/internal/hclient"
	"github.com/weirflow/weir/examples/hbase-like/internal/job"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// newPipeline returns a pipeline that looks up the two airports of every flight, one
// after the other, and starts its operators:
//
//	flights ─▶ origin ─▶ destination ─▶ format ─▶ output
//	             └──────────┴─ given up ─▶ dead letters
//
// A flight has the same type all the way, so both look-ups use the same function. Each
// retries on its own: a late destination does not repeat the look-up of the origin.
//
// The options more come from the run: with -checkpoint they make the operators take part
// in checkpoints, under their names.
func newPipeline(parts *job.Parts, more ...asyncop.Option) *job.Pipeline {
	wait := asyncop.OrderedWaitWithRetry[flights.Flight, flights.Flight]
	if !parts.Ordered {
		wait = asyncop.UnorderedWaitWithRetry[flights.Flight, flights.Flight]
	}
	start := func(name string, airport func(*flights.Flight) *flights.Airport) *job.Lookup {
		return wait(get(parts, airport), parts.Timeout, parts.Capacity, strategy(parts.Retry), append([]asyncop.Option{
			asyncop.WithName(name),
			asyncop.WithMaxConcurrentCalls(parts.Calls),
			asyncop.WithDrainRetries(),                        // the last flights wait for their airports, too
			asyncop.WithExhaustedAsFailure(),                  // without its airport a flight is not emitted …
			asyncop.WithFailureSink(parts.GiveUp),             // … but given up, which does not stop the others
			asyncop.WithLogger(slog.New(slog.DiscardHandler)), // the summary reports the failures
		}, more...)...)
	}
	origin := start("origin", func(f *flights.Flight) *flights.Airport { return &f.Origin })
	destination := start("destination", func(f *flights.Flight) *flights.Airport { return &f.Destination })
	return &job.Pipeline{
		Lookups: []*job.Lookup{origin, destination},
		// Run returns when the last flight has left. format makes a line of each flight.
		Run: func(in streams.Source, format streams.Flow, out streams.Sink) error {
			in.
				Via(origin).
				Via(destination).
				Via(format).
				To(out)
			return errors.Join(origin.Wait(), destination.Wait())
		},
	}
}

// get returns the asynchronous function. It starts a Get and returns; the client calls
// back with the row.
func get(parts *job.Parts, of func(*flights.Flight) *flights.Airport) asyncop.AsyncFunction[flights.Flight, flights.Flight] {
	return asyncop.Func(func(ctx context.Context, f flights.Flight, result asyncop.ResultFuture[flights.Flight]) error {
		parts.Book.Attempt(f, asyncop.AttemptFromContext(ctx)) // for the proof
		airport := of(&f)                                      // of our copy: the element stays as it is, for the next attempt
		parts.Client.Get(ctx, airport.IATA, func(row hclient.Result, err error) {
			if err == nil && row.Empty() {
				result.Complete() // no result: predicates.EmptyResult retries it
				return
			}
			if err == nil {
				*airport, err = flights.AirportFromCells(airport.IATA, row)
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

// strategy decides which outcomes are retried, and when: rows that are not there yet,
// regions that have moved, broken connections. Other errors, such as an invalid row,
// would not improve.
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
