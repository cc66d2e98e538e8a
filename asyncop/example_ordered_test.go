package asyncop_test

import (
	"context"
	"fmt"
	"time"

	"github.com/reugn/go-streams/extension"

	"github.com/weirflow/weir/asyncop"
)

// Results leave in input order, although the first call takes longest.
func ExampleOrderedWait() {
	double := asyncop.Blocking(func(_ context.Context, n int) (int, error) {
		time.Sleep(time.Duration(4-n) * 5 * time.Millisecond)
		return 2 * n, nil
	})
	op := asyncop.OrderedWait(double, 5*time.Second, 10)

	source := make(chan any, 3)
	for n := 1; n <= 3; n++ {
		source <- n
	}
	close(source)
	extension.NewChanSource(source).Via(op).To(extension.NewStdoutSink())
	fmt.Println(op.Err())
	// Output:
	// 2
	// 4
	// 6
	// <nil>
}
