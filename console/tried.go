package console

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/store"
)

const (
	mostTried = 100           // messages in a queue with the ids that a job has sent back
	triedTime = queryTime / 4 // to find them: without an index of ids, whole queues are read
)

// tried is a message that a job has sent back, with its state.
type tried struct {
	ID    string
	State string
	IsBad bool
	Error string
	Path  string // of its page; empty if the message has left the queue
}

// triedBy returns the messages that a job has sent back, if it keeps their ids.
func (s *server) triedBy(ctx context.Context, job *jobs.Job) ([]tried, error) {
	if len(job.Sent) == 0 {
		return nil, nil
	}
	list := make([]tried, len(job.Sent))
	for i, id := range job.Sent {
		list[i] = tried{ID: id, State: "done, or removed"}
	}
	ctx, cancel := context.WithTimeout(ctx, triedTime)
	defer cancel()
	release, err := s.pace.reserveFirst(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	queues, err := s.pathOf(ctx, job)
	if err != nil {
		return nil, err
	}
	for _, queue := range queues {
		entries, err := s.engine.List(ctx, queue, store.Filter{IDs: job.Sent}, store.Page{Max: mostTried})
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			i := slices.Index(job.Sent, e.Meta.ID)
			if i >= 0 && e.Meta.MergeJob >= job.ID { // else it is an older message with the same id
				list[i] = s.triedMessage(job, queue, &e)
			}
		}
	}
	return list, nil
}

// pathOf returns the queues in which a message that a job has sent back can be, in the
// order in which it moves, so that it is not missed.
func (s *server) pathOf(ctx context.Context, job *jobs.Job) ([]string, error) {
	l, err := s.latest(ctx)
	if err != nil {
		return nil, err
	}
	path := []string{job.To}
	for _, q := range l.Queues {
		if q.Base == job.To && q.Name != job.To && q.Name != job.Queue {
			path = append(path, q.Name)
		}
	}
	return append(path, job.Queue), nil
}

func (s *server) triedMessage(job *jobs.Job, queue string, e *store.Entry) tried {
	t := tried{ID: e.Meta.ID, State: "waiting", Path: s.link("/message", "queue", queue, "position", e.Position)}
	if e.Meta.LastFailure.After(job.Begun) {
		t.Error = e.Meta.LastError
	}
	switch {
	case e.Meta.MergeJob > job.ID:
		t.State = fmt.Sprintf("sent back again by job %d", e.Meta.MergeJob)
	case e.Cause != "":
		t.State, t.IsBad = "failed again", true
	case e.Held:
		t.State = "held"
	case e.LeasedUntil.After(s.Clock.Now()):
		t.State = "in a worker"
	}
	return t
}

// addRest adds how the messages are sent back that a finished job has left: the others
// that matched when it was started. left is their number at its end. Later jobs may have
// sent some of them.
func (s *server) addRest(ctx context.Context, d *jobData, left int) {
	job := &d.Job
	f := job.Filter
	if f.Before.IsZero() {
		f.Before = job.Begun
	}
	c := s.restSurvey(job.ID)
	v, at, _ := c.get(ctx, s.ctx, s.Clock, firstWait, func(ctx context.Context) (survey, error) {
		return s.surveyOf(ctx, string(job.Do), job.Queue, f)
	})
	rest := &confirmData{Do: string(job.Do), Queue: job.Queue, To: job.To, Rate: slowly, survey: v}
	address := filterValues(job.Queue, f)
	address.Set("do", rest.Do)
	address.Set("to", rest.To)
	if at.IsZero() {
		d.RestPage = s.address("/start", address)
		return
	}
	if rest.Count == 0 && (!rest.IsAtLeast || left == 0) {
		return
	}
	if rest.IsAtLeast {
		d.RestAtMost = left
	}
	rest.restrict(&f, at)
	rest.EndsAt = s.endsAt(rest.Count, slowly)
	address = filterValues(job.Queue, f)
	address.Set("do", rest.Do)
	address.Set("to", rest.To)
	address.Set("new", "yes") // the job has sent messages there
	rest.Action = s.address("/start", address)
	d.Rest = rest
}

// restSurvey returns the survey of the messages that a job has left. It is kept, since the
// page of a job is redrawn every few seconds.
func (s *server) restSurvey(job int) *cached[survey] {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.rests[job]
	if c != nil {
		return c
	}
	if len(s.rests) >= manyKinds {
		clear(s.rests) // they are looked at again
	}
	c = &cached[survey]{}
	s.rests[job] = c
	return c
}

// endsAt returns when n messages are done at a rate above 0.
func (s *server) endsAt(n int, rate float64) time.Time {
	const longest = 365 * 24 * time.Hour
	return s.Clock.Now().Add(time.Duration(min(float64(n)/rate*float64(time.Second), float64(longest))))
}
