package main

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/exactlyonce/keys"
	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/internal/testing/suite"
	"github.com/weirflow/weir/message"
)

var update = flag.Bool("update", false, "write the golden files")

// binary is the path of the built command.
var binary string

func TestMain(m *testing.M) {
	suite.SetParallel(4, 2)
	dir, err := os.MkdirTemp("", "weir-cmd-")
	if err == nil {
		binary = filepath.Join(dir, "weir")
		var out []byte
		if out, err = exec.Command("go", "build", "-ldflags=-s -w", "-o", binary, ".").CombinedOutput(); err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	status := m.Run()
	os.RemoveAll(dir)
	os.Exit(status)
}

// command returns a run of the command in a directory, without the variables of this
// environment.
func command(t *testing.T, dir string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), binary, args...)
	cmd.Dir = dir
	cmd.Env = append(without(os.Environ(), "COLUMNS", "WEIR_DB"), "WEIR_DB=sqlite:orders.db", "TERM=xterm")
	return cmd
}

func without(env []string, names ...string) (rest []string) {
	for _, v := range env {
		name, _, _ := strings.Cut(v, "=")
		if name != names[0] && name != names[1] {
			rest = append(rest, v)
		}
	}
	return rest
}

type result struct {
	stdout, stderr string
	status         int
}

func execute(t *testing.T, cmd *exec.Cmd) result {
	t.Helper()
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	status := 0
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		status = exit.ExitCode()
	} else {
		require.NoError(t, err)
	}
	return result{out.String(), errOut.String(), status}
}

// begin is the time of the seeded data.
var begin = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// seed creates orders.db in a new directory: eight dead letters, two layers, an outbox
// with its relay, and four requests with keys.
func seed(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	ctx := t.Context()
	db, err := sqlite.OpenDB(ctx, filepath.Join(dir, "orders.db"))
	require.NoError(t, err)
	defer db.Close()
	require.NoError(t, sqlite.New(db).Migrate(ctx))
	now := clock.NewMock()
	now.Set(begin)
	s := sqlite.New(db, sqlite.WithClock(now))
	seedQueues(t, s, func() { now.Add(time.Minute) })
	_, err = sqlite.New(db).Locks().Acquire(ctx, "outbox", "host a, process 12", time.Hour) // by the clock of the command
	require.NoError(t, err)

	require.NoError(t, keys.New(db.Writer(), keys.SQLite, keys.Config{}).Migrate(ctx))
	seedKeys(t, db.Writer(), now, func() { now.Add(time.Minute) })
	return dir
}

// seedQueues puts messages. tick advances the clock.
func seedQueues(t *testing.T, s store.Store, tick func()) {
	t.Helper()
	put := func(queue string, ms ...store.Message) {
		require.NoError(t, s.Put(t.Context(), queue, ms...))
		tick()
	}
	for i, d := range []struct {
		cause           store.Cause
		provider, error string
	}{
		{store.Permanent, "north", "card 4711 is expired, and the bank has closed the account that it belonged to"},
		{store.Exhausted, "north", "connection refused"},
		{store.Exhausted, "south", "connection refused"},
		{store.UnsafeToRepeat, "south", "no answer"},
		{store.Undecodable, "", "invalid character 'x' looking for beginning of value"},
		{store.Exhausted, "north", "line one\nline two\x1b[31mred\x1b[0m \u202ereversed"},
		{store.Permanent, "北の銀行", "口座がありません"},
	} {
		origin := message.Origin{Source: "orders", Partition: "0", Position: fmt.Sprint(17 + i)}
		m := store.Message{
			Cause: d.cause, Payload: fmt.Appendf(nil, `{"order":%d,"cents":%d}`, i+1, 1000*(i+1)),
			Meta: message.Meta{
				ID: origin.ID(), Key: fmt.Sprint("customer-", i%3), Origin: origin, Provider: d.provider, LastError: d.error,
				Visit: 3, Attempts: 10 + i, FirstFailure: begin.Add(-time.Hour), LastFailure: begin,
				UnsafeToRepeat: d.cause == store.UnsafeToRepeat,
			},
		}
		switch d.cause {
		case store.Exhausted:
			m.Meta.Reasons = []string{"CONNECTION_NOT_ESTABLISHED", "TIMED_OUT_IN_FLIGHT"}
		case store.Undecodable:
			m.Payload = []byte{0, 'x', 0xff, 27}
		}
		put("orders-dead", m)
	}
	put("orders-dead", store.Message{
		Cause: store.Exhausted, Payload: []byte("two\nlines\tand \x1b[2Ja clear"),
		Meta: message.Meta{
			ID: "evil\x1b]0;title\x07", Merges: 5, Visit: 1, LastError: "evil",
			Headers: map[string]string{"trace": "abc", "note": "a\nb"},
			Timeline: []message.Step{
				{Visit: 1, Attempt: 1, Begun: begin, Took: 1234567 * time.Microsecond, Wait: 200 * time.Millisecond, Retried: true, Reason: "SERVICE_UNAVAILABLE", Backend: "up", Error: "503 Service Unavailable, and a long text about that which goes on"},
				{Visit: 1, Attempt: 4, Begun: begin.Add(time.Minute), Took: 30 * time.Second, Backend: "down", Error: "evil\x1b[2J\n"},
				{Visit: 2, Attempt: 1, Begun: begin.Add(time.Hour), Took: 3 * time.Microsecond, Error: "口座がありません"},
			},
		},
	})
	put("orders-retry-1", store.Message{Meta: message.Meta{ID: "a"}, Delay: time.Minute}, store.Message{Meta: message.Meta{ID: "b"}, Delay: 2 * time.Minute})
	put("orders-retry-2", store.Message{Meta: message.Meta{ID: "c"}, Delay: time.Hour})
	put("outbox", store.Message{Meta: message.Meta{ID: "receipt/1"}}, store.Message{Meta: message.Meta{ID: "receipt/2"}})
}

