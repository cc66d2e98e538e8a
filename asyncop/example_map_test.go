package asyncop_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// A call for each element of a slice, with retries.
func ExampleMap_retries() {
	lookup := func(ctx context.Context, key string) (string, error) {
		if asyncop.AttemptFromContext(ctx) == 1 {
			return "", errors.New("busy")
		}
		return "row of " + key, nil
	}
	rows, err := asyncop.Map(context.Background(), []string{"LHR", "CDG"}, asyncop.Blocking(lookup),
		strategies.FixedDelay[string](3, time.Millisecond).RetryIfException(predicates.HasException))
	fmt.Println(rows, err)
	// Output: [row of LHR row of CDG] <nil>
}

// A result together with its element, and a pair of value and error for a caller that
// continues after a failure.
func ExampleMap_pairs() {
	type pair struct {
		Key, Row string
		Err      error
	}
	lookup := asyncop.Blocking(func(_ context.Context, key string) (pair, error) {
		if key == "QQQ" {
			return pair{}, errors.New("unknown airport")
		}
		return pair{Key: key, Row: "row of " + key}, nil
	})
	lookup = asyncop.HandleFailure(lookup, func(_ context.Context, f asyncop.Failure[string]) ([]pair, error) {
		return []pair{{Key: f.Element, Err: f.Err}}, nil
	})
	pairs, err := asyncop.Map(context.Background(), []string{"LHR", "QQQ", "CDG"}, lookup, nil)
	for _, p := range pairs {
		fmt.Printf("%s: %q %v\n", p.Key, p.Row, p.Err)
	}
	fmt.Println(err)
	// Output:
	// LHR: "row of LHR" <nil>
	// QQQ: "" unknown airport
	// CDG: "row of CDG" <nil>
	// <nil>
}
