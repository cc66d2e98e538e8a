package asyncop_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/reugn/go-streams/extension"

	"github.com/weirflow/weir/asyncop"
)

// Elements that fail go to a stream of their own, and the others go on.
func ExampleWithSideOutput() {
	lookup := asyncop.Blocking(func(_ context.Context, key string) (string, error) {
		if key == "QQQ" {
			return "", errors.New("unknown airport")
		}
		return "row of " + key, nil
	})
	failures := extension.NewChanSink(make(chan any, 10)) // enough for this input; else read it meanwhile
	op := asyncop.OrderedWait(lookup, time.Second, 10, asyncop.WithSideOutput(failures))

	source := make(chan any, 3)
	for _, key := range []string{"LHR", "QQQ", "CDG"} {
		source <- key
	}
	close(source)
	extension.NewChanSource(source).Via(op).To(extension.NewStdoutSink())
	for v := range failures.Out {
		failure := v.(asyncop.Failure[string])
		fmt.Printf("%s failed after %d attempt: %v\n", failure.Element, failure.Attempts, failure.Err)
	}
	fmt.Println(op.Wait())
	// Output:
	// row of LHR
	// row of CDG
	// QQQ failed after 1 attempt: unknown airport
	// <nil>
}
