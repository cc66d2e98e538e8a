package docs_test

import (
	"fmt"
	"io"
	"log/slog"
	"slices"
	"time"

	"github.com/weirflow/weir/asyncop"
)

func Example_stats() {
	op := asyncop.OrderedWait(asyncop.Blocking(upper), 5*time.Second, 100, asyncop.WithName("lookup"))
	for range op.Results(slices.Values([]string{"lhr", "cdg"})) {
	}
	s := op.Stats() // at any time, from any goroutine
	fmt.Println("accepted", s.Accepted, "in flight", s.InFlight, "waiting", s.WaitingForRetry, "running", s.Running)
	fmt.Println("completed", s.Completed, "failures", s.Failures, "retries", s.Retries())
	// Output:
	// accepted 2 in flight 0 waiting 0 running 0
	// completed 2 failures 0 retries 0
}

func Example_logging() {
	type order struct{ ID, Card string }
	logger := slog.New(slog.NewJSONHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelDebug}))
	op := asyncop.OrderedWait(asyncop.Func(payFor[order]), 5*time.Second, 100,
		asyncop.WithName("payments"),
		asyncop.WithLogger(logger),
		asyncop.WithElementLabel(func(element any) string { return element.(order).ID })) // never the card
	for range op.Results(slices.Values([]order{{"1", "4242"}})) {
	}
	fmt.Println(op.Stats().Completed)
	// Output:
	// 1
}
