package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery/deadfile"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/message"
)

// seedDirectory creates dead letters without a database, and keeps them open like a
// running program.
func seedDirectory(t *testing.T) (dir string, dead *deadfile.File[json.RawMessage]) {
	t.Helper()
	dir = t.TempDir()
	dead, err := deadfile.Open(filepath.Join(dir, "dead letters"), codec.JSON[json.RawMessage]())
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, dead.Close()) })
	require.NoError(t, dead.Append(t.Context(),
		deadfile.Entry[json.RawMessage]{
			Value: json.RawMessage(`{"order":1}`), Cause: store.Permanent,
			Meta: message.Meta{ID: "orders/1", LastError: "card 4711 is expired", LastFailure: begin, Attempts: 1},
		},
		deadfile.Entry[json.RawMessage]{
			Value: json.RawMessage(`{"order":2}`), Cause: store.Exhausted,
			Meta: message.Meta{ID: "orders/2", LastError: "connection refused", LastFailure: begin.Add(1), Attempts: 4, Reasons: []string{"REFUSED"}},
		},
	))
	return dir, dead
}

func (r result) ok(t *testing.T) result {
	t.Helper()
	require.Equal(t, 0, r.status, r.stderr)
	return r
}

func TestDirectory(t *testing.T) {
	dir, dead := seedDirectory(t)
	run := func(args ...string) result {
		return execute(t, command(t, dir, append(args, "--db", "file:dead letters")...))
	}

	require.Equal(t, `ARRIVED               ID        CAUSE      TRIES  PROVIDER  LAST ERROR
2026-01-02 03:04:05Z  orders/1  permanent      1            card 4711 is expired
2026-01-02 03:04:05Z  orders/2  exhausted      4            connection refused
`, trimmed(run("dead", "list").ok(t).stdout))
	require.Contains(t, run("dead", "list", "--cause", "exhausted", "--json").ok(t).stdout, `"id":"orders/2"`)
	require.Equal(t, `{"order":2}`, run("dead", "show", "--raw", "orders/2").ok(t).stdout)
	require.Contains(t, run("dead", "show", "orders/2").ok(t).stdout, "last failure    2026-01-02T03:04:05.000000001Z")
	require.Contains(t, run("dead", "count").ok(t).stdout, "reason  REFUSED")
	require.Contains(t, run("layers").ok(t).stdout, "dead")
	exported := run("dead", "export").ok(t).stdout
	require.Equal(t, 2, strings.Count(exported, "\n"))

	for _, refused := range [][]string{
		{"dead", "purge", "--all"},
		{"dead", "merge", "--to", "orders"},
		{"dead", "import", "dead letters/dead.jsonl"},
		{"outbox"},
		{"keys"},
		{"dead", "list", "--queue", "other"},
	} {
		r := run(refused...)
		require.NotZero(t, r.status, refused)
		require.Contains(t, r.stderr, "a directory of dead letters", refused)
	}

	// One line is still being written, and one is damaged.
	path := filepath.Join(dir, "dead letters", "dead.jsonl")
	before, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, append(append([]byte("{damaged\n"), before...), `{"batch":1,"me`...), 0o600))
	r := run("dead", "list").ok(t)
	require.Equal(t, 3, strings.Count(r.stdout, "\n"))
	require.Contains(t, r.stderr, "line 1 of dead.jsonl cannot be read")
	require.NotContains(t, r.stderr, "line 4", "it is being written")
	require.NoError(t, os.WriteFile(path, before, 0o600))

	replay, err := dead.Replay()
	require.NoError(t, err)
	r = run("dead", "list").ok(t)
	require.Contains(t, r.stderr, "replay.jsonl")
	require.Contains(t, r.stderr, `No message of queue "dead" matches.`)
	require.NoError(t, replay.Close(context.Background()))
}

func trimmed(s string) string {
	lines := strings.Split(s, "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.Join(lines, "\n")
}

func TestWrongDirectory(t *testing.T) {
	dir, _ := seedDirectory(t)
	require.NoError(t, os.Mkdir(filepath.Join(dir, "empty"), 0o700))
	for url, want := range map[string]string{
		"file:none":                    "no such file or directory",
		"file:empty":                   "lacks dead.jsonl",
		"file:dead letters/dead.jsonl": "is a file, and not a directory of dead letters; a database is sqlite:dead letters/dead.jsonl",
	} {
		r := execute(t, command(t, dir, "dead", "list", "--db", url))
		assert.Equal(t, 1, r.status, url)
		assert.Contains(t, r.stderr, want, url)
	}
}

// Dead letters of a program without a database can be imported into a new database.
func TestImportCreates(t *testing.T) {
	dir, _ := seedDirectory(t)
	file := filepath.Join("dead letters", "dead.jsonl")
	r := execute(t, command(t, dir, "dead", "import", file))
	require.Equal(t, 1, r.status)
	require.Contains(t, r.stderr, "--create")
	require.NoFileExists(t, filepath.Join(dir, "orders.db"))

	r = execute(t, command(t, dir, "dead", "import", "--queue", "orders-dead", "--create", file))
	require.Equal(t, "2 messages read: 2 new\n", r.ok(t).stdout)
	require.Contains(t, execute(t, command(t, dir, "dead", "list")).ok(t).stdout, "orders/2")
	execute(t, command(t, dir, "dead", "import", "--queue", "orders-dead", "--create", file)).ok(t) // it exists now
	db, err := sqlite.OpenDB(t.Context(), filepath.Join(dir, "orders.db"))
	require.NoError(t, err)
	defer db.Close()
	require.NoError(t, sqlite.New(db).Migrate(t.Context()), "the program's own, later")

	r = execute(t, command(t, dir, "dead", "import", "--create", file, "--db", "nats://127.0.0.1:1/S"))
	require.Equal(t, 2, r.status)
	require.Contains(t, r.stderr, "--create is for sqlite: and postgres://")
}
