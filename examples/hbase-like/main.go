// Command hbase-like enriches 20,000 flights by asynchronous look-ups in an HBase-like
// store that is slow and faulty, with weir's AsyncWaitOperator in a go-streams pipeline.
// See README.md, and hbase-like -h.
//
// pipeline.go is the file to copy for a pipeline of your own: README.md lists what to
// replace in it. The packages below internal start the store, read the flags, and prove
// that each flight came out once.
package main

import (
	"os"
	"os/signal"
	"syscall"

	"github.com/weirflow/weir/examples/hbase-like/internal/job"
	"github.com/weirflow/weir/examples/internal/procs"
)

func main() {
	procs.Child(job.Worker(newPipeline)) // does not return in a worker of -partitions
	interrupts := make(chan os.Signal, 2)
	signal.Notify(interrupts, os.Interrupt, syscall.SIGTERM)
	signal.Ignore(syscall.SIGPIPE) // Ctrl-C also ends the reader of a pipe; the summary then goes to standard error
	os.Exit(job.Run(newPipeline, os.Args[1:], os.Stdin, os.Stdout, os.Stderr, interrupts))
}
