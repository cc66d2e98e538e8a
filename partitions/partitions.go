package partitions

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/guard"
)

// Assigner decides which partitions a worker has.
type Assigner interface {
	// Run calls h for the partitions of this worker, until ctx ends. Then it revokes the
	// remaining partitions, releases them to other workers, and returns nil. It returns
	// earlier with an error, or with nil if the assignment is final: the worker keeps its
	// partitions.
	Run(ctx context.Context, h Handler) error
}

// Handler is the worker of an [Assigner]. Its methods are safe for concurrent use.
type Handler interface {
	// Assigned assigns a partition to the worker. The epoch is higher than in all earlier
	// assignments of the partition, to any worker; 0 means that the assigner does not
	// have epochs. It returns soon, unless the partition was just lost: then it waits for
	// the end of that pipeline, or of ctx.
	Assigned(ctx context.Context, partition string, epoch uint64) error
	// Revoked takes a partition from the worker. When it returns, the pipeline is closed,
	// and another worker may have the partition. An error means that it was not
	// suspended: it was aborted after [Config.SuspendTimeout], or when ctx ended.
	Revoked(ctx context.Context, partition string) error
	// Lost aborts the pipeline without waiting, because another worker may have the
	// partition.
	Lost(partition string)
}

// Stores opens the stores of partitions. [Dirs] returns directories of a single machine.
type Stores interface {
	// Open returns the store of a partition for an owner. From then on, stores opened for
	// lower epochs return [checkpoint.ErrFenced] for every number (law P1). So does Open
	// for an epoch lower than an earlier epoch. With epoch 0, either the store opened
	// last has the partition, or a second store cannot be opened.
	Open(ctx context.Context, partition string, epoch uint64) (checkpoint.Store, error)
}

// Partition is a worker's partition.
type Partition struct {
	Name        string
	Epoch       uint64 // of this assignment; 0 if the assigner does not have epochs
	Coordinator *checkpoint.Coordinator
}

// Config configures [Run]. The first three fields are required.
type Config struct {
	Assigner Assigner
	Stores   Stores
	// Pipeline makes the pipeline of a partition with its coordinator, starts it, and
	// returns the result of the coordinator's Wait. Run then closes the coordinator. When
	// the partition is revoked, the coordinator suspends the stream; ctx ends if the
	// partition is lost or could not be suspended. Pipelines run concurrently.
	Pipeline func(ctx context.Context, p Partition) error

	Checkpoints    []checkpoint.Option // of each coordinator, such as [checkpoint.WithInterval]
	SuspendTimeout time.Duration       // limit for suspending a partition; the default is 30 s
	Logger         *slog.Logger        // the default is slog.Default()
	Clock          clock.Clock         // of back-offs and SuspendTimeout; the default is the real clock

	// Monitor reports the worker's partitions. It may be nil.
	Monitor *Monitor
	// Engine keeps a report of the worker's partitions, their states and their lag, every
	// 20 s, for weir top and the console. This worker then runs the engine's jobs, too:
	// see package jobs. It may be nil.
	Engine store.Keeper
	Name   string // of the pipeline in Engine; may be empty
}

const (
	defaultSuspendTimeout = 30 * time.Second
	firstBackoff          = time.Second
	maxBackoff            = time.Minute
	abortPatience         = 15 * time.Second // longer than a coordinator takes to close
)

func (c *Config) complete() error {
	switch {
	case guard.IsNil(c.Assigner):
		return errors.New("partitions: Config.Assigner is nil")
	case guard.IsNil(c.Stores):
		return errors.New("partitions: Config.Stores is nil")
	case c.Pipeline == nil:
		return errors.New("partitions: Config.Pipeline is nil")
	case slices.ContainsFunc(c.Checkpoints, func(o checkpoint.Option) bool { return o == nil }):
		return errors.New("partitions: Config.Checkpoints has an option that is nil")
	case c.SuspendTimeout < 0:
		return fmt.Errorf("partitions: Config.SuspendTimeout %v is negative", c.SuspendTimeout)
	}
	if c.SuspendTimeout == 0 {
		c.SuspendTimeout = defaultSuspendTimeout
	}
	c.Logger = guard.Logger(c.Logger)
	if c.Clock == nil {
		c.Clock = clock.New()
	}
	return nil
}

