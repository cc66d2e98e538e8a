package jobs

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/counting"
)

const (
	beatEach  = 20 * time.Second
	silentFor = 6 * beatEach // a worker without a heartbeat for so long is removed
	goodbye   = time.Second  // to remove a worker that ends
)

// Worker is the report of a worker about itself, made every 20 s. Its counts
// (delivery.Summary), operators (asyncop.Stats) and checkpoints (checkpoint.Stats) are
// JSON, since workers may be of other versions.
type Worker struct {
	ID      string    `json:"id"`
	Host    string    `json:"host"`
	PID     int       `json:"pid"`
	Version string    `json:"version"` // of weir in the program
	Since   time.Time `json:"since"`   // by the engine's clock, as Seen
	Seen    time.Time `json:"seen"`    // when it reported
	// ClockOffset is how far the engine's clock is ahead of the worker's machine. Its
	// error is the time of the engine's answer.
	ClockOffset time.Duration `json:"clockOffset,omitempty"` // in ns
	Queues      []string      `json:"queues,omitempty"`
	Reads       string        `json:"reads,omitempty"` // queue whose messages it takes, with its layers
	// ReadsFirst are further queues whose messages it takes: first sources
	// (delivery.Queue.Source). Reads is such a queue if the queue around it is on another
	// engine.
	ReadsFirst []string `json:"readsFirst,omitempty"`
	Outbox     string   `json:"outbox,omitempty"` // the outbox that it relays, or would relay
	Paused     bool     `json:"paused,omitempty"` // receives no messages, since people have paused Reads or a queue of ReadsFirst
	// HoldsKeys reports that the worker leaves out the messages of held keys
	// ([Jobs.HoldKey]).
	HoldsKeys bool              `json:"holdsKeys,omitempty"`
	Counts    json.RawMessage   `json:"counts,omitempty"`
	Operators []json.RawMessage `json:"operators,omitempty"`
	Backends  []Backend         `json:"backends,omitempty"`
	KeysDown  []KeyDown         `json:"keysDown,omitempty"` // keys of its messages that are down, at most 256: see [Jobs.KeyStates]

	Checkpoints map[string]json.RawMessage `json:"checkpoints,omitempty"` // by pipeline, or pipeline/partition
	// Partitions are the worker's, and partitions without an owner as far as it knows, at
	// most 256: see package partitions.
	Partitions []Partition `json:"partitions,omitempty"`
}

// Takes reports whether the worker takes the messages of a queue, and obeys people's
// orders to it.
func (w *Worker) Takes(queue string) bool {
	return queue != "" && (w.Reads == queue || slices.Contains(w.ReadsFirst, queue))
}

// Workers returns the workers of the engine. A killed worker is among them for two
// minutes, and until another worker notices. An unreadable report has only an ID.
func (j *Jobs) Workers(ctx context.Context) ([]Worker, error) { return workersOf(ctx, j.engine) }

func workersOf(ctx context.Context, from reader) (list []Worker, err error) {
	err = each(ctx, from, kindWorker, func(r store.Record) error {
		var w Worker
		if json.Unmarshal([]byte(r.Value), &w) != nil {
			w = Worker{ID: r.Name}
		}
		readBackends(w.Backends)
		list = append(list, w)
		return nil
	})
	return list, err
}

// Work reports a worker and runs jobs until ctx ends, as delivery.Run does beside its
// messages. Without jobs that takes a transaction every 20 s, which up to 100 workers of
// the process share, also after an error, which people may mend while the worker runs. If
// the worker has a queue, its history ([Jobs.History]) takes another transaction a
// minute, and less while it is idle. about returns the report, without the fields that
// name the process. It must not block, since other workers wait for it. steer, which may
// be nil, gets people's orders to backends, at the start and when they have changed, and
// perhaps again. The worker also reports at once when the paused queues have changed.
func (j *Jobs) Work(ctx context.Context, about func() Worker, steer func(BackendOrder)) {
	b := newBeats(j, about)
	defer b.runs.Wait()
	if steer != nil || j.Cancelled != nil || j.QueuesPaused != nil || j.KeysHeld != nil {
		w := &watcher{jobs: j, steer: steer, cancellations: cancellations{jobs: j}, report: b.alone}
		b.runs.Go(func() { w.watch(ctx) }) // ends with ctx
	}
	r := joinReporter(b)
	failures := counting.NewFailureLog(j.Logger, j.Clock, "jobs: this worker cannot report itself, and does not look for jobs")
	defer failures.Flush()
	open, err := b.beat(ctx)
	for {
		switch {
		case ctx.Err() != nil:
		case err == nil:
			b.start(ctx, open)
			b.writeHistory(ctx)
		default:
			failures.Add(err)
		}
		failures.FlushDue()
		select {
		case open = <-b.reported:
			err = nil
		case <-b.alone:
			open, err = b.beat(ctx)
		case <-ctx.Done():
			r.leave(b)
			b.end(ctx)
			return
		}
	}
}

