package console

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/message"
)

const (
	pageSize  = 50 // messages
	maxEdited = 128 << 10
	maxGroups = 20
	manyKinds = 16                    // groupings that are kept
	callTime  = 10 * time.Minute      // for each step of a grouping, if the engine is frozen
	patience  = 30 * time.Millisecond // for newer numbers
)

var causes = []store.Cause{store.Permanent, store.Exhausted, store.UnsafeToRepeat, store.Undecodable, store.Lapsed, store.Expired, store.Refused}

func (s *server) readFilter(q url.Values) (f store.Filter, err error) {
	f = store.Filter{
		Key: q.Get("key"), Source: q.Get("source"), Provider: q.Get("provider"), Cause: store.CauseNamed(q.Get("cause")),
		Reason: q.Get("reason"), Error: q.Get("error"),
	}
	for _, id := range q["id"] {
		if id != "" {
			f.IDs = append(f.IDs, id)
		}
	}
	f.Since, err = s.parseTime(q.Get("since"))
	if err != nil {
		return f, err
	}
	f.Before, err = s.parseTime(q.Get("before"))
	return f, err
}

// parseTime parses a time, or a duration before now.
func (s *server) parseTime(text string) (time.Time, error) {
	text = strings.TrimSpace(text)
	if text == "" {
		return time.Time{}, nil
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02 15:04:05Z", "2006-01-02T15:04", time.DateTime, time.DateOnly} {
		if t, err := time.Parse(layout, text); err == nil {
			return t, nil
		}
	}
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		coarse := min(time.Minute, d/10) // pages that follow each other share their groups
		return s.Clock.Now().Add(-d).Truncate(coarse), nil
	}
	return time.Time{}, wrong("%q is not a time such as 2026-01-31, 2026-01-31T15:04:05Z, or 90m for 90 minutes ago.", cut(50, text))
}

// filterValues is the reverse of readFilter, and adds the queue.
func filterValues(queue string, f store.Filter) url.Values {
	q := url.Values{"queue": {queue}}
	for name, value := range map[string]string{
		"key": f.Key, "source": f.Source, "provider": f.Provider, "cause": f.Cause.String(), "reason": f.Reason, "error": f.Error,
	} {
		if value != "" {
			q.Set(name, value)
		}
	}
	if len(f.IDs) > 0 {
		q["id"] = f.IDs
	}
	for name, t := range map[string]time.Time{"since": f.Since, "before": f.Before} {
		if !t.IsZero() {
			q.Set(name, t.UTC().Format(time.RFC3339Nano))
		}
	}
	return q
}

// queueOf returns the queue that an address names. Forms quote it, because browsers turn
// a line end in a field into two characters.
func queueOf(q url.Values) string {
	name, err := strconv.Unquote(q.Get("quoted"))
	if err != nil {
		return q.Get("queue")
	}
	return name
}

type queueData struct {
	Queue, Base, Role string
	Filter            store.Filter
	Filtered          bool
	Causes            []store.Cause
	Query             map[string]string // addresses of actions
	Grouping          grouping
	Failed            string // why the groups could not be counted
	Groups            []groupRow
	Rest              int // groups that are not shown
	Headline          string
	Entries           []store.Entry
	Next              string
	IsLater           bool // not the first page, whose address is First
	First             string
	IsPart            bool        // the search took too long, and continues at Next
	Pause             *pauseState // nil if the queue cannot be paused
	Charts            []chart     // of the last 24 hours
	Uncharted         string      // why there are no charts; empty if there are, or no points
}

// queue shows a queue's matching messages, dead letters by groups first.
func (s *server) queue(r *http.Request) (view, error) {
	q := r.URL.Query()
	f, err := s.readFilter(q)
	if err != nil {
		return view{}, err
	}
	d := queueData{Queue: queueOf(q), Filter: f, Causes: causes}
	if d.Queue == "" {
		return view{}, missing("Which queue? The address names none.")
	}
	after, err := strconv.ParseInt("0"+q.Get("after"), 10, 64)
	if err != nil {
		return view{}, wrong("The position %q is not a number.", cut(50, q.Get("after")))
	}
	var reached int64
	d.Entries, reached, err = s.search(r.Context(), d.Queue, f, after)
	if err != nil {
		return view{}, err
	}
	dead := len(d.Entries) > 0 && d.Entries[0].Cause != ""
	d.Base, d.Role = roleOf(d.Queue, dead)
	d.Pause, err = s.pauseOfPage(r.Context(), d.Base, d.Role)
	if err != nil {
		return view{}, err
	}
	values := filterValues(d.Queue, f)
	d.Filtered = len(values) > 1
	d.IsLater, d.First = after > 0, s.address("/queue", values)
	last := reached
	n := len(d.Entries)
	if n > 0 && reached == 0 {
		last = d.Entries[n-1].Position
	}
	if last > 0 {
		next := maps.Clone(values)
		next.Set("after", strconv.FormatInt(last, 10))
		d.Next = s.address("/queue", next)
	}
	d.IsPart = reached > 0
	d.Query = map[string]string{}
	for _, do := range []string{"merge", "purge", "hold", "release", "due"} {
		action := maps.Clone(values)
		action.Set("do", do)
		d.Query[do] = s.address("/start", action)
	}
	if d.Role == "dead letters" && after == 0 {
		s.grouped(r.Context(), &d)
	}
	if after == 0 && !d.Filtered {
		d.Charts, d.Uncharted = s.charts(r.Context(), d.Base, d.Role)
	}
	return view{Name: "queue", Title: cut(100, d.Queue), Data: d}, nil
}

