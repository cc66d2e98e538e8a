package job

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/examples/hbase-like/internal/cli"
	"github.com/weirflow/weir/examples/hbase-like/internal/data"
	"github.com/weirflow/weir/examples/hbase-like/internal/durable"
	"github.com/weirflow/weir/examples/hbase-like/internal/flights"
	"github.com/weirflow/weir/examples/hbase-like/internal/ledger"
)

func (j *job) runStream(stdin io.Reader, stdout io.Writer) (text string, status int, err error) {
	in, err := j.openInput(stdin)
	if err != nil {
		return "", exitFailed, err
	}
	if err := j.startStore(); err != nil {
		return "", exitFailed, err
	}
	defer j.closeStore()
	out, err := openOutput(j.cfg, stdout)
	if err != nil {
		return "", exitFailed, err
	}
	ctx, endSource := context.WithCancelCause(context.Background())
	defer endSource(nil)
	j.startPipeline(asyncop.WithUpstreamCancel(endSource)) // ends the source if an operator stops accepting
	source := make(chan any)
	read := make(chan error, 1)
	go func() { read <- j.readFlights(ctx, in, source) }() // may end later, if an input such as a terminal blocks
	err = j.watch(func() error {
		return j.stream(j.pipe, source, formatted(j.book, j.cfg.Format), out, func() { endSource(errOutput) })
	}, j.drain)
	s := j.summary()
	if s.Interrupted {
		err = nil // requested
	}
	if ctx.Err() == nil {
		err = errors.Join(err, <-read)
	}
	err = errors.Join(err, out.err)
	s.Books, s.NotTaken = j.settled()
	s.Proof = s.Books.Prove(s.NotTaken)
	text, status = result(s)
	return text, status, err
}

// drain lets the flights in flight come out until ctx ends, and then cuts the pipeline
// off.
func (j *job) drain(ctx context.Context, _ func()) {
	j.interrupted.Store(true)
	_, _ = fmt.Fprintf(j.stderr, "\ninterrupted: finishing what is in flight for up to %v; interrupt again to stop at once\n", j.cfg.Drain)
	j.pipe.stop(ctx)
	signal.Reset(os.Interrupt, syscall.SIGTERM) // if an output blocks, the next signal kills the process
}

// settled returns the books once every flight is accounted for, and the number of flights
// that the operators did not accept. The operators count those until upstream closes
// their input, perhaps shortly after they are done.
func (j *job) settled() (ledger.Balance, int) {
	for end := time.Now().Add(time.Second); ; time.Sleep(time.Millisecond) {
		notTaken := int(j.pipe.stats().Discarded)
		read, ended := j.book.Progress()
		if read-ended == notTaken || time.Now().After(end) {
			return j.book.Balance(), notTaken
		}
	}
}

// openInput opens the input, and sets its name and length.
func (j *job) openInput(stdin io.Reader) (*flights.Reader, error) {
	if j.cfg.In == "-" {
		j.input, j.total = "standard input", -1
		return flights.NewReader(j.input, stdin)
	}
	name, text, err := data.Flights(j.cfg.In)
	if err != nil {
		return nil, err
	}
	j.input, j.total = name, bytes.Count(bytes.TrimSpace(text), []byte("\n"))
	return flights.NewReader(name, bytes.NewReader(text))
}

// readFlights sends the flights to a channel, and closes it at the end of the input, at
// the first error, or when ctx ends.
func (j *job) readFlights(ctx context.Context, in *flights.Reader, to chan<- any) error {
	defer close(to)
	for {
		f, err := in.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			read, _ := j.book.Progress()
			return fmt.Errorf("%w (the %d flights before it were processed)", err, read)
		}
		j.book.Read(f)
		select {
		case to <- f:
		case <-ctx.Done():
			j.book.Unread(f)
			return nil
		}
	}
}

// errOutput ends the source when the output fails. output.err has the reason.
var errOutput = errors.New("output failed")

// output is the file of enriched flights. Its Writer keeps the first error.
type output struct {
	*bufio.Writer
	file io.Closer // nil if the writer is the caller's
	err  error     // set by Close, which the sink calls at the end
}

func openOutput(cfg cli.Config, stdout io.Writer) (*output, error) {
	o := &output{Writer: bufio.NewWriter(io.Discard)}
	switch cfg.Out {
	case "":
	case "-":
		o.Writer = bufio.NewWriter(stdout)
	default:
		if durable.IsSameFile(cfg.In, cfg.Out) {
			return nil, fmt.Errorf("-out %s would overwrite the input", cfg.Out)
		}
		f, err := os.Create(cfg.Out)
		if err != nil {
			return nil, err
		}
		o.Writer, o.file = bufio.NewWriter(f), f
	}
	_, _ = o.Write(cfg.Format.Header())
	return o, nil
}

func (o *output) Close() error {
	err := o.Flush()
	if o.file != nil {
		err = errors.Join(err, o.file.Close())
	}
	if err != nil {
		o.err = fmt.Errorf("output: %w", err)
	}
	return o.err
}
