//go:build unix

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/sqlite"
)

// working runs a worker on the database until the test ends.
func working(t *testing.T, dir string) {
	t.Helper()
	db, err := sqlite.OpenDB(t.Context(), filepath.Join(dir, "orders.db"))
	require.NoError(t, err)
	j, err := jobs.New(sqlite.New(db), jobs.Config{})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	said, ended := make(chan struct{}, 10), make(chan struct{})
	go func() { // ends with ctx
		defer close(ended)
		j.Work(ctx, func() jobs.Worker {
			said <- struct{}{}
			return jobs.Worker{
				Queues: []string{"orders", "orders-retry-1"},
				Counts: json.RawMessage(`{"Acknowledged":1200,"Nacked":3}`),
				Operators: []json.RawMessage{json.RawMessage(`{"InFlight":42,"LastError":"bad gateway: the upstream has closed the connection\u001b[2J",` +
					`"Groups":[{"error":"no answer of #","reason":"TIMED_OUT","count":3,"last":"2026-01-01T00:00:00Z"},{"count":2,"rest":true}]}`)},
				Backends: []jobs.Backend{{Name: "bank", State: "down", Limit: 8, InUse: 1, Why: "503"}},
				Partitions: []jobs.Partition{
					{Pipeline: "flights", Name: "a", Epoch: 2, State: "running", Lag: 1200},
					{Pipeline: "flights", Name: "b", Epoch: 2, State: "failing", Lag: -1, Why: "no right\u001b[2J"},
					{Pipeline: "flights", Name: "c", State: jobs.Unowned, Lag: -1},
				},
			}
		}, nil)
	}()
	t.Cleanup(func() {
		stop()
		<-ended
		require.NoError(t, db.Close())
	})
	<-said
	require.Eventually(t, func() bool {
		list, err := j.Workers(t.Context())
		return err == nil && len(list) == 1
	}, time.Minute, time.Millisecond)
}

func TestTop(t *testing.T) {
	t.Parallel()
	dir := seed(t)
	r := execute(t, command(t, dir, "top"))
	assert.Zero(t, r.status, r.stderr)
	assert.Regexp(t, `(?m)^QUEUE +MESSAGES +CHANGE +OLDEST +60 MINUTES +CAUSES\n(.*\n)*orders-dead +8 +- +\d+d .*exhausted`, r.stdout)
	assert.NotContains(t, r.stdout, "WORKER")
	working(t, dir)
	r = execute(t, command(t, dir, "top"))
	assert.Regexp(t, `(?m)^WORKER .*LAST ERROR *\n\w{10} .*orders, orders-retry-1 .* 42 +bad gateway: the upstream has closed the connection\\x1b\[2J$`, r.stdout)
	assert.Regexp(t, `(?m)^BACKEND .*WHY *\nbank +1 process +down +- +1 +8 +503\n +\w{10} +down +- +1 +8 +503$`, r.stdout)
	assert.Regexp(t, `(?m)^FAILED .*ERROR *\n +3 +\d+d +TIMED_OUT +no answer of #\n`, r.stdout)
	assert.Regexp(t, `(?m)^PIPELINE +PARTITION +WORKER +STATE +LAG +WHY *\nflights +b +\w{10} +failing +- +no right\\x1b\[2J *\n`+
		`flights +c +- +unowned +- *\nflights +a +\w{10} +running +1200 *$`, r.stdout)
	var look topJSON
	r = execute(t, command(t, dir, "top", "--json"))
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &look))
	assert.Len(t, look.Workers, 1)
	assert.Equal(t, exitUsage, execute(t, command(t, dir, "top", "--every", "0s")).status)
}