// seedKeys stores a finished request, a request that failed after a step, and a request
// whose process died.
func seedKeys(t *testing.T, db *sql.DB, now clock.Clock, tick func()) {
	t.Helper()
	k := keys.New(db, keys.SQLite, keys.Config{Clock: now})
	o := k.Operation("book_ride", func(ctx context.Context, run *keys.Run) (exactlyonce.Response, error) {
		if err := run.Phase(ctx, "ride_created", func(context.Context, *sql.Tx) error { return nil }); err != nil {
			return exactlyonce.Response{}, err
		}
		if run.Key != "key-1" {
			return exactlyonce.Response{}, errors.New("no answer")
		}
		return keys.JSON(201, "done")
	})
	for _, r := range []keys.Request{{User: "alice", Key: "key-1"}, {User: "alice", Key: "key-2"}, {User: "bob", Key: "key-3\x1b"}} {
		_, err := o.Do(t.Context(), r)
		require.Equal(t, r.Key == "key-1", err == nil, "%v", err)
		tick()
	}
	_, err := db.Exec("UPDATE weir_keys SET locked_at = last_run_at WHERE principal = 'bob'")
	require.NoError(t, err)
}

// varying matches values that are random or depend on the time of the test.
var (
	varying = regexp.MustCompile(`\b\d+d(\d+h)?\b|\bheld +\d+s\b|\b59m(\d+s)?|"(age|lease)Seconds":[0-9.e+]+|"id":"[0-9a-f]{32}"`)
	gaps    = regexp.MustCompile(`  +`)
)

// normal hides varying values. If s has any, it also hides the widths of columns.
func normal(s string) string {
	if !varying.MatchString(s) {
		return s
	}
	return gaps.ReplaceAllString(varying.ReplaceAllStringFunc(s, func(found string) string {
		name, _, _ := strings.Cut(found, ":")
		if name == found {
			return "AGE"
		}
		return name + ":X"
	}), "  ")
}

// golden compares a text with a file in testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, string(want), got)
}

