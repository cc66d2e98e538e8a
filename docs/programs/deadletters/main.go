package main

import (
	"context"
	"fmt"
	"log"
	"slices"
	"strconv"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

func main() {
	ctx := context.Background()
	engine, err := sqlite.Open(ctx, "texts.db")
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close()
	texts := delivery.NewQueue[string](engine, "texts")
	parse := func(ctx context.Context, text string) (int, error) {
		predicates.ReportStage(ctx, predicates.ClientDispatch) // nothing is sent, so no call is in doubt
		return strconv.Atoi(text)
	}
	op := asyncop.UnorderedWaitWithRetry(asyncop.Blocking(parse), time.Second, 100,
		// Invalid text stays invalid, so only other errors are retried.
		strategies.FixedDelay[int](3, 10*time.Millisecond).
			RetryIfException(predicates.Not(predicates.ErrorIs(strconv.ErrSyntax))),
		// If TakeFailure fails, it gets the same element again.
		asyncop.WithFailureSink(texts.TakeFailure))

	sum := 0
	for n, err := range op.Results(slices.Values([]string{"1", "two", "3"})) {
		if err != nil {
			log.Print(err)
			return
		}
		sum += n
	}
	counts, err := texts.Counts(ctx)
	fmt.Println("sum:", sum, "dead letters:", counts.Dead, err)
}
