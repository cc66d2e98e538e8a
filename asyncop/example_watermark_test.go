package asyncop_test

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/weirflow/weir/asyncop"
)

// A watermark is a barrier for unordered results: no result crosses it, whichever
// completes first.
func ExampleWatermark() {
	var requests []func()
	lookup := asyncop.Func(func(_ context.Context, key string, result asyncop.ResultFuture[string]) error {
		requests = append(requests, func() { result.Complete("row of " + key) })
		if len(requests) == 3 {
			for _, answer := range slices.Backward(requests) { // c, b, a
				answer()
			}
		}
		return nil
	})
	op := asyncop.UnorderedWait(lookup, time.Second, 10)

	noon := time.Date(2024, 7, 1, 12, 0, 0, 0, time.UTC)
	for _, element := range []any{"a", "b", asyncop.Watermark{Timestamp: noon}, "c"} {
		op.In() <- element
	}
	close(op.In())
	for v := range op.Out() {
		switch v := v.(type) {
		case asyncop.Watermark:
			fmt.Println("complete up to", v.Timestamp.Format(time.TimeOnly))
		default:
			fmt.Println(v)
		}
	}
	// Output:
	// row of b
	// row of a
	// complete up to 12:00:00
	// row of c
}
