package console

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/guard"
)

const (
	cancelKey  = "cancel" // cancels the messages of a key in a queue, its layers and its dead letters
	editedFrom = "Edited-From"
	editEvent  = "edit"           // of a line of the log
	aFew       = 3                // messages of a first try
	slowly     = 10               // messages a second by default
	again      = 10 * time.Second // a second click
	noWhy      = "Say why: the reason is kept in the log of actions, for your colleagues."
)

type confirmData struct {
	Do, Queue, Base, To string
	Filter              store.Filter
	Action              string  // address of the form, with the values below
	Values              []field // that choose the messages
	Counts              []field // of a cancel, by queue
	survey
	NewTo                bool
	Few, Rate            int
	EndsAt               time.Time // at that rate
	Back                 string
	Verb, Question, Then string
}

// confirmWords are the verb, the question and the consequences of each action.
var confirmWords = map[string][3]string{
	"merge":   {"Send back", "Send %s back, to be processed again?", "Each starts as for a first visit, with its history. Messages in doubt, and messages whose workers died, stay here, unless you choose otherwise."},
	"purge":   {"Remove", "Remove %s for good?", "They cannot be brought back. Export them first if in doubt: weir dead export."},
	"cancel":  {"Cancel", "Cancel %s?", "They are removed from the queue, its layers and its dead letters for good, and the calls that run for them end. Messages that are put later stay."},
	"hold":    {"Hold", "Hold %s?", "No worker takes them until they are released. Messages that a worker has now, or that arrive later, are not held."},
	"due":     {"Run", "Let %s run now?", "Each is due at once, where it is: it keeps its visits and the order of its key."},
	"release": {"Release", "Release the held messages of %s?", "Workers take them when they are due."},
}

func (s *server) confirm(r *http.Request) (view, error) {
	q := r.URL.Query()
	f, err := s.readFilter(q)
	if err != nil {
		return view{}, err
	}
	d := confirmData{Do: q.Get("do"), Queue: q.Get("queue"), To: q.Get("to"), Few: aFew, Rate: slowly}
	words, ok := confirmWords[d.Do]
	if !ok || d.Queue == "" {
		return view{}, missing("The action is unknown.")
	}
	if d.Do == cancelKey {
		f = store.Filter{Key: f.Key}
		err = s.countKey(r.Context(), &d, f)
	} else {
		d.survey, err = s.surveyOf(r.Context(), d.Do, d.Queue, f)
		d.restrict(&f, s.Clock.Now())
	}
	if err != nil {
		return view{}, err
	}
	if d.Do == "merge" {
		err := s.findTarget(r.Context(), &d)
		if err != nil {
			return view{}, err
		}
	}
	d.EndsAt = s.endsAt(d.Count, slowly)
	what := d.messages("all messages that match")
	if d.Do == cancelKey {
		what = d.messages("all messages of the key")
	}
	if d.IsAtLeast {
		d.Count = max(d.Count, 1) // for the form
	}
	d.Verb = words[0]
	d.Question = strings.ReplaceAll(words[1], "%s", what)
	d.Then = words[2]
	s.choose(&d, f)
	return view{Name: "confirm", Title: d.Verb + " messages of " + cut(60, d.Queue), Data: d}, nil
}

// findTarget sets the queue that a merge sends messages to, unless the address names it.
func (s *server) findTarget(ctx context.Context, d *confirmData) error {
	base, role := roleOf(d.Queue, d.hasCauses)
	if d.To == "" && role != "queue" {
		d.To = base
	}
	if d.To == "" {
		return nil
	}
	l, err := s.latest(ctx)
	if err != nil {
		return err
	}
	d.NewTo = !l.known(d.To)
	return nil
}

