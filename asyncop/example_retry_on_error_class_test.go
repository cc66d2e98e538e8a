package asyncop_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/reugn/go-streams/extension"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// A call to a busy server is retried. A permanent error fails the pipeline immediately.
func ExampleOrderedWaitWithRetry_errorClass() {
	errBusy, errUnknown := errors.New("server busy"), errors.New("unknown airport")
	lookup := asyncop.Blocking(func(ctx context.Context, key string) (string, error) {
		switch {
		case key == "QQQ":
			return "", errUnknown
		case asyncop.AttemptFromContext(ctx) == 1:
			return "", fmt.Errorf("get %s: %w", key, errBusy)
		}
		return "row of " + key, nil
	})
	op := asyncop.OrderedWaitWithRetry(lookup, time.Second, 1,
		strategies.ExponentialBackoff[string](5, time.Millisecond, time.Second, 2).
			RetryIfException(predicates.ErrorIs(errBusy)))

	source := make(chan any, 2)
	source <- "LHR"
	source <- "QQQ"
	close(source)
	extension.NewChanSource(source).Via(op).To(extension.NewStdoutSink())
	if failed, ok := errors.AsType[*asyncop.ElementError](op.Err()); ok {
		fmt.Printf("%v failed after %d attempt: %v\n", failed.Element, failed.Attempts, failed.Err)
	}
	// Output:
	// row of LHR
	// QQQ failed after 1 attempt: unknown airport
}