// Output of the read-only commands.
func TestOutput(t *testing.T) {
	t.Parallel()
	dir := seed(t)
	for name, test := range map[string]struct {
		columns string
		args    string
	}{
		"list":           {"", "dead list"},
		"list-80":        {"80", "dead list"},
		"list-40":        {"40", "dead list"},
		"list-cause":     {"", "dead list --cause exhausted --provider north"},
		"list-page":      {"", "dead list --max 2 --after 3"},
		"list-error":     {"", "dead list --error refused --since 2026-01-02T03:05:00Z --before 2026-01-02"},
		"list-none":      {"", "dead list --queue nothing"},
		"list-json":      {"", "dead list --max 2 --json"},
		"list-odd-json":  {"", "dead list --json orders/0/22"},
		"show":           {"", "dead show orders/0/18"},
		"show-binary":    {"", "dead show orders/0/21"},
		"show-evil":      {"80", "dead show evil\x1b]0;title\x07"},
		"show-json":      {"", "dead show --json orders/0/21"},
		"show-none":      {"", "dead show nothing"},
		"count":          {"", "dead count"},
		"count-json":     {"", "dead count --json --key customer-1"},
		"count-none":     {"", "dead count --id nothing"},
		"export":         {"", "dead export --cause permanent"},
		"layers":         {"", "layers"},
		"layers-50":      {"50", "layers"},
		"layers-json":    {"", "layers --json"},
		"layers-one":     {"", "layers orders-dead nothing"},
		"outbox":         {"", "outbox"},
		"outbox-named":   {"80", "outbox orders-dead"},
		"outbox-json":    {"", "outbox --json"},
		"requests":       {"", "requests"},
		"requests-80":    {"80", "requests --all"},
		"requests-json":  {"", "requests --all --json --user alice"},
		"requests-page":  {"", "requests --max 1"},
		"requests-none":  {"", "requests --operation nothing"},
		"keys":           {"", "keys orders"},
		"keys-50":        {"50", "keys orders --max 2"},
		"keys-json":      {"", "keys orders --json --contains mer-1"},
		"keys-name":      {"", "keys orders -o name"},
		"keys-none":      {"", "keys orders --contains nothing"},
		"usage-keys":     {"", "keys"},
		"usage-keys-max": {"", "keys orders --max -1"},
		"help-nothing":   {"", ""},
		"help-dead":      {"", "dead"},
		"list-wide":      {"60", "dead list -o wide --max 1"},
		"list-name":      {"20", "dead list -o name --max 2"},
		"layers-name":    {"", "layers -o name"},
		"usage-below":    {"", "dead lst"},
		"usage-cause":    {"", "dead list --cause permanant"},
		"usage-number":   {"", "dead list --max many"},
		"usage-value":    {"", "dead list --max"},
		"usage-format":   {"", "dead list -o xml"},
		"usage-none":     {"", "dead count orders"},
		"usage-command":  {"", "ded list"},
		"usage-flag":     {"", "dead list -quue x"},
		"usage-time":     {"", "dead list --since yesterday"},
		"usage-show":     {"", "dead show"},
		"usage-purge":    {"", "dead purge"},
		"usage-both":     {"", "dead purge --queue orders-dead --all --key x"},
		"usage-merge":    {"", "dead merge"},
		"usage-to":       {"", "dead merge --queue orders-dead --to orders-dead"},
		"usage-asked":    {"", "dead purge --queue orders-dead --all"},
		"help":           {"", "-h"},
		"help-list":      {"", "help dead list"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := command(t, dir, strings.Fields(test.args)...)
			if test.columns != "" {
				cmd.Env = append(cmd.Env, "COLUMNS="+test.columns)
			}
			r := execute(t, cmd)
			golden(t, name+".txt", normal(fmt.Sprintf("$ weir %q\n%s---- stderr, status %d\n%s", test.args, r.stdout, r.status, r.stderr)))
			assert.NotRegexp(t, "[\x00-\x08\x0b-\x1f\x7f\u202e]", r.stdout+r.stderr, "control characters")
			switch {
			case strings.HasPrefix(name, "usage-"):
				assert.Equal(t, exitUsage, r.status)
				assert.Empty(t, r.stdout)
			case name == "show-none", name == "list-none", name == "layers-one":
				assert.Equal(t, exitFailed, r.status)
			default:
				assert.Equal(t, exitOK, r.status)
			}
		})
	}
}

// A purge removes only the selected messages and prints correct numbers.
func TestPurge(t *testing.T) {
	dir := seed(t)
	assert.Equal(t, result{"4 messages removed\n", "", 0}, execute(t, command(t, dir, "dead", "purge", "--queue", "orders-dead", "--cause", "exhausted", "--yes")))
	assert.Equal(t, result{"1 message removed\n", "", 0}, execute(t, command(t, dir, "dead", "purge", "--queue", "orders-dead", "orders/0/17", "--yes")))
	assert.Equal(t, result{"", "weir: queue \"orders-dead\" has no message \"orders/0/17\"\n", 1}, execute(t, command(t, dir, "dead", "purge", "--queue", "orders-dead", "orders/0/17", "orders/0/23", "--yes", "--json")))
	assert.Equal(t, result{`{"purged":0}` + "\n", "", 0}, execute(t, command(t, dir, "dead", "purge", "--queue", "orders-dead", "--key", "nobody", "--yes", "--json")))
	assert.Contains(t, execute(t, command(t, dir, "dead", "count")).stdout, "all                             3\n")
	assert.Equal(t, result{"3 messages removed\n", "", 0}, execute(t, command(t, dir, "dead", "purge", "--queue", "orders-dead", "--all", "--yes")))
	assert.Equal(t, result{"0 messages removed\n", "", 0}, execute(t, command(t, dir, "dead", "purge", "--queue", "orders-dead", "--all")), "nothing to ask about")
	assert.Contains(t, execute(t, command(t, dir, "layers")).stdout, "orders-retry-1         2", "other queues are as before")
}

