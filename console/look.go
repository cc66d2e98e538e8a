package console

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/storearg"
)

const (
	silent     = jobs.SilentAfter // a worker is in trouble after so long without a heartbeat, due every 20 s
	offset     = 5 * time.Second  // of clocks that should agree
	late       = time.Minute      // a due message that is not taken
	firstLook  = 8 * time.Second
	countFor   = time.Second // for all queues; others keep earlier numbers
	eventsEach = 2 * time.Second
	eventsFor  = 10 * time.Minute // then the browser asks again
)

// look is the state of the engine at a time.
type look struct {
	at         time.Time
	Queues     []queueState
	Workers    []worker
	Partitions []jobs.Partition
	services   []jobs.Service
	orders     []jobs.BackendOrder
	paused     []jobs.QueueOrder
	held       []jobs.KeyOrder
	down       []jobs.KeyDown
	jobs       []jobs.Job // that have not ended
	outboxes   []outbox
}

type queueState struct {
	Name, Base string // orders-retry-1, orders
	Role       string // queue, layer, dead letters, blocked, outbox
	Paused     bool   // by people; also set for its layers
	store.Counts
	at   time.Time // when it was counted; zero while the first count runs
	err  error     // of the last count
	Hour lastHour
}

type worker struct {
	jobs.Worker
	Done, Failed, InFlight int
	LastError              string
	Silent                 bool
	groups                 []observe.Group // of the failures of its operators
}

// readWorker reads the known parts of a heartbeat, perhaps of another version.
func readWorker(w jobs.Worker, now time.Time) worker {
	var c struct{ Acknowledged, HandedOver, Rejected, Nacked int }
	_ = json.Unmarshal(w.Counts, &c)
	r := worker{Worker: w, Done: c.Acknowledged, Failed: c.HandedOver + c.Rejected + c.Nacked, Silent: now.Sub(w.Seen) > silent}
	for _, text := range w.Operators {
		var s struct {
			InFlight  int
			LastError string
			Groups    []observe.Group
		}
		_ = json.Unmarshal(text, &s)
		r.InFlight += s.InFlight
		r.groups = append(r.groups, s.Groups...)
		if s.LastError != "" {
			r.LastError = s.LastError
		}
	}
	return r
}

// roleOf returns the queue that a name belongs to, and its role there in words. hasCauses
// reports that it has dead letters; if their name is the program's own, base is "".
func roleOf(name string, hasCauses bool) (base, role string) {
	part := storearg.PartOf(name)
	switch part.Role {
	case storearg.RoleDead:
		return part.Queue, "dead letters"
	case storearg.RoleBlocked:
		return part.Queue, "blocked"
	case storearg.RoleLayer:
		return part.Queue, "layer"
	case storearg.RoleMain:
	}
	base, isOfOutbox := storearg.OutboxOfDead(name)
	switch {
	case isOfOutbox && base != "":
		return base, "dead letters"
	case hasCauses:
		return "", "dead letters"
	}
	return name, "queue"
}

func (s *server) latest(ctx context.Context) (*look, error) {
	wait := patience
	if _, at, _ := s.looks.peek(); at.IsZero() {
		wait = firstLook
	}
	l, at, err := s.looks.get(ctx, s.ctx, s.Clock, wait, s.look)
	switch {
	case !at.IsZero():
		return l, nil // an older look, with its time, if the engine does not answer
	case err == nil:
		err = context.DeadlineExceeded
	}
	return nil, err
}

func (s *server) look(ctx context.Context) (*look, error) {
	l := &look{at: s.Clock.Now()}
	names, err := s.engine.Queues(ctx)
	if err != nil {
		return nil, err
	}
	l.Queues = s.count(ctx, names)
	begun := s.Clock.Now()
	defer func() { s.pace.chargeRead(s.Clock.Since(begun)) }()
	workers, err := s.jobs.Workers(ctx)
	if err != nil {
		return nil, err
	}
	for _, w := range workers {
		l.Workers = append(l.Workers, readWorker(w, l.at))
	}
	l.addRead()
	l.Partitions = jobs.Owners(workers)
	l.services = jobs.Services(workers, l.at)
	l.orders, err = s.jobs.BackendOrders(ctx)
	if err != nil {
		return nil, err
	}
	l.paused, err = s.jobs.PausedQueues(ctx)
	if err != nil {
		return nil, err
	}
	l.held, err = s.jobs.HeldKeys(ctx)
	if err != nil {
		return nil, err
	}
	l.down = jobs.KeysDown(workers, l.at)
	all, err := s.jobs.List(ctx)
	if err != nil {
		return nil, err
	}
	l.jobs = slices.DeleteFunc(all, func(j jobs.Job) bool { return !j.Ended.IsZero() })
	held, err := s.locks(ctx)
	if err != nil {
		return nil, err
	}
	err = s.readLastHour(ctx, l, workers)
	if err != nil {
		return nil, err
	}
	l.outboxes = outboxesOf(l, held)
	for i := range l.Queues {
		if q := &l.Queues[i]; slices.ContainsFunc(l.outboxes, func(o outbox) bool { return o.Queue == q.Name }) {
			q.Role = "outbox"
		}
	}
	l.notePauses()
	return l, nil
}

