package deliverytest

import (
	"context"
	"log/slog"
	"strconv"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/store"
)

var workerRules = []storeRule{
	{name: "a worker takes no more than it has slots", check: workerTakesBySlots},
}

// workerTakesBySlots checks that a worker leaves to others what it has no slot for.
func workerTakesBySlots(b *storeBench) {
	b.inspector()
	const slots = 3
	quiet := slog.New(slog.DiscardHandler)
	in := delivery.NewQueue[int](b.Store, "in", delivery.RetryAfter(b.units(1)), delivery.WithLogger(quiet))
	for i := range 20 {
		b.ok(in.Put(b.ctx, i, delivery.ID(strconv.Itoa(i))), "Put")
	}
	done := make(idSink, 20)
	began, end := make(chan struct{}, 20), make(chan struct{}, 20)
	op := asyncop.UnorderedWait(asyncop.Blocking(func(ctx context.Context, v int) (int, error) {
		began <- struct{}{}
		select {
		case <-end:
			return v, nil
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}), 0, slots, asyncop.WithFailureSink(in.TakeFailure), asyncop.WithLogger(quiet))
	ctx, stop := context.WithCancel(b.ctx)
	ended := make(chan error, 1)
	go func() { // ends with ctx
		_, err := delivery.Run(ctx, in, op, done, delivery.WithLogger(quiet), delivery.WithDrain(0))
		ended <- err
	}()
	defer func() {
		stop()
		b.ok(<-ended, "Run")
	}()
	for range slots {
		<-began
	}
	over := map[string]bool{} // which the store may not know
	for range 5 {
		taken := 0
		for _, e := range b.list("in", store.Filter{}, everything) {
			if !e.LeasedUntil.IsZero() && !over[e.Meta.ID] {
				taken++
			}
		}
		b.must(taken <= slots, "a worker with %d slots has taken %d messages, after %d were done", slots, taken, len(over))
		end <- struct{}{}
		<-began
		over[<-done] = true
	}
}

// idSink takes everything, and sends the ids.
type idSink chan string

func (s idSink) PutAll(_ context.Context, ms []delivery.Message[int]) error {
	for _, m := range ms {
		s <- m.Meta().ID
	}
	return nil
}
