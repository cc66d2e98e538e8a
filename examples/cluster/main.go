// Command cluster charges orders on a cluster of three JetStream servers and three
// workers. All are processes, some of which are killed at random. At the end it proves
// that each order was charged once, and that the dead letters are the orders that cannot
// be charged. See README.md, and cluster -h.
//
// worker.go uses weir, server.go starts a server of the cluster.
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
