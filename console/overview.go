package console

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/store"
)

type problem struct {
	Level      int // 2: act now; 1: look at it
	Text       string
	Path, Link string // a page with details, and the text of the link
}

type overviewData struct {
	At       string
	Problems []problem
	Look     *look
	Depth    int // messages that are not dead letters
	Dead     int
	Counting int // queues whose first count runs

	Checkpoints []saved
	Failures    []failing // of all workers, the most frequent first
}

func (s *server) overview(r *http.Request) (view, error) {
	l, err := s.latest(r.Context())
	if err != nil {
		return view{}, err
	}
	saved := s.checkpointsOf(l)
	d := overviewData{At: when(l.at), Problems: s.problems(l, saved), Look: l, Checkpoints: saved, Failures: failuresOf(l)}
	for _, q := range l.Queues {
		switch {
		case q.Counting():
			d.Counting++
		case q.Role == "dead letters":
			d.Dead += q.Messages
		default:
			d.Depth += q.Messages
		}
	}
	return view{Name: "overview", Title: "Overview", Data: d}, nil
}

// shownFailures is how many groups of failures the overview shows.
const shownFailures = 5

// failing is a group of similar failures.
type failing struct {
	observe.Group
	Workers int
}

// failuresOf returns the groups of failures that workers report, also of calls that are
// retried, the largest first. Silent workers count: their failures have happened.
func failuresOf(l *look) []failing {
	type key struct {
		error  string
		reason string
	}
	groups := map[key]*failing{}
	for _, w := range l.Workers {
		for _, g := range w.groups {
			if g.Rest {
				continue
			}
			k := key{g.Error, g.Reason}
			sum := groups[k]
			if sum == nil {
				sum = &failing{Group: observe.Group{Error: g.Error, Reason: g.Reason, First: g.First}}
				groups[k] = sum
			}
			sum.Count += g.Count
			sum.Workers++
			if g.First.Before(sum.First) {
				sum.First = g.First
			}
			if g.Last.After(sum.Last) {
				sum.Last = g.Last
			}
		}
	}
	var list []failing
	for _, g := range groups {
		list = append(list, *g)
	}
	slices.SortFunc(list, func(a, b failing) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), strings.Compare(a.Error, b.Error), strings.Compare(a.Reason, b.Reason))
	})
	return list[:min(len(list), shownFailures)]
}

// problems lists problems, the worst first.
func (s *server) problems(l *look, saved []saved) []problem {
	list := slices.Concat(s.backendProblems(l), s.pauseProblems(l), s.keyProblems(l), s.queueProblems(l), s.outboxProblems(l), s.checkpointProblems(saved), s.workerProblems(l),
		s.partitionProblems(l))
	if _, _, err := s.looks.peek(); err != nil {
		list = append(list, problem{2, fmt.Sprintf("The engine did not answer just now; these numbers are %s old: %s", age(s.Clock.Since(l.at)), failure(300, err)), s.link("/"), "again"})
	}
	for _, j := range l.jobs {
		switch j.State() {
		case "unreadable":
			list = append(list, problem{2, fmt.Sprintf("Job %d cannot be read.", j.ID), s.link("/job", "id", j.ID), "the job"})
		case "paused":
			list = append(list, problem{1, fmt.Sprintf("Job %d is paused: %s.", j.ID, doneOf(&j)), s.link("/job", "id", j.ID), "the job"})
		default:
			if j.Error != "" {
				list = append(list, problem{2, fmt.Sprintf("Job %d does not get on: %s", j.ID, failure(200, j.Error)), s.link("/job", "id", j.ID), "the job"})
			}
		}
	}
	slices.SortStableFunc(list, func(a, b problem) int { return b.Level - a.Level })
	return list
}

func (s *server) backendProblems(l *look) (list []problem) {
	for _, b := range backendsOf(l) {
		switch {
		case b.Held != "":
			list = append(list, problem{1, fmt.Sprintf("Backend %s is held: %s", cut(100, b.Name), cut(200, b.Held)), s.link("/backends"), "backends"})
		case b.IsDown() && b.IsShared:
			list = append(list, problem{2, fmt.Sprintf("Backend %s does not answer: %s", cut(100, b.Name), failure(200, b.Why)), s.link("/backends"), "backends"})
		case b.IsDown():
			list = append(list, problem{2, fmt.Sprintf("Backend %s does not answer in %d of %s: %s", cut(100, b.Name), b.In, count(b.Reporting, "worker"), failure(200, b.Why)), s.link("/backends"), "backends"})
		}
	}
	return list
}