// choose sets the values that choose the messages of an action, and the addresses.
func (s *server) choose(d *confirmData, f store.Filter) {
	d.Filter = f
	chosen := filterValues(d.Queue, f)
	for name, values := range chosen {
		for _, v := range values {
			d.Values = append(d.Values, field{name, filterText(name, v)})
		}
	}
	sortChoice(d.Values)
	d.Values = append(d.Values, d.Counts...)
	d.Back = s.address("/queue", chosen)
	if d.Do == cancelKey {
		d.Few = d.Count // all or none
		d.Back = s.link("/bykey", "queue", d.Queue)
	}
	chosen.Set("do", d.Do)
	d.Action = s.address("/start", chosen)
}

// noteAction lets pages look again, since an action may have changed what they show.
func (s *server) noteAction() {
	s.looks.stale()
	s.logs.stale()
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.rests)
}

// sortChoice sorts the values that choose messages: the queue comes first.
func sortChoice(values []field) {
	isOther := func(f field) int {
		if f.Name == "queue" {
			return 0
		}
		return 1
	}
	slices.SortFunc(values, func(a, b field) int {
		return cmp.Or(isOther(a)-isOther(b), strings.Compare(a.Name, b.Name), strings.Compare(a.Value, b.Value))
	})
}

// countKey counts the messages of a key by queue, or a part of them if that takes too
// long.
func (s *server) countKey(ctx context.Context, d *confirmData, f store.Filter) error {
	if f.Key == "" {
		return wrong("Which key? The address names none.")
	}
	counting, cancel := context.WithTimeout(ctx, surveyTime)
	defer cancel()
	counts, err := s.jobs.Matching(counting, jobs.Spec{Do: store.Purge, Queue: d.Queue, Family: true, Filter: f})
	d.IsAtLeast = err != nil && counting.Err() != nil && ctx.Err() == nil
	if err != nil && !d.IsAtLeast {
		return mine(ctx, err)
	}
	for _, c := range counts {
		d.Count += c.Messages
		d.Counts = append(d.Counts, field{"messages of " + cut(100, c.Queue), strconv.Itoa(c.Messages)})
	}
	return nil
}

// filterText returns a filter's value for people: times without fractions of a second.
func filterText(name, value string) string {
	if name != "since" && name != "before" {
		return value
	}
	t, err := time.Parse(time.RFC3339Nano, value)
	if err != nil {
		return value
	}
	return when(t)
}

// start starts a job. The request's address names the messages, and the body has the
// fields that the person has filled in. A form field cannot name a queue or an error with
// line ends, which browsers turn into two characters.
func (s *server) start(r *http.Request) (string, error) {
	q := r.Form
	f, err := s.readFilter(q)
	if err != nil {
		return "", err
	}
	spec := jobs.Spec{Do: store.Action(q.Get("do")), Queue: q.Get("queue"), Filter: f, By: personOf(r).who, Why: reason(q)}
	if spec.Why == "" {
		return "", wrong("%s", noWhy)
	}
	spec.Max, err = whole(q.Get("max"))
	if err != nil {
		return "", err
	}
	rate, err := whole(q.Get("rate"))
	if err != nil {
		return "", err
	}
	spec.Rate = float64(rate)
	if q.Get("do") == cancelKey {
		if f.Key == "" {
			return "", wrong("Which key? The address names none.")
		}
		spec.Do = store.Purge
		spec.Family = true
		spec.Filter = store.Filter{Key: f.Key}
	}
	if spec.Do == store.Merge {
		spec.To = q.Get("to")
		spec.UnsafeToRepeat, spec.LeaveLapsed = q.Get("unsafe") == "yes", q.Get("lapsed") != "yes"
		if err := s.checkTo(r.Context(), q); err != nil {
			return "", err
		}
	}
	job, isSame, err := s.once(r.Context(), spec)
	if err != nil {
		return "", mine(r.Context(), err)
	}
	s.run(job.ID)
	page := "/job?id=" + strconv.Itoa(job.ID)
	if isSame {
		page += "&same=yes"
	}
	return page, nil
}