// An unfinished request can be ended by hand. Its client receives the reason.
func TestEndOfARequestWithAKey(t *testing.T) {
	dir := seed(t)
	end := func(args ...string) result {
		return execute(t, command(t, dir, append([]string{"requests", "end"}, args...)...))
	}
	assert.Equal(t, result{"", "weir: 2 unfinished requests match: choose one with --key, --user or --operation\n", exitFailed},
		end("--operation", "book_ride", "--reason", "lost", "--yes"))
	assert.Equal(t, result{"", "weir: no unfinished request matches\n", exitFailed}, end("--key", "key-1", "--reason", "lost", "--yes"), "it is finished")
	assert.Equal(t, exitUsage, end("--key", "key-2").status)
	assert.Equal(t, exitUsage, end("--reason", "lost").status)
	asked := end("--key", "key-2", "--reason", "lost")
	assert.Equal(t, exitUsage, asked.status)
	assert.Contains(t, asked.stderr, `End the request "key-2" of "alice" (book_ride, at ride_created, runs: 1)?`)

	assert.Equal(t, result{"The request has been ended\n", "", 0}, end("--user", "alice", "--key", "key-2", "--reason", "the ride was booked by phone", "--yes"))
	assert.NotContains(t, execute(t, command(t, dir, "requests")).stdout, "key-2")
	db, err := sqlite.OpenDB(t.Context(), filepath.Join(dir, "orders.db"))
	require.NoError(t, err)
	defer db.Close()
	k := keys.New(db.Writer(), keys.SQLite, keys.Config{})
	o := k.Operation("book_ride", func(context.Context, *keys.Run) (exactlyonce.Response, error) { panic("it runs again") })
	answer, err := o.Do(t.Context(), keys.Request{User: "alice", Key: "key-2"})
	require.NoError(t, err)
	assert.Equal(t, http.StatusGone, answer.Status)
	assert.Equal(t, "application/problem+json", answer.Header.Get("Content-Type"))
	assert.JSONEq(t, `{"title":"Gone","status":410,"detail":"the ride was booked by phone"}`, string(answer.Body))
}

// A queue that is unknown in the database is probably mistyped.
func TestQueue_Unknown(t *testing.T) {
	dir := seed(t)
	for _, args := range [][]string{
		{"dead", "list", "--queue", "nope"},
		{"dead", "count", "--queue", "nope"},
		{"dead", "groups", "--queue", "nope"},
		{"dead", "purge", "--queue", "nope", "--all", "--yes"},
		{"layers", "nope"},
		{"layers", "--json", "nope"},
		{"due", "--queue", "nope", "--all", "--yes"},
		{"dead", "merge", "--queue", "nope", "--to", "orders", "--yes"},
	} {
		r := execute(t, command(t, dir, args...))
		assert.Equal(t, exitFailed, r.status, args)
		assert.Empty(t, r.stdout, args)
		assert.Contains(t, r.stderr, `queue "nope" has no messages and no workers: the queues are "orders-dead", "orders-retry-1", "orders-retry-2", `, args)
	}
	// Existing queues may be empty for a while.
	engine, err := sqlite.Open(t.Context(), filepath.Join(dir, "orders.db"), sqlite.WithLogger(slog.New(slog.DiscardHandler)))
	require.NoError(t, err)
	defer engine.Close()
	require.NoError(t, engine.Put(t.Context(), "bills-retry-1", store.Message{Meta: message.Meta{ID: "1"}}))
	for _, queue := range []string{"bills", "bills-dead", "bills-retry-2"} {
		r := execute(t, command(t, dir, "dead", "list", "--queue", queue))
		assert.Equal(t, 0, r.status, r.stderr)
		r = execute(t, command(t, dir, "layers", queue))
		assert.Equal(t, 0, r.status, r.stderr)
	}
}

// A call for a lapsed message may have taken effect before its worker died. So a merge
// counts these messages before it asks, and leaves them unless --lapsed is given.
func TestMerge_LapsedMessages(t *testing.T) {
	dir := seed(t)
	engine, err := sqlite.Open(t.Context(), filepath.Join(dir, "orders.db"), sqlite.WithLogger(slog.New(slog.DiscardHandler)))
	require.NoError(t, err)
	defer engine.Close()
	require.NoError(t, engine.Put(t.Context(), "bills", store.Message{Meta: message.Meta{ID: "0"}}))
	require.NoError(t, engine.Put(t.Context(), "bills-dead",
		store.Message{Meta: message.Meta{ID: "1"}, Cause: store.Exhausted},
		store.Message{Meta: message.Meta{ID: "2"}, Cause: store.Lapsed},
		store.Message{Meta: message.Meta{ID: "3"}, Cause: store.Lapsed},
		store.Message{Meta: message.Meta{ID: "4", UnsafeToRepeat: true}, Cause: store.UnsafeToRepeat},
	))
	merge := func(more ...string) result {
		return execute(t, command(t, dir, append([]string{"dead", "merge", "--queue", "bills-dead", "--to", "bills"}, more...)...))
	}
	r := merge()
	assert.Equal(t, exitUsage, r.status, "standard input is no terminal")
	assert.Contains(t, r.stderr, "1 message: in doubt, since a call may have taken effect. They stay (--unsafe-to-repeat sends them back, too)\n")
	assert.Contains(t, r.stderr, "2 messages: lapsed, since their workers died or hung. A call may have taken effect. They stay (--lapsed sends them back, too)\n")
	r = merge("--yes")
	assert.Equal(t, 0, r.status, r.stderr)
	assert.Contains(t, r.stdout, "1 message sent back")
	assert.Contains(t, r.stdout, "2 messages stayed: their workers died or hung")
	r = execute(t, command(t, dir, "dead", "show", "--queue", "bills-dead", "2"))
	assert.Contains(t, r.stdout, "repetition      look first: it is not known how far its workers came\n")
	r = merge("--lapsed")
	assert.Contains(t, r.stderr, "2 messages: lapsed, since their workers died or hung. A call may have taken effect. They are sent back, too (--lapsed)\n")
	r = merge("--lapsed", "--yes", "--json")
	assert.Equal(t, `{"merged":2,"looping":0,"unsafeToRepeat":1,"lapsed":0,"busy":0}`+"\n", r.stdout)
}

