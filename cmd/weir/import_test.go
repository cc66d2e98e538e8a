package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/ext/sqlite"
)

// Law J2: an import writes a line to the log before it changes messages, and a line with
// its counts at its end.
func TestDeadImport_WritesLog(t *testing.T) {
	dir := seed(t)
	run := func(args ...string) result { return execute(t, command(t, dir, args...)) }
	first, _, _ := strings.Cut(run("dead", "export").stdout, "\n")
	file := filepath.Join(dir, "changed.jsonl")
	require.NoError(t, os.WriteFile(file, []byte(first+"\n"), 0o600))

	require.Zero(t, run("dead", "import", "--queue", "orders-dead", file, "--replace", "--by", "ann", "--why", "another card").status)
	require.Zero(t, run("dead", "import", "--queue", "orders", file).status)
	require.NoError(t, os.WriteFile(file, []byte("nonsense\n"), 0o600))
	require.Equal(t, exitFailed, run("dead", "import", "--queue", "orders-dead", file).status)

	log := run("log")
	require.Zero(t, log.status)
	var lines []string
	for _, line := range strings.Split(log.stdout, "\n") {
		if found := regexp.MustCompile(`Z +(\w+) +\d+ +import +(\S+) +(\d+) +(\S+)`).FindStringSubmatch(line); found != nil {
			lines = append(lines, strings.Join(found[1:], " "))
		}
	}
	require.Len(t, lines, 6, log.stdout)
	assert.Equal(t, []string{"import orders-dead 0 ann", "end orders-dead 1 ann"}, lines[:2])
	assert.Regexp(t, "^import orders 0 .+@", lines[2])
	assert.Regexp(t, "^end orders 1 .+@", lines[3])
	assert.Regexp(t, "^import orders-dead 0 ", lines[4])
	assert.Regexp(t, "^end orders-dead 0 ", lines[5], "also an import that fails")
	assert.Contains(t, run("jobs", "show", "1").stdout, "another card")
	assert.Contains(t, run("jobs", "show", "5").stdout, "line 1", "the error of the import")
}

// The command, like a worker, refuses a database of a later version.
func TestDatabase_OfLaterVersion(t *testing.T) {
	for _, component := range []string{"sqlitestore", "keys"} {
		dir := seed(t)
		db, err := sqlite.OpenDB(t.Context(), filepath.Join(dir, "orders.db"))
		require.NoError(t, err)
		_, err = db.Writer().ExecContext(t.Context(), "INSERT INTO weir_migrations (component, version) VALUES ($1, 1000)", component)
		require.NoError(t, err)
		require.NoError(t, db.Close())
		before := digest(t, filepath.Join(dir, "orders.db"))
		for _, args := range []string{"dead purge --queue orders-dead --all --yes", "dead import --queue orders-dead ../none", "backend hold pay", "layers"} {
			r := execute(t, command(t, dir, strings.Fields(args)...))
			assert.Equal(t, exitFailed, r.status, args)
			if !strings.Contains(args, "none") {
				assert.Contains(t, r.stderr, "it needs a later version of weir", args)
			}
		}
		assert.Equal(t, before, digest(t, filepath.Join(dir, "orders.db")), "the database was not changed")
	}
}

func digest(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(b)
}
