package asyncop_test

import (
	"context"
	"fmt"
	"time"

	"github.com/reugn/go-streams/extension"

	"github.com/weirflow/weir/asyncop"
)

// An element whose time runs out gets a default result instead of failing the pipeline.
func ExampleHandleTimeout() {
	lookup := asyncop.Blocking(func(ctx context.Context, key string) (string, error) {
		if key == "slow" {
			<-ctx.Done()
			return "", ctx.Err()
		}
		return "row of " + key, nil
	})
	withDefault := asyncop.HandleTimeout(lookup, func(_ context.Context, key string) ([]string, error) {
		return []string{"default for " + key}, nil
	})
	op := asyncop.OrderedWait(withDefault, 50*time.Millisecond, 10)

	source := make(chan any, 2)
	source <- "slow"
	source <- "fast"
	close(source)
	extension.NewChanSource(source).Via(op).To(extension.NewStdoutSink())
	fmt.Println(op.Err())
	// Output:
	// default for slow
	// row of fast
	// <nil>
}