// A merge into an empty queue needs no --to-empty if a worker reads the queue, or if the
// dead letters are its own.
func TestMerge_IntoAnEmptyQueueThatIsRead(t *testing.T) {
	dir := seed(t)
	engine, err := sqlite.Open(t.Context(), filepath.Join(dir, "orders.db"), sqlite.WithLogger(slog.New(slog.DiscardHandler)))
	require.NoError(t, err)
	defer engine.Close()
	require.NoError(t, engine.Put(t.Context(), "bills-dead", store.Message{Meta: message.Meta{ID: "1"}, Cause: store.Exhausted}))
	r := execute(t, command(t, dir, "dead", "merge", "--queue", "bills-dead", "--all", "--to", "bills", "--yes"))
	assert.Equal(t, result{"1 message sent back to \"bills\"\n", "", 0}, r)

	args := []string{"dead", "merge", "--queue", "orders-dead", "--all", "--to", "sales", "--yes"}
	assert.Equal(t, exitUsage, execute(t, command(t, dir, args...)).status)
	j, err := jobs.New(engine, jobs.Config{Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		j.Work(ctx, func() jobs.Worker { return jobs.Worker{Queues: []string{"sales"}} }, nil)
	}()
	defer func() { stop(); <-ended }()
	require.Eventually(t, func() bool {
		list, err := j.Workers(t.Context())
		return err == nil && len(list) == 1
	}, time.Minute, 10*time.Millisecond)
	r = execute(t, command(t, dir, args...))
	assert.Equal(t, 0, r.status, r.stderr)
	assert.Equal(t, exitUsage, execute(t, command(t, dir, append(args, "--provider", "north")...)).status, "a choice and --all")
}

func TestMerge(t *testing.T) {
	dir := seed(t)
	r := execute(t, command(t, dir, "dead", "merge", "--queue", "orders-dead", "--to", "order", "--provider", "north"))
	assert.Equal(t, result{"", "weir: queue \"order\" is empty or new, and no worker reads it now: if the program reads this queue, add --to-empty\n", exitUsage}, r)
	assert.Equal(t, r, execute(t, command(t, dir, "dead", "merge", "--queue", "orders-dead", "--to", "order", "--provider", "north", "--yes")), "a name may be mistyped")
	r = execute(t, command(t, dir, "dead", "merge", "--queue", "orders-dead", "--to", "order", "--provider", "north", "--to-empty"))
	assert.Equal(t, exitUsage, r.status)
	assert.Equal(t, "weir: Send 3 messages of queue \"orders-dead\" back to \"order\"? Standard input is no terminal: answer with --yes\n", r.stderr)
	r = execute(t, command(t, dir, "dead", "merge", "--queue", "orders-dead", "--to", "orders", "nobody", "orders/0/18", "--yes"))
	assert.Equal(t, result{"", "weir: queue \"orders-dead\" has no message \"nobody\"\n", exitFailed}, r)
	r = execute(t, command(t, dir, "dead", "merge", "--queue", "orders-dead", "--to", "orders", "orders/0/18", "--key", "else", "--yes"))
	assert.Equal(t, result{"", "weir: queue \"orders-dead\" has no message \"orders/0/18\" that the other flags choose\n", exitFailed}, r)

	assert.Equal(t, result{"2 messages sent back to \"orders\"\n", "", 0},
		execute(t, command(t, dir, "dead", "merge", "--queue", "orders-dead", "--to", "orders", "--provider", "north", "--max", "2", "--yes")))
	assert.Equal(t, result{`{"merged":4,"looping":1,"unsafeToRepeat":1,"lapsed":0,"busy":0}` + "\n", "", 0},
		execute(t, command(t, dir, "dead", "merge", "--queue", "orders-dead", "--to", "orders", "--yes", "--json")))
	assert.Equal(t, result{`0 messages sent back to "orders"
1 message stayed: unsafe to repeat (--unsafe-to-repeat sends them back, too)
1 message stayed: merged 5 times already (--max-merges)
`, "", 0}, execute(t, command(t, dir, "dead", "merge", "--queue", "orders-dead", "--to", "orders", "--yes")))
	// The old name of a flag is accepted with a warning.
	assert.Equal(t, result{"2 messages sent back to \"orders\"\n", "weir: --outcome-unknown is now --unsafe-to-repeat\n", 0},
		execute(t, command(t, dir, "dead", "merge", "--queue", "orders-dead", "--to", "orders", "--yes", "--outcome-unknown", "--max-merges", "6", "--rate", "1000")))
	assert.Equal(t, result{"", "No message of queue \"orders-dead\" matches.\n", 0}, execute(t, command(t, dir, "dead", "list", "--queue", "orders-dead")))
	assert.Contains(t, execute(t, command(t, dir, "layers", "orders")).stdout, "orders         8")
}

// Exported messages are unchanged after one import, and after two.
func TestExportAndImport(t *testing.T) {
	dir := seed(t)
	exported := execute(t, command(t, dir, "dead", "export"))
	assert.Equal(t, "Queue orders-dead:\n8 messages written\n", exported.stderr)
	file := filepath.Join(t.TempDir(), "dead.jsonl")
	require.NoError(t, os.WriteFile(file, []byte(exported.stdout), 0o600))

	other := seed(t)
	execute(t, command(t, other, "dead", "purge", "--queue", "orders-dead", "--all", "--yes"))
	assert.Equal(t, result{"8 messages read: 8 new\n", "", 0}, execute(t, command(t, other, "dead", "import", "--queue", "orders-dead", file)))
	assert.Equal(t, result{"8 messages read: 0 new, 8 there already (--replace replaces them)\n", "", 0}, execute(t, command(t, other, "dead", "import", "--queue", "orders-dead", file)))
	cmd := command(t, other, "dead", "import", "--queue", "orders-dead", "-", "--json")
	cmd.Stdin = strings.NewReader(exported.stdout)
	assert.Equal(t, result{`{"read":8,"new":0,"replaced":0}` + "\n", "", 0}, execute(t, cmd))
	due := regexp.MustCompile(`"due":"[^"]*",`) // a store sets it when a message arrives
	without := func(s string) string { return due.ReplaceAllString(s, "") }
	assert.Equal(t, without(exported.stdout), without(execute(t, command(t, other, "dead", "export")).stdout))

	cmd = command(t, other, "dead", "import", "--queue", "orders-dead", "-")
	cmd.Stdin = strings.NewReader(exported.stdout[:strings.Index(exported.stdout, "\n")+1] + "nonsense\n")
	r := execute(t, cmd)
	assert.Equal(t, exitFailed, r.status)
	assert.Equal(t, "1 message read: 0 new, 1 there already (--replace replaces them)\n", r.stdout)
	assert.Contains(t, r.stderr, "line 2")
	assert.Equal(t, exitFailed, execute(t, command(t, other, "dead", "import", "--queue", "orders-dead", "no such file")).status)
}

// With --replace, imported messages replace existing ones, and the others stay unchanged.
func TestImportReplaces(t *testing.T) {
	dir := seed(t)
	first, _, _ := strings.Cut(execute(t, command(t, dir, "dead", "export")).stdout, "\n")
	file := filepath.Join(dir, "changed.jsonl")
	changed := strings.Replace(first, "card 4711 is expired", "card 4712 is expired", 1)
	require.NotEqual(t, first, changed)
	require.NoError(t, os.WriteFile(file, []byte(changed+"\n"), 0o600))
	assert.Equal(t, result{"1 message read: 0 new, 1 there already (--replace replaces them)\n", "", 0}, execute(t, command(t, dir, "dead", "import", "--queue", "orders-dead", file)))
	assert.NotContains(t, execute(t, command(t, dir, "dead", "export")).stdout, "card 4712 is expired")
	assert.Equal(t, result{"1 message read: 0 new, 1 replaced\n", "", 0}, execute(t, command(t, dir, "dead", "import", "--queue", "orders-dead", file, "--replace")))
	after := execute(t, command(t, dir, "dead", "export"))
	assert.Contains(t, after.stdout, "card 4712 is expired")
	assert.Equal(t, "Queue orders-dead:\n8 messages written\n", after.stderr)
}

// No line of help is wider than a terminal, and every text is ours rather than a
// library's.
func TestHelp(t *testing.T) {
	t.Parallel()
	a := &app{}
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		r := execute(t, command(t, t.TempDir(), append(strings.Fields(c.CommandPath())[1:], "-h")...))
		assert.Zero(t, r.status)
		for line := range strings.SplitSeq(r.stdout, "\n") {
			assert.LessOrEqual(t, len([]rune(line)), helpWidth, "%s: %s", c.CommandPath(), line)
		}
		for _, below := range c.Commands() {
			visit(below)
		}
	}
	visit(a.commands())
	for _, flag := range []string{"--version", "--version"} {
		r := execute(t, command(t, t.TempDir(), flag))
		assert.Regexp(t, `^weir version \S+\n$`, r.stdout)
		assert.Zero(t, r.status)
	}
}

