package job

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/examples/hbase-like/internal/cli"
	"github.com/weirflow/weir/examples/hbase-like/internal/data"
	"github.com/weirflow/weir/examples/hbase-like/internal/flights"
	"github.com/weirflow/weir/examples/hbase-like/internal/hclient"
	"github.com/weirflow/weir/examples/hbase-like/internal/ledger"
	"github.com/weirflow/weir/examples/hbase-like/internal/store"
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

// Run is main without the process's globals. It returns the exit status.
func Run(pipeline NewPipeline, args []string, stdin io.Reader, stdout, stderr io.Writer, interrupts <-chan os.Signal) int {
	fail := func(status int, err error) int {
		_, _ = fmt.Fprintf(stderr, "hbase-like: %v\n", err)
		return status
	}
	cfg, err := cli.Parse(args, stdout)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitOK
	case err != nil:
		return fail(exitUsage, fmt.Errorf("%w (-h for help)", err))
	}
	j := &job{cfg: cfg, newPipeline: pipeline, stderr: stderr, interrupts: interrupts}
	if cfg.Partitions > 0 {
		return j.runPartitioned(stdout, fail)
	}
	var how mode = &stream{stdin: stdin, stdout: stdout}
	if cfg.Checkpoint != "" {
		how = &checkpointed{}
	}
	summary, err := j.run(how)
	if summary != nil {
		w := stdout
		if cfg.Out == "-" {
			w = stderr
		}
		if err := summary.Write(w); err != nil { // for example a pipe whose reader the interrupt killed
			_ = summary.Write(stderr)
		}
	}
	switch {
	case errors.Is(err, errInterrupted):
		return fail(exitInterrupted, err)
	case err != nil:
		return fail(exitFailed, err)
	}
	return exitStatus(summary)
}

func exitStatus(s *cli.Summary) int {
	switch {
	case s.Proof != nil:
		return exitFailed
	case s.Interrupted:
		return exitInterrupted
	}
	return exitOK
}

// mode has the steps in which a run with checkpoints differs from a run without.
type mode interface {
	// open opens the input and the output, and sets j.input and j.total.
	open(j *job) error
	// option returns the option of the operators.
	option() asyncop.Option
	// begin connects input and output to the pipeline.
	begin(j *job) error
	// stream runs the pipeline to its end.
	stream(j *job) error
	// interrupt ends the pipeline after the first interrupt.
	interrupt(j *job)
	// prove completes the summary after a run that ended with err.
	prove(j *job, s *cli.Summary, err error) (*cli.Summary, error)
	// close releases the directory, and also the input and the output if begin was not
	// called.
	close() error
}

// job is one run: the store, the client, the pipeline between input and output, and the
// ledger that observes it.
type job struct {
	cfg         cli.Config
	newPipeline NewPipeline
	stderr      io.Writer
	interrupts  <-chan os.Signal

	airports    []flights.Airport
	parts       *Parts
	cluster     *store.Cluster
	pipe        *Pipeline
	input       string // name of the input
	before      int    // enriched flights written by earlier runs
	total       int    // estimated flights, or -1 if unknown
	interrupted atomic.Bool
	cutOff      atomic.Bool // interrupted without a last checkpoint
}

// run returns a summary if the pipeline ran. err excludes the result of the proof.
func (j *job) run(how mode) (s *cli.Summary, err error) {
	j.airports, err = readAirports()
	if err != nil {
		return nil, err
	}
	j.parts = &Parts{Config: j.cfg, Book: ledger.New(j.cfg.Ordered, j.airports)}
	defer func() { err = errors.Join(err, how.close()) }()
	if err := how.open(j); err != nil {
		return nil, err
	}
	if err := j.startStore(); err != nil {
		return nil, err
	}
	defer j.closeStore()
	j.parts.dead, err = openDeadLetters(j.cfg.Dead, j.input)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, j.parts.dead.close()) }()
	j.pipe = j.newPipeline(j.parts, how.option())
	if err := how.begin(j); err != nil {
		return nil, err
	}
	begun := time.Now()
	stopProgress := j.startProgress(j.sample)
	finished := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() { j.watchInterrupts(how, finished) })
	err = how.stream(j)
	close(finished)
	watch.Wait()
	elapsed := time.Since(begun)
	stopProgress()
	return how.prove(j, j.summary(elapsed), err)
}

func readAirports() ([]flights.Airport, error) {
	return flights.ReadAirports("airports.csv", data.Airports())
}

// startStore starts the store, fills its table, and connects the client.
func (j *job) startStore() error {
	var faults store.Faults
	if j.cfg.Faults {
		faults = store.DefaultFaults(j.cfg.Seed)
	}
	var err error
	j.cluster, err = store.Start(faults)
	if err != nil {
		return err
	}
	for _, a := range j.airports {
		j.cluster.Load(a.IATA, a.Cells())
	}
	j.parts.Client = hclient.New(j.cluster.MetaAddr())
	return nil
}

func (j *job) closeStore() {
	_ = j.parts.Client.Close()
	_ = j.cluster.Close() // no longer needed
}

// errCutOff is the cancellation cause when the drain time has passed, or at the second
// interrupt.
var errCutOff = errors.New("cut off after an interrupt")

// watchInterrupts ends the pipeline after the first interrupt.
func (j *job) watchInterrupts(how mode, finished <-chan struct{}) {
	select {
	case <-finished:
	case <-j.interrupts:
		how.interrupt(j)
	}
}

// withGrace runs end with a context that is cancelled after the drain time, at the next
// interrupt, or by cutOff.
func (j *job) withGrace(end func(ctx context.Context, cutOff func())) {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	cutOff := func() { cancel(errCutOff) }
	timer := time.AfterFunc(j.cfg.Drain, cutOff)
	defer timer.Stop()
	var again sync.WaitGroup
	ended := make(chan struct{})
	again.Go(func() {
		select {
		case <-ended:
		case <-j.interrupts:
			cutOff()
		}
	})
	end(ctx, cutOff)
	close(ended)
	again.Wait()
}

func (j *job) startProgress(sample func() progress.State) (stop func()) {
	return progress.Line{Out: j.stderr, Sample: sample, What: "flights", Style: j.cfg.Progress, Columns: show.Columns(j.stderr)}.Start()
}

func (j *job) sample() progress.State {
	_, ended := j.parts.Book.Progress()
	s := progress.State{Done: int64(j.before + ended), Total: int64(j.total)}
	for _, st := range j.pipe.stats() {
		s.InFlight += st.InFlight
		s.Retries += st.Retries()
	}
	last := j.cluster.Stats().Last
	if last != "" {
		s.LastError = errors.New(string(last))
	}
	return s
}

// summary returns the summary without the books and their proof.
func (j *job) summary(elapsed time.Duration) *cli.Summary {
	return &cli.Summary{
		Config:      j.cfg,
		Input:       j.input,
		Elapsed:     elapsed,
		Interrupted: j.interrupted.Load(),
		Lookups:     j.pipe.stats(),
		Client:      j.parts.Client.Stats(),
		Store:       j.cluster.Stats(),
	}
}
