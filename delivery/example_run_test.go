package delivery_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/ladder"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

type order struct{ Cents int }

// Idempotent says that an order may be charged for twice: the bank knows it by its id.
func (order) Idempotent() bool { return true }

var (
	errBusy  = errors.New("busy")
	declined = predicates.NewRejection("CARD_EXPIRED")
)

// charge is busy at the first visit of order 2, and refuses order 3.
func charge(ctx context.Context, o order) (string, error) {
	meta, _ := delivery.MetaFromContext(ctx)
	switch {
	case meta.ID == "2" && meta.Visit == 1:
		return "", errBusy
	case meta.ID == "3":
		return "", predicates.WithReason(errors.New("card expired"), declined) // which no later visit changes
	}
	return fmt.Sprintf("receipt for %d cents", o.Cents), nil
}

// work takes orders from a queue, charges for them, and puts the receipts into another queue, until ctx ends.
func work(ctx context.Context, s store.Store) (delivery.Summary, error) {
	l, err := ladder.New(ladder.Config[order]{
		Store: s,
		Codec: codec.JSON[order](),
		Layers: []ladder.Layer{
			{Queue: "orders again", Delay: 50 * time.Millisecond, Jitter: 0.2},
			{Queue: "orders later", Delay: time.Hour, Rate: 10},
		},
		DeadLetters: "dead",
	})
	if err != nil {
		return delivery.Summary{}, err
	}
	orders := store.NewSource(s, "orders", "dead", codec.JSON[order]())
	receipts := store.NewSink(s, "receipts", codec.JSON[string]())
	op := asyncop.OrderedWaitWithRetry(asyncop.Blocking(charge), 10*time.Second, 100,
		strategies.FixedDelay[string](2, 10*time.Millisecond).RetryIfException(predicates.ErrorIs(errBusy)),
		asyncop.WithFailureSink(l.Take))
	return delivery.Run(ctx, l.Source(orders), op, receipts)
}

func Example_run() {
	s := store.NewMemory(clock.New(), 0)
	for n := 1; n <= 3; n++ {
		m, err := store.Encode(codec.JSON[order](), order{Cents: n * 100}, delivery.Meta{ID: fmt.Sprint(n)})
		if err := errors.Join(err, s.Put(context.Background(), "orders", m)); err != nil {
			fmt.Println(err)
		}
	}
	ctx, stop := context.WithCancel(context.Background()) // in a program: signal.NotifyContext
	go func() {
		defer stop()
		for done := 0; done < 2; time.Sleep(time.Millisecond) {
			counts, _ := s.Count(ctx, "receipts", store.Filter{})
			done = counts.Messages
		}
	}()
	summary, err := work(ctx, s)
	summary.Elapsed = 0
	fmt.Println(summary, err)
	// Output:
	// received 4 in 0s: acknowledged 2, handed over 2, rejected 0, nacked 0, given back 0; 0 floods <nil>
}
