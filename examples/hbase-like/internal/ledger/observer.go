package ledger

import (
	"context"

	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/examples/hbase-like/internal/flights"
)

// Observer returns an observer of look-ups that records each attempt.
func (l *Ledger) Observer() observe.Observer { return observer{l} }

type observer struct{ ledger *Ledger }

type flightKey struct{} // of the flight in its attempts' context

func (o observer) Accepted(ctx context.Context, element any, _ bool) context.Context {
	return context.WithValue(ctx, flightKey{}, element)
}

func (o observer) AttemptStarted(ctx context.Context, attempt int) context.Context {
	f, _ := ctx.Value(flightKey{}).(flights.Flight)
	o.ledger.Attempt(f, attempt)
	return ctx
}

func (observer) AttemptEnded(context.Context, observe.Outcome) {}

func (observer) Ended(context.Context, observe.Ending) {}
