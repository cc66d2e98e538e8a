package docs_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/reugn/go-streams/extension"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
)

// quiet is a logger that discards its lines.
var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

func upper(ctx context.Context, key string) (string, error) { return "<" + key + ">", nil }

// Close the input, then wait: everything that was sent is finished.
func Example_endOfInput() {
	in, out := make(chan any), make(chan any, 10)
	op := asyncop.OrderedWait(asyncop.Blocking(upper), 5*time.Second, 100)
	go func() {
		for _, key := range []string{"lhr", "cdg"} {
			in <- key
		}
		close(in)
	}()
	extension.NewChanSource(in).Via(op).To(extension.NewChanSink(out))
	if err := op.Wait(); err != nil {
		fmt.Println("failed:", err)
	}
	for row := range out {
		fmt.Println(row)
	}
	// Output:
	// <lhr>
	// <cdg>
}

// Two operators in a row, without go-streams.
func lookupAndEnrich(keys []string) error {
	lookup := asyncop.OrderedWait(asyncop.Blocking(upper), 5*time.Second, 100)
	enrich := asyncop.OrderedWait(asyncop.Blocking(upper), 5*time.Second, 100)
	for row, err := range enrich.ResultsFrom(lookup.Results(slices.Values(keys))) {
		if err != nil {
			return err // of lookup or of enrich
		}
		fmt.Println(row)
	}
	return nil
}

func Example_row() {
	fmt.Println(lookupAndEnrich([]string{"lhr", "cdg"}))
	// Output:
	// <<lhr>>
	// <<cdg>>
	// <nil>
}

// Stop is for a source that cannot be ended.
func Example_stop() {
	in, out := make(chan any), make(chan any, 10)
	op := asyncop.OrderedWait(asyncop.Blocking(upper), 5*time.Second, 100)
	go extension.NewChanSource(in).Via(op).To(extension.NewChanSink(out))
	in <- "lhr"
	<-out

	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := op.Stop(ctx); err != nil { // accepted elements are finished, unless ctx ends first
		fmt.Println("failed:", err)
	}
	close(in) // elements that are sent after Stop are discarded and counted
	fmt.Println("completed:", op.Stats().Completed)
	// Output:
	// completed: 1
}

// StopAll stops a row of operators.
func Example_stopRow() {
	in := make(chan any)
	lookup := asyncop.OrderedWait(asyncop.Blocking(upper), 5*time.Second, 100)
	enrich := asyncop.OrderedWait(asyncop.Blocking(upper), 5*time.Second, 100)
	out := make(chan any, 10)
	go extension.NewChanSource(in).Via(lookup).Via(enrich).To(extension.NewChanSink(out))
	in <- "lhr"
	fmt.Println(<-out)

	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := asyncop.StopAll(ctx, lookup, enrich); err != nil { // in the order of the stream
		fmt.Println("failed:", err)
	}
	close(in)
	fmt.Println("completed:", enrich.Stats().Completed)
	// Output:
	// <<lhr>>
	// completed: 1
}

// A cancelled context ends the operator at once. Err returns the cause.
func Example_cancel() {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	hanging := asyncop.Blocking(func(ctx context.Context, key string) (string, error) {
		cancel(errors.New("shutdown"))
		<-ctx.Done() // a call ends when its context does
		return "", ctx.Err()
	})
	op := asyncop.OrderedWait(hanging, time.Hour, 100, asyncop.WithContext(ctx), asyncop.WithLogger(quiet))
	for _, err := range op.Results(slices.Values([]string{"lhr"})) {
		fmt.Println(err)
	}
	// Output:
	// asyncop: ended with 1 element in flight: shutdown
}

// suspendOnSignal stops a pipeline with checkpoints so that the next start resumes it.
// Elements in flight go into the last checkpoint.
func suspendOnSignal(coordinator *checkpoint.Coordinator) error {
	signals, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	select {
	case <-coordinator.Ended(): // the input has ended, or the pipeline has failed
		return coordinator.Err()
	case <-signals.Done():
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return coordinator.Finish(ctx, checkpoint.Suspend)
}

func Example_suspend() {
	coordinator := must(checkpoint.NewCoordinator(checkpointtest.NewMemoryStore()))
	check(coordinator.Close())
	fmt.Println(errors.Is(suspendOnSignal(coordinator), checkpoint.ErrClosed))
	// Output:
	// true
}
