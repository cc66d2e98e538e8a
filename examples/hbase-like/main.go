// Command hbase-like enriches 20,000 flights by asynchronous look-ups in an HBase-like
// store that is late and faulty, with weir's AsyncWaitOperator in a go-streams pipeline.
// See README.md, and hbase-like -h.
//
// pipeline.go is the part that uses weir, checkpointed.go what -checkpoint puts around
// it, partitioned.go what -partitions does.
package main

import (
	"os"
	"os/signal"
	"syscall"

	"github.com/weirflow/weir/examples/internal/procs"
)

func main() {
	procs.Child(workPartitions) // does not return in a worker of -partitions
	interrupts := make(chan os.Signal, 2)
	signal.Notify(interrupts, os.Interrupt, syscall.SIGTERM)
	signal.Ignore(syscall.SIGPIPE) // of a pipe that ^C has ended, too: the summary goes to standard error
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr, interrupts))
}