// beats are the reports of a worker.
type beats struct {
	*Jobs
	about func() Worker
	id    string

	alone    chan struct{} // capacity 1: makes Work report the worker alone, at once
	reported chan []Job    // capacity 1: from the reporter to Work, the jobs after a report

	// reporting has capacity 1, and is a lock: a report holds it. It guards since,
	// version and next.
	reporting chan struct{}
	since     time.Time
	version   int64 // of the worker's record, or notKnown
	next      int64 // the version after the commit

	told map[int]bool // unreadable jobs that were logged; owned by Work

	// hasEnded is set when the worker removes its record, which a report on the way with
	// others must not store again.
	hasEnded atomic.Bool

	history *historyWriter

	runs    sync.WaitGroup
	mu      sync.Mutex
	running map[string]bool // queues
}

// notKnown is the version of a worker's record until a transaction that writes the record
// is committed.
const notKnown = -1

func newBeats(j *Jobs, about func() Worker) *beats {
	b := &beats{
		Jobs: j, about: about, id: strings.ToLower(rand.Text()[:10]), running: map[string]bool{}, told: map[int]bool{},
		alone: make(chan struct{}, 1), reported: make(chan []Job, 1), reporting: make(chan struct{}, 1),
	}
	b.history = newHistoryWriter(j, b.id)
	return b
}

// beat reports the worker alone, when its present report has ended: see beatAll.
func (b *beats) beat(ctx context.Context) (open []Job, err error) {
	select {
	case b.reporting <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-b.reporting }()
	return beatAll(ctx, []*beats{b})
}

