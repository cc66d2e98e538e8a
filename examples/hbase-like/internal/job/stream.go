package job

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/reugn/go-streams/extension"
	"github.com/reugn/go-streams/flow"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/examples/hbase-like/internal/cli"
	"github.com/weirflow/weir/examples/hbase-like/internal/data"
	"github.com/weirflow/weir/examples/hbase-like/internal/flights"
	"github.com/weirflow/weir/examples/hbase-like/internal/ledger"
)

// runStream streams the flights from a reader to a writer, without checkpoints.
func (j *job) runStream(stdin io.Reader, stdout io.Writer) (text string, status int, err error) {
	ctx, endSource := context.WithCancelCause(context.Background()) // ends when the pipeline or the output does
	defer endSource(nil)
	in, err := openInput(ctx, j.cfg.In, stdin)
	if err != nil {
		return "", exitFailed, err
	}
	defer in.close()
	j.input, j.total = in.name, in.total
	reader, err := flights.NewReader(in.name, in)
	if err != nil {
		return "", exitFailed, err
	}
	if err := j.startStore(); err != nil {
		return "", exitFailed, err
	}
	defer j.closeStore()
	out, err := openOutput(j.cfg, in, stdout)
	if err != nil {
		return "", exitFailed, err
	}
	sink, err := extension.NewWriterSink(out,
		extension.WithLogger(slog.New(slog.DiscardHandler)), // out keeps its errors
		extension.WithContextCancel(func() { endSource(errOutput) }))
	if err != nil {
		return "", exitFailed, err
	}
	j.startPipeline(asyncop.WithUpstreamCancel(endSource)) // ends the source if an operator stops accepting
	source := newSource(ctx, reader, j.book)
	err = j.watch(func() error {
		return j.pipe.Run(extension.NewChanSource(source.out), flow.NewMap(formatted(j.book, j.cfg.Format), 1), sink)
	}, j.drain)
	s := j.summary()
	if s.Interrupted {
		err = nil // the stop was requested
	}
	err = errors.Join(err, source.wait(), out.err)
	s.Books, s.NotTaken = j.settled()
	s.Proof = s.Books.Prove(s.NotTaken)
	text, status = result(s)
	return text, status, err
}

// drain lets the flights in flight come out. At the second interrupt, or when the drain
// time has passed, it cuts the pipeline off.
func (j *job) drain() {
	j.interrupted.Store(true)
	_, _ = fmt.Fprintf(j.stderr, "\ninterrupted: finishing what is in flight for up to %v; interrupt again to stop at once\n", j.cfg.Drain)
	j.withGrace(func(ctx context.Context, _ func()) {
		j.pipe.stop(ctx)
		signal.Reset(os.Interrupt, syscall.SIGTERM) // if an output blocks, the next signal kills the process
	})
}

// settled returns the books once every flight is accounted for, and the number of flights
// that the operators did not accept. The operators count those until upstream closes
// their input, which may be shortly after they are done.
func (j *job) settled() (ledger.Balance, int) {
	for end := time.Now().Add(time.Second); ; time.Sleep(time.Millisecond) {
		notTaken := int(j.pipe.stats().Discarded)
		read, ended := j.book.Progress()
		if read-ended == notTaken || time.Now().After(end) {
			return j.book.Balance(), notTaken
		}
	}
}

// source reads flights into a channel. It closes the channel at the end of the input, at
// the input's first error, or when the context ends.
type source struct {
	out  chan any
	done chan struct{}
	err  error // set before done is closed
}

func newSource(ctx context.Context, r *flights.Reader, book *ledger.Ledger) *source {
	s := &source{out: make(chan any), done: make(chan struct{})}
	go func() {
		defer close(s.done)
		defer close(s.out)
		s.err = s.read(ctx, r, book)
	}()
	return s
}