func (s *server) queueProblems(l *look) (list []problem) {
	for _, q := range l.Queues {
		name, path := cut(100, q.Name), s.link("/queue", "queue", q.Name)
		if q.err != nil {
			list = append(list, problem{2, fmt.Sprintf("%s cannot be counted: %s", name, failure(200, q.err)), path, "the queue"})
		}
		switch overdue := l.at.Sub(q.Next); {
		case q.Counting() && q.Role == "dead letters" && q.err == nil:
			list = append(list, problem{1, name + " has dead letters. They are being counted.", path, "what failed"})
		case q.Counting():
		case q.Role == "dead letters":
			text := fmt.Sprintf("%s has %s", name, count(q.Messages, "dead letter"))
			level := 1
			if q.Hour.Change > 0 {
				level, text = 2, text+fmt.Sprintf(", %s more than %s ago", num(q.Hour.Change), age(q.Hour.Over))
			}
			list = append(list, problem{level, text + ": " + causesOf(q.Counts) + ".", path, "what failed"})
		case q.Role == "outbox": // its relays report problems
		case q.Paused, q.Held == q.Messages, q.Next.IsZero(), overdue < late:
		case l.reads(q.Base):
			list = append(list, problem{1, fmt.Sprintf("%s is late: its first message was due %s ago, and %s.", name, age(overdue), count(q.Messages, "message is", "messages are")+" there"), path, "what waits"})
		default:
			waits := "where " + count(q.Messages, "message waits", "messages wait")
			if q.Name != q.Base {
				waits = fmt.Sprintf("whose layer %s has %s", name, count(q.Messages, "message"))
			}
			list = append(list, problem{1, fmt.Sprintf("No worker reports that it reads %s, %s.", cut(100, q.Base), waits), path, "what waits"})
		}
		if q.Held > 0 {
			list = append(list, problem{1, fmt.Sprintf("%s of %s held.", count(q.Held, "message"), name), path, "the queue"})
		}
	}
	return list
}

func (s *server) workerProblems(l *look) (list []problem) {
	silentOn := map[string][]worker{} // by host
	for _, w := range l.Workers {
		if w.Silent {
			silentOn[w.Host] = append(silentOn[w.Host], w)
		}
		if d := w.ClockOffset; d.Abs() > offset {
			list = append(list, problem{1, fmt.Sprintf("The clock of the engine is %s from that of worker %s on %s.", age(d.Abs()), w.ID, cut(100, w.Host)), s.link("/") + "#workers", "workers"})
		}
	}
	for _, host := range slices.Sorted(maps.Keys(silentOn)) {
		list = append(list, problem{2, silence(l.at, host, silentOn[host]), s.link("/") + "#workers", "workers"})
	}
	return list
}

// silence describes a host's silent workers as one problem, such as a host that died.
func silence(now time.Time, host string, workers []worker) string {
	last := workers[0]
	for _, w := range workers {
		if w.Seen.After(last.Seen) {
			last = w
		}
	}
	since := age(now.Sub(last.Seen))
	if len(workers) == 1 {
		return fmt.Sprintf("Worker %s on %s has been silent for %s: it was killed, or does not reach the engine.", last.ID, cut(100, host), since)
	}
	return fmt.Sprintf("%d workers on %s have been silent for %s or longer: they were killed, or do not reach the engine.", len(workers), cut(100, host), since)
}

// partitionProblems names each pipeline's first partition that has no owner, or fails.
func (s *server) partitionProblems(l *look) (list []problem) {
	type key struct{ pipeline, state string }
	var order []key
	of := map[key][]jobs.Partition{}
	for _, p := range l.Partitions {
		if !p.InTrouble() {
			break
		}
		k := key{p.Pipeline, p.State}
		if of[k] == nil {
			order = append(order, k)
		}
		of[k] = append(of[k], p)
	}
	for _, k := range order {
		first, n := of[k][0], len(of[k])
		name := cut(100, first.Name)
		if n > 1 {
			name += fmt.Sprintf(" (and %d more)", n-1)
		}
		of := cut(100, cmp.Or(k.pipeline, "a pipeline"))
		text := fmt.Sprintf("No worker has partition %s of %s.", name, of)
		if k.state != jobs.Unowned {
			text = fmt.Sprintf("Partition %s of %s fails: %s", name, of, cut(200, first.Why))
		}
		list = append(list, problem{2, text, s.link("/") + "#partitions", "partitions"})
	}
	return list
}

