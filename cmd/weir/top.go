package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/store"
)

// topGroups is how many failure groups top shows.
const topGroups = 5

// topShare limits counting to a tenth of the time, so that long queues are counted less
// often.
const topShare = 10

func (a *app) top() *cobra.Command {
	every := 2 * time.Second
	c := &cobra.Command{
		Use: "top", Short: "Show queues, workers, backends, partitions and errors, live", Args: none,
		Long: `Show queues, workers, their backends and partitions, the keys that are held or
down, and the groups of errors with which most elements have failed, live, until
Ctrl-C. Where the output is no terminal, and with --json, it is shown once.

A backend has one row, and its processes are below it. A backend that a fleet
shares has one state and one limit: see backend.Shared.

60 MINUTES is the number of messages in the last hour, from the history that
workers write into the engine: a sign is the highest number of three minutes,
the present one at the right, and a gap means that no worker reported. CHANGE is
its growth in that hour. Both include the layers of a queue. DONE/S and
FAILED/S of a worker are averages between its last two reports, which come every
20 s; at first, over its whole life. SINCE of a backend is how long its state
lasts, or its outage. 20 MINUTES is its worst state in each of the last 20
minutes, the present one at the right: . up, / ramping, H held, # down.`,
		RunE: func(c *cobra.Command, _ []string) error {
			if every <= 0 {
				return usagef("--every %v must be positive", every)
			}
			return a.with(c.Context(), func(ctx context.Context, db *database) error {
				t := &top{app: a, db: db, workers: map[string]seen{}}
				if a.json || !isTerminal(a.out) {
					s, err := t.look(ctx)
					if err != nil {
						return err
					}
					if a.json {
						return a.object(s)
					}
					text, err := t.draw(s)
					if err != nil {
						return err
					}
					return a.print(text)
				}
				return t.live(ctx, every)
			})
		},
	}
	c.Flags().DurationVar(&every, "every", every, "look again after this `time`")
	return c
}

type top struct {
	*app
	db      *database
	workers map[string]seen // by id
}

type topJSON struct {
	At      time.Time     `json:"at"`
	Queues  []counted     `json:"queues"`
	Workers []jobs.Worker `json:"workers,omitempty"`

	HeldKeys []jobs.KeyOrder `json:"heldKeys,omitempty"`
	KeysDown []jobs.KeyDown  `json:"keysDown,omitempty"`

	minutes map[string][]jobs.HistoryPoint // of the last hour, by queue
}

// seen is a worker's last report, with its rates since the previous one.
type seen struct {
	at           time.Time
	done, failed int
	rates        [2]float64
}

// live redraws the statistics in place until ctx ends.
func (t *top) live(ctx context.Context, every time.Duration) error {
	lines := 0
	for {
		begun := t.clock.Now()
		s, err := t.look(ctx)
		took := t.clock.Since(begun)
		var text string
		if err == nil {
			text, err = t.draw(s)
		}
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // Ctrl-C ends it
		case err != nil && lines == 0:
			return err
		case err != nil: // the server may return soon
			text = "No answer, asked again: " + escaped(oneLine(withoutSecrets(err.Error(), t.url))) + "\n"
		}
		shown := t.fit(text)
		if lines > 0 {
			shown = fmt.Sprintf("\x1b[%dA\x1b[J", lines) + shown
		}
		lines = strings.Count(shown, "\n")
		if err := t.print(shown); err != nil {
			return err
		}
		timer := t.clock.Timer(max(every, topShare*took))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
	}
}

// fit cuts the text to the terminal, because a line that wraps or scrolls cannot be
// redrawn.
func (t *top) fit(text string) string {
	columns, rows, err := term.GetSize(int(t.out.Fd()))
	if err != nil || rows < 3 || columns < 1 {
		columns, rows = defaultWidth, 24
	}
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if len(lines) > rows-1 {
		lines = append(lines[:rows-2], "…")
	}
	for i := range lines {
		lines[i] = ellipsis(lines[i], columns)
	}
	return strings.Join(lines, "\n") + "\n"
}

