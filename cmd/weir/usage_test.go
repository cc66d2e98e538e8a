package main

import (
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/message"
)

// Mistakes get an error that names the remedy.
func TestUsage_Mistakes(t *testing.T) {
	dir := t.TempDir()
	engine, err := sqlite.Open(t.Context(), filepath.Join(dir, "orders.db"))
	require.NoError(t, err)
	require.NoError(t, engine.Close())
	for args, want := range map[string]string{
		"layers --db shop.db":                  `the URL of the database must begin with sqlite:, postgres://, nats://, tls:// or kafka://: did you mean sqlite:shop.db?`,
		"layers --db sqlite:orders.db?mode=ro": "use sqlite:orders.db\n",
		"merge":                                "did you mean dead merge?",
		"backend limit bank -5":                "-5 is a negative number: it must be 0 or more",
		"requests":                             "keys.Keys.Migrate makes it",
	} {
		r := execute(t, command(t, dir, strings.Fields(args)...))
		assert.NotZero(t, r.status, args)
		assert.Contains(t, r.stderr, want, args)
	}
	for _, secret := range []string{"user=u password=hunter2", "u:hunter2@db/x"} {
		r := execute(t, command(t, dir, "layers", "--db", secret))
		assert.NotZero(t, r.status)
		assert.NotContains(t, r.stderr, "hunter2")
	}
}

// The name of a backend that no worker has is probably a mistake.
func TestBackendOrders_UnknownBackend(t *testing.T) {
	dir := t.TempDir()
	engine, err := sqlite.Open(t.Context(), filepath.Join(dir, "orders.db"))
	require.NoError(t, err)
	defer engine.Close()
	j, err := jobs.New(engine, jobs.Config{})
	require.NoError(t, err)
	run := func(args ...string) result { return execute(t, command(t, dir, args...)) }

	first := run("backend", "hold", "llm", "--why", "they migrate")
	assert.Zero(t, first.status, "no backend is known yet: %s", first.stderr)
	for _, order := range [][]string{{"hold", "llmm"}, {"resume", "llmm"}, {"limit", "llmm", "5"}} {
		r := run(append([]string{"backend"}, order...)...)
		assert.NotZero(t, r.status, order)
		assert.Contains(t, r.stderr, `no worker has a backend "llmm": the backends are "llm"`)
	}
	orders, err := j.BackendOrders(t.Context())
	require.NoError(t, err)
	require.Len(t, orders, 1)
	later := run("backend", "hold", "llmm", "--new")
	assert.Zero(t, later.status, later.stderr)
	assert.Contains(t, later.stdout, "Backend llmm is held: 0 workers have it\n")
}