func (s *server) find(ctx context.Context, q url.Values) (queue string, e store.Entry, err error) {
	queue = q.Get("queue")
	position, err := strconv.ParseInt(q.Get("position"), 10, 64)
	if err != nil || position < 1 || queue == "" {
		return queue, e, missing("Which message? The address names none.")
	}
	p := position
	list, err := s.engine.List(ctx, queue, store.Filter{}, store.Page{After: p - 1, Until: p, Max: 1})
	if err == nil && len(list) == 0 {
		err = missing("This message is no longer in %s: it was sent back, removed, or done.", cut(100, queue))
	}
	if err != nil {
		return queue, e, err
	}
	return queue, list[0], nil
}

type step struct {
	At       time.Time // zero if it is not known
	Text     string
	Detail   string
	InFuture bool

	Path, Link string // a page with details, and the text of the link; empty without one
}

// field is a header, or another property of a message.
type field struct{ Name, Value string }

type messageData struct {
	Queue, Base, Role string
	store.Entry
	Repeat   repetition
	Timeline []step
	Fields   []field
	Headers  []field
	// MoreHeaders is the number of headers that are not shown.
	MoreHeaders int
	View        string
	Views       []string
	Payload     string
	Cut         bool
	Editable    string // the payload, if it can be edited
	IsUnsafe    bool   // a call for it may have taken effect
	LookFirst   bool   // its workers died while they had it
	IDText      bool   // the id is UTF-8, so that jobs can name it
}

func (s *server) message(r *http.Request) (view, error) {
	q := r.URL.Query()
	queue, e, err := s.find(r.Context(), q)
	if err != nil {
		return view{}, err
	}
	d := messageData{Queue: queue, Entry: e, Timeline: s.timeline(r.Context(), queue, &e), IDText: utf8.ValidString(e.Meta.ID)}
	d.Base, d.Role = roleOf(queue, e.Cause != "")
	if d.Role == "dead letters" {
		d.Repeat = repeated(&e, s.Clock.Now())
		d.IsUnsafe = mayHaveTakenEffect(&e)
		d.LookFirst = e.Repetition(s.Clock.Now()) == store.RepeatLookFirst
		if text := string(e.Payload); s.keeps && (e.Schema == nil || hasJSONCodec(&e)) && len(text) <= maxEdited && visible(text) == text {
			d.Editable = text
		}
	}
	m := &e.Meta
	for _, f := range []field{
		{"id", m.ID},
		{"key", m.Key},
		{"source", m.Origin.Source},
		{"partition", m.Origin.Partition},
		{"position there", m.Origin.Position},
		{"provider", m.Provider},
		{"request", m.Request},
		{"reasons", strings.Join(m.Reasons, ", ")},
		{"deadline", timeText(m.Deadline)},
		{"due", timeText(m.Due)},
		{"position", strconv.FormatInt(e.Position, 10)},
		{"schema", string(e.Schema)},
	} {
		if f.Value != "" {
			d.Fields = append(d.Fields, field{f.Name, cut(maxValue, f.Value)})
		}
	}
	names := slices.Sorted(maps.Keys(m.Headers))
	d.MoreHeaders = max(0, len(names)-maxHeaders)
	for _, name := range names[:min(len(names), maxHeaders)] {
		d.Headers = append(d.Headers, field{cut(maxValue, name), masked(name, m.Headers[name])})
	}
	d.View, d.Payload, d.Cut = payloadText(e.Payload, q.Get("view"))
	d.Views = []string{"json", "text", "hex"}
	return view{Name: "message", Title: "Message " + cut(60, m.ID), Data: d}, nil
}

func timeText(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return when(t)
}