func (t *top) look(ctx context.Context) (*topJSON, error) {
	s := &topJSON{At: t.clock.Now().UTC(), Queues: []counted{}}
	names, err := t.db.store.Queues(ctx)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		n, err := t.db.store.Count(ctx, name, store.Filter{})
		if err != nil {
			return nil, err
		}
		s.Queues = append(s.Queues, newCounted(name, n))
	}
	if in, ok := t.db.store.(inspected); ok && in.keeps() {
		j, err := in.jobs()
		if err != nil {
			return nil, err
		}
		s.Workers, err = j.Workers(ctx)
		if err != nil {
			return nil, err
		}
		s.KeysDown = jobs.KeysDown(s.Workers, s.At)
		s.HeldKeys, err = j.HeldKeys(ctx)
		if err != nil {
			return nil, err
		}
		s.minutes, err = j.Histories(ctx, s.Workers, s.At.Add(-time.Hour))
		if err != nil {
			return nil, err
		}
	}
	return s, nil
}

// draw formats a reading, and keeps its reports for the next rates of workers.
func (t *top) draw(s *topJSON) (string, error) {
	var b strings.Builder
	t.frame = &b
	defer func() { t.frame = nil }()
	fmt.Fprintf(&b, "%s  queues %d, workers %d\n\n", when(s.At), len(s.Queues), len(s.Workers))
	err := t.drawQueues(s)
	if err == nil && len(s.Workers) > 0 {
		b.WriteString("\n")
		err = t.drawWorkers(s)
	}
	if err == nil {
		err = t.drawBackends(s)
	}
	if err == nil {
		err = t.drawKeys(s)
	}
	if err == nil {
		err = t.drawPartitions(s)
	}
	if err == nil {
		err = t.drawGroups(s)
	}
	return b.String(), err
}

func (t *top) drawQueues(s *topJSON) error {
	rows := make([][]string, 0, len(s.Queues))
	for _, q := range s.Queues {
		oldest := "-"
		if q.Messages > 0 {
			oldest = age(time.Duration(q.Age * float64(time.Second)))
		}
		h := lastHourOf(s, q)
		rows = append(rows, []string{q.Queue, strconv.Itoa(q.Messages), h.change(), oldest, h.line(s.At), causes(store.Counts{Causes: q.Causes})})
	}
	if len(rows) == 0 {
		t.frame.WriteString("No queue has messages.\n")
		return nil
	}
	return t.table([]column{
		{name: "QUEUE", least: 12},
		{name: "MESSAGES", right: true},
		{name: "CHANGE", right: true},
		{name: "OLDEST", right: true},
		{name: "60 MINUTES"},
		{name: "CAUSES", least: 10},
	}, rows)
}

func (t *top) drawWorkers(s *topJSON) error {
	rows := make([][]string, 0, len(s.Workers))
	known := map[string]seen{}
	for _, w := range s.Workers {
		now := t.seen(w)
		known[w.ID] = now
		inFlight, last := operatorsOf(w)
		rows = append(rows, []string{
			w.ID, w.Host, age(s.At.Sub(w.Seen)), strings.Join(w.Queues, ", "),
			rate(now.rates[0]), rate(now.rates[1]), strconv.Itoa(inFlight), last,
		})
	}
	t.workers = known
	return t.table([]column{
		{name: "WORKER", least: 4},
		{name: "HOST", least: 4},
		{name: "SEEN", right: true},
		{name: "QUEUES", least: 8},
		{name: "DONE/S", right: true},
		{name: "FAILED/S", right: true},
		{name: "IN FLIGHT", right: true},
		{name: "LAST ERROR", least: 10, error: true},
	}, rows)
}