// count counts queues. It uses the previous count of queues that are still being counted,
// or whose count has failed.
func (s *server) count(ctx context.Context, names []string) (list []queueState) {
	end := s.Clock.Now().Add(countFor)
	before := s.counts // looks are made one at a time
	s.counts = make(map[string]*cached[store.Counts], len(names))
	for _, name := range names {
		c := before[name]
		if c == nil {
			c = &cached[store.Counts]{}
			c.reserve = s.reserveCount(c)
		}
		s.counts[name] = c
		wait := max(0, s.Clock.Until(end))
		_, counted, _ := c.peek()
		if !counted.IsZero() {
			wait = min(wait, patience)
		}
		n, at, err := c.get(ctx, s.ctx, s.Clock, wait, func(ctx context.Context) (store.Counts, error) {
			return s.engine.Count(ctx, name, store.Filter{})
		})
		n.Causes = maps.Clone(n.Causes)
		delete(n.Causes, "")
		q := queueState{Name: name, Counts: n, at: at, err: err}
		q.Base, q.Role = roleOf(name, len(n.Causes) > 0)
		list = append(list, q)
	}
	return list
}

func (l *look) notePauses() {
	for i := range l.Queues {
		q := &l.Queues[i]
		hasWorkers := q.Role != "dead letters" && q.Role != "outbox"
		q.Paused = hasWorkers && slices.ContainsFunc(l.paused, func(o jobs.QueueOrder) bool { return o.Queue == q.Base })
	}
}

// reserveCount returns a function that makes slow counts wait for their turn among the
// reads of whole queues.
func (s *server) reserveCount(c *cached[store.Counts]) func(ctx context.Context) (release func(), err error) {
	return func(ctx context.Context) (func(), error) {
		if c.isSlow() {
			return s.pace.reserve(ctx)
		}
		begun := s.Clock.Now()
		return func() { s.pace.chargeRead(s.Clock.Since(begun)) }, nil
	}
}

// addRead adds empty queues that workers read.
func (l *look) addRead() {
	for _, w := range l.Workers {
		name := w.Reads + w.Outbox // only one is set
		if name == "" || w.Silent || slices.ContainsFunc(l.Queues, func(q queueState) bool { return q.Name == name }) {
			continue
		}
		l.Queues = append(l.Queues, queueState{Name: name, Base: name, Role: "queue", at: l.at})
	}
	slices.SortStableFunc(l.Queues, func(a, b queueState) int { return strings.Compare(a.Name, b.Name) })
}

// Counting is for templates.
func (q queueState) Counting() bool { return q.at.IsZero() }

// reads reports whether a queue has a worker.
func (l *look) reads(queue string) bool {
	return slices.ContainsFunc(l.Workers, func(w worker) bool { return !w.Silent && (w.Outbox == queue || slices.Contains(w.Queues, queue)) })
}

func (l *look) known(queue string) bool {
	return slices.ContainsFunc(l.Queues, func(q queueState) bool { return q.Name == queue }) || l.reads(queue)
}

// events sends an event for each new look, so that pages are redrawn.
func (s *server) events(w http.ResponseWriter, r *http.Request) {
	select {
	case s.live <- struct{}{}:
		defer func() { <-s.live }()
	default:
		http.Error(w, "too many pages are live", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	out := http.NewResponseController(w)
	ticker, end := s.Clock.Ticker(eventsEach), s.Clock.Timer(eventsFor)
	defer ticker.Stop()
	defer end.Stop()
	for sent := (time.Time{}); ; {
		line := ": nothing new\n\n"
		if l, err := s.latest(r.Context()); err == nil && !l.at.Equal(sent) {
			sent, line = l.at, "data: "+strconv.FormatInt(l.at.UnixMilli(), 10)+"\n\n"
		}
		if _, err := w.Write([]byte(line)); err != nil || out.Flush() != nil {
			return
		}
		select {
		case <-ticker.C:
		case <-end.C:
			return
		case <-r.Context().Done():
			return
		case <-s.ctx.Done():
			return
		}
	}
}
