package jobs

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/storearg"
)

const (
	longestSpan = 2 * time.Minute  // between two reports whose difference is the flow of a minute
	idleFor     = 5                // minutes in which nothing has changed, until they are written
	mostPoints  = 10               // that wait for an engine that refuses them
	countShare  = 20               // at most one part in so many of the time is spent on counting
	countTime   = 20 * time.Second // at most, for the queues of a worker
)

// historyWriter writes the minutes of the queue of a worker. Of the workers of a queue
// one counts its messages, and all add the flow of their own messages. A minute takes one
// transaction at most, and idle minutes are written together. It is safe for concurrent
// use.
type historyWriter struct {
	jobs   *Jobs
	worker string // the id

	// writing has capacity 1 and guards the fields below. A write holds it while it
	// counts and stores points.
	writing chan struct{}
	counts  bool // this worker is the counter, as of the last transaction
	asked   bool // the engine was asked who is the counter
	written HistoryPoint
	next    time.Time // the earliest time of the next count, by Clock
	tried   []attempt // since the last success, at most mostPoints

	mu     sync.Mutex // guards what follows
	queue  string
	before flow           // at the last report
	seen   time.Time      // when that was, by the engine's clock
	points []HistoryPoint // that the engine does not have, in the order of time; the last minute has not ended
}

// attempt is a record that a transaction has written, whose answer was lost. If the
// engine has the record, the transaction was committed.
type attempt struct {
	record store.Record
	until  time.Time // the minute of its last point
}

func newHistoryWriter(j *Jobs, worker string) *historyWriter {
	return &historyWriter{jobs: j, worker: worker, writing: make(chan struct{}, 1)}
}

// flow has the sums of [HistoryPoint] for a worker, since it began.
type flow struct{ in, out, failed int }

// flowOf returns the flow of a report.
func flowOf(w *Worker) flow {
	// The names of a stored delivery.Summary, and of outbox.Relay.
	var c struct{ Received, Redelivered, Acknowledged, HandedOver, Rejected, Nacked int }
	err := json.Unmarshal(w.Counts, &c)
	if err != nil {
		return flow{}
	}
	return flow{in: c.Received - c.Redelivered, out: c.Acknowledged, failed: c.HandedOver + c.Rejected + c.Nacked}
}

// note adds what has changed since the report before to the present minute. After a time
// without reports, it is not known in which minute it has changed: a gap is left.
func (h *historyWriter) note(w *Worker) {
	now := flowOf(w)
	h.mu.Lock()
	defer h.mu.Unlock()
	before, seen := h.before, h.seen
	h.queue = w.Reads + w.Outbox // only one is set
	h.before, h.seen = now, w.Seen
	if h.queue == "" || !seen.IsZero() && w.Seen.Sub(seen) > longestSpan {
		return
	}
	p := h.present(w.Seen)
	p.In += max(0, now.in-before.in)
	p.Out += max(0, now.out-before.out)
	p.Failed += max(0, now.failed-before.failed)
}

// present returns the point of the minute of a time, and makes it if it is new. After the
// clock was set back, it is the last point.
func (h *historyWriter) present(at time.Time) *HistoryPoint {
	minute := at.UTC().Truncate(pointEach)
	n := len(h.points)
	if n == 0 || h.points[n-1].At.Before(minute) {
		h.points = append(h.points, HistoryPoint{At: minute, Waiting: notCounted, Dead: notCounted})
		h.points = h.points[max(0, len(h.points)-mostPoints):]
	}
	return &h.points[len(h.points)-1]
}

// isDue reports whether the engine lacks a minute that has ended.
func (h *historyWriter) isDue() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.points) > 1
}

// write counts messages if this worker is the counter, and writes the minutes that have
// ended, unless all of them are idle. If another write runs, the next one does it.
func (h *historyWriter) write(ctx context.Context) error {
	select {
	case h.writing <- struct{}{}:
		defer func() { <-h.writing }()
	default:
		return nil
	}
	h.mu.Lock()
	queue := h.queue
	ended := slices.Clone(h.points[:max(0, len(h.points)-1)])
	h.mu.Unlock()
	if len(ended) == 0 {
		return nil
	}
	countErr := h.count(ctx, queue, &ended[len(ended)-1])
	if h.isIdle(ended) {
		return countErr
	}
	err := h.store(ctx, queue, ended)
	if err != nil {
		return err
	}
	h.drop(ended)
	return countErr
}

// close writes all minutes, also the present one, when the worker ends. about is its last
// report.
func (h *historyWriter) close(ctx context.Context, about *Worker) error {
	select {
	case h.writing <- struct{}{}:
		defer func() { <-h.writing }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	h.mu.Lock()
	about.Seen = h.seen // the end belongs to the minute of the last report
	h.mu.Unlock()
	if about.Seen.IsZero() {
		return nil // the engine has never answered
	}
	h.note(about)
	h.mu.Lock()
	queue, points := h.queue, slices.Clone(h.points)
	h.mu.Unlock()
	if len(points) <= 1 && !slices.ContainsFunc(points, HistoryPoint.hasFlow) {
		return nil // a part of an idle minute
	}
	return h.store(ctx, queue, points)
}

func (h *historyWriter) count(ctx context.Context, queue string, p *HistoryPoint) error {
	begun := h.jobs.Clock.Now()
	if !h.counts || p.Waiting != notCounted || begun.Before(h.next) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, countTime)
	defer cancel()
	waiting, dead, err := h.jobs.countOf(ctx, queue)
	now := h.jobs.Clock.Now()
	h.next = now.Add((countShare - 1) * now.Sub(begun))
	if err != nil {
		return err
	}
	p.Waiting, p.Dead = waiting, dead
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range h.points {
		if h.points[i].At.Equal(p.At) {
			h.points[i].Waiting, h.points[i].Dead = waiting, dead
		}
	}
	return nil
}

