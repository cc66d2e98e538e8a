package console

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirflow/weir/delivery/jobs"
)

const (
	historyWait  = time.Second // for the first history of a queue
	keptHistory  = 64          // queues whose history this process keeps
	longestGap   = 2 * time.Minute
	longestLag   = 7 * time.Minute // of the last point of an idle queue, whose workers write five minutes together
	tickEach     = 4 * time.Hour
	chartWidth   = int(jobs.HistoryAge / time.Minute)
	chartHeight  = 100
	chartBottom  = 98.0 // where zero is
	chartHighest = 92.0 // height of the highest value above it
)

// chart is a picture of a queue's last 24 hours, chartWidth by chartHeight.
type chart struct {
	Title string
	Lines []chartLine
	Most  int    // the highest value
	Text  string // the picture in words
	Ticks []tick
}

// chartLine is a line of a chart, perhaps with gaps.
type chartLine struct {
	Name, Class string
	Parts       []string // the points of a polyline
}

// tick is a mark of the time axis.
type tick struct {
	Percent, Text string
}

// Width is for templates.
func (chart) Width() int { return chartWidth }

// Height is for templates.
func (chart) Height() int { return chartHeight }

// charts returns the charts of a queue, of an outbox, or of dead letters, or an error
// text if the engine cannot be read.
func (s *server) charts(ctx context.Context, base, role string) (list []chart, failed string) {
	isDead := role == "dead letters"
	if !s.keeps || base == "" || !isDead && role != "queue" {
		return nil, ""
	}
	points, at, err := s.historyOf(base).get(ctx, s.ctx, s.Clock, historyWait, func(ctx context.Context) ([]jobs.HistoryPoint, error) {
		return s.jobs.History(ctx, base)
	})
	if at.IsZero() && err != nil {
		return nil, failure(200, err)
	}
	now := s.Clock.Now()
	since := now.Add(-jobs.HistoryAge)
	points = slices.DeleteFunc(slices.Clone(points), func(p jobs.HistoryPoint) bool { return p.At.Before(since) || p.At.After(now) })
	if len(points) == 0 {
		return nil, ""
	}
	if isDead {
		return []chart{newChart("Dead letters", now, points, series{name: "dead letters", one: "dead letter", of: func(p jobs.HistoryPoint) int { return p.Dead }})}, ""
	}
	return []chart{
		newChart("Messages that wait", now, points, series{name: "waiting", of: func(p jobs.HistoryPoint) int { return p.Waiting }}),
		newChart("Messages a minute", now, points,
			series{name: "received in visit 1", of: func(p jobs.HistoryPoint) int { return p.In }},
			series{name: "done", class: "out", of: func(p jobs.HistoryPoint) int { return p.Out }},
			series{name: "failed", class: "failed", of: func(p jobs.HistoryPoint) int { return p.Failed }}),
	}, ""
}

func (s *server) historyOf(queue string) *cached[[]jobs.HistoryPoint] {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.minutes[queue]
	if c != nil {
		return c
	}
	if len(s.minutes) >= keptHistory {
		clear(s.minutes) // it is cheap to read again
	}
	c = &cached[[]jobs.HistoryPoint]{}
	s.minutes[queue] = c
	return c
}

type series struct {
	name, class string
	one         string                      // the name of a single one; the default is name
	of          func(jobs.HistoryPoint) int // -1 if it is not known
}

// inWords returns a value with the series' name.
func (s series) inWords(n int) string {
	return count(n, cmp.Or(s.one, s.name), s.name)
}

// newChart draws the 24 hours before now, with at least one point.
func newChart(title string, now time.Time, points []jobs.HistoryPoint, all ...series) chart {
	c := chart{Title: title, Ticks: ticks(now)}
	for _, s := range all {
		c.Most = max(c.Most, highest(points, s.of))
	}
	since := now.Add(-jobs.HistoryAge)
	var words []string
	for _, s := range all {
		c.Lines = append(c.Lines, chartLine{Name: s.name, Class: s.class, Parts: parts(points, since, c.Most, s.of)})
		words = append(words, inWords(points, s))
	}
	c.Text = "At " + clockText(points[len(points)-1].At) + ": " + strings.Join(words, ", ")
	missing := missingMinutes(points, now)
	if missing > longestGap {
		c.Text += fmt.Sprintf(". No worker reported in %s of 24 h", age(missing))
	}
	return c
}

// missingMinutes returns the time without points in the 24 hours before now. The last
// minutes of an idle queue are not written yet, and do not count.
func missingMinutes(points []jobs.HistoryPoint, now time.Time) time.Duration {
	missing := jobs.HistoryAge - time.Duration(len(points))*time.Minute
	lag := now.Sub(points[len(points)-1].At)
	if lag < longestLag {
		missing -= lag
	}
	return missing
}

func inWords(points []jobs.HistoryPoint, s series) string {
	last, highest := -1, points[0]
	for _, p := range points {
		if s.of(p) >= 0 {
			last = s.of(p)
		}
		if s.of(p) > s.of(highest) {
			highest = p
		}
	}
	if last < 0 {
		return s.name + " not counted yet"
	}
	return fmt.Sprintf("%s (highest %s at %s)", s.inWords(last), num(s.of(highest)), clockText(highest.At))
}

func clockText(t time.Time) string { return t.UTC().Format("15:04Z") }

// parts draws a series, with gaps where minutes are missing. Uncounted minutes are no
// gaps.
func parts(points []jobs.HistoryPoint, since time.Time, most int, of func(jobs.HistoryPoint) int) (list []string) {
	var b strings.Builder
	last := points[0].At
	end := func() {
		if b.Len() > 0 {
			list = append(list, strings.TrimSpace(b.String()))
		}
		b.Reset()
	}
	for _, p := range points {
		if p.At.Sub(last) > longestGap {
			end()
		}
		last = p.At
		v := of(p)
		if v < 0 {
			continue
		}
		x := float64(p.At.Sub(since)) / float64(time.Minute)
		y := chartBottom - chartHighest*float64(v)/float64(max(most, 1))
		if b.Len() == 0 { // a minute alone is a line, too
			fmt.Fprintf(&b, "%.0f,%.1f ", max(0, x-1), y)
		}
		fmt.Fprintf(&b, "%.0f,%.1f ", x, y)
	}
	end()
	return list
}

// ticks returns the marks of the 24 hours before now. Midnight shows its date.
func ticks(now time.Time) (list []tick) {
	since := now.Add(-jobs.HistoryAge)
	for at := since.UTC().Truncate(tickEach).Add(tickEach); at.Before(now); at = at.Add(tickEach) {
		percent := 100 * float64(at.Sub(since)) / float64(jobs.HistoryAge)
		if percent < 5 || percent > 90 { // it would be cut, or touch "now"
			continue
		}
		text := at.Format("15:04Z")
		if at.Hour() == 0 {
			text = at.Format("Jan 2")
		}
		list = append(list, tick{Percent: strconv.FormatFloat(percent, 'f', 2, 64) + "%", Text: text})
	}
	return list
}
