package partitions

import (
	"cmp"
	"context"
	"encoding/json"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/internal/guard"
)

// Monitor reports the partitions of a [Run], for metrics. It belongs to one Run at a
// time, and continues its counts in the next. The zero value is ready to use; it must not
// be copied. Methods are safe for concurrent use.
type Monitor struct {
	mu   sync.Mutex    // guards run and lost
	run  func() Status // status of the present Run, or nil
	lost int           // partitions lost in earlier Runs
}

// Status is the state of a worker's partitions.
type Status struct {
	// Partitions are the worker's partitions, by name, then the known partitions without
	// an owner.
	Partitions []jobs.Partition
	Unowned    int // partitions without an owner; -1 if the assigner, unlike [Leases], does not report them
	Lost       int // how often this worker has lost a partition, over all Runs
}

// Status returns the state of the worker's partitions.
func (m *Monitor) Status() Status {
	m.mu.Lock()
	run, lost := m.run, m.lost
	m.mu.Unlock()
	if run == nil {
		return Status{Unowned: -1, Lost: lost}
	}
	s := run()
	s.Lost += lost
	return s
}

// begin makes run the source of Status until end. It panics if the monitor has a Run.
func (m *Monitor) begin(run func() Status) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.run != nil {
		panic("partitions: Run: another Run has this monitor (Config.Monitor)")
	}
	m.run = run
}

func (m *Monitor) end() {
	if m == nil {
		return
	}
	lost := m.Status().Lost
	m.mu.Lock()
	defer m.mu.Unlock()
	m.run, m.lost = nil, lost
}

// States of a partition: see jobs.Partition.
const (
	running = "running"
	failing = "failing"
	leaving = "leaving"
	ended   = "ended"
)

// unownedHandler takes the partitions without an owner.
type unownedHandler interface{ unowned(names []string) }

var _ unownedHandler = (*worker)(nil)

func (w *worker) unowned(names []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.free, w.knowsFree = names, true
}

func (w *worker) status() Status {
	s := Status{Unowned: -1}
	var more []known
	w.mu.Lock()
	s.Lost = w.losses
	has := make(map[string]struct{}, len(w.runs))
	for name, r := range w.runs {
		if p, k := r.status(); p.State != "" {
			has[name] = struct{}{}
			s.Partitions, more = append(s.Partitions, p), append(more, k)
		}
	}
	free, knows := w.free, w.knowsFree
	w.mu.Unlock()
	for i, k := range more { // without the lock: add calls user code
		k.add(&s.Partitions[i])
	}
	slices.SortFunc(s.Partitions, func(a, b jobs.Partition) int { return strings.Compare(a.Name, b.Name) })
	if !knows {
		return s
	}
	s.Unowned = 0
	for _, name := range free {
		if _, mine := has[name]; !mine {
			s.Unowned++
			s.Partitions = append(s.Partitions, jobs.Partition{Pipeline: w.Name, Name: name, State: jobs.Unowned, Lag: -1})
		}
	}
	return s
}

// known has sources of a jobs.Partition that are read without a lock.
type known struct {
	coordinator *checkpoint.Coordinator // of the present pipeline, or nil
	failure     error                   // of the last failed pipeline, or nil
}

// status returns the state of the partition. State is "" if the partition was lost or not
// suspended in time. Called with worker.mu held.
func (r *run) status() (jobs.Partition, known) {
	p, k := jobs.Partition{Pipeline: r.worker.Name, Name: r.name, Epoch: r.epoch, State: running, Lag: -1}, known{r.coordinator, r.failure}
	select {
	case <-r.done:
		p.State, k.failure = ended, r.err
	default:
	}
	switch {
	case r.ctx.Err() != nil:
		p.State = ""
	case r.wanted.Err() != nil:
		p.State = leaving
	case k.failure != nil:
		p.State = failing
	}
	return p, k
}

// add sets Lag and Why. A failing partition is running again after a completed
// checkpoint.
func (k known) add(p *jobs.Partition) {
	if k.coordinator != nil {
		if p.State == failing && k.coordinator.Stats().Completed > 0 {
			p.State = running
		}
		if lag, ok := k.coordinator.Lag(); ok {
			p.Lag = lag
		}
	}
	if p.State == failing {
		p.Why = guard.Text(k.failure)
	}
}

// Limits of the partitions in a heartbeat.
const (
	maxPartitions = 256
	mostWhy       = 300 // bytes of Partition.Why
)

// about returns a heartbeat with at most maxPartitions partitions: first the partitions
// in trouble, then by descending lag.
func (w *worker) about() jobs.Worker {
	all := w.status().Partitions
	if len(all) > maxPartitions {
		slices.SortStableFunc(all, func(a, b jobs.Partition) int {
			switch {
			case a.InTrouble() == b.InTrouble():
				return cmp.Compare(b.Lag, a.Lag)
			case a.InTrouble():
				return -1
			default:
				return 1
			}
		})
		all = all[:maxPartitions]
	}
	for i := range all {
		all[i].Why = strings.ToValidUTF8(all[i].Why[:min(len(all[i].Why), mostWhy)], "")
	}
	return jobs.Worker{Partitions: all, Checkpoints: w.checkpoints(all)}
}

// checkpoints returns checkpoint statistics by pipeline and partition.
func (w *worker) checkpoints(of []jobs.Partition) map[string]json.RawMessage {
	coordinators := make(map[string]*checkpoint.Coordinator, len(of))
	w.mu.Lock()
	for _, p := range of {
		if r := w.runs[p.Name]; r != nil && r.coordinator != nil {
			coordinators[path.Join(w.Name, p.Name)] = r.coordinator
		}
	}
	w.mu.Unlock()
	stats := make(map[string]json.RawMessage, len(coordinators))
	for name, c := range coordinators {
		stats[name], _ = json.Marshal(c.Stats()) // cannot fail for numbers and texts
	}
	return stats
}

func (w *worker) heartbeats() (end func(), err error) {
	if guard.IsNil(w.Engine) {
		return func() {}, nil
	}
	j, err := jobs.New(w.Engine, jobs.Config{Clock: w.Clock, Logger: w.Logger})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(w.parent)
	over := make(chan struct{})
	go func() { // ends with ctx
		defer close(over)
		j.Work(ctx, w.about, nil)
	}()
	return func() {
		cancel()
		patience := w.Clock.Timer(abortPatience)
		defer patience.Stop()
		select {
		case <-over:
		case <-patience.C: // the engine does not answer
		}
	}, nil
}
