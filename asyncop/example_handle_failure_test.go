package asyncop_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// An element that fails after its last retry, or whose timeout passes, gets a default
// result. An element with an invalid key still fails.
func ExampleHandleFailure() {
	errWrong := errors.New("no such key")
	lookup := asyncop.Blocking(func(ctx context.Context, key string) (string, error) {
		switch key {
		case "busy":
			return "", errors.New("server is busy")
		case "slow":
			<-ctx.Done()
			return "", ctx.Err()
		case "wrong":
			return "", errWrong
		}
		return "row of " + key, nil
	})
	withDefault := asyncop.HandleFailure(lookup,
		func(_ context.Context, f asyncop.Failure[string]) ([]string, error) {
			if errors.Is(f.Err, errWrong) {
				return nil, f.Err
			}
			return []string{fmt.Sprintf("default for %s after %d attempts", f.Element, f.Attempts)}, nil
		})
	op := asyncop.OrderedWaitWithRetry(withDefault, 300*time.Millisecond, 10,
		strategies.FixedDelay[string](2, time.Millisecond).
			RetryIfException(predicates.Not(predicates.ErrorIs(errWrong))),
		asyncop.WithDropOnFailure())
	for row, err := range op.Results(slices.Values([]string{"fast", "busy", "slow", "wrong"})) {
		fmt.Println(row, err)
	}
	fmt.Println("dropped:", op.Stats().Dropped)
	// Output:
	// row of fast <nil>
	// default for busy after 3 attempts <nil>
	// default for slow after 1 attempts <nil>
	// dropped: 1
}