// A table longer than a page is written page by page, so that it need not be in memory.
func TestListIsNotKept(t *testing.T) {
	dir := seed(t)
	ids := make([]string, 2*pageSize)
	for i := range ids {
		ids[i] = fmt.Sprint("message ", i)
	}
	put(t, dir, ids...)
	r := execute(t, command(t, dir, "dead", "list", "--max", "0"))
	lines := strings.Split(strings.TrimSuffix(r.stdout, "\n"), "\n")
	require.Len(t, lines, 1+8+len(ids), "one header")
	at := strings.Index(lines[0], "CAUSE")
	for _, line := range []string{lines[9], lines[pageSize+50], lines[len(lines)-1]} {
		assert.Equal(t, at, strings.Index(line, "permanent"), line)
	}

	read, write, err := os.Pipe()
	require.NoError(t, err)
	defer read.Close()
	a := &app{out: write, env: func(string) string { return "" }}
	p := pages{app: a, columns: listColumns}
	row := []string{when(begin), "id", "permanent", "1", "", ""}
	go func() {
		assert.NoError(t, p.write([][]string{row}))
		assert.NoError(t, p.write([][]string{row}))
		assert.NoError(t, write.Close())
	}()
	out, err := io.ReadAll(read)
	require.NoError(t, err)
	assert.Equal(t, 1, strings.Count(string(out), "ARRIVED"))
}