// once starts a job, unless the same was just started, by a second click or a repeated
// request.
func (s *server) once(ctx context.Context, spec jobs.Spec) (job jobs.Job, isSame bool, err error) {
	s.starting.Lock()
	defer s.starting.Unlock()
	list, err := s.jobs.List(ctx)
	if err != nil {
		return jobs.Job{}, false, err
	}
	if spec.Do == store.Merge {
		spec.MaxMerges = jobs.DefaultMaxMerges // as in the list
	}
	for _, job := range list {
		if s.Clock.Since(job.Begun).Abs() < again && sameSpec(job.Spec, spec) {
			return job, true, nil
		}
	}
	job, err = s.jobs.Start(ctx, spec)
	return job, false, err
}

func sameSpec(a, b jobs.Spec) bool {
	x, err := json.Marshal(a)
	if err != nil {
		return false
	}
	y, err := json.Marshal(b)
	return err == nil && bytes.Equal(x, y)
}

// checkTo refuses a queue that no worker reads, unless the person has confirmed it.
func (s *server) checkTo(ctx context.Context, q url.Values) error {
	to := q.Get("to")
	if to == "" {
		return wrong("Where to? Name the queue that the program reads.")
	}
	l, err := s.latest(ctx)
	if err != nil {
		return err
	}
	if !l.known(to) && q.Get("new") != "yes" {
		return wrong("The queue %s is empty or new, and no worker reads it. If it is right, say so in the form.", cut(100, to))
	}
	return nil
}

// run runs a job here, unless a worker does.
func (s *server) run(id int) {
	s.noteAction()
	go func() { // ends with the job, or s.ctx
		_, err := s.jobs.Run(s.ctx, id, nil)
		if err != nil && s.ctx.Err() == nil {
			s.Logger.LogAttrs(s.ctx, slog.LevelWarn, "console: cannot run a job now", slog.Int("job", id), slog.String("error", guard.Text(err)))
		}
		s.noteAction()
	}()
}

// resume runs the jobs of a killed process, such as an earlier console. The person may
// act.
func (s *server) resume() {
	go func() { // ends when the jobs are listed
		list, err := s.jobs.List(s.ctx)
		if err != nil && s.ctx.Err() == nil {
			s.Logger.LogAttrs(s.ctx, slog.LevelWarn, "console: cannot see whether there are jobs to run", slog.String("error", guard.Text(err)))
		}
		queues := map[string]bool{}
		for _, job := range list { // the newest first: running it runs the others of its queue
			if job.State() == "running" && !queues[job.Queue] {
				queues[job.Queue] = true
				s.run(job.ID)
			}
		}
	}()
}

// order pauses, resumes or cancels a job, or changes its rate.
func (s *server) order(r *http.Request) (string, error) {
	id, err := strconv.Atoi(r.PostForm.Get("id"))
	if err != nil {
		return "", missing("Which job?")
	}
	why := reason(r.PostForm)
	if why == "" {
		return "", wrong("%s", noWhy)
	}
	setRate := func(ctx context.Context, id int, by, why string) (jobs.Job, error) {
		rate, err := readRate(r.PostForm.Get("rate"))
		if err != nil {
			return jobs.Job{}, err
		}
		return s.jobs.SetRate(ctx, id, rate, by, why)
	}
	order, ok := map[string]func(ctx context.Context, id int, by, why string) (jobs.Job, error){
		"pause": s.jobs.Pause, "resume": s.jobs.Resume, "cancel": s.jobs.Cancel, "rate": setRate,
	}[r.PostForm.Get("do")]
	if !ok {
		return "", missing("The action is unknown.")
	}
	_, err = order(r.Context(), id, personOf(r).who, why)
	if err != nil {
		return "", mine(r.Context(), err)
	}
	s.run(id)
	return "/job?id=" + strconv.Itoa(id), nil
}