// On a terminal top is live, fits, and ends cleanly with Ctrl-C.
func TestTopInTerminal(t *testing.T) {
	t.Parallel()
	dir := seed(t)
	working(t, dir)
	s := inTerminal(t, dir, "top", "--every", "20ms")
	shows := func(what string) {
		t.Helper()
		require.Eventually(t, func() bool {
			frames := strings.Split(s.text(), "\x1b[J")
			return regexp.MustCompile(what).MatchString(strings.Join(frames[max(0, len(frames)-2):], ""))
		}, time.Minute, time.Millisecond, what)
	}
	shows(`orders-dead +8 `)
	put(t, dir, "later", "much later")
	shows(`queues 4, (?s:.*)orders-dead +10 `)
	history(t, dir, "orders", "[%d,7,3,0,0,0]")
	shows(`orders-dead +10 +\+7 +\S+ +█ `)
	require.Zero(t, execute(t, command(t, dir, "dead", "purge", "--queue", "orders-dead", "--all", "--yes")).status)
	shows(`queues 3, `)                      // empty queues are not listed
	_, err := io.WriteString(s.file, "\x03") // Ctrl-C
	require.NoError(t, err)
	screen, err := s.end()
	require.NoError(t, err)
	for frame := range strings.SplitSeq(screen, "\x1b[J") {
		for line := range strings.SplitSeq(frame, "\n") {
			assert.LessOrEqual(t, text.StringWidthWithoutEscSequences(line), 80, line)
		}
		assert.LessOrEqual(t, strings.Count(frame, "\n"), 23)
	}
}

// The rates of a worker cover the time between two of its reports.
func TestTopRates(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	w := func(seconds, done int) jobs.Worker {
		counts, err := json.Marshal(map[string]int{"Acknowledged": done, "Rejected": 10})
		require.NoError(t, err)
		return jobs.Worker{ID: "w", Since: at, Seen: at.Add(time.Duration(seconds) * time.Second), Counts: counts}
	}
	top := &top{workers: map[string]seen{}}
	for _, step := range []struct {
		seconds, done int
		want          string
	}{{100, 50, "0.5"}, {100, 50, "0.5"}, {120, 250, "10"}, {130, 250, "0"}} {
		now := top.seen(w(step.seconds, step.done))
		top.workers["w"] = now
		assert.Equal(t, step.want, rate(now.rates[0]))
	}
}

// history writes points into the engine that a queue had in the minute two minutes ago,
// the first number of the format.
func history(t *testing.T, dir, queue, format string) {
	t.Helper()
	db, err := sqlite.OpenDB(t.Context(), filepath.Join(dir, "orders.db"))
	require.NoError(t, err)
	at := time.Now().UTC().Add(-2 * time.Minute)
	r := store.Record{Kind: "history", Name: at.Format("2006-01-02T15") + " " + queue, Value: `{"points":[` + fmt.Sprintf(format, at.Minute()) + `]}`}
	require.NoError(t, sqlite.New(db).Update(t.Context(), func(ctx context.Context, tx store.Tx) error { return tx.Write(ctx, r) }))
	require.NoError(t, db.Close())
}

// The last hour of a queue has a sign for three minutes. Minutes without a point are
// gaps, and minutes without a count are not.
func TestTopLastHour(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 30, 0, time.UTC)
	s := &topJSON{At: now, minutes: map[string][]jobs.HistoryPoint{}}
	for minutes, n := range map[int]int{58: 4, 57: 2, 40: 0, 37: -1, 20: 7, 3: 8, 1: 6} {
		s.minutes["orders"] = append(s.minutes["orders"], jobs.HistoryPoint{At: now.Add(-time.Duration(minutes) * time.Minute), Waiting: n, Dead: max(0, n-1)})
	}
	slices.SortFunc(s.minutes["orders"], func(a, b jobs.HistoryPoint) int { return a.At.Compare(b.At) })
	s.minutes["mails"] = []jobs.HistoryPoint{{At: now, Waiting: -1, Dead: -1}}
	for queue, want := range map[string][]string{
		"orders":         {"+2", "▅▃    ▁▁     █     █"},
		"orders-dead":    {"+40", "▄▂    ▁▁     ▇     █"}, // until now
		"orders-retry-1": {"-", ""},
		"mails":          {"-", strings.Repeat(" ", 20)},
		"mails dead":     {"-", strings.Repeat(" ", 20)},
		"others":         {"-", ""},
	} {
		h := lastHourOf(s, counted{Queue: queue, Messages: 43})
		assert.Equal(t, want, []string{h.change(), h.line(now)}, queue)
	}
	s.minutes["orders"] = s.minutes["orders"][:2]
	assert.Equal(t, "-2", lastHourOf(s, counted{Queue: "orders"}).change())
}
