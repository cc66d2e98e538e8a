package core

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// cacheOf has an answer for one element.
type cacheOf string

func (c cacheOf) Reserve(in string, _ int) call.Reservation {
	if in == string(c) {
		return cached{}
	}
	return nil
}

func (cacheOf) LookupKey(in string) (key any, ok bool) { return in, true }
func (cacheOf) Changes() int64                         { return 0 }

// cached is the reservation of an answer.
type cached struct{}

func (cached) Joins() bool { return false }
func (cached) Release()    {}

// An answer of the cache may be behind a letter for which an attempt of another element
// begins. This attempt does not get the reservation.
func TestLookups_ReservationIsForOneAttempt(t *testing.T) {
	prepare := strategies.ReasonStrategyFunc[string](
		func(context.Context, *predicates.Attempt[string]) (strategies.Action, error) {
			return strategies.Action{Retry: true, Before: func(context.Context) error { return nil }}, nil
		})
	p := strategies.ReasonAware(predicates.ByException[string](predicates.HasException,
		predicates.NewReason("TEST", true, false)), prepare).Immediate()
	reservations := make(map[string]any)
	r := newRig(t, p, func(c *setup) {
		unordered(c)
		c.Lookups = cacheOf("hit")
		c.Invoke = func(ctx context.Context, in string, a *call.Attempt[string]) error {
			reservations[in] = ctx.Value(call.ReservationKey{})
			switch {
			case in == "hit":
				a.Complete("answer")
			case a.Number == 1:
				return errBroken
			default:
				a.Complete("retried")
			}
			return nil
		}
	})
	r.feed("a")
	r.step()
	r.work() // the step before the retry of a: its letter is in the mailbox
	r.feed("hit")
	require.Equal(t, "running", r.Oldest(), "the letter was read")
	r.idle()
	require.Equal(t, "answer retried", r.took())
	require.Equal(t, map[string]any{"a": nil, "hit": cached{}}, reservations)
	r.end()
}
