package job

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/examples/hbase-like/internal/cli"
	"github.com/weirflow/weir/examples/hbase-like/internal/data"
	"github.com/weirflow/weir/examples/hbase-like/internal/flights"
	"github.com/weirflow/weir/examples/hbase-like/internal/ledger"
	"github.com/weirflow/weir/examples/internal/hclient"
	"github.com/weirflow/weir/examples/internal/hstore"
	"github.com/weirflow/weir/examples/internal/procs"
	"github.com/weirflow/weir/examples/internal/show"
	"github.com/weirflow/weir/progress"
)

// Exit statuses.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitInterrupted = 130 // 128 + SIGINT, the shell convention
)

// Main runs the pipeline with the command line's flags, and exits.
func Main(pipeline NewPipeline, stream Stream) {
	procs.Child(Worker(pipeline)) // does not return in a worker
	interrupts := make(chan os.Signal, 2)
	signal.Notify(interrupts, os.Interrupt, syscall.SIGTERM)
	signal.Ignore(syscall.SIGPIPE) // Ctrl-C also ends the reader of a pipe; the summary then goes to standard error
	os.Exit(Run(pipeline, stream, os.Args[1:], os.Stdin, os.Stdout, os.Stderr, interrupts))
}

// Run is Main without the process's globals. It returns the exit status.
func Run(pipeline NewPipeline, stream Stream, args []string, stdin io.Reader, stdout, stderr io.Writer, interrupts <-chan os.Signal) int {
	fail := func(status int, err error) int {
		_, _ = fmt.Fprintf(stderr, "hbase-like: %v\n", err)
		return status
	}
	cfg, err := cli.Parse(args, stdout)
	if errors.Is(err, flag.ErrHelp) {
		return exitOK
	}
	if err != nil {
		return fail(exitUsage, fmt.Errorf("%w (-h for help)", err))
	}
	j := &job{cfg: cfg, newPipeline: pipeline, stream: stream, stderr: stderr, interrupts: interrupts}
	summary, status, err := j.run(stdin, stdout)
	if cfg.Out == "-" {
		stdout = stderr
	}
	_, notWritten := io.WriteString(stdout, summary)
	if notWritten != nil { // for example, the interrupt killed a pipe's reader
		_, _ = io.WriteString(stderr, summary)
	}
	switch {
	case errors.Is(err, errInterrupted):
		return fail(exitInterrupted, err)
	case err != nil:
		return fail(exitFailed, err)
	}
	return status
}

type job struct {
	cfg         cli.Config
	newPipeline NewPipeline
	stream      Stream
	stderr      io.Writer
	interrupts  <-chan os.Signal

	airports    []flights.Airport
	book        *ledger.Ledger
	cluster     *hstore.Cluster
	client      *hclient.Client
	pipe        *Pipeline
	input       string
	before      int // flights enriched by earlier runs
	total       int // estimated, or -1
	elapsed     time.Duration
	interrupted atomic.Bool
	cutOff      atomic.Bool // interrupted without a last checkpoint
}

// run returns a summary if the pipeline ran. The proof's result is only in status.
func (j *job) run(stdin io.Reader, stdout io.Writer) (summary string, status int, err error) {
	j.airports, err = flights.ReadAirports(data.Airports())
	if err != nil {
		return "", exitFailed, err
	}
	j.book = ledger.New(j.cfg.Ordered, j.airports)
	switch {
	case j.cfg.Partitions > 0:
		return j.runPartitioned()
	case j.cfg.Checkpoint != "":
		return j.runCheckpointed()
	}
	return j.runStream(stdin, stdout)
}

// startStore starts the store, fills its table, and connects the client.
func (j *job) startStore() error {
	var faults hstore.Faults
	if j.cfg.Faults {
		faults = hstore.DefaultFaults(j.cfg.Seed)
	}
	var err error
	j.cluster, err = hstore.Start(faults)
	if err != nil {
		return err
	}
	for _, a := range j.airports {
		j.cluster.Load(a.IATA, a.Cells())
	}
	j.client = hclient.New(j.cluster.MetaAddr())
	return nil
}

func (j *job) closeStore() {
	_ = j.client.Close()
	_ = j.cluster.Close()
}

func (j *job) startPipeline(more ...asyncop.Option) {
	j.pipe = j.newPipeline(j.client, j.cfg, giveUp(j.book), recorded(j.book, more...)...)
}

// errCutOff is the cause after the drain time, or at the second interrupt.
var errCutOff = errors.New("cut off after an interrupt")

// watch draws the progress while stream runs, and calls interrupt at the first interrupt.
// Its context is cancelled after the drain time, at the next interrupt, or by cutOff.
func (j *job) watch(stream func() error, interrupt func(ctx context.Context, cutOff func())) error {
	begun := time.Now()
	stopProgress := j.startProgress(j.sample)
	finished := make(chan struct{})
	var watchers sync.WaitGroup
	watchers.Go(func() {
		select {
		case <-finished:
			return
		case <-j.interrupts:
		}
		timed, cancel := context.WithTimeoutCause(context.Background(), j.cfg.Drain, errCutOff)
		defer cancel()
		ctx, cut := context.WithCancelCause(timed)
		watchers.Go(func() {
			select {
			case <-finished:
			case <-j.interrupts:
			}
			cut(errCutOff)
		})
		interrupt(ctx, func() { cut(errCutOff) })
	})
	err := stream()
	close(finished)
	watchers.Wait()
	j.elapsed = time.Since(begun)
	stopProgress()
	return err
}

func (j *job) startProgress(sample func() progress.State) (stop func()) {
	return progress.Line{Out: j.stderr, Sample: sample, What: "flights", Style: j.cfg.Progress, Columns: show.Columns(j.stderr)}.Start()
}

func (j *job) sample() progress.State {
	_, ended := j.book.Progress()
	stats := j.pipe.stats()
	s := progress.State{Done: int64(j.before + ended), Total: int64(j.total), InFlight: stats.InFlight, Retries: stats.Retries()}
	last := j.cluster.Stats().Last
	if last != "" {
		s.LastError = errors.New(string(last))
	}
	return s
}

func (j *job) summary() *cli.Summary {
	return &cli.Summary{
		Config:      j.cfg,
		Input:       j.input,
		Elapsed:     j.elapsed,
		Interrupted: j.interrupted.Load(),
		Lookups:     j.pipe.stats(),
		Client:      j.client.Stats(),
		Store:       j.cluster.Stats(),
	}
}

func result(s *cli.Summary) (text string, status int) {
	switch {
	case s.Proof != nil:
		return s.String(), exitFailed
	case s.Interrupted:
		return s.String(), exitInterrupted
	}
	return s.String(), exitOK
}