// secret finds headers whose values are hidden.
var secret = regexp.MustCompile(`(?i)^(proxy-)?authorization$|^(set-)?cookie2?$|^(token|apikey|key)$|[-_](token|key)$|secret|passw(or)?d|credential`)

// masked returns a header's value, unless it is hidden.
func masked(name, value string) string {
	if secret.MatchString(strings.TrimSpace(name)) {
		return fmt.Sprintf("hidden (%s)", count(len(value), "byte"))
	}
	return cut(maxValue, value)
}

// payload sends a payload as a file, which no browser shows.
func (s *server) payload(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), queryTime)
	defer cancel()
	var e store.Entry
	err := s.limited(ctx, func() (err error) {
		_, e, err = s.find(ctx, r.URL.Query())
		return err
	})
	if err != nil {
		s.fail(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Disposition", `attachment; filename="payload-`+strconv.FormatInt(e.Position, 10)+`.bin"`)
	_, _ = w.Write(e.Payload)
}

func callText(c message.Step) string {
	text := fmt.Sprintf("visit %d, call %d took %v", c.Visit, c.Attempt, c.Took.Round(time.Microsecond))
	if c.Reason != "" {
		text += ", " + cut(100, c.Reason)
	}
	if c.Backend != "" {
		text += ", the backend was " + cut(100, c.Backend)
	}
	if c.Retried {
		text += ", called again after " + c.Wait.Round(time.Millisecond).String()
	}
	return text
}

// returned is the last return of a message from the dead letters.
type returned struct {
	step
	isEdit bool
}

// lastReturn returns who sent a message back last, and why, from the log. It is unknown
// if the log has no line of such a job for the queue: the message may come from another
// database.
func (s *server) lastReturn(ctx context.Context, queue string, m *message.Meta) (r returned, isKnown bool) {
	if m.MergeJob == 0 || !s.keeps {
		return returned{}, false
	}
	line, err := s.jobs.LogLine(ctx, m.MergeJob)
	if err != nil {
		return returned{}, false
	}
	base, _ := roleOf(queue, false)
	job := line.Job
	isReturn := job.ID == m.MergeJob && (job.Do == store.Merge || line.Event == editEvent)
	if !isReturn || job.To != base {
		return returned{}, false
	}
	r = returned{isEdit: line.Event == editEvent}
	verb := "sent back"
	if r.isEdit {
		verb = "edited, and sent back"
	}
	r.step = step{
		At: line.At, Text: verb + " by " + cut(200, line.By) + ": " + cut(1000, line.Why),
		Path: s.link("/job", "id", job.ID), Link: "job " + strconv.Itoa(job.ID),
	}
	return r, true
}

func (s *server) timeline(ctx context.Context, queue string, e *store.Entry) (steps []step) {
	now := s.Clock.Now()
	m := &e.Meta
	add := func(at time.Time, text, detail string) {
		if !at.IsZero() {
			steps = append(steps, step{At: at, Text: text, Detail: cut(4096, detail), InFuture: at.After(now)})
		}
	}
	returned, isKnown := s.lastReturn(ctx, queue, m)
	if id := m.Headers[editedFrom]; id != "" && isKnown && returned.isEdit {
		steps = append(steps, step{Text: "made by a person, from the message " + cut(200, id) + " with another payload"})
	}
	if m.Origin.Source != "" {
		steps = append(steps, step{Text: "first seen in " + cut(200, m.Origin.Source), Detail: cut(200, strings.TrimSpace(m.Origin.Partition+" "+m.Origin.Position))})
	}
	if m.Merges > 0 {
		steps = append(steps, step{Text: "sent back from the dead letters " + count(m.Merges, "time")})
	}
	if isKnown {
		steps = append(steps, returned.step)
	}
	for _, c := range m.Timeline {
		add(c.Begun, callText(c), guard.WithoutSecrets(c.Error))
	}
	add(m.FirstFailure, "failed for the first time", "")
	if !m.LastFailure.Equal(m.FirstFailure) || m.LastError != "" {
		add(m.LastFailure, fmt.Sprintf("failed: %s, %s in all", count(m.Visit, "visit"), count(m.Attempts, "call")), guard.WithoutSecrets(m.LastError))
	}
	text := "put in this queue"
	if e.Cause != "" {
		text = "became a dead letter: " + cut(100, e.Cause)
	}
	add(e.Arrived, text, "")
	add(e.LeasedUntil, "a worker has it until then", "")
	if m.Due.After(now) {
		add(m.Due, "is due", "")
	}
	add(m.Remembered, "the server remembers the request until then", "")
	add(m.Deadline, "its deadline", "")
	slices.SortStableFunc(steps, func(a, b step) int { return a.At.Compare(b.At) }) // steps without a time are first
	return steps
}
