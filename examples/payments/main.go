// Command payments charges orders through two payment providers that lose answers,
// refuse, time out and die, while its workers are killed. At the end it proves that each
// order was charged once. See README.md, and payments -h.
//
// job.go uses weir in the caller, independently of the engine that keeps the orders: see
// engine.go. The server is in ../internal/bank.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	child() // does not return in a started process
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	status := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(status)
}
