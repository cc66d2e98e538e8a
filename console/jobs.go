package console

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/internal/guard"
)

const (
	shownJobs  = 200
	shownLines = 200

	shownValues = 20 // of a job's filter
)

func (s *server) jobList(r *http.Request) (view, error) {
	list, err := s.jobs.List(r.Context())
	if err != nil {
		return view{}, err
	}
	return view{Name: "jobs", Title: "Jobs", Data: list[:min(len(list), shownJobs)]}, nil
}

type jobData struct {
	jobs.Job
	Chosen []field // the filter's values
	// MoreChosen is the number of values that are not shown, such as ids.
	MoreChosen int
	Handled    int  // messages, of Of
	Of         int  // see Job.Reached
	IsSame     bool // the same job was just started, and is shown
	EndsAt     time.Time
	Tried      []tried      // the messages of a first try
	Lost       bool         // they could not be found in time
	Rest       *confirmData // sends the messages back that were not tried; nil without them
	// RestAtMost is the number of these messages at the end of the job, if Rest has only a
	// lower bound.
	RestAtMost int
	// RestPage is the page that does it, if Rest could not be counted in time.
	RestPage string
}

func (s *server) job(r *http.Request) (view, error) {
	id, err := strconv.Atoi(r.URL.Query().Get("id"))
	if err != nil {
		return view{}, missing("Which job? The address names none.")
	}
	job, err := s.jobs.Get(r.Context(), id)
	if err != nil && job.State() != "unreadable" {
		return view{}, err
	}
	d := &jobData{Job: job, IsSame: r.URL.Query().Get("same") == "yes"}
	d.Handled, d.Of = job.Reached()
	for name, values := range filterValues("", job.Filter) {
		for _, v := range values {
			if v != "" {
				d.Chosen = append(d.Chosen, field{name, filterText(name, v)})
			}
		}
	}
	sortChoice(d.Chosen)
	d.MoreChosen = max(0, len(d.Chosen)-shownValues)
	d.Chosen = d.Chosen[:len(d.Chosen)-d.MoreChosen]
	left := d.Of - d.Handled
	if job.State() == "running" && job.Rate > 0 && left > 0 {
		d.EndsAt = s.endsAt(left, job.Rate)
	}
	d.Tried, err = s.triedBy(r.Context(), &job)
	d.Lost = err != nil // the page can still pause and cancel the job
	hasTried := len(d.Tried) > 0 && job.State() == "done"
	if hasTried && personOf(r).Acts() {
		s.addRest(r.Context(), d, job.Total-job.Done)
	}
	return view{Name: "job", Title: "Job " + strconv.Itoa(id), Data: d}, nil
}

// doneOf describes the progress of a job.
func doneOf(j *jobs.Job) string {
	switch {
	case !j.Uncounted:
		_, of := j.Reached()
		return num(j.Done) + " of " + num(of) + " done"
	case j.Ended.IsZero():
		return num(j.Done) + " done, and all are counted when it runs"
	}
	return num(j.Done) + " done"
}

// DoneOf is for templates.
func (d *jobData) DoneOf() string { return doneOf(&d.Job) }

// logged is the shown part of the log.
type logged struct {
	Lines     []jobs.Line // the newest first
	Total     int
	Broken    string // why the lines end early, or empty
	IsChanged bool   // Broken is a change of the log, not a failure of the engine
	Hash      string // of the last line
	At        time.Time
}

type logFilter struct {
	Who     string // a part of the name, in any case
	Queue   string // with its layers and dead letters
	Message string // an id that a job names
	Job     int    // counts as well if Message is set; 0 without one
}

func readLogFilter(q url.Values) (f logFilter, err error) {
	f = logFilter{Who: strings.TrimSpace(q.Get("who")), Queue: queueOf(q), Message: q.Get("message")}
	f.Job, err = whole(q.Get("job"))
	return f, err
}

func (f *logFilter) matches(l *jobs.Line) bool {
	isOfMessage := f.Message == "" || slices.Contains(l.Job.Filter.IDs, f.Message) || f.Job > 0 && l.Job.ID == f.Job
	return isOfMessage && (f.Queue == "" || f.isOfQueue(l)) && strings.Contains(strings.ToLower(l.By), strings.ToLower(f.Who))
}

func (f *logFilter) isOfQueue(l *jobs.Line) bool {
	names := []string{l.Job.Queue, l.Job.To}
	if l.Queue != nil {
		names = append(names, l.Queue.Queue)
	}
	if l.Key != nil {
		names = append(names, l.Key.Queue)
	}
	return slices.ContainsFunc(names, func(name string) bool {
		base, _ := roleOf(name, false)
		return name == f.Queue || base == f.Queue
	})
}

type logPage struct {
	logged
	Filter   logFilter
	Filtered bool
	Found    int // lines that match
}

// log shows the last lines of the log, and whether it is complete.
func (s *server) log(r *http.Request) (view, error) {
	f, err := readLogFilter(r.URL.Query())
	if err != nil {
		return view{}, err
	}
	all, err := s.wholeLog(r)
	if err != nil {
		return view{}, err
	}
	d := logPage{logged: all, Filter: f, Filtered: f != logFilter{}, Found: all.Total}
	if d.Filtered {
		d.Lines, d.Found, err = s.matchingLines(r.Context(), &f)
	}
	return view{Name: "log", Title: "Log of actions", Data: d}, err
}

// matchingLines returns the last lines that match, the newest first, and their number. It
// ends at a changed line.
func (s *server) matchingLines(ctx context.Context, f *logFilter) (lines []jobs.Line, found int, err error) {
	release, err := s.pace.reserveFirst(ctx)
	if err != nil {
		return nil, 0, err
	}
	defer release()
	for line, err := range s.jobs.Log(ctx) {
		if ctx.Err() != nil {
			return nil, 0, ctx.Err()
		}
		if err != nil {
			break // the page says so
		}
		if !f.matches(&line) {
			continue
		}
		found++
		lines = append(lines, line)
		if len(lines) >= 2*shownLines {
			lines = slices.Clone(lines[len(lines)-shownLines:])
		}
	}
	lines = lines[max(0, len(lines)-shownLines):]
	slices.Reverse(lines)
	return lines, found, nil
}

// wholeLog returns the last lines of the log, and whether it is complete.
func (s *server) wholeLog(r *http.Request) (logged, error) {
	wait := patience
	_, last, _ := s.logs.peek()
	if last.IsZero() {
		wait = firstLook
	}
	l, at, err := s.logs.get(r.Context(), s.ctx, s.Clock, wait, s.readLog)
	switch {
	case !at.IsZero():
		l.At = at
		return l, nil
	case err == nil:
		err = context.DeadlineExceeded
	}
	return logged{}, err
}

// readLog reads all of the log, which checks its chain.
func (s *server) readLog(ctx context.Context) (l logged, err error) {
	for line, err := range s.jobs.Log(ctx) {
		if ctx.Err() != nil {
			return l, ctx.Err()
		}
		if err != nil {
			l.Broken, l.IsChanged = guard.Text(err), errors.Is(err, jobs.ErrLogChanged)
			break
		}
		l.Total++
		l.Hash = line.Hash
		l.Lines = append(l.Lines, line)
		if len(l.Lines) >= 2*shownLines {
			l.Lines = slices.Clone(l.Lines[len(l.Lines)-shownLines:])
		}
	}
	l.Lines = l.Lines[max(0, len(l.Lines)-shownLines):]
	slices.Reverse(l.Lines)
	return l, nil
}