// countOf counts the messages of a queue or an outbox, and its dead letters.
func (j *Jobs) countOf(ctx context.Context, queue string) (waiting, dead int, err error) {
	names, err := j.engine.Queues(ctx)
	if err != nil {
		return 0, 0, err
	}
	for _, name := range names {
		isDead := name == storearg.DeadOf(queue) || name == storearg.OutboxDeadOf(queue)
		if !isDead && name != queue && storearg.PartOf(name).Queue != queue {
			continue
		}
		n, err := j.engine.Count(ctx, name, store.Filter{})
		if err != nil {
			return 0, 0, err
		}
		if isDead {
			dead += n.Messages
		} else {
			waiting += n.Messages
		}
	}
	return waiting, dead, nil
}

// isIdle reports whether points need not be written yet: the numbers are as they were
// when this worker wrote the last point.
func (h *historyWriter) isIdle(ended []HistoryPoint) bool {
	if !h.asked || len(ended) >= idleFor {
		return false
	}
	return !slices.ContainsFunc(ended, func(p HistoryPoint) bool {
		isChanged := p.Waiting != notCounted && (p.Waiting != h.written.Waiting || p.Dead != h.written.Dead)
		return p.hasFlow() || isChanged
	})
}

func (h *historyWriter) drop(written []HistoryPoint) {
	last := written[len(written)-1]
	if last.Waiting != notCounted {
		h.written = last
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.points = slices.DeleteFunc(h.points, func(p HistoryPoint) bool { return !p.At.After(last.At) })
}

// store adds points to the records of their hours, in one transaction. If the answer of
// a commit is lost, and another worker of the queue writes before this one tries again,
// the same points may be added a second time.
func (h *historyWriter) store(ctx context.Context, queue string, points []HistoryPoint) error {
	counts := false
	var written []attempt
	err := h.jobs.update(ctx, func(ctx context.Context, tx store.Tx) error {
		written = nil
		rest := points
		for len(rest) > 0 {
			hour := rest[0].At.Truncate(time.Hour)
			n := slices.IndexFunc(rest, func(p HistoryPoint) bool { return !p.At.Truncate(time.Hour).Equal(hour) })
			if n < 0 {
				n = len(rest)
			}
			var r store.Record
			var err error
			r, counts, err = h.storeHour(ctx, tx, queue, rest[:n])
			if err != nil {
				return err
			}
			written = append(written, attempt{record: r, until: rest[n-1].At})
			rest = rest[n:]
		}
		return nil
	})
	if err != nil {
		h.tried = append(h.tried, written...)
		h.tried = h.tried[max(0, len(h.tried)-mostPoints):]
		return err
	}
	h.tried = nil
	h.counts, h.asked = counts, true
	return nil
}

// missing returns the points that a record does not have from a transaction whose answer
// was lost.
func (h *historyWriter) missing(r store.Record, points []HistoryPoint) []HistoryPoint {
	for _, a := range h.tried {
		if a.record.Name == r.Name && a.record.Value == r.Value {
			points = slices.DeleteFunc(slices.Clone(points), func(p HistoryPoint) bool { return !p.At.After(a.until) })
		}
	}
	return points
}

// storeHour adds points of one hour to its record, which it returns, and reports whether
// this worker counts the messages from now on. It leaves a record alone that it cannot
// read, since a later version may have written it (law W4).
func (h *historyWriter) storeHour(ctx context.Context, tx store.Tx, queue string, points []HistoryPoint) (there store.Record, counts bool, err error) {
	name := historyName(queue, points[0].At)
	there, err = recordNamed(ctx, tx, kindHistory, name)
	if err != nil {
		return there, false, err
	}
	r, err := readHistory(there)
	if err != nil {
		return there, false, nil //nolint:nilerr // the other workers of this version leave it alone, too
	}
	if r.version == 0 {
		r.Counter, err = h.beginHour(ctx, tx, queue, points[0].At)
		if err != nil {
			return there, false, err
		}
	}
	isChanged := false
	for _, p := range h.missing(there, points) {
		if r.add(p) {
			isChanged = true
		}
	}
	counter, err := h.counter(ctx, tx, r.Counter)
	if err != nil {
		return there, false, err
	}
	counts = counter == h.worker
	if r.Counter == counter && !isChanged {
		return there, counts, nil
	}
	r.Counter = counter
	there.Value, err = r.text()
	if err != nil {
		return there, false, err
	}
	return there, counts, tx.Write(ctx, there)
}

// beginHour removes old records, and returns the counter of the hour before.
func (h *historyWriter) beginHour(ctx context.Context, tx store.Tx, queue string, at time.Time) (counter string, err error) {
	err = removeOldHistory(ctx, tx, tx.Now())
	if err != nil {
		return "", err
	}
	before, err := recordNamed(ctx, tx, kindHistory, historyName(queue, at.Add(-time.Hour)))
	if err != nil {
		return "", err
	}
	r, err := readHistory(before)
	if err != nil {
		return "", nil //nolint:nilerr // a record of a later version: this worker counts
	}
	return r.Counter, nil
}

// counter returns the worker that counts the messages from now on. A worker that ends
// removes its report, so another one takes its place.
func (h *historyWriter) counter(ctx context.Context, tx store.Tx, present string) (string, error) {
	switch present {
	case h.worker:
		return present, nil
	case "":
		return h.worker, nil
	}
	report, err := record(ctx, tx, kindWorker, present)
	if err != nil || report.Value != "" && isLive(report, tx.Now()) {
		return present, err
	}
	return h.worker, nil
}
