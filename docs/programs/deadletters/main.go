package main

import (
	"context"
	"fmt"
	"log"
	"slices"
	"strconv"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery/deadfile"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

func main() {
	dead, err := deadfile.Open("dead-letters", codec.JSON[string]()) // a directory; dead.jsonl has a line for each
	if err != nil {
		log.Fatal(err)
	}
	parse := func(ctx context.Context, text string) (int, error) {
		predicates.ReportStage(ctx, predicates.ClientDispatch) // nothing is sent, so no call is in doubt
		return strconv.Atoi(text)
	}
	op := asyncop.UnorderedWaitWithRetry(asyncop.Blocking(parse), time.Second, 100,
		// Invalid text stays invalid, so only other errors are retried.
		strategies.FixedDelay[int](3, 10*time.Millisecond).
			RetryIfException(predicates.Not(predicates.ErrorIs(strconv.ErrSyntax))),
		// If Take fails, it gets the same element again.
		asyncop.WithFailureSink(dead.Take))

	sum := 0
	for n, err := range op.Results(slices.Values([]string{"1", "two", "3"})) {
		if err != nil {
			log.Fatal(err)
		}
		sum += n
	}
	if err := dead.Close(); err != nil {
		log.Fatal(err)
	}
	fmt.Println("sum:", sum)
}
