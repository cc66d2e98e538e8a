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

// stream is the mode of a run without checkpoints. It streams from a reader to a writer.
type stream struct {
	stdin  io.Reader
	stdout io.Writer

	in        *input
	reader    *flights.Reader
	out       *output
	ctx       context.Context //nolint:containedctx // of the source; ends when the pipeline or the output does
	endSource context.CancelCauseFunc
	source    *source
	sink      *extension.WriterSink
}

func (m *stream) open(j *job) (err error) {
	m.ctx, m.endSource = context.WithCancelCause(context.Background())
	m.in, err = openInput(m.ctx, j.cfg.In, m.stdin)
	if err != nil {
		return err
	}
	j.input, j.total = m.in.name, m.in.total
	m.reader, err = flights.NewReader(m.in.name, m.in)
	if err != nil {
		return err
	}
	m.out, err = openOutput(j.cfg, m.in, m.stdout)
	return err
}

// option returns the option that cancels the source if an operator stops accepting before
// the end of the input.
func (m *stream) option() asyncop.Option { return asyncop.WithUpstreamCancel(m.endSource) }

func (m *stream) begin(j *job) (err error) {
	m.sink, err = extension.NewWriterSink(m.out,
		extension.WithLogger(slog.New(slog.DiscardHandler)), // out keeps its errors
		extension.WithContextCancel(func() { m.endSource(errOutput) }))
	if err != nil {
		return err
	}
	m.source = newSource(m.ctx, m.reader, j.parts.Book)
	return nil
}

func (m *stream) stream(j *job) error {
	return j.pipe.Run(extension.NewChanSource(m.source.out), flow.NewMap(j.parts.write, 1), m.sink)
}

// interrupt drains the pipeline. At the second interrupt, or when the drain time has
// passed, it cuts the pipeline off.
func (m *stream) interrupt(j *job) {
	j.interrupted.Store(true)
	_, _ = fmt.Fprintf(j.stderr, "\ninterrupted: finishing what is in flight for up to %v; interrupt again to stop at once\n", j.cfg.Drain)
	j.withGrace(func(ctx context.Context, _ func()) {
		j.pipe.stop(ctx)
		signal.Reset(os.Interrupt, syscall.SIGTERM) // if an output blocks, the next signal kills the process
	})
}

func (m *stream) prove(j *job, s *cli.Summary, err error) (*cli.Summary, error) {
	if s.Interrupted {
		err = nil // the stop was requested
	}
	err = errors.Join(err, m.source.wait(), m.out.err)
	s.Books, s.NotTaken = j.settled()
	s.Proof = s.Books.Prove(s.NotTaken)
	return s, err
}

func (m *stream) close() error {
	m.endSource(nil)
	if m.in != nil {
		m.in.close()
	}
	if m.out != nil && m.source == nil { // otherwise the sink has closed it
		return m.out.Close()
	}
	return nil
}

// settled returns the books once every flight is accounted for, and the number of flights
// that the operators did not accept. The operators count those until upstream closes
// their input, which may be shortly after they are done.
func (j *job) settled() (ledger.Balance, int) {
	for end := time.Now().Add(time.Second); ; time.Sleep(time.Millisecond) {
		notTaken := 0
		for _, st := range j.pipe.stats() {
			notTaken += int(st.Discarded)
		}
		read, ended := j.parts.Book.Progress()
		if read-ended == notTaken || time.Now().After(end) {
			return j.parts.Book.Balance(), notTaken
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