// steer holds, resumes or limits a backend. The address of the form names it, see start.
func (s *server) steer(r *http.Request) (string, error) {
	q := r.PostForm
	name, who := r.Form.Get("backend"), personOf(r).who
	why := reason(q)
	if why == "" {
		return "", wrong("%s", noWhy)
	}
	l, err := s.latest(r.Context())
	if err != nil {
		return "", err
	}
	isKnown := slices.ContainsFunc(backendsOf(l), func(b backend) bool { return b.Name == name })
	if !isKnown && q.Get("new") != "yes" {
		return "", wrong("No worker reports a backend %s. If the name is right, say so in the form.", cut(100, name))
	}
	switch q.Get("do") {
	case "hold":
		_, err = s.jobs.HoldBackend(r.Context(), name, who, why)
	case "resume", "open": // from a page of an earlier version
		_, err = s.jobs.ResumeBackend(r.Context(), name, who, why)
	case "limit":
		n := -1
		text := strings.TrimSpace(q.Get("limit"))
		if text != "" {
			n, err = whole(text)
		}
		if err != nil {
			return "", err
		}
		_, err = s.jobs.LimitBackend(r.Context(), name, n, who, why)
	default:
		return "", missing("The action is unknown.")
	}
	if err != nil {
		return "", mine(r.Context(), err)
	}
	s.noteAction()
	return "/backends", nil
}

// edit sends a dead letter back with another payload, as another message. The address
// names it, see start.
func (s *server) edit(r *http.Request) (string, error) {
	q := r.Form
	queue, e, err := s.find(r.Context(), q)
	if err != nil {
		return "", err
	}
	why := reason(q)
	switch {
	case why == "":
		return "", wrong("%s", noWhy)
	case e.Cause == "":
		return "", wrong("Only dead letters are edited: a worker may take this one at any time.")
	case mayHaveTakenEffect(&e) && q.Get("unsafe") != "yes":
		return "", wrong("A call for it may have taken effect. If it may happen a second time, say so in the form.")
	case e.Repetition(s.Clock.Now()) == store.RepeatLookFirst && q.Get("lapsed") != "yes":
		return "", wrong("Its workers died or hung while they had it. If you have checked how far they got, say so in the form.")
	}
	if err := s.checkTo(r.Context(), q); err != nil {
		return "", err
	}
	payload := strings.ReplaceAll(q.Get("payload"), "\r\n", "\n") // browsers send lines so
	if hasJSONCodec(&e) {
		var value any
		err := json.Unmarshal([]byte(payload), &value)
		if err != nil {
			return "", wrong("The payload is not JSON, which its codec reads: %s. Go back to correct it.", err)
		}
	}
	job, err := s.jobs.Edit(r.Context(), queue, e, q.Get("to"), []byte(payload), personOf(r).who, why)
	if err != nil {
		return "", mine(r.Context(), err)
	}
	s.noteAction()
	return "/job?id=" + strconv.Itoa(job.ID), nil
}

// mine blames an error of package jobs on the person, unless the engine did not answer.
func mine(ctx context.Context, err error) error {
	if ctx.Err() != nil || errors.Is(err, fs.ErrNotExist) || errors.Is(err, store.ErrClosed) {
		return err
	}
	return wrong("%s", failure(1000, err))
}

func reason(q url.Values) string {
	why := strings.TrimSpace(strings.ToValidUTF8(q.Get("why"), "?"))
	if utf8.RuneCountInString(why) > 1000 {
		why = string([]rune(why)[:1000])
	}
	return why
}

// readRate reads messages a second; "" is 0.
func readRate(text string) (float64, error) {
	text = strings.TrimSpace(text)
	if text == "" {
		return 0, nil
	}
	rate, err := strconv.ParseFloat(text, 64)
	if err != nil || !(rate >= 0) || math.IsInf(rate, 1) {
		return 0, wrong("%q is not a number of messages a second, such as 10 or 0.5.", cut(50, text))
	}
	return rate, nil
}

// rateText is the reverse of readRate, without an exponent.
func rateText(rate float64) string { return strconv.FormatFloat(rate, 'f', -1, 64) }

// whole reads a number that is not negative; "" is 0.
func whole(text string) (int, error) {
	text = strings.TrimSpace(text)
	if text == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		return 0, wrong("%q is not a whole number of 0 or more.", cut(50, text))
	}
	return n, nil
}
