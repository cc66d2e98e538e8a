// Command cluster charges orders on a cluster: three JetStream servers and three workers,
// each a process of its own, some of which it kills at random while you watch. At the end
// it proves that each order was charged once, and that the dead letters are those orders
// that cannot be charged. See README.md, and cluster -h.
//
// worker.go is the part that uses weir, server.go starts a server of the cluster.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	child() // does not return in a process that the supervisor has started
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	status := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(status)
}