func (t *top) drawBackends(s *topJSON) error {
	var rows [][]string
	for _, service := range jobs.Services(s.Workers, s.At) {
		rows = append(rows, []string{
			service.Name, processes(service), stateOf(service), since(s.At, service.Since), "", strconv.Itoa(service.InUse), limit(service.Limit), service.Why,
		})
		for _, p := range service.Processes {
			rows = append(rows, []string{"", p.Worker, stateOfProcess(p), since(s.At, p.Since), strip(&p.Backend, s.At), strconv.Itoa(p.InUse), limit(p.Limit), p.Why})
		}
	}
	if len(rows) == 0 {
		return nil
	}
	t.frame.WriteString("\n")
	return t.table([]column{
		{name: "BACKEND", least: 8},
		{name: "WORKER", least: 4},
		{name: "STATE"},
		{name: "SINCE", right: true},
		{name: "20 MINUTES"},
		{name: "IN USE", right: true},
		{name: "LIMIT", right: true},
		{name: "WHY", least: 10},
	}, rows)
}

// topKeys is how many keys top shows: held keys first.
const topKeys = 10

// drawKeys draws the keys that people hold or workers report to be down.
func (t *top) drawKeys(s *topJSON) error {
	var rows [][]string
	for _, o := range s.HeldKeys {
		rows = append(rows, append([]string{o.Queue, o.Key}, t.whyStopped(&o, nil)...))
	}
	for _, k := range s.KeysDown {
		rows = append(rows, append([]string{k.Queue, k.Key}, t.whyStopped(nil, &k)...))
	}
	if len(rows) == 0 {
		return nil
	}
	t.frame.WriteString("\n")
	err := t.table([]column{
		{name: "QUEUE", least: 8},
		{name: "KEY", least: 8},
		{name: "STATE"},
		{name: "SINCE", right: true},
		{name: "WHY", least: 10},
	}, rows[:min(len(rows), topKeys)])
	if err == nil && len(rows) > topKeys {
		fmt.Fprintf(t.frame, "and %d more\n", len(rows)-topKeys)
	}
	return err
}

// stripSpans is the minutes of a strip of states.
const stripSpans = 20

// strip shows a backend's states in the last minutes, a sign each.
func strip(b *jobs.Backend, now time.Time) string {
	signs := map[string]string{"up": ".", "ramping": "/", "held": "H", "down": "#"}
	var text strings.Builder
	for _, state := range b.Strip(now.Add(-stripSpans*time.Minute), now, stripSpans) {
		text.WriteString(cmp.Or(signs[state], " "))
	}
	return text.String()
}

func processes(s jobs.Service) string { return counts(s.Reporting, "process", "processes") }

// stateOf returns a backend's state, and in how many processes it has this state if they
// differ.
func stateOf(s jobs.Service) string {
	switch {
	case s.Reporting == 0:
		return "silent"
	case s.In < s.Reporting:
		return fmt.Sprintf("%s in %d of %d", s.State, s.In, s.Reporting)
	}
	return s.State
}

func stateOfProcess(p jobs.ServiceProcess) string {
	if p.IsSilent {
		return p.State + ", silent"
	}
	return p.State
}

func limit(n int) string {
	if n < 0 {
		return "-"
	}
	return strconv.Itoa(n)
}

func since(now, at time.Time) string {
	if at.IsZero() {
		return "-"
	}
	return age(max(0, now.Sub(at)))
}

// topPartitions bounds the partitions that top shows: partitions in trouble come first,
// then the largest lag.
const topPartitions = 10