// After a table was dropped, the error contains a helpful hint.
func TestDroppedTable(t *testing.T) {
	dir := seed(t)
	drop := func(statement string) {
		db, err := sqlite.OpenDB(t.Context(), filepath.Join(dir, "orders.db"))
		require.NoError(t, err)
		defer db.Close()
		_, err = db.Writer().ExecContext(t.Context(), statement)
		require.NoError(t, err)
	}
	drop("DROP TABLE weir_messages")
	r := execute(t, command(t, dir, "dead", "list"))
	assert.Equal(t, exitFailed, r.status)
	statement := regexp.MustCompile(`DELETE FROM weir_migrations WHERE component = '\w+'`).FindString(r.stderr)
	require.NotEmpty(t, statement, r.stderr)
	drop(statement)
	file := filepath.Join(dir, "none.jsonl")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	assert.Zero(t, execute(t, command(t, dir, "dead", "import", "--queue", "orders-dead", "--create", file)).status)
	assert.Zero(t, execute(t, command(t, dir, "dead", "list")).status)
}

func TestOneLine(t *testing.T) {
	for text, want := range map[string]string{"": "", "a": "a", "a\nb": "a; b", "failed:\n\thost a\n\thost b\n": "failed: host a; host b"} {
		assert.Equal(t, want, oneLine(text))
	}
}

// The command creates neither databases nor tables.
func TestOpen_WrongDatabase(t *testing.T) {
	dir := t.TempDir()
	run := func(args ...string) result { return execute(t, command(t, dir, args...)) }
	r := run("dead", "list")
	assert.Equal(t, exitFailed, r.status)
	assert.Contains(t, r.stderr, "start the program once, or run weir dead import --create: stat ")
	assert.NoFileExists(t, filepath.Join(dir, "orders.db"))
	assert.Contains(t, run("layers", "--db", "sqlite://.").stderr, "is not a file")

	require.NoError(t, os.WriteFile(filepath.Join(dir, "orders.db"), nil, 0o600))
	for _, args := range [][]string{{"dead", "list"}, {"layers"}, {"outbox"}, {"requests"}, {"keys", "orders"}} {
		r := run(args...)
		assert.Equal(t, exitFailed, r.status, args)
		assert.Contains(t, r.stderr, "start the program once, or, for queues, run weir dead import --create: ", args)
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "text"), bytes.Repeat([]byte("no database "), 1000), 0o600))
	assert.Equal(t, exitFailed, run("layers", "--db", "sqlite:text").status)

	for _, url := range []string{"mysql://u:secret@h/d", "orders.db", "postgres://u:sec ret%zz@h/d", "postgres://u:secret@h:port/d", "postgres://u:secret@h/d?sslmode=what"} {
		r := run("layers", "--db", url)
		assert.Equal(t, exitUsage, r.status, r.stderr)
		assert.Contains(t, r.stderr, "the URL of the database ")
		assert.NotContains(t, r.stderr, "sec")
	}
	cmd := command(t, dir, "layers")
	cmd.Env = append(cmd.Env, "WEIR_DB=")
	assert.Equal(t, result{"", "weir: which database? Give --db URL, or set WEIR_DB (-h for help)\n", exitUsage}, execute(t, cmd))
}

// Errors never contain passwords in any form.
func TestErrors_NoPasswords(t *testing.T) {
	dir := t.TempDir()
	for _, url := range []string{
		"postgres://u:s3cr3t%2Fpw@127.0.0.1:1/d", "postgres://u:s3cr3t@127.0.0.1:1/d?application_name=a@b",
		"postgres://127.0.0.1:1/d?user=u&password=s3cr3t", "postgres://u:s3cr3t/x@127.0.0.1:1/d",
		"nats://u:s3cr3t@127.0.0.1:1/d", "nats://s3cr3t@127.0.0.1:1/d", "kafka://u:s3cr3t@127.0.0.1:1",
	} {
		for _, args := range [][]string{{"layers", "--db", url}, {url}, {"dead", url}, {"dead", "import", "--queue", "orders-dead", url, "--db", url}} {
			r := execute(t, command(t, dir, args...))
			assert.NotZero(t, r.status)
			assert.NotEmpty(t, r.stderr)
			assert.NotContains(t, r.stdout+r.stderr, "s3cr3t", args)
		}
	}
}

