package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/reugn/go-streams/extension"
	"github.com/reugn/go-streams/flow"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/examples/hbase-like/internal/cli"
	"github.com/weirflow/weir/examples/hbase-like/internal/data"
	"github.com/weirflow/weir/examples/hbase-like/internal/flights"
	"github.com/weirflow/weir/examples/hbase-like/internal/hclient"
	"github.com/weirflow/weir/examples/hbase-like/internal/ledger"
	"github.com/weirflow/weir/examples/hbase-like/internal/store"
	"github.com/weirflow/weir/examples/hbase-like/internal/wire"
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

// run is main without the process's globals.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer, interrupts <-chan os.Signal) int {
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
	j := &job{cfg: cfg, stderr: stderr, interrupts: interrupts}
	run := func() (*cli.Summary, error) { return j.run(stdin, stdout) }
	switch {
	case cfg.Partitions > 0:
		return j.runPartitioned(stdout, fail)
	case cfg.Checkpoint != "":
		run = j.runCheckpointed
	}
	summary, err := run()
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

// job is one run: the store, the client, the pipeline between input and output, and the
// ledger that observes it.
type job struct {
	cfg        cli.Config
	stderr     io.Writer
	interrupts <-chan os.Signal

	book        *ledger.Ledger
	cluster     *store.Cluster
	client      *hclient.Client
	pipe        *pipeline
	before      int // enriched flights written by earlier runs
	total       int // estimated flights, or -1 if unknown
	interrupted atomic.Bool
	cutOff      atomic.Bool // interrupted without a last checkpoint
}

// run returns a summary if the pipeline ran. err excludes the result of the proof.
func (j *job) run(stdin io.Reader, stdout io.Writer) (s *cli.Summary, err error) {
	ctx, endSource := context.WithCancelCause(context.Background())
	defer endSource(nil)

	in, err := openInput(ctx, j.cfg.In, stdin)
	if err != nil {
		return nil, err
	}
	defer in.close()
	reader, err := flights.NewReader(in.name, in)
	if err != nil {
		return nil, err
	}
	out, err := openOutput(j.cfg, in, stdout)
	if err != nil {
		return nil, err
	}
	airports, err := flights.ReadAirports("airports.csv", data.Airports())
	if err != nil {
		return nil, errors.Join(err, out.Close())
	}
	if err := j.startStore(airports); err != nil {
		return nil, errors.Join(err, out.Close())
	}
	defer j.closeStore()

	j.book = ledger.New(j.cfg.Ordered, airports)
	sink, err := extension.NewWriterSink(out,
		extension.WithLogger(slog.New(slog.DiscardHandler)), // out keeps its errors
		extension.WithContextCancel(func() { endSource(errOutput) }))
	if err != nil {
		return nil, errors.Join(err, out.Close())
	}
	dead, err := openDeadLetters(j.cfg.Dead, in.name)
	if err != nil {
		return nil, errors.Join(err, out.Close())
	}
	defer func() { err = errors.Join(err, dead.close()) }()
	// An operator that stops accepting before the end of the input cancels the source.
	j.pipe = newPipeline(j.cfg, j.client, j.book, dead, asyncop.WithUpstreamCancel(endSource))

	begun := time.Now()
	j.total = in.total
	stopProgress := j.startProgress(j.sample)
	finished := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() { j.watchInterrupts(finished) })
	source := newSource(ctx, reader, j.book)
	err = j.pipe.run(extension.NewChanSource(source.out), flow.NewMap(j.pipe.write, 1), sink)
	close(finished)
	watch.Wait()
	elapsed := time.Since(begun)
	stopProgress()

	if j.interrupted.Load() {
		err = nil // the stop was requested
	}
	err = errors.Join(err, source.wait(), out.err)
	s = j.summary(in.name, elapsed)
	s.Books, s.NotTaken = j.settled()
	s.Proof = s.Books.Prove(s.NotTaken)
	return s, err
}

// startStore starts the cluster, fills its table except for the rows that arrive late,
// and connects the client.
func (j *job) startStore(airports []flights.Airport) error {
	cfg := store.Config{
		Servers:    3,
		Splits:     []string{"C", "G", "M", "P", "S"},
		MinLatency: 2 * time.Millisecond,
		MaxLatency: 8 * time.Millisecond,
	}
	if j.cfg.Faults {
		cfg.Faults = store.DefaultFaults(j.cfg.Seed)
	}
	var err error
	if j.cluster, err = store.Start(cfg); err != nil {
		return err
	}
	for _, a := range airports {
		row := store.Row{Key: a.IATA}
		a.Cells(func(column, value string) {
			row.Cells = append(row.Cells, wire.Cell{Column: column, Value: value})
		})
		j.cluster.Load(row)
	}
	j.client = hclient.New(j.cluster.MetaAddr())
	return nil
}

func (j *job) closeStore() {
	_ = j.client.Close()
	_ = j.cluster.Close() // no longer needed
}

// errCutOff is the cancellation cause when the drain time has passed, or at the second
// interrupt.
var errCutOff = errors.New("cut off after an interrupt")

// watchInterrupts stops the pipeline at the first interrupt, and cuts it off at the
// second.
func (j *job) watchInterrupts(finished <-chan struct{}) {
	select {
	case <-finished:
		return
	case <-j.interrupts:
	}
	j.interrupted.Store(true)
	_, _ = fmt.Fprintf(j.stderr, "\ninterrupted: finishing what is in flight for up to %v; interrupt again to stop at once\n", j.cfg.Drain)
	j.withGrace(func(ctx context.Context, _ func()) {
		j.pipe.stop(ctx)
		signal.Reset(os.Interrupt, syscall.SIGTERM) // if an output blocks, the next signal kills the process
	})
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
	_, ended := j.book.Progress()
	s := progress.State{Done: int64(j.before + ended), Total: int64(j.total)}
	for _, st := range j.stats() {
		s.InFlight += st.InFlight
		s.Retries += st.Retries()
	}
	if events := j.cluster.Events(); len(events) > 0 {
		s.LastError = errors.New(events[len(events)-1].Kind.String())
	}
	return s
}

func (j *job) stats() []asyncop.Stats {
	return []asyncop.Stats{j.pipe.origin.Stats(), j.pipe.destination.Stats()}
}

// summary returns the summary without the books and their proof.
func (j *job) summary(input string, elapsed time.Duration) *cli.Summary {
	return &cli.Summary{
		Config:      j.cfg,
		Input:       input,
		Elapsed:     elapsed,
		Interrupted: j.interrupted.Load(),
		Lookups:     j.stats(),
		Client:      j.client.Stats(),
		Store:       j.cluster.Stats(),
	}
}

// settled returns the books once every flight is accounted for, and the number of flights
// that the operators did not accept. The operators count those until upstream closes
// their input, which may be shortly after they are done.
func (j *job) settled() (ledger.Balance, int) {
	for end := time.Now().Add(time.Second); ; time.Sleep(time.Millisecond) {
		notTaken := 0
		for _, st := range j.stats() {
			notTaken += int(st.Discarded)
		}
		read, ended := j.book.Progress()
		if read-ended == notTaken || time.Now().After(end) {
			return j.book.Balance(), notTaken
		}
	}
}
