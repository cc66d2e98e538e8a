package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// deadLetter is a line of the file.
type deadLetter struct {
	Element  string
	Error    string
	Attempts int
}

func main() {
	file, err := os.Create("dead-letters.jsonl")
	if err != nil {
		log.Fatal(err)
	}
	lines := json.NewEncoder(file)

	parse := func(ctx context.Context, text string) (int, error) { return strconv.Atoi(text) }
	op := asyncop.UnorderedWaitWithRetry(asyncop.Blocking(parse), time.Second, 100,
		// A text that is no number stays none: only other errors are retried.
		strategies.FixedDelay[int](3, 10*time.Millisecond).
			RetryIfException(predicates.Not(predicates.ErrorIs(strconv.ErrSyntax))),
		// Called on a goroutine of the operator, one failure at a time.
		asyncop.WithFailureHandler(func(f asyncop.Failure[string]) {
			err := lines.Encode(deadLetter{f.Element, f.Err.Error(), f.Attempts})
			if err != nil {
				panic(fmt.Errorf("dead letters: %w", err)) // fails the operator
			}
		}))

	sum := 0
	for n, err := range op.Results(slices.Values([]string{"1", "two", "3"})) {
		if err != nil {
			log.Fatal(err)
		}
		sum += n
	}
	// The loop over the results is over, and so is the last call of the handler.
	if err := errors.Join(file.Sync(), file.Close()); err != nil {
		log.Fatal(err)
	}
	fmt.Println("sum:", sum)
}