func (s *source) read(ctx context.Context, r *flights.Reader, book *ledger.Ledger) error {
	for {
		f, err := r.Read()
		select {
		case <-ctx.Done():
			return nil // an error now is a consequence of the cancellation
		default:
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			read, _ := book.Progress()
			return fmt.Errorf("%w (the %d flights before it were processed)", err, read)
		}
		book.Read(f)
		select {
		case s.out <- f:
		case <-ctx.Done():
			book.Unread(f)
			return nil
		}
	}
}

func (s *source) wait() error {
	<-s.done
	return s.err
}

// input is an open CSV of flights.
type input struct {
	io.Reader
	name  string
	total int      // estimated flights, or -1 if unknown
	file  *os.File // nil if there is no file to close
}

func openInput(ctx context.Context, name string, stdin io.Reader) (*input, error) {
	switch name {
	case "":
		return &input{Reader: data.Flights(), name: "flights.csv (built in)", total: data.FlightRows}, nil
	case "-":
		return &input{Reader: &interruptible{ctx: ctx, r: stdin}, name: "standard input", total: -1}, nil
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	return &input{Reader: &interruptible{ctx: ctx, r: f}, name: name, total: countRows(name), file: f}, nil
}

func (in *input) close() {
	if in.file != nil {
		_ = in.file.Close()
	}
}

// countRows counts the lines of a file without the header, for the progress display only.
// It returns -1 if the file cannot be read twice.
func countRows(name string) int {
	if info, err := os.Stat(name); err != nil || !info.Mode().IsRegular() {
		return -1
	}
	b, err := os.ReadFile(name)
	if err != nil {
		return -1
	}
	rows := bytes.Count(b, []byte("\n"))
	if len(b) > 0 && b[len(b)-1] != '\n' {
		rows++
	}
	return max(0, rows-1)
}

// interruptible is a reader whose Read returns when ctx ends, even while a terminal or
// pipe blocks.
type interruptible struct {
	ctx context.Context
	r   io.Reader
}

func (i *interruptible) Read(p []byte) (int, error) {
	if err := i.ctx.Err(); err != nil {
		return 0, err
	}
	type result struct {
		n   int
		err error
	}
	buf := make([]byte, len(p)) // the caller may reuse p once Read returns
	got := make(chan result, 1)
	go func() {
		n, err := i.r.Read(buf)
		got <- result{n, err}
	}()
	select {
	case r := <-got:
		return copy(p, buf[:r.n]), r.err
	case <-i.ctx.Done():
		return 0, i.ctx.Err()
	}
}

// errOutput ends the source when the output fails. output.err has the reason.
var errOutput = errors.New("output failed")

// output is the file of enriched flights. It keeps its first error.
type output struct {
	buf  *bufio.Writer
	file io.Closer // nil if the caller owns the writer
	err  error     // read only after the sink has completed
}

func openOutput(cfg cli.Config, in *input, stdout io.Writer) (*output, error) {
	o := &output{}
	switch cfg.Out {
	case "":
		o.buf = bufio.NewWriter(io.Discard)
	case "-":
		o.buf = bufio.NewWriter(stdout)
	default:
		if in.file != nil && sameFile(in.file, cfg.Out) {
			return nil, fmt.Errorf("-out %s would overwrite the input", cfg.Out)
		}
		f, err := os.Create(cfg.Out)
		if err != nil {
			return nil, err
		}
		o.file, o.buf = f, bufio.NewWriter(f)
	}
	_, _ = o.Write(cfg.Format.Header())
	return o, nil
}

func sameFile(f *os.File, name string) bool {
	a, err := f.Stat()
	if err != nil {
		return false
	}
	b, err := os.Stat(name)
	return err == nil && os.SameFile(a, b)
}

func (o *output) Write(b []byte) (int, error) {
	n, err := o.buf.Write(b)
	o.remember(err)
	return n, err
}

// Close flushes and closes the file. The sink calls Close.
func (o *output) Close() error {
	o.remember(o.buf.Flush())
	if o.file != nil {
		o.remember(o.file.Close())
	}
	return o.err
}

func (o *output) remember(err error) {
	if o.err == nil && err != nil {
		o.err = fmt.Errorf("output: %w", err)
	}
}
