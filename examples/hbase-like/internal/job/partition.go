package job

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"sync"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/backend"
	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/examples/hbase-like/internal/cli"
	"github.com/weirflow/weir/examples/hbase-like/internal/durable"
	"github.com/weirflow/weir/examples/hbase-like/internal/flights"
	"github.com/weirflow/weir/examples/hbase-like/internal/hclient"
	"github.com/weirflow/weir/examples/hbase-like/internal/ledger"
	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/partitions"
)

const (
	// partitionLease is the time after which the partitions of a killed worker move to
	// another worker.
	partitionLease = 3 * time.Second
	partitionPoll  = 200 * time.Millisecond
)

// WorkerSettings are the settings of a worker of the partitioned run.
type WorkerSettings struct {
	Config cli.Config
	Name   string
	Store  string // address of the store
}

// partitionNames returns the names of the partitions. Each name contains the number of
// partitions, so changing that number starts all of them afresh.
func partitionNames(cfg cli.Config) []string {
	names := make([]string, cfg.Partitions)
	for i := range names {
		names[i] = partitionName(i, cfg)
	}
	return names
}

func partitionName(i int, cfg cli.Config) string {
	return fmt.Sprintf("part-%d-of-%d", i+1, cfg.Partitions)
}

// openLocks opens the lease database that all workers share.
func openLocks(ctx context.Context, cfg cli.Config) (*sqlite.DB, error) {
	return sqlite.OpenDB(ctx, filepath.Join(cfg.Checkpoint, "locks.db"))
}

func partitionFile(cfg cli.Config, name string) string {
	return filepath.Join(cfg.Checkpoint, name+"."+string(cfg.Format))
}

func openPartition(cfg cli.Config, name string, book *ledger.Ledger) (*durable.Input, *durable.Output, error) {
	var number, of int
	if _, err := fmt.Sscanf(name, "part-%d-of-%d", &number, &of); err != nil {
		return nil, nil, fmt.Errorf("partition %q: %w", name, err)
	}
	in, err := durable.OpenPart(cfg.In, number-1, of, book)
	if err != nil {
		return nil, nil, err
	}
	out, err := durable.NewOutput(partitionFile(cfg, name), cfg.Format, cfg.Ordered, in)
	if err != nil {
		_ = in.Close()
		return nil, nil, err
	}
	return in, out, nil
}

// partitionWorker runs the pipelines of its assigned partitions.
type partitionWorker struct {
	WorkerSettings
	airports []flights.Airport
	client   *hclient.Client
	newPipe  NewPipeline
	permits  *backend.Backend // shared by all its partitions

	mu      sync.Mutex
	parts   map[string]*part
	stopped asyncop.Stats // totals of pipelines that have ended
}

// part is a partition assigned to a worker.
type part struct {
	book   *ledger.Ledger
	pipe   *Pipeline
	before int // flights written before this worker took over
	report partReport
}

// Worker returns the main function of a worker process, which runs until it is killed.
func Worker(pipeline NewPipeline) func(WorkerSettings) error {
	return func(s WorkerSettings) error { return workPartitions(pipeline, s) }
}

func workPartitions(pipeline NewPipeline, s WorkerSettings) error {
	ctx := context.Background()
	airports, err := readAirports()
	if err != nil {
		return err
	}
	db, err := openLocks(ctx, s.Config)
	if err != nil {
		return err
	}
	w := &partitionWorker{
		WorkerSettings: s, airports: airports, client: hclient.New(s.Store), newPipe: pipeline,
		permits: backend.New("store", backend.Limit(2*s.Config.Calls)), parts: map[string]*part{},
	}
	fmt.Println("ready")
	go w.report() // ends with the process
	quiet := slog.New(slog.DiscardHandler)
	engine := sqlite.New(db)
	return partitions.Run(ctx, partitions.Config{
		Assigner: &partitions.Leases{
			Locks: engine.Locks(), Group: "flights", Partitions: partitionNames(s.Config), Worker: s.Name,
			Lease: partitionLease, Poll: partitionPoll, Logger: quiet,
		},
		Stores:      partitions.Dirs(s.Config.Checkpoint),
		Pipeline:    w.pipeline,
		Checkpoints: []checkpoint.Option{checkpoint.WithInterval(s.Config.Interval), checkpoint.WithLogger(quiet)},
		Logger:      quiet,
		Engine:      engine, // weir top shows the partitions of each worker
		Name:        "flights",
	})
}

