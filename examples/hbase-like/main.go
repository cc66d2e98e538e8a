// Command hbase-like enriches 20,000 flights by asynchronous look-ups in a slow and
// faulty HBase-like store, with weir's AsyncWaitOperator in a go-streams pipeline. See
// README.md, and hbase-like -h.
//
// Copy main.go and pipeline.go for your own pipeline: README.md lists what to replace.
// The packages below internal do the rest.
package main

import (
	"io"
	"log/slog"

	"github.com/reugn/go-streams/extension"
	"github.com/reugn/go-streams/flow"

	"github.com/weirflow/weir/examples/hbase-like/internal/flights"
	"github.com/weirflow/weir/examples/hbase-like/internal/job"
)

func main() { job.Main(newPipeline, stream) }

// stream runs a pipeline from a channel of flights to a file, which it closes. line
// formats a flight. If the file fails, stream calls cancel, which ends the source.
//
// With -checkpoint, the source, the map and the sink are weir's, which take part in
// checkpoints: see internal/job/checkpointed.go.
func stream(p *job.Pipeline, in chan any, line func(flights.Flight) []byte, file io.WriteCloser, cancel func()) error {
	quiet := extension.WithLogger(slog.New(slog.DiscardHandler)) // the file keeps its errors
	sink, err := extension.NewWriterSink(file, quiet, extension.WithContextCancel(cancel))
	if err != nil {
		return err
	}
	return p.Run(extension.NewChanSource(in), flow.NewMap(line, 1), sink)
}
