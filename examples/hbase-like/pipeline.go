package main

import (
	"context"
	"errors"

	"github.com/reugn/go-streams"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/examples/hbase-like/internal/cli"
	"github.com/weirflow/weir/examples/hbase-like/internal/flights"
	"github.com/weirflow/weir/examples/hbase-like/internal/job"
	"github.com/weirflow/weir/examples/internal/hclient"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// newPipeline returns a pipeline that looks up the two airports of every flight, one
// after the other, and starts its operators:
//
//	flights ─▶ origin ─▶ destination ─▶ format ─▶ output
//	             └──────────┴─ giveUp
//
// Both look-ups use the same function. Each retries on its own: a late destination does
// not repeat the look-up of the origin.
//
// giveUp takes the flights whose airports stay unknown. The options more depend on the
// kind of run: with -checkpoint they include checkpoints.
func newPipeline(client *hclient.Client, cfg cli.Config, giveUp job.FailureSink, more ...asyncop.Option) *job.Pipeline {
	wait := asyncop.OrderedWaitWithRetry[flights.Flight, flights.Flight]
	if !cfg.Ordered {
		wait = asyncop.UnorderedWaitWithRetry[flights.Flight, flights.Flight]
	}
	start := func(name string, airport func(*flights.Flight) *flights.Airport) *job.Lookup {
		return wait(get(client, airport), cfg.Timeout, cfg.Capacity, strategy(cfg.Retry), append([]asyncop.Option{
			asyncop.WithName(name),
			asyncop.WithMaxConcurrentCalls(cfg.Calls),
			asyncop.WithDrainRetries(),       // the last flights wait for their airports, too
			asyncop.WithExhaustedAsFailure(), // without its airport a flight is not emitted …
			asyncop.WithFailureSink(giveUp),  // … but given up, which does not stop the others
		}, more...)...)
	}
	origin := start("origin", func(f *flights.Flight) *flights.Airport { return &f.Origin })
	destination := start("destination", func(f *flights.Flight) *flights.Airport { return &f.Destination })
	return &job.Pipeline{
		Lookups: []*job.Lookup{origin, destination},
		// Run returns when the last flight has left. format formats a flight.
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
func get(client *hclient.Client, of func(*flights.Flight) *flights.Airport) asyncop.AsyncFunction[flights.Flight, flights.Flight] {
	return asyncop.Func(func(ctx context.Context, f flights.Flight, result asyncop.ResultFuture[flights.Flight]) error {
		airport := of(&f) // of our copy: the element stays as it is, for the next attempt
		client.Get(ctx, airport.IATA, func(row hclient.Result, err error) {
			if err == nil && row.Empty() {
				result.Complete() // without a result: predicates.EmptyResult retries it
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

// strategy retries rows that are not there yet, regions that have moved, and broken
// connections. Other errors, such as an invalid row, would not improve.
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