// pipeline runs the pipeline of checkpointed.go for one partition, with the partition's
// coordinator.
func (w *partitionWorker) pipeline(ctx context.Context, p partitions.Partition) (err error) {
	defer func() {
		if err != nil && ctx.Err() == nil {
			w.failed(p.Name, err)
		}
	}()
	book := ledger.New(w.Config.Ordered, w.airports)
	in, out, err := openPartition(w.Config, p.Name, book)
	if err != nil {
		return err
	}
	dead, err := openDeadLetters(w.Config.Dead, in.Name())
	if err != nil {
		_ = in.Close()
		return err
	}
	defer func() { _ = dead.close() }() // everything it has taken is durable
	parts := &Parts{Config: w.Config, Client: w.client, Book: book, dead: dead}
	checks := &checkpointed{coordinator: p.Coordinator, in: in, out: out}
	pipe := w.newPipe(parts, checks.option(), asyncop.WithContext(ctx), asyncop.WithBackend(w.permits))
	before, err := checks.start(pipe, parts)
	if err != nil {
		return err
	}
	w.began(p, &part{book: book, pipe: pipe, before: before, report: partReport{Epoch: p.Epoch, Resumed: checks.resumed()}})
	err = checks.run(pipe, parts)
	w.ended(p.Name, err == nil && before+ended(book) == in.Total())
	return err
}

func ended(book *ledger.Ledger) int {
	_, ended := book.Progress()
	return ended
}

// A worker reports to its supervisor in lines of JSON.
type (
	workerReport struct {
		Parts          map[string]partReport
		Calls, Retries int64
		InFlight       int64
	}
	partReport struct {
		Epoch   uint64
		Resumed uint64 // number of the checkpoint
		Done    int    // flights written in all runs
		Ended   bool   // all flights are written, and the last checkpoint is complete
		Lost    []ledger.Lost
		Problem []string // violated invariants
		Error   string
	}
)

func (w *partitionWorker) began(p partitions.Partition, to *part) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.parts[p.Name] = to
}

// ended records the end of a pipeline: its input has ended, or the partition moves to
// another worker.
func (w *partitionWorker) ended(name string, isDone bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.parts[name]
	for _, st := range p.pipe.stats() {
		w.stopped.Attempts += st.Attempts
		w.stopped.RetriesOnResult += st.RetriesOnResult
		w.stopped.RetriesOnError += st.RetriesOnError
	}
	if p.sample(); !isDone {
		delete(w.parts, name)
		return
	}
	p.pipe, p.report.Ended, p.report.Lost = nil, true, p.book.Lost()
	p.report.Problem = p.book.Balance().Problems
}

func (w *partitionWorker) failed(name string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.parts[name] = &part{report: partReport{Error: err.Error()}}
}

// sample updates the count of finished flights. The caller holds mu.
func (p *part) sample() {
	if p.pipe != nil {
		p.report.Done = p.before + ended(p.book)
	}
}

// report prints a report every 50 ms.
func (w *partitionWorker) report() {
	for range time.Tick(50 * time.Millisecond) {
		line, err := json.Marshal(w.sample())
		if err == nil {
			fmt.Println(string(line))
		}
	}
}

func (w *partitionWorker) sample() workerReport {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := workerReport{Parts: map[string]partReport{}, Calls: w.stopped.Attempts, Retries: w.stopped.Retries()}
	for name, p := range maps.All(w.parts) {
		p.sample()
		r.Parts[name] = p.report
		if p.pipe == nil {
			continue
		}
		for _, st := range p.pipe.stats() {
			r.Calls += st.Attempts
			r.Retries += st.Retries()
			r.InFlight += st.InFlight
		}
	}
	return r
}
