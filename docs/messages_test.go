package docs_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/channel"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

type sale struct {
	ID    string `json:"id"`
	Cents int    `json:"cents"`
}

type receipt string

var errBusy = errors.New("busy")

// cardBank is busy at the first attempt for sale 2, and refuses sale 3.
type cardBank struct{}

func (cardBank) charge(ctx context.Context, id string, cents int) (receipt, error) {
	switch {
	case id == "sale-2" && asyncop.AttemptFromContext(ctx) == 1:
		return "", errBusy
	case id == "sale-3":
		return "", errors.New("card expired")
	}
	return receipt(fmt.Sprint(id, ": ", cents)), nil
}

// receiptTable fails once.
type receiptTable struct{ failed bool }

func (t *receiptTable) insert(_ context.Context, r receipt) error {
	if r == "sale-1: 100" && !t.failed {
		t.failed = true
		return io.ErrClosedPipe
	}
	fmt.Println("insert", r)
	return nil
}

// receive returns the messages of a source until that ends, or ctx does.
func receive[T any](ctx context.Context, source delivery.Source[T]) iter.Seq2[message.Message[T], error] {
	return func(yield func(message.Message[T], error) bool) {
		for {
			messages, err := source.Receive(ctx, 100)
			if err == io.EOF {
				return // there will be no more, and all are settled
			}
			if err != nil {
				yield(message.Message[T]{}, err)
				return
			}
			for _, m := range messages {
				if !yield(m, nil) {
					return // the rest goes back when the source is closed
				}
			}
		}
	}
}

func chargeAll(ctx context.Context, source delivery.Source[sale], sales *delivery.Queue[sale], table *receiptTable) error {
	bank := cardBank{}
	charge := asyncop.Blocking(func(ctx context.Context, s sale) (receipt, error) {
		meta, _ := message.MetaFromContext(ctx)
		return bank.charge(ctx, meta.ID, s.Cents) // a redelivered message has the same id
	})
	op := asyncop.OrderedWaitWithRetry(charge, 10*time.Second, 100,
		strategies.FixedDelay[receipt](3, 10*time.Millisecond).RetryIfException(predicates.ErrorIs(errBusy)),
		asyncop.WithContext(ctx),
		asyncop.WithFailureSink(sales.TakeFailure)) // a *delivery.Queue
	for m, err := range op.Messages(receive(ctx, source)) {
		if err != nil {
			return err // the operator has failed: messages in flight go back to the source
		}
		if err := table.insert(ctx, m.Value); err != nil {
			m.Nack(20 * time.Millisecond) // is redelivered, not before that
			continue
		}
		m.Ack() // the receipt is safe
	}
	return source.Close(ctx)
}

func Example_messages() {
	values := make(chan sale, 3)
	for n := 1; n <= 3; n++ {
		values <- sale{fmt.Sprint("sale-", n), n * 100}
	}
	close(values)
	source := channel.NewSource(values, func(s sale) *message.Meta { return &message.Meta{ID: s.ID} })
	ctx := context.Background()
	engine := memory.Open()
	sales := delivery.NewQueue[sale](engine, "sales")
	fmt.Println(chargeAll(ctx, source, sales, &receiptTable{}))

	for _, e := range must(engine.List(ctx, sales.DeadLetters(), store.Filter{}, store.Page{Max: 10})) {
		fmt.Println("dead:", string(e.Payload), e.Meta.LastError)
	}
	// Output:
	// insert sale-2: 200
	// insert sale-1: 100
	// <nil>
	// dead: {"id":"sale-3","cents":300} card expired
}
