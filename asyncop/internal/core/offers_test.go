package core

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/internal/ctxkey"
)

// An element that the sink does not take is offered again after 100 ms, 200 ms and so on,
// and finally every 10 s.
func TestOffersAreFarApartAtLast(t *testing.T) {
	offers := 0
	r := newRig(t, nil, func(c *setup) {
		c.OnFailure = toSink
		c.Sink = func(context.Context, Report[string]) error { offers++; return errBroken }
	})
	r.feed("a")
	r.fail("a#1")
	r.idle()
	for _, wait := range []time.Duration{1, 2, 4, 8, 16, 32, 64, 100, 100, 100} {
		wait *= 100 * time.Millisecond
		r.took()
		r.work()
		r.idle()
		require.Equal(t, "?a+"+wait.String(), r.took())
		before := offers
		r.pass(wait - 1)
		r.work()
		require.Equal(t, before, offers, "not before %v are over", wait)
		r.pass(1)
	}
	require.Equal(t, 10, offers)
	r.End(errOver)
	r.Abandon()
}

// Every offer of an element, including the last, carries the same id, and each element
// has its own id. A sink that has stored an element without noticing can thus store it
// only once.
func TestHandOver_OffersOfAnElementHaveOneID(t *testing.T) {
	ids := map[string][]string{}
	r := newRig(t, nil, func(c *setup) {
		c.OnFailure = toSink
		c.Sink = func(ctx context.Context, r Report[string]) error {
			ids[r.Element] = append(ids[r.Element], ctxkey.OfferID(ctx))
			return errBroken
		}
	})
	r.feed("a b")
	r.fail("a#1 b#1")
	for range 3 {
		r.idle()
		r.work() // offers one of them
		r.idle()
		r.work()
		r.idle()
		r.pass(lastOffer)
	}
	r.End(errOver)
	for _, s := range r.Abandon() {
		_, declined := r.sink.OfferAtEnd(t.Context(), s, errOver)
		require.ErrorIs(t, declined, errBroken)
	}
	for in, of := range ids {
		require.GreaterOrEqual(t, len(of), 4, "offers of %s", in)
		for _, id := range of {
			require.Equal(t, of[0], id, "an offer of %s", in)
		}
	}
	require.NotEqual(t, ids["a"][0], ids["b"][0])
}

// A call of the sink that has waited for a worker until the end of the run is not made.
// The last offer is made.
func TestOfferThatIsLate(t *testing.T) {
	var taken []error
	r := newRig(t, nil, func(c *setup) {
		c.OnFailure, c.Sink = toSink, func(ctx context.Context, _ Report[string]) error {
			taken = append(taken, ctx.Err())
			return nil
		}
	})
	r.feed("a")
	r.fail("a#1")
	r.step()
	r.End(errOver)
	cut := r.Abandon()
	require.Len(t, cut, 1)
	r.work()
	r.sink.Await()
	require.False(t, r.sink.WasTaken(cut[0]))
	_, declined := r.sink.OfferAtEnd(t.Context(), cut[0], errOver)
	require.NoError(t, declined)
	require.Equal(t, []error{nil}, taken)
	r.Ended(cut[0], observe.HandedOver)
	r.balance()
}

// Law K1: a restored element that is complete waits for earlier elements of its key, and
// only for these.
func TestKeyOrderOfRestoredResults(t *testing.T) {
	r := newRig(t, nil, byFirstLetter)
	done := func(in string) Item[string, string] {
		it := Item[string, string]{In: in, Restored: true}
		it.SetResults([]string{in})
		return it
	}
	r.Restore(Item[string, string]{In: "a1", Restored: true, First: 1}, 0)
	r.Restore(done("a2"), 0)
	r.Restore(done("b1"), 0)
	r.step()
	require.Equal(t, "(a1#1 b1", r.took())
	r.complete("a1#1")
	r.step()
	require.Equal(t, "a1#1 a2", r.took())
	r.end()
}

// With key order, the wait of a batch begins when the first element that may start has
// arrived.
func TestBatchOfKeysWaits(t *testing.T) {
	b := withBatches(t, 3, time.Second, nil, byFirstLetter)
	b.pass(10 * time.Second)
	b.feed("a")
	b.pass(600 * time.Millisecond)
	b.feed("b")
	b.handOut()
	require.Empty(t, b.formed)
	b.pass(400 * time.Millisecond)
	b.handOut()
	require.Len(t, b.formed, 1)
	b.formed[0]()
	b.step()
	require.Contains(t, b.took(), "a#1 b#1")
	b.end()
}
