package console

import (
	"context"
	"time"

	"github.com/weirflow/weir/delivery/jobs"
)

const (
	lineSpan   = time.Hour        // of the lines in lists of queues
	lineFresh  = 20 * time.Second // workers write a point a minute
	longestNow = 4 * time.Minute  // age of a point whose rates are the present ones

	// writtenIn is how long after the beginning of a minute all workers have added their
	// messages to its point: each reports every 20 s.
	writtenIn = 90 * time.Second
)

// lastHour is the last hour of a queue in the engine's history. It is zero without one.
type lastHour struct {
	// Lines are points of pictures that are a minute wide each, and chartHeight high.
	Messages, In, Out []string
	Change            int           // of the number of messages
	Over              time.Duration // in which it has changed; 0 if that is not known
	HasRates          bool
	InNow, OutNow     int // HistoryPoint.In and Out of the last minute that all workers have written
}

// Width and Height are for templates.
func (lastHour) Width() int { return int(lineSpan / time.Minute) }

// Height is for templates.
func (lastHour) Height() int { return chartHeight }

// readLastHour sets the last hour of each queue. It is for one look at a time.
func (s *server) readLastHour(ctx context.Context, l *look, workers []jobs.Worker) error {
	if s.minutesAt.IsZero() || l.at.Sub(s.minutesAt) >= lineFresh {
		all, err := s.jobs.Histories(ctx, workers, l.at.Add(-lineSpan))
		if err != nil {
			return err
		}
		s.minutesOfAll, s.minutesAt = all, l.at
	}
	for i := range l.Queues {
		q := &l.Queues[i]
		points := s.minutesOfAll[q.Base]
		switch {
		case len(points) == 0:
		case q.Name == q.Base: // the points contain the layers
			q.Hour = hourOf(points, l.at, s.minutesAt)
		case q.Role == "dead letters" && !q.Counting():
			q.Hour = hourOfDead(points, l.at, q.Messages)
		}
	}
	return nil
}

// hourOf returns the last hour of a queue with points, which were read at a time.
func hourOf(points []jobs.HistoryPoint, now, read time.Time) lastHour {
	waiting := func(p jobs.HistoryPoint) int { return p.Waiting }
	h := lineOf(points, now, waiting)
	h.addRates(points, now, read)
	counted := countedOf(points, waiting)
	if len(counted) > 0 {
		end := counted[len(counted)-1]
		h.noteChange(counted[0], end.Waiting-counted[0].Waiting, end.At)
	}
	return h
}

// addRates adds the rates of the minutes that all workers of the queue have written.
func (h *lastHour) addRates(points []jobs.HistoryPoint, now, read time.Time) {
	in := func(p jobs.HistoryPoint) int { return p.In }
	out := func(p jobs.HistoryPoint) int { return p.Out }
	written := points
	for len(written) > 0 && read.Sub(written[len(written)-1].At) < writtenIn {
		written = written[:len(written)-1]
	}
	if len(written) == 0 {
		return
	}
	most := max(highest(written, in), highest(written, out))
	h.In = parts(written, now.Add(-lineSpan), most, in)
	h.Out = parts(written, now.Add(-lineSpan), most, out)
	last := written[len(written)-1]
	h.HasRates = now.Sub(last.At) <= longestNow
	h.InNow, h.OutNow = last.In, last.Out
}

// hourOfDead returns the last hour of dead letters, of which there are n now.
func hourOfDead(points []jobs.HistoryPoint, now time.Time, n int) lastHour {
	dead := func(p jobs.HistoryPoint) int { return p.Dead }
	h := lineOf(points, now, dead)
	counted := countedOf(points, dead)
	if len(counted) > 0 {
		h.noteChange(counted[0], n-counted[0].Dead, now)
	}
	return h
}

func lineOf(points []jobs.HistoryPoint, now time.Time, of func(jobs.HistoryPoint) int) lastHour {
	return lastHour{Messages: parts(points, now.Add(-lineSpan), highest(points, of), of)}
}

func (h *lastHour) noteChange(since jobs.HistoryPoint, change int, at time.Time) {
	h.Change = change
	h.Over = at.Sub(since.At)
}

// countedOf returns the points whose value is known.
func countedOf(points []jobs.HistoryPoint, of func(jobs.HistoryPoint) int) (list []jobs.HistoryPoint) {
	for _, p := range points {
		if of(p) >= 0 {
			list = append(list, p)
		}
	}
	return list
}

// highest returns the highest value of points.
func highest(points []jobs.HistoryPoint, of func(jobs.HistoryPoint) int) (most int) {
	for _, p := range points {
		most = max(most, of(p))
	}
	return most
}