// Errors stored by other programs are shown without the secrets of URLs.
func TestDead_NoSecretsOfStoredErrors(t *testing.T) {
	dir := t.TempDir()
	s, err := sqlite.Open(t.Context(), filepath.Join(dir, "orders.db"))
	require.NoError(t, err)
	const failure = "https://ann:s3cret@pay is down"
	require.NoError(t, s.Put(t.Context(), "orders-dead", store.Message{Cause: store.Exhausted, Meta: message.Meta{
		ID: "a", LastError: failure, Timeline: []message.Step{{Visit: 1, Attempt: 1, Error: failure}},
	}}))
	require.NoError(t, s.Close())
	for _, args := range []string{"list", "list --json", "show a", "show a --json", "groups", "groups --json"} {
		r := execute(t, command(t, dir, append([]string{"dead"}, strings.Fields(args)...)...))
		assert.Zero(t, r.status, r.stderr)
		assert.Contains(t, r.stdout, "https://ann:xxxxx@pay is down", args)
		assert.NotContains(t, r.stdout, "s3cret", args)
	}
}

// Law J3: output is escaped.
func TestEscaped(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "plain": "plain", "größe 北": "größe 北", "a\nb\tc": `a\nb\tc`, "\x1b[31m": `\x1b[31m`, "\xff\x00": `\xff\x00`,
		"\u202e": `\u202e`, "\ufffd": `�`, "\u00a0": `\u00a0`, "\x7f": `\x7f`, `back\slash`: `back\slash`,
	} {
		assert.Equal(t, want, escaped(text))
	}
	assert.Equal(t, "a\n\tb\\x1b", escapedLines("a\n\tb\x1b"))

	const odd = "\u202e\u009b\x7f\U000e0001北"
	marshaled, err := json.Marshal(odd)
	require.NoError(t, err)
	line := escapedJSON(string(marshaled))
	assert.Equal(t, `"\u202e\u009b\u007f\udb40\udc01北"`, line)
	var back string
	require.NoError(t, json.Unmarshal([]byte(line), &back))
	assert.Equal(t, odd, back)
}

func TestAge(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 999 * time.Millisecond: "0s", 59 * time.Second: "59s", time.Minute: "1m", 61 * time.Second: "1m1s", time.Hour: "1h",
		90 * time.Minute: "1h30m", 24 * time.Hour: "1d", 49 * time.Hour: "2d1h", 1000 * time.Hour: "41d", -time.Minute: "-1m",
	} {
		assert.Equal(t, want, age(d))
	}
}

func TestShortened(t *testing.T) {
	for width, want := range map[int]string{6: "ab北京", 5: "ab北…", 4: "ab…", 3: "ab…", 2: "a…", 1: "…"} {
		assert.Equal(t, want, ellipsis("ab北京", width), width)
	}
}

func TestFit(t *testing.T) {
	columns := []column{{least: 4}, {}, {least: 2}}
	for limit, want := range map[int][]int{
		100: {20, 5, 10}, 39: {20, 5, 10}, 38: {19, 5, 10}, 27: {9, 5, 9}, 15: {4, 5, 2}, 14: {4, 5, 1}, 10: {4, 2, 0}, 4: {0, 0, 0}, 1: {0, 0, 0},
	} {
		widths := []int{20, 5, 10}
		fit(columns, widths, limit)
		assert.Equal(t, want, widths, limit)
	}
}

// The command knows every cause, because filters accept only known causes.
func TestCauses_AllAreKnown(t *testing.T) {
	source, err := os.ReadFile("../../delivery/store/message.go")
	require.NoError(t, err)
	var causes []string
	for _, found := range regexp.MustCompile(`Cause += "([^"]+)"`).FindAllStringSubmatch(string(source), -1) {
		causes = append(causes, store.Cause(found[1]).String())
	}
	require.NotEmpty(t, causes)
	assert.Equal(t, causes, knownCauses)
}

// The stored name of a cause selects the same messages as the displayed name.
func TestFilter_StoredNameOfACause(t *testing.T) {
	dir := seed(t)
	shown := execute(t, command(t, dir, "dead", "list", "--cause", "unsafe to repeat"))
	assert.Contains(t, shown.stdout, "orders/0/20")
	assert.Equal(t, shown, execute(t, command(t, dir, "dead", "list", "--cause", "outcome unknown")))
}

func put(t *testing.T, dir string, ids ...string) {
	t.Helper()
	db, err := sqlite.OpenDB(t.Context(), filepath.Join(dir, "orders.db"))
	require.NoError(t, err)
	defer db.Close()
	var ms []store.Message
	for _, id := range ids {
		ms = append(ms, store.Message{Meta: message.Meta{ID: id}, Cause: store.Permanent})
	}
	require.NoError(t, sqlite.New(db).Put(t.Context(), "orders-dead", ms...))
}
