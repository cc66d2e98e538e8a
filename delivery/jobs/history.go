package jobs

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/unknown"
)

// HistoryPoint describes a minute of a queue.
type HistoryPoint struct {
	At time.Time // the beginning of the minute, by the engine's clock
	// Waiting is the number of messages of the queue and its layers soon after the
	// minute, and Dead the number of its dead letters: both -1 if not counted.
	Waiting, Dead int
	// In, Out and Failed are sums over the workers of the queue. In counts the messages
	// received in visit 1, Out the visits that were done, and Failed the visits that
	// failed. A message counts for In each time it is received in visit 1. So it counts
	// again after a release (such as a snooze), a Nack or the death of its worker.
	In, Out, Failed int
}

// HistoryAge is how long an engine keeps the points of a queue.
const HistoryAge = 24 * time.Hour

const (
	pointEach    = time.Minute
	pointNumbers = 6               // of a stored point: the minute, and the fields of HistoryPoint
	notCounted   = -1              // in place of a number of messages
	hourLayout   = "2006-01-02T15" // the beginning of the name of a record
	maxRemoved   = 100             // old records that a transaction removes

	busyLag = 3 * time.Minute             // of the last point of a busy queue, at most
	idleLag = (idleFor + 2) * time.Minute // of the last point of an idle queue, at most
)

// historyRecord has the points of a queue in an hour. Its name is the hour and the queue,
// so the records that are too old come first.
type historyRecord struct {
	// Counter is the id of the worker that counts the messages. Another worker takes its
	// place when it has ended or is silent.
	Counter string `json:"counter,omitempty"`
	// Points are in the order of time: the minute of the hour, Waiting, Dead, In, Out and
	// Failed. Numbers of a later version follow.
	Points [][]int `json:"points"`

	version int64
	later   map[string]string // members of a later version
}

var historyMembers = unknown.Kind{Known: []string{"counter", "points"}}

// historyName returns the name of the record of a queue in the hour of t.
func historyName(queue string, t time.Time) string {
	return t.UTC().Format(hourLayout) + " " + queue
}

// History returns the points of a queue in the last 24 hours, the oldest first, without
// the minutes in which no worker of the queue has reported. Queue is the name of a queue
// or of an outbox: the points of a queue contain its layers and its dead letters. A
// worker adds its messages to the history of [Worker].Reads, and not of ReadsFirst.
// Workers of an earlier version do not write points.
func (j *Jobs) History(ctx context.Context, queue string) ([]HistoryPoint, error) {
	now := j.Clock.Now()
	var list []HistoryPoint
	// The clock of the engine may be ahead of this process's.
	for hour := now.Add(-HistoryAge).Truncate(time.Hour); !hour.After(now.Add(time.Hour)); hour = hour.Add(time.Hour) {
		r, err := recordNamed(ctx, j.engine, kindHistory, historyName(queue, hour))
		if err != nil {
			return nil, err
		}
		of, err := readHistory(r)
		if err != nil {
			continue // damaged, or of a later version: a gap
		}
		list = append(list, of.points(hour)...)
	}
	return slices.DeleteFunc(list, func(p HistoryPoint) bool { return p.At.Before(now.Add(-HistoryAge)) }), nil
}

// Histories returns the points of all queues and outboxes since a time, by name, as
// [Jobs.History] returns them for one. It reads the records of all queues together, and
// two hours of 300 queues are 600 records. workers is the result of [Jobs.Workers]: while
// an idle queue has a live worker, Histories adds the minutes that its workers have not
// written yet.
func (j *Jobs) Histories(ctx context.Context, workers []Worker, since time.Time) (map[string][]HistoryPoint, error) {
	of := map[string][]HistoryPoint{}
	now := j.Clock.Now()
	after := since.UTC().Format(hourLayout) // the names of the hour begin with it
	for {
		rs, err := j.engine.Records(ctx, kindHistory, after, page)
		if err != nil {
			return nil, err
		}
		for _, r := range rs {
			after = r.Name
			queue, points := pointsOf(r)
			for _, p := range points {
				if !p.At.Before(since) && !p.At.After(now) {
					of[queue] = append(of[queue], p)
				}
			}
		}
		if len(rs) < page {
			break
		}
	}
	for i := range workers {
		w := &workers[i]
		points := of[w.Reads+w.Outbox] // only one is set
		if len(points) > 0 && now.Sub(w.Seen) < SilentAfter {
			of[w.Reads+w.Outbox] = withIdle(points, w)
		}
	}
	return of, nil
}

