package console

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/internal/guard"
)

const (
	shownJobs  = 200
	shownLines = 200
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
	Filter  string
	Handled int  // of Total
	IsSame  bool // a person started the same job again, and sees this one instead
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
	d := &jobData{Job: job, Handled: job.Done + job.Looping + job.Unsafe + job.Lapsed + job.Skipped, IsSame: r.URL.Query().Get("same") == "yes"}
	if b, err := json.Marshal(job.Spec.Filter); err == nil && string(b) != "{}" {
		d.Filter = string(b)
	}
	if job.Max > 0 {
		d.Total = min(d.Total, job.Max)
	}
	return view{Name: "job", Title: "Job " + strconv.Itoa(id), Data: d}, nil
}

// logged is the log, as far as it is shown.
type logged struct {
	Lines  []jobs.Line // the newest first
	Total  int
	Broken string // why the chain is broken, or empty
	Hash   string // of the last line
	At     time.Time
}

func (s *server) log(r *http.Request) (view, error) {
	wait := patience
	if _, at, _ := s.logs.peek(); at.IsZero() {
		wait = firstLook
	}
	l, at, err := s.logs.get(r.Context(), s.ctx, s.Clock, wait, s.readLog)
	switch {
	case !at.IsZero():
		l.At = at
		return view{Name: "log", Title: "Log of actions", Data: l}, nil
	case err == nil:
		err = context.DeadlineExceeded
	}
	return view{}, err
}

// readLog reads all of the log, which checks its chain.
func (s *server) readLog(ctx context.Context) (l logged, err error) {
	for line, err := range s.jobs.Log(ctx) {
		if ctx.Err() != nil {
			return l, ctx.Err()
		}
		if err != nil {
			l.Broken = guard.Text(err)
			break
		}
		l.Total++
		l.Hash = line.Hash
		if l.Lines = append(l.Lines, line); len(l.Lines) >= 2*shownLines {
			l.Lines = slices.Clone(l.Lines[len(l.Lines)-shownLines:])
		}
	}
	l.Lines = l.Lines[max(0, len(l.Lines)-shownLines):]
	slices.Reverse(l.Lines)
	return l, nil
}