// beatAll reports workers that share an engine, removes workers that are gone, and
// returns the jobs to run and the unreadable jobs: in one transaction.
func beatAll(ctx context.Context, workers []*beats) (open []Job, err error) {
	reports := make([]Worker, len(workers))
	for i, b := range workers {
		reports[i] = b.present()
	}
	err = workers[0].update(ctx, func(ctx context.Context, tx store.Tx) error {
		open = nil
		seen := tx.Now().UTC()
		offset := seen.Sub(workers[0].Clock.Now().Round(0)) // Round: by the clocks on the wall
		err := removeSilent(ctx, tx, workers)
		if err != nil {
			return err
		}
		for i, b := range workers {
			if b.hasEnded.Load() {
				continue
			}
			reports[i].Seen = seen
			reports[i].ClockOffset = offset
			err = b.write(ctx, tx, &reports[i])
			if err != nil {
				return err
			}
		}
		list, err := all(ctx, tx, kindJob)
		for _, job := range list {
			if job.runs() || job.unreadable {
				open = append(open, job)
			}
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	for i, b := range workers {
		if !b.hasEnded.Load() {
			b.noteReported(&reports[i])
		}
	}
	return open, nil
}

// present returns the report of the worker, without times of the engine.
func (b *beats) present() Worker {
	w := b.about()
	w.ID = b.id
	w.PID = os.Getpid()
	w.Version = version()
	w.Host, _ = os.Hostname() // may be empty
	return w
}

// write writes the report of the worker in a transaction, and sets its Since.
func (b *beats) write(ctx context.Context, tx store.Tx, w *Worker) error {
	w.Since = b.since
	if w.Since.IsZero() {
		w.Since = w.Seen
	}
	stored := *w
	stored.Backends = storedBackends(w.Backends)
	text, err := json.Marshal(stored)
	if err != nil {
		return fmt.Errorf("jobs: worker %q: %w", w.ID, err)
	}
	r := store.Record{Kind: kindWorker, Name: w.ID, Version: b.version, Value: string(text)}
	if b.version == notKnown {
		own, err := record(ctx, tx, kindWorker, w.ID)
		if err != nil {
			return err
		}
		r.Version = own.Version
	}
	err = tx.Write(ctx, r)
	b.version = notKnown // until the commit
	b.next = r.Version + 1
	return err
}

func (b *beats) noteReported(w *Worker) {
	b.since = w.Since
	b.version = b.next
	b.history.note(w)
	if b.Offset != nil {
		b.Offset(w.ClockOffset)
	}
}

// start runs jobs. An unreadable job is logged once, and does not block others.
func (b *beats) start(ctx context.Context, open []Job) {
	told := map[int]bool{}
	for _, job := range open {
		if !job.unreadable {
			b.run(ctx, job.Queue)
			continue
		}
		told[job.ID] = true
		if !b.told[job.ID] {
			b.Logger.LogAttrs(ctx, slog.LevelWarn, "jobs: a job cannot be read, and does not run", slog.Int("job", job.ID), slog.String("error", job.Error))
		}
	}
	b.told = told
}

// writeHistory writes the last minutes of the worker's queue beside the heartbeats, since
// counting may take long. The next heartbeat tries again after an error.
func (b *beats) writeHistory(ctx context.Context) {
	if !b.history.isDue() {
		return
	}
	b.runs.Go(func() { // ends with the write or ctx
		err := b.history.write(ctx)
		if err != nil && ctx.Err() == nil {
			b.Logger.LogAttrs(ctx, slog.LevelDebug, "jobs: the history of a queue was not written", slog.Any("error", err))
		}
	})
}

// removeSilent removes the workers without heartbeats (law W3), except these workers,
// which report now: at most 100 at a time, since engines limit a transaction. Only the
// process of the live worker with the first id removes others: otherwise each process
// would read all reports at each heartbeat.
func removeSilent(ctx context.Context, tx store.Tx, workers []*beats) error {
	now := tx.Now()
	own := map[string]bool{}
	smallest := workers[0].id
	for _, b := range workers {
		own[b.id] = true
		smallest = min(smallest, b.id)
	}
	first, err := tx.Records(ctx, kindWorker, "", 1)
	if err != nil {
		return err
	}
	if len(first) > 0 && first[0].Name < smallest && isLive(first[0], now) {
		return nil
	}
	removed := 0
	return each(ctx, tx, kindWorker, func(r store.Record) error {
		if removed == maxRemoved || own[r.Name] || isLive(r, now) {
			return nil
		}
		removed++
		r.Value = ""
		return tx.Write(ctx, r)
	})
}

// isLive reports whether a worker has reported lately. A report from far in the future
// does not count: the engine's clock has been set back, and a live worker has reported
// again.
func isLive(r store.Record, now time.Time) bool {
	var report struct {
		Seen time.Time `json:"seen"`
	}
	err := json.Unmarshal([]byte(r.Value), &report)
	return err == nil && now.Sub(report.Seen).Abs() < silentFor
}

// run runs the jobs of a queue, unless it does so already.
func (b *beats) run(ctx context.Context, queue string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.running[queue] {
		return
	}
	b.running[queue] = true
	b.runs.Go(func() { // ends with the jobs or ctx
		err := b.runUnderLock(ctx, queue, nil)
		b.mu.Lock()
		delete(b.running, queue)
		b.mu.Unlock()
		if err != nil && ctx.Err() == nil {
			b.Logger.LogAttrs(ctx, slog.LevelWarn, "jobs: cannot run the jobs of a queue now", slog.String("queue", queue), slog.Any("error", err))
		}
	})
}

// end removes the worker, or others do so later, and writes the last minutes of its
// queue. Whether its last report was kept is not known: ctx may have ended meanwhile.
func (b *beats) end(ctx context.Context) {
	ctx = context.WithoutCancel(ctx)
	b.awaitReport(ctx)
	b.hasEnded.Store(true)
	ctx, cancel := context.WithTimeout(ctx, goodbye)
	defer cancel()
	_ = b.update(ctx, func(ctx context.Context, tx store.Tx) error {
		own, err := record(ctx, tx, kindWorker, b.id)
		if err != nil || own.Version == 0 {
			return err
		}
		own.Value = ""
		return tx.Write(ctx, own)
	})
	about := b.about()
	_ = b.history.close(ctx, &about) // the engine may be gone: then these minutes are a gap
}

// awaitReport waits for a report of the worker that is being made together with others.
func (b *beats) awaitReport(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, goodbye)
	defer cancel()
	select {
	case b.reporting <- struct{}{}:
	case <-ctx.Done():
	}
}

// version returns the version of weir in the program, or "".
var version = sync.OnceValue(func() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, m := range append(info.Deps, &info.Main) {
		if m.Path == "github.com/weirflow/weir" {
			return m.Version
		}
	}
	return ""
})