// A narrow terminal shows who and why rather than hashes, years and seconds.
func TestTable_Narrow(t *testing.T) {
	dir := t.TempDir()
	engine, err := sqlite.Open(t.Context(), filepath.Join(dir, "orders.db"))
	require.NoError(t, err)
	defer engine.Close()
	queue := delivery.NewQueue[int](engine, "orders", delivery.WithLogger(slog.New(slog.DiscardHandler)))
	require.NoError(t, queue.Put(t.Context(), 1))
	narrowed := func(args ...string) string {
		cmd := command(t, dir, args...)
		cmd.Env = append(cmd.Env, "COLUMNS=80")
		r := execute(t, cmd)
		require.Zero(t, r.status, r.stderr)
		return r.stdout
	}
	narrowed("queue", "pause", "orders", "--by", "hopper", "--why", "the bank moves")
	narrowed("backend", "resume", "payments", "--by", "hopper", "--why", "the bank is back")
	log := narrowed("log")
	assert.Regexp(t, `\d\d-\d\d \d\d:\d\dZ +pause .*hopper +the bank mo`, log)
	assert.Regexp(t, `resume .*payments .*hopper +the bank is`, log)
	assert.NotContains(t, log, "HASH")
	for line := range strings.Lines(log) {
		assert.LessOrEqual(t, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")), 80, line)
	}
	wide := narrowed("log", "-o", "wide")
	assert.Regexp(t, `\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ .*the bank moves +[0-9a-f]{8}\n`, wide)
	assert.Equal(t, wide, execute(t, command(t, dir, "log")).stdout)
	assert.Equal(t, "1\n2\n", narrowed("log", "-o", "name"))
}

// An error that is cut is cut without its request first, and one that fits is whole.
func TestCutError(t *testing.T) {
	for _, c := range []struct {
		err   string
		width int
		want  string
	}{
		{"POST http://127.0.0.1:18080/hook/c6: http status 503: busy", 30, "http status 503: busy"},
		{"POST http://127.0.0.1:18080/hook/c6: http status 503: busy", 15, "http status 50…"},
		{"POST http://127.0.0.1:18080/hook/c6: http status 503: busy", 58, "POST http://127.0.0.1:18080/hook/c6: http status 503: busy"},
		{`Post "https://bank.example/charges": dial tcp 10.1.2.3:443: connection refused`, 20, "dial tcp 10.1.2.3:4…"},
		{"connection refused by the bank", 20, "connection refused …"},
	} {
		assert.Equal(t, c.want, cutError(c.err, c.width))
	}
}

// At any width a list shows how a call failed, and not only its URL.
func TestTable_ErrorsOfCalls(t *testing.T) {
	dir := t.TempDir()
	engine, err := sqlite.Open(t.Context(), filepath.Join(dir, "orders.db"))
	require.NoError(t, err)
	defer engine.Close()
	meta := message.Meta{ID: "0192fabc-4711-7000-8000-0123456789ab", LastError: "POST https://api.bank.example/v1/charges: http status 503: busy"}
	require.NoError(t, engine.Put(t.Context(), "orders-dead", store.Message{Meta: meta, Payload: []byte("1"), Cause: store.Exhausted}))
	for _, width := range []string{"109", "110", "200"} {
		for _, list := range []string{"list", "groups"} {
			cmd := command(t, dir, "dead", list)
			cmd.Env = append(cmd.Env, "COLUMNS="+width)
			r := execute(t, cmd)
			require.Zero(t, r.status, r.stderr)
			assert.Contains(t, r.stdout, "http status", "%s at %s", list, width)
			assert.Equal(t, width == "200", strings.Contains(r.stdout, "POST http"), "%s at %s", list, width)
		}
	}
}

// A worker that reported more than a minute ago was probably killed.
func TestReadersOf_SilentWorkers(t *testing.T) {
	now := time.Now()
	workers := []jobs.Worker{
		{ID: "1", Reads: "orders", Queues: []string{"orders"}, Seen: now},
		{ID: "2", Reads: "orders", Queues: []string{"orders"}, Seen: now.Add(-2 * jobs.SilentAfter)},
		{ID: "3", Reads: "mails", Queues: []string{"mails"}, Seen: now},
	}
	read, silent := readersOf("orders", workers, now)
	assert.Equal(t, 1, read)
	assert.Equal(t, 1, silent)
	assert.Equal(t, " (1 silent)", andSilent(silent))
	assert.Empty(t, andSilent(0))
}

// A state that was reported before the last order is not the present one.
func TestProcessRow_BeforeTheLastOrder(t *testing.T) {
	now := time.Now()
	p := jobs.ServiceProcess{Worker: "1", Seen: now.Add(-15 * time.Second), Backend: jobs.Backend{Name: "bank", State: "held", Why: "test"}}
	row := processRow(p, jobs.BackendOrder{Event: "resume", At: now.Add(-2 * time.Second)}, now)
	assert.Equal(t, "reported before the last order (resume)", row[len(row)-1])
	assert.Contains(t, row, "15s")
	row = processRow(p, jobs.BackendOrder{Event: "hold", At: now.Add(-time.Minute)}, now)
	assert.Equal(t, "test", row[len(row)-1])
}