const mostPartitions = 200

// Shown is for templates.
func (l *look) Shown() []jobs.Partition { return l.Partitions[:min(len(l.Partitions), mostPartitions)] }

// Hidden is for templates.
func (l *look) Hidden() int { return len(l.Partitions) - len(l.Shown()) }

// count returns a number with its noun: the plural is given, or has an s.
func count(n int, one string, many ...string) string {
	if n == 1 {
		return "1 " + one
	}
	if len(many) > 0 {
		return num(n) + " " + many[0]
	}
	return num(n) + " " + one + "s"
}

func causesOf(n store.Counts) string {
	causes := slices.SortedFunc(maps.Keys(n.Causes), func(a, b store.Cause) int {
		return cmp.Or(n.Causes[b]-n.Causes[a], strings.Compare(a.String(), b.String()))
	})
	parts := make([]string, len(causes))
	for i, c := range causes {
		parts[i] = num(n.Causes[c]) + " " + cut(40, c)
	}
	if len(parts) == 0 {
		return "without a cause"
	}
	return strings.Join(parts, ", ")
}

// backend is a service in all workers that call it, with its orders.
type backend struct {
	jobs.Service
	Processes []process
	Held      string // the reason, and who gave it
	Ordered   string // the ordered limit, or ""
}

type process struct{ jobs.ServiceProcess }

// IsDown reports whether the service does not answer.
func (b *backend) IsDown() bool { return b.State == "down" || b.State == "probing" }

const stripMinutes = 60 // of the states of a backend, in a picture 240 wide and 12 high

type stripPart struct {
	State    string // up, ramping, held, down: a class of the style sheet
	X, Width int
}

// Strip returns the states in the last hour, the present one on the right.
func (b process) Strip(now time.Time) (list []stripPart) {
	for i, state := range b.Backend.Strip(now.Add(-stripMinutes*time.Minute), now, stripMinutes) {
		switch last := len(list) - 1; {
		case state == "":
		case last >= 0 && list[last].State == state && list[last].X+list[last].Width == 4*i:
			list[last].Width += 4
		default:
			list = append(list, stripPart{state, 4 * i, 4})
		}
	}
	return list
}

func (b process) Troubles(now time.Time) string {
	minutes := map[string]int{}
	for _, state := range b.Backend.Strip(now.Add(-stripMinutes*time.Minute), now, stripMinutes) {
		minutes[state]++
	}
	var parts []string
	for _, state := range []string{"down", "held"} {
		if n := minutes[state]; n > 0 {
			parts = append(parts, fmt.Sprintf("%s in %d of %d min", state, n, stripMinutes))
		}
	}
	return strings.Join(parts, ", ")
}

// backendsOf returns the backends in reports and orders, by name.
func backendsOf(l *look) []backend {
	byName := map[string]*backend{}
	for _, s := range l.services {
		b := &backend{Service: s}
		for _, p := range s.Processes {
			b.Processes = append(b.Processes, process{p})
		}
		byName[s.Name] = b
	}
	for _, o := range l.orders {
		if byName[o.Backend] == nil {
			byName[o.Backend] = &backend{Service: jobs.Service{Name: o.Backend}}
		}
		b := byName[o.Backend]
		b.Held = o.Held
		if o.Limit != nil {
			b.Ordered = strconv.Itoa(*o.Limit)
		}
	}
	var list []backend
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		b := byName[name]
		if len(b.Processes) > 0 || b.Held != "" || b.Ordered != "" {
			list = append(list, *b)
		}
	}
	return list
}

func (s *server) backends(r *http.Request) (view, error) {
	l, err := s.latest(r.Context())
	if err != nil {
		return view{}, err
	}
	return view{Name: "backends", Title: "Backends", Data: backendsOf(l)}, nil
}

// ladder is a queue with its layers and dead letters.
type ladder struct {
	Base   string
	Queues []queueState
}

func (s *server) layers(r *http.Request) (view, error) {
	l, err := s.latest(r.Context())
	if err != nil {
		return view{}, err
	}
	var list []ladder
	for _, q := range l.Queues {
		base := cmp.Or(q.Base, q.Name)
		i := slices.IndexFunc(list, func(l ladder) bool { return l.Base == base })
		if i < 0 {
			i, list = len(list), append(list, ladder{Base: base})
		}
		list[i].Queues = append(list[i].Queues, q)
	}
	return view{Name: "layers", Title: "Queues and layers", Data: list}, nil
}
