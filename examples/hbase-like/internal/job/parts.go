package job

import (
	"context"
	"errors"
	"fmt"

	"github.com/reugn/go-streams"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/examples/hbase-like/internal/cli"
	"github.com/weirflow/weir/examples/hbase-like/internal/flights"
	"github.com/weirflow/weir/examples/hbase-like/internal/hclient"
	"github.com/weirflow/weir/examples/hbase-like/internal/ledger"
)

// Lookup is an operator of the pipeline.
type Lookup = asyncop.AsyncWaitOperator[flights.Flight, flights.Flight]

// Pipeline is a pipeline whose operators have started.
type Pipeline struct {
	Lookups []*Lookup // in the order of the flights
	// Run streams all flights from in to out, and returns when the last one has come out.
	// It must call format for one flight at a time.
	Run func(in streams.Source, format streams.Flow, out streams.Sink) error
}

// NewPipeline makes a pipeline of its parts. Each operator gets the options.
type NewPipeline func(parts *Parts, more ...asyncop.Option) *Pipeline

// Parts holds the configuration, the client and the ledger that a run passes to its
// pipeline.
type Parts struct {
	cli.Config
	Client *hclient.Client
	Book   *ledger.Ledger
	dead   *deadLetters
}

// GiveUp is the failure sink of all look-ups.
func (p *Parts) GiveUp(ctx context.Context, f asyncop.Failure[flights.Flight]) error {
	if errors.Is(f.Err, errCutOff) { // the cause of the context passed to stop
		p.Book.Abandoned(f.Element)
		return nil
	}
	if err := p.dead.take(ctx, f); err != nil {
		return err // the flight is offered again
	}
	switch {
	case errors.Is(f.Err, asyncop.ErrRetriesExhausted):
		p.Book.GivenUp(f.Element, fmt.Errorf("no such row, attempts: %d", f.Attempts))
	case errors.Is(f.Err, context.DeadlineExceeded):
		p.Book.GivenUp(f.Element, errors.New("timed out"))
	default:
		p.Book.GivenUp(f.Element, f.Err)
	}
	return nil
}

// write makes the line of an enriched flight.
func (p *Parts) write(f flights.Flight) []byte {
	p.Book.Enriched(f)
	return p.Format.Line(f)
}

// stop stops accepting flights, lets the flights in flight complete until ctx ends, and
// cuts off the rest. Each look-up drains into the next, which then ends by itself, so the
// next is stopped only when the time has passed.
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

func (p *Pipeline) stats() (all []asyncop.Stats) {
	for _, l := range p.Lookups {
		all = append(all, l.Stats())
	}
	return all
}
