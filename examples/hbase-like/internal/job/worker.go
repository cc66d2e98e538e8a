package job

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/backend"
	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/examples/hbase-like/internal/cli"
	"github.com/weirflow/weir/examples/hbase-like/internal/data"
	"github.com/weirflow/weir/examples/hbase-like/internal/durable"
	"github.com/weirflow/weir/examples/hbase-like/internal/flights"
	"github.com/weirflow/weir/examples/hbase-like/internal/ledger"
	"github.com/weirflow/weir/examples/internal/hclient"
	"github.com/weirflow/weir/examples/internal/show"
	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/partitions"
)

const (
	// partitionLease is the time until a killed worker's partitions move.
	partitionLease = 3 * time.Second
	partitionPoll  = 200 * time.Millisecond
	reportEvery    = 50 * time.Millisecond
)

// WorkerSettings are the settings of a worker process.
type WorkerSettings struct {
	Config cli.Config
	Name   string
	Store  string
}

// Worker returns the main function of a worker process.
func Worker(pipeline NewPipeline) func(WorkerSettings) error {
	return func(s WorkerSettings) error {
		db, err := openLocks(s.Config)
		if err != nil {
			return err
		}
		engine := sqlite.New(db)
		w := &worker{WorkerSettings: s, newPipeline: pipeline, client: hclient.New(s.Store), permits: backend.New("store", backend.Limit(2*s.Config.Calls))}
		fmt.Println("ready")
		quiet := slog.New(slog.DiscardHandler)
		return partitions.Run(context.Background(), partitions.Config{
			Assigner: &partitions.Leases{
				Locks: engine.Locks(), Group: "flights", Partitions: partitionNames(s.Config), Worker: s.Name,
				Lease: partitionLease, Poll: partitionPoll, Logger: quiet,
			},
			Stores:      partitions.Dirs(s.Config.Checkpoint),
			Pipeline:    w.run,
			Checkpoints: []checkpoint.Option{checkpoint.WithInterval(s.Config.Interval), checkpoint.WithLogger(quiet)},
			Logger:      quiet,
			Engine:      engine, // weir top shows each worker's partitions
			Name:        "flights",
		})
	}
}

type worker struct {
	WorkerSettings
	newPipeline NewPipeline
	client      *hclient.Client
	permits     *backend.Backend // shared by all partitions
}

// run runs the pipeline of runCheckpointed for one partition, and reports to the
// supervisor. It also returns if the partition moves to another worker.
func (w *worker) run(ctx context.Context, p partitions.Partition) error {
	r := partReport{Name: p.Name, Epoch: p.Epoch}
	err := w.stream(ctx, p, &r)
	if err != nil && ctx.Err() == nil {
		r.Error = err.Error()
	}
	r.print()
	return err
}

func (w *worker) stream(ctx context.Context, p partitions.Partition, r *partReport) error {
	airports, err := flights.ReadAirports(data.Airports())
	if err != nil {
		return err
	}
	book := ledger.New(w.Config.Ordered, airports)
	in, out, err := openPartition(w.Config, p.Name, book)
	if err != nil {
		return err
	}
	c := &checkpointed{coordinator: p.Coordinator, in: in, out: out, line: formatted(book, w.Config.Format)}
	c.pipe = w.newPipeline(w.client, w.Config, giveUp(book),
		recorded(book, asyncop.WithCheckpoints(p.Coordinator), asyncop.WithContext(ctx), asyncop.WithBackend(w.permits))...)
	if err := c.start(); err != nil {
		return err
	}
	before := out.ResumedLines()
	stop := show.Every(reportEvery, func(bool) {
		_, ended := book.Progress()
		stats := c.pipe.stats()
		r.Done = before + ended
		r.Calls = stats.Attempts
		r.Retries = stats.Retries()
		r.InFlight = stats.InFlight
		r.print()
	})
	err = c.run()
	stop()
	r.InFlight = 0
	if err == nil && r.Done == in.Total() {
		r.Ended = true
		r.Lost = book.Lost()
		r.Problems = book.Balance().Problems
	}
	return err
}

// partReport is a line of JSON for the supervisor: a partition's state during one
// assignment.
type partReport struct {
	Name     string
	Epoch    uint64 // of the assignment
	Done     int    // flights written in all runs
	Calls    int64  // of this assignment, like Retries
	Retries  int64
	InFlight int64
	Ended    bool // all flights are written, and the last checkpoint is complete
	Lost     []ledger.Lost
	Problems []string // violated invariants
	Error    string
}

func (r *partReport) print() {
	line, err := json.Marshal(r)
	if err == nil {
		fmt.Println(string(line))
	}
}

// partitionNames returns the names of the partitions. They contain the number of
// partitions, so changing that starts all afresh.
func partitionNames(cfg cli.Config) []string {
	names := make([]string, cfg.Partitions)
	for i := range names {
		names[i] = fmt.Sprintf("part-%d-of-%d", i+1, cfg.Partitions)
	}
	return names
}

func openLocks(cfg cli.Config) (*sqlite.DB, error) {
	return sqlite.OpenDB(context.Background(), filepath.Join(cfg.Checkpoint, "locks.db"))
}

func partitionFile(cfg cli.Config, name string) string {
	return filepath.Join(cfg.Checkpoint, name+"."+string(cfg.Format))
}

func openPartition(cfg cli.Config, name string, book *ledger.Ledger) (*durable.Input, *durable.Output, error) {
	var number, of int
	_, err := fmt.Sscanf(name, "part-%d-of-%d", &number, &of)
	if err != nil {
		return nil, nil, fmt.Errorf("partition %q: %w", name, err)
	}
	in, err := durable.OpenInput(cfg.In, number-1, of, book)
	if err != nil {
		return nil, nil, err
	}
	out, err := durable.NewOutput(partitionFile(cfg, name), cfg.Format, cfg.Ordered, in)
	return in, out, err
}