// pointsOf returns the queue of a record, and its points. A record that is damaged, or of
// a later version, is a gap.
func pointsOf(r store.Record) (queue string, points []HistoryPoint) {
	hour, queue, _ := strings.Cut(r.Name, " ")
	at, err := time.Parse(hourLayout, hour)
	if err != nil {
		return queue, nil
	}
	h, err := readHistory(r)
	if err != nil {
		return queue, nil
	}
	return queue, h.points(at)
}

// withIdle adds the minutes of an idle queue that are not written yet, until the last
// report of a worker of the queue. A busy queue lacks fewer minutes. The engine's
// clock, which may differ from the clock of this process, sets the times of reports and
// points. A worker that has started after the last point does not know the minutes
// before.
func withIdle(points []HistoryPoint, w *Worker) []HistoryPoint {
	last := points[len(points)-1]
	next := last.At.Add(pointEach)
	lag := w.Seen.Sub(last.At)
	if lag < busyLag || lag > idleLag || w.Since.After(next) {
		return points
	}
	for at := next; !at.After(w.Seen); at = at.Add(pointEach) {
		points = append(points, HistoryPoint{At: at, Waiting: last.Waiting, Dead: last.Dead})
	}
	return points
}

// readHistory reads a record. A record that does not exist has no points.
func readHistory(r store.Record) (*historyRecord, error) {
	h := &historyRecord{version: r.Version}
	if r.Value == "" {
		return h, nil
	}
	later, err := historyMembers.Unmarshal([]byte(r.Value), h)
	if err != nil {
		return nil, fmt.Errorf("jobs: the history %q cannot be read: %w", r.Name, err)
	}
	h.later = later
	return h, nil
}

// text returns the value of the record.
func (h *historyRecord) text() (string, error) {
	b, err := json.Marshal(h)
	return string(historyMembers.Append(b, h.later)), err
}

// points returns the points of the hour.
func (h *historyRecord) points(hour time.Time) []HistoryPoint {
	var list []HistoryPoint
	for _, n := range h.Points {
		if len(n) < pointNumbers {
			continue // damaged
		}
		list = append(list, HistoryPoint{
			At: hour.Add(time.Duration(n[0]) * pointEach).UTC(), Waiting: n[1], Dead: n[2], In: n[3], Out: n[4], Failed: n[5],
		})
	}
	return list
}

// add adds a point of a worker to the sums of its minute, and reports whether the record
// has changed.
func (h *historyRecord) add(p HistoryPoint) (changed bool) {
	minute := p.At.UTC().Minute()
	i, found := slices.BinarySearchFunc(h.Points, minute, func(n []int, minute int) int {
		if len(n) == 0 {
			return -1
		}
		return n[0] - minute
	})
	if !found {
		h.Points = slices.Insert(h.Points, i, []int{minute, p.Waiting, p.Dead, p.In, p.Out, p.Failed})
		return true
	}
	n := h.Points[i]
	if len(n) < pointNumbers {
		return false
	}
	if p.Waiting != notCounted {
		n[1], n[2] = p.Waiting, p.Dead
	}
	n[3] += p.In
	n[4] += p.Out
	n[5] += p.Failed
	return p.Waiting != notCounted || p.hasFlow()
}

// hasFlow reports whether messages were received, done or failed in the minute.
func (p HistoryPoint) hasFlow() bool { return p.In != 0 || p.Out != 0 || p.Failed != 0 }

// removeOldHistory removes the oldest records of all queues that are older than
// HistoryAge (law W3).
func removeOldHistory(ctx context.Context, tx store.Tx, now time.Time) error {
	rs, err := tx.Records(ctx, kindHistory, "", maxRemoved)
	if err != nil {
		return err
	}
	oldest := now.Add(-HistoryAge).UTC().Format(hourLayout)
	for _, r := range rs {
		if r.Name >= oldest {
			return nil
		}
		r.Value = ""
		err = tx.Write(ctx, r)
		if err != nil {
			return err
		}
	}
	return nil
}
