package asyncop_test

import (
	"context"
	"fmt"
	"time"

	"github.com/reugn/go-streams/extension"

	"github.com/weirflow/weir/asyncop"
)

// silent is a function whose server never answers, so its Timeout method is called.
type silent struct{}

func (silent) AsyncInvoke(context.Context, string, asyncop.ResultFuture[string]) error { return nil }

func (silent) Timeout(_ context.Context, key string) ([]string, error) {
	return []string{"nobody knows " + key}, nil
}

// A function that has a Timeout method is its own timeout handler.
func ExampleTimeoutHandler() {
	op := asyncop.OrderedWait(silent{}, 10*time.Millisecond, 10)

	source := make(chan any, 1)
	source <- "LHR"
	close(source)
	extension.NewChanSource(source).Via(op).To(extension.NewStdoutSink())
	fmt.Println(op.Stats().Timeouts, "timeout,", op.Err())
	// Output:
	// nobody knows LHR
	// 1 timeout, <nil>
}
