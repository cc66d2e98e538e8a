// Command hbase-like enriches 20,000 flights by asynchronous look-ups in an HBase-like
// store that is slow and faulty, with weir's AsyncWaitOperator in a go-streams pipeline.
// See README.md, and hbase-like -h.
//
// pipeline.go is the file to copy for a pipeline of your own: README.md lists what to
// replace in it. The packages below internal start the store, read the flags, and prove
// that each flight came out once.
package main

import "github.com/weirflow/weir/examples/hbase-like/internal/job"

func main() { job.Main(newPipeline) }
