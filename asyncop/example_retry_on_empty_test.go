package asyncop_test

import (
	"context"
	"fmt"
	"time"

	"github.com/reugn/go-streams/extension"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// A row that does not exist yet is looked up again, up to three times.
func ExampleOrderedWaitWithRetry() {
	lookup := asyncop.Blocking(func(ctx context.Context, key string) (string, error) {
		attempt := asyncop.AttemptFromContext(ctx)
		if key == "late" && attempt < 3 {
			return "", asyncop.ErrNoResult
		}
		return fmt.Sprintf("row of %s, found at attempt %d", key, attempt), nil
	})
	op := asyncop.OrderedWaitWithRetry(lookup, time.Second, 10,
		strategies.FixedDelay[string](3, time.Millisecond).RetryIfResult(predicates.EmptyResult),
		asyncop.WithDrainRetries())

	source := make(chan any, 2)
	source <- "late"
	source <- "early"
	close(source)
	extension.NewChanSource(source).Via(op).To(extension.NewStdoutSink())
	fmt.Println(op.Err())
	// Output:
	// row of late, found at attempt 3
	// row of early, found at attempt 1
	// <nil>
}
