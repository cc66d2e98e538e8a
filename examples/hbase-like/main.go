// Command hbase-like enriches 20,000 flights by asynchronous look-ups in an HBase-like
// store that is late and faulty, with weir's AsyncWaitOperator in a go-streams pipeline.
// See README.md, and hbase-like -h.
//
// pipeline.go uses weir, checkpointed.go adds -checkpoint, and partitioned.go adds
// -partitions.
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
	signal.Ignore(syscall.SIGPIPE) // ^C may also end the reader of a pipe: then the summary goes to standard error
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr, interrupts))
}