func (t *top) drawPartitions(s *topJSON) error {
	all := jobs.Owners(s.Workers)
	if len(all) == 0 {
		return nil
	}
	ok := slices.IndexFunc(all, func(o jobs.Partition) bool { return !o.InTrouble() })
	if ok >= 0 { // after the partitions in trouble
		slices.SortStableFunc(all[ok:], func(a, b jobs.Partition) int { return cmp.Compare(b.Lag, a.Lag) })
	}
	var rows [][]string
	for _, o := range all[:min(len(all), topPartitions)] {
		lag := "-"
		if o.Lag >= 0 {
			lag = strconv.FormatInt(o.Lag, 10)
		}
		rows = append(rows, []string{o.Pipeline, o.Name, cmp.Or(o.Worker, "-"), o.State, lag, o.Why})
	}
	t.frame.WriteString("\n")
	if err := t.table([]column{
		{name: "PIPELINE", least: 4},
		{name: "PARTITION", least: 8},
		{name: "WORKER", least: 4},
		{name: "STATE"},
		{name: "LAG", right: true},
		{name: "WHY", least: 10},
	}, rows); err != nil {
		return err
	}
	if more := len(all) - topPartitions; more > 0 {
		fmt.Fprintf(t.frame, "and %d more\n", more)
	}
	return nil
}

// drawGroups draws groups of similar failures, the largest first.
func (t *top) drawGroups(s *topJSON) error {
	groups := map[[2]string]*observe.Group{}
	for _, w := range s.Workers {
		for _, g := range groupsOf(w) {
			key := [2]string{g.Error, g.Reason}
			sum := groups[key]
			switch {
			case g.Rest:
			case sum == nil:
				groups[key] = &g
			default:
				g.Count += sum.Count
				if g.Last.Before(sum.Last) {
					g.Last = sum.Last
				}
				groups[key] = &g
			}
		}
	}
	if len(groups) == 0 {
		return nil
	}
	sorted := slices.SortedFunc(maps.Values(groups), func(a, b *observe.Group) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), strings.Compare(a.Error, b.Error), strings.Compare(a.Reason, b.Reason))
	})
	var rows [][]string
	for _, g := range sorted[:min(len(sorted), topGroups)] {
		rows = append(rows, []string{strconv.FormatInt(g.Count, 10), age(max(0, s.At.Sub(g.Last))), g.Reason, g.Error})
	}
	t.frame.WriteString("\n")
	return t.table([]column{{name: "FAILED", right: true}, {name: "LAST", right: true}, {name: "REASON", least: 6}, {name: "ERROR", least: 10, error: true}}, rows)
}

// groupsOf reads a worker's groups of failures, perhaps of another version.
func groupsOf(w jobs.Worker) (all []observe.Group) {
	for _, text := range w.Operators {
		var s struct{ Groups []observe.Group }
		_ = json.Unmarshal(text, &s)
		all = append(all, s.Groups...)
	}
	return all
}

func (t *top) seen(w jobs.Worker) seen {
	now := seen{at: w.Seen}
	now.done, now.failed = countsOf(w)
	before, ok := t.workers[w.ID]
	switch {
	case !ok:
		before = seen{at: w.Since}
	case before.at.Equal(w.Seen):
		return before
	}
	took := w.Seen.Sub(before.at)
	now.rates = [2]float64{perSecond(now.done-before.done, took), perSecond(now.failed-before.failed, took)}
	return now
}

func perSecond(n int, d time.Duration) float64 {
	if d <= 0 {
		return 0
	}
	return float64(n) / d.Seconds()
}

func rate(r float64) string {
	if r != 0 && math.Abs(r) < 10 {
		return strconv.FormatFloat(r, 'f', 1, 64)
	}
	return strconv.Itoa(int(math.Round(r)))
}

// countsOf reads a worker's numbers, perhaps of another version.
func countsOf(w jobs.Worker) (done, failed int) {
	var counts struct{ Acknowledged, HandedOver, Rejected, Nacked int }
	_ = json.Unmarshal(w.Counts, &counts)
	return counts.Acknowledged, counts.HandedOver + counts.Rejected + counts.Nacked
}

// operatorsOf reads a worker's operators, perhaps of another version.
func operatorsOf(w jobs.Worker) (inFlight int, lastError string) {
	for _, text := range w.Operators {
		var s struct {
			InFlight  int
			LastError string
		}
		_ = json.Unmarshal(text, &s)
		inFlight += s.InFlight
		if s.LastError != "" {
			lastError = s.LastError
		}
	}
	return inFlight, lastError
}
