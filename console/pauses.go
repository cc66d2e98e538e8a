package console

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/store"
)

// obeyWithin is how soon a worker must report that it is paused: it reads orders each
// second, and reports changes at once.
const obeyWithin = 10 * time.Second

// pauseState is whether people have paused a queue, and which workers obey.
type pauseState struct {
	Queue   string // the queue itself, of a layer as well
	IsNew   bool   // without messages and workers: perhaps mistyped
	Order   *jobs.QueueOrder
	Workers int // that read the queue and report
	Obey    int // of these, that report that they are paused
	Ignore  int // of these, that did not obey in time
}

// Waiting returns how many workers may still obey.
func (p pauseState) Waiting() int { return p.Workers - p.Obey - p.Ignore }

// Reports describes the workers that report that they are paused, or returns "" without
// workers.
func (p pauseState) Reports() string {
	switch {
	case p.Workers == 0:
		return ""
	case p.Workers == 1 && p.Obey == 1:
		return "Its worker reports that it is paused."
	case p.Workers == 1:
		return "Its worker has not reported yet that it is paused."
	case p.Obey == 1:
		return fmt.Sprintf("1 of %d workers reports that it is paused.", p.Workers)
	}
	return fmt.Sprintf("%d of %d workers report that they are paused.", p.Obey, p.Workers)
}

func (p pauseState) Disobeys() string {
	if p.Ignore == 1 {
		return fmt.Sprintf("1 of %s does not obey: it runs an earlier version of weir, or cannot read the order.", count(p.Workers, "worker"))
	}
	return fmt.Sprintf("%d of %d workers do not obey: they run an earlier version of weir, or cannot read the order.", p.Ignore, p.Workers)
}

func pauseOf(queue string, paused []jobs.QueueOrder, workers []worker) pauseState {
	p := pauseState{Queue: queue}
	for i := range paused {
		if paused[i].Queue == queue {
			p.Order = &paused[i]
		}
	}
	for _, w := range workers {
		if !w.Takes(queue) || w.Silent {
			continue
		}
		p.Workers++
		switch {
		case w.Paused:
			p.Obey++
		case p.Order != nil && w.Seen.Sub(p.Order.At) > obeyWithin:
			p.Ignore++
		}
	}
	return p
}

// pauseOfPage returns a queue's present state, or nil if its workers do not take orders.
func (s *server) pauseOfPage(ctx context.Context, queue, role string) (*pauseState, error) {
	hasWorkers := queue != "" && role != "dead letters"
	if !s.keeps || !hasWorkers || s.isOutbox(queue) {
		return nil, nil //nolint:nilnil // the page has no such part
	}
	paused, err := s.jobs.PausedQueues(ctx)
	if err != nil {
		return nil, err
	}
	reports, err := s.jobs.Workers(ctx)
	if err != nil {
		return nil, err
	}
	now := s.Clock.Now()
	workers := make([]worker, len(reports))
	for i, w := range reports {
		workers[i] = readWorker(w, now)
	}
	p := pauseOf(queue, paused, workers)
	if p.Order == nil && p.Workers == 0 {
		p.IsNew, err = s.isNewQueue(ctx, queue)
	}
	return &p, err
}

// isNewQueue reports whether a queue, with its layers and dead letters, has neither
// messages nor workers.
func (s *server) isNewQueue(ctx context.Context, queue string) (bool, error) {
	first, err := s.engine.List(ctx, queue, store.Filter{}, store.Page{Max: 1})
	if err != nil || len(first) > 0 {
		return false, err
	}
	l, err := s.latest(ctx)
	if err != nil {
		return false, err
	}
	isOfQueue := func(q queueState) bool { return q.Base == queue }
	return !l.reads(queue) && !slices.ContainsFunc(l.Queues, isOfQueue), nil
}

func (s *server) isOutbox(queue string) bool {
	l, at, _ := s.looks.peek()
	return !at.IsZero() && slices.ContainsFunc(l.outboxes, func(o outbox) bool { return o.Queue == queue })
}

// pauseProblems lists paused queues, and workers that do not obey.
func (s *server) pauseProblems(l *look) (list []problem) {
	for _, o := range l.paused {
		path := s.link("/queue", "queue", o.Queue)
		list = append(list, problem{1, pausedText(o, l.at), path, "the queue"})
		p := pauseOf(o.Queue, l.paused, l.Workers)
		if p.Ignore > 0 {
			list = append(list, problem{2, fmt.Sprintf("Queue %s is paused, and %s", cut(100, o.Queue), p.Disobeys()), path, "the queue"})
		}
	}
	return list
}

func pausedText(o jobs.QueueOrder, now time.Time) string {
	if o.By == "" { // it cannot be read
		return fmt.Sprintf("Queue %s is paused: %s", cut(100, o.Queue), cut(200, o.Why))
	}
	return fmt.Sprintf("Queue %s is paused, by %s %s ago: %s", cut(100, o.Queue), cut(60, o.By), age(max(0, now.Sub(o.At))), cut(200, o.Why))
}

// pauseQueue pauses or resumes the queue in the address. A new queue must be confirmed.
func (s *server) pauseQueue(r *http.Request) (string, error) {
	queue := r.URL.Query().Get("queue")
	why := reason(r.PostForm)
	if why == "" {
		return "", wrong("%s", noWhy)
	}
	order, ok := map[string]func(context.Context, string, string, string) (jobs.QueueOrder, error){
		"pause": s.jobs.PauseQueue, "resume": s.jobs.ResumeQueue,
	}[r.PostForm.Get("do")]
	if !ok {
		return "", missing("The action is unknown.")
	}
	if r.PostForm.Get("do") == "pause" && r.PostForm.Get("new") != "yes" {
		isNew, err := s.isNewQueue(r.Context(), queue)
		if err != nil {
			return "", mine(r.Context(), err)
		}
		if isNew {
			return "", wrong("The queue %s has neither messages nor workers. If the name is right, confirm it in the form.", cut(100, queue))
		}
	}
	_, err := order(r.Context(), queue, personOf(r).who, why)
	if err != nil {
		return "", mine(r.Context(), err)
	}
	s.noteAction()
	return "/queue?" + url.Values{"queue": {queue}}.Encode(), nil
}
