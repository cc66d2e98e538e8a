package progress_test

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/progress"
)

// A job of four elements that shows its progress on standard error. After Ctrl-C it stops
// reading and completes the elements in flight. The summary appears in any case.
func Example() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	airports := []string{"ATL", "LAX", "ORD", "DFW"}
	op := asyncop.OrderedWait(asyncop.Blocking(func(_ context.Context, airport string) (string, error) {
		return airport + " found", nil
	}), time.Second, 2)

	line := progress.Line{Out: os.Stderr, What: "airports", Sample: func() progress.State {
		s := progress.Of(op.Stats())
		s.Total = int64(len(airports)) // and add the elements done by earlier runs to s.Done
		return s
	}}
	defer line.Start()()

	input := func(yield func(string) bool) {
		for _, a := range airports {
			if ctx.Err() != nil || !yield(a) {
				return
			}
		}
	}
	for found, err := range op.Results(input) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(found)
	}
	// Output:
	// ATL found
	// LAX found
	// ORD found
	// DFW found
}
