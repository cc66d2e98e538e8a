package job

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/reugn/go-streams"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/examples/hbase-like/internal/cli"
	"github.com/weirflow/weir/examples/hbase-like/internal/flights"
	"github.com/weirflow/weir/examples/hbase-like/internal/ledger"
	"github.com/weirflow/weir/examples/internal/hclient"
)

// Lookup is an operator of the pipeline.
type Lookup = asyncop.AsyncWaitOperator[flights.Flight, flights.Flight]

// FailureSink takes flights that a look-up gives up.
type FailureSink = func(context.Context, asyncop.Failure[flights.Flight]) error

// NewPipeline makes a pipeline, whose operators get the options more.
type NewPipeline func(client *hclient.Client, cfg cli.Config, giveUp FailureSink, more ...asyncop.Option) *Pipeline

// Stream runs a pipeline without checkpoints: from a channel to a file, which it closes.
// It calls cancel if the file fails.
type Stream func(p *Pipeline, in chan any, line func(flights.Flight) []byte, file io.WriteCloser, cancel func()) error

// Pipeline is a pipeline with running operators.
type Pipeline struct {
	Lookups []*Lookup // in the order of the flights
	// Run streams all flights from in to out, and returns after the last one. It must
	// call format for one flight at a time.
	Run func(in streams.Source, format streams.Flow, out streams.Sink) error
}

// recorded returns more with options that record the flights in a book.
func recorded(book *ledger.Ledger, more ...asyncop.Option) []asyncop.Option {
	return append(more, asyncop.WithObserver(book.Observer()), asyncop.WithLogger(slog.New(slog.DiscardHandler))) // the summary reports the failures
}

// giveUp returns a failure sink that records the flights in a book.
func giveUp(book *ledger.Ledger) FailureSink {
	return func(_ context.Context, f asyncop.Failure[flights.Flight]) error {
		switch {
		case errors.Is(f.Err, errCutOff): // the cause of stop's context
			book.Abandoned(f.Element)
		case errors.Is(f.Err, asyncop.ErrRetriesExhausted):
			book.GivenUp(f.Element, fmt.Errorf("no such row, attempts: %d", f.Attempts))
		case errors.Is(f.Err, context.DeadlineExceeded):
			book.GivenUp(f.Element, errors.New("timed out"))
		default:
			book.GivenUp(f.Element, f.Err)
		}
		return nil
	}
}

func formatted(book *ledger.Ledger, format flights.Format) func(flights.Flight) []byte {
	return func(f flights.Flight) []byte {
		book.Enriched(f)
		return format.Line(f)
	}
}

// stop stops accepting flights, lets the flights in flight complete until ctx ends, and
// cuts off the rest. Each look-up drains into the next, so the next is stopped only when
// the time has passed.
func (p *Pipeline) stop(ctx context.Context) {
	for i, l := range p.Lookups {
		if i > 0 {
			select {
			case <-l.Done():
			case <-ctx.Done():
			}
		}
		_ = l.Stop(ctx) // Run returns the error
	}
}

func (p *Pipeline) stats() (sum asyncop.Stats) {
	for _, l := range p.Lookups {
		s := l.Stats()
		sum.Accepted += s.Accepted
		sum.Attempts += s.Attempts
		sum.RetriesOnResult += s.RetriesOnResult
		sum.RetriesOnError += s.RetriesOnError
		sum.Timeouts += s.Timeouts
		sum.InFlight += s.InFlight
		sum.Discarded += s.Discarded
	}
	return sum
}
