package main

import (
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/ext/sqlite"
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

// A narrow terminal shows who and why, and how a call failed, rather than hashes and URLs.
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
	log := narrowed("log")
	assert.Regexp(t, `hopper +the bank m`, log)
	assert.NotContains(t, log, "HASH")
	assert.Contains(t, execute(t, command(t, dir, "log")).stdout, "HASH")

	a := &app{env: func(string) string { return "80" }}
	assert.Equal(t, "http status 503: busy", a.brief("POST http://127.0.0.1:18080/hook/c6: http status 503: busy"))
	assert.Equal(t, "connection refused", a.brief("connection refused"))
	a.wide = true
	assert.Equal(t, "GET http://a/: http status 503", a.brief("GET http://a/: http status 503"))
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
