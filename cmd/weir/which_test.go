package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/message"
)

// Without --queue the command does not claim that there are no dead letters while a queue
// has some.
func TestDeadLettersOfNoQueue(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	engine, err := sqlite.Open(t.Context(), filepath.Join(dir, "orders.db"))
	require.NoError(t, err)
	defer engine.Close()
	put := func(queue string) {
		t.Helper()
		require.NoError(t, engine.Put(t.Context(), queue, store.Message{Meta: message.Meta{ID: "17", LastError: "bank closed"}, Cause: store.Exhausted}))
	}
	run := func(args ...string) result { return execute(t, command(t, dir, append([]string{"dead"}, args...)...)) }
	file := filepath.Join(dir, "letters.jsonl")
	require.NoError(t, os.WriteFile(file, []byte(`{"meta":{"id":"18"},"cause":"permanent"}`), 0o600))
	put("orders")
	assert.Equal(t, result{"", "No message of queue \"dead\" matches.\n", 0}, run("list"))
	assert.Equal(t, result{"", "weir: which queue? Add --queue QUEUE, such as --queue orders-dead\n", exitUsage}, run("import", file), "no program has the queue \"dead\"")

	put("orders-dead")
	const found = "Queue orders-dead:\n"
	r := run("list")
	assert.Equal(t, result{r.stdout, found, 0}, r)
	assert.Contains(t, r.stdout, "bank closed")
	for _, c := range [][]string{{"count"}, {"groups"}, {"show", "17"}, {"export"}} {
		r := run(c...)
		assert.Zero(t, r.status, c)
		assert.Contains(t, r.stderr, found, c)
		assert.NotEmpty(t, r.stdout, c)
	}
	which := result{"", "weir: which queue? Add --queue orders-dead\n", exitUsage}
	assert.Equal(t, which, run("purge", "--all", "--yes"))
	assert.Equal(t, which, run("merge", "--to", "orders", "--yes"))
	assert.Equal(t, which, run("import", file))

	put("sales-dead")
	which.stderr = "weir: which queue? Add --queue orders-dead, or --queue sales-dead\n"
	assert.Equal(t, which, run("list"))
	assert.Equal(t, which, run("purge", "--all", "--yes"))
	assert.Equal(t, which, run("import", file))
	assert.Equal(t, result{"1 message read: 1 new\n", "", 0}, run("import", "--queue", "sales-dead", file))

	put("dead")
	assert.Regexp(t, `all +1\n`, run("count").stdout)
	assert.Equal(t, result{"1 message removed\n", "", 0}, run("purge", "--all", "--yes"))
	assert.Equal(t, exitFailed, run("list", "--queue", "dead").status, "it is gone, and no worker reads it")
	assert.Equal(t, 0, run("list", "--queue", "sales").status)
}