// Run runs the pipelines of this worker's partitions until ctx ends. Then it suspends
// them, and returns nil if all could be suspended. If the assignment is final, Run also
// returns when all inputs have ended.
//
// It returns the errors of the assigner, of partitions that could not be suspended, and
// of assigned partitions that another worker has taken over ([checkpoint.ErrFenced]). A
// pipeline that does not end 15 s after its context is abandoned, with an error.
func Run(ctx context.Context, c Config) error {
	if err := c.complete(); err != nil {
		return err
	}
	w := &worker{Config: c, parent: context.WithoutCancel(ctx), runs: map[string]*run{}}
	w.Monitor.begin(w.status)
	defer w.Monitor.end()
	end, err := w.heartbeats()
	if err != nil {
		return fmt.Errorf("partitions: %w", err)
	}
	defer end()
	err = guard.Call(func() error { return c.Assigner.Run(ctx, w) }, newPanicError)
	left := w.left()
	if err == nil { // the assignment is final
		for _, r := range left {
			select {
			case <-r.done:
			case <-ctx.Done():
			}
		}
	}
	errs := make([]error, len(left), len(left)+1)
	var all sync.WaitGroup
	for i, r := range left {
		all.Go(func() { errs[i] = w.Revoked(w.parent, r.name) })
	}
	all.Wait()
	w.logging.Wait()
	return errors.Join(append(errs, err)...)
}

func newPanicError(recovered any) error { return guard.Recovered("partitions", recovered) }

type worker struct {
	Config
	parent context.Context // never ends: partitions are suspended after the context of Run

	logging sync.WaitGroup // goroutines that log losses

	mu        sync.Mutex      // guards the fields below
	runs      map[string]*run // by partition, until the run has ended
	losses    int
	free      []string // partitions without an owner
	knowsFree bool     // the assigner has reported free
}

func (w *worker) left() []*run {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.SortedFunc(maps.Values(w.runs), func(a, b *run) int { return strings.Compare(a.name, b.name) })
}

var (
	errLost  = errors.New("the partition is lost")
	errSlow  = errors.New("not suspended in time")
	errStuck = errors.New("its pipeline does not end")
	errEarly = errors.New("the pipeline function returned before the end of its stream: it must return what Wait of the coordinator returns")
)

func (w *worker) Assigned(ctx context.Context, partition string, epoch uint64) error {
	err := w.begin(ctx, partition, epoch)
	if err == nil { // without the lock, since a logger may be slow
		w.Logger.Info("partition assigned", slog.String("partition", partition), slog.Uint64("epoch", epoch))
	}
	return err
}

// begin starts the run of a partition, after the end of an earlier, lost run of it.
func (w *worker) begin(ctx context.Context, partition string, epoch uint64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for before := w.runs[partition]; before != nil; before = w.runs[partition] {
		if before.ctx.Err() == nil {
			return fmt.Errorf("partitions: %q is assigned already", partition)
		}
		w.mu.Unlock()
		select {
		case <-before.done:
			w.forget(before)
			w.mu.Lock()
		case <-ctx.Done():
			w.mu.Lock()
			return context.Cause(ctx)
		}
	}
	r := &run{worker: w, name: partition, epoch: epoch, done: make(chan struct{})}
	r.ctx, r.abort = context.WithCancelCause(w.parent)
	r.wanted, r.revoke = context.WithCancel(r.ctx)
	w.runs[partition] = r
	go r.serve()
	return nil
}

func (w *worker) Revoked(ctx context.Context, partition string) error {
	w.mu.Lock()
	r := w.runs[partition]
	if r == nil {
		w.mu.Unlock()
		return nil
	}
	r.revoke()
	c := r.coordinator
	w.mu.Unlock()

	err := r.suspend(ctx, c)
	if err != nil {
		w.Logger.Warn("partition revoked, but not suspended", slog.String("partition", partition), slog.Any("error", err))
		return fmt.Errorf("partitions: %q: %w", partition, err)
	}
	w.Logger.Info("partition revoked", slog.String("partition", partition))
	return nil
}

// Lost does not wait for user code, not even a logger, since the caller may hold a lock
// (law P1).
func (w *worker) Lost(partition string) {
	w.mu.Lock()
	r := w.runs[partition]
	if r != nil {
		w.losses++
	}
	w.mu.Unlock()
	if r == nil {
		return
	}
	r.abort(errLost)
	w.logging.Go(func() {
		w.Logger.Warn("partition lost", slog.String("partition", partition), slog.Uint64("epoch", r.epoch))
	})
}

func (w *worker) forget(r *run) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.runs[r.name] == r {
		delete(w.runs, r.name)
	}
}
