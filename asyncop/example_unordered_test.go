package asyncop_test

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/reugn/go-streams/extension"

	"github.com/weirflow/weir/asyncop"
)

// Results leave in the order of completion, here from a server that answers the newest
// request first.
func ExampleUnorderedWait() {
	var requests []func()
	lookup := asyncop.Func(func(_ context.Context, id int, result asyncop.ResultFuture[string]) error {
		requests = append(requests, func() { result.Complete(fmt.Sprint("row ", id)) })
		if len(requests) == 3 {
			for _, answer := range slices.Backward(requests) {
				answer()
			}
		}
		return nil
	})
	op := asyncop.UnorderedWait(lookup, 5*time.Second, 10)

	source := make(chan any, 3)
	for id := 1; id <= 3; id++ {
		source <- id
	}
	close(source)
	extension.NewChanSource(source).Via(op).To(extension.NewStdoutSink())
	fmt.Println(op.Err())
	// Output:
	// row 3
	// row 2
	// row 1
	// <nil>
}
