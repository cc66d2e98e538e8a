//go:build unix

package postgres_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/exactlyonce/keys"
	"github.com/weirflow/weir/ext/postgres"
	"github.com/weirflow/weir/ext/postgres/internal/pgtest"
	"github.com/weirflow/weir/message"
)

// The command weir on PostgreSQL. Its own tests, on SQLite, cover the rest.
func TestCommand(t *testing.T) {
	server := pgtest.Start(t)
	binary := filepath.Join(t.TempDir(), "weir")
	build := exec.Command("go", "build", "-ldflags=-s -w", "-o", binary, ".")
	build.Dir = "../../cmd/weir"
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)

	server.Exec("CREATE ROLE operator LOGIN PASSWORD 's3cr3t' SUPERUSER")
	url := strings.Replace(server.URL(), "weir@", "operator:s3cr3t@", 1)
	run := func(url string, args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), binary, args...)
		cmd.Env = append(os.Environ(), "WEIR_DB="+url)
		out, err := cmd.CombinedOutput()
		require.NotContains(t, string(out), "s3cr3t")
		return string(out), err
	}
	ok := func(args ...string) string {
		t.Helper()
		out, err := run(url, args...)
		require.NoError(t, err, "%s", out)
		return out
	}
	out1, err := run(url, "layers")
	require.Error(t, err)
	require.Contains(t, out1, "start the program once")

	// Dead letters of another store or a file are imported into a database without
	// tables.
	file := filepath.Join(t.TempDir(), "dead.jsonl")
	require.NoError(t, os.WriteFile(file, []byte(`{"meta":{"id":"from a file","lastError":"503"},"cause":"exhausted","payload":{"n":5}}`+"\n"), 0o600))
	out1, err = run(url, "dead", "import", "--queue", "orders-dead", file)
	require.Error(t, err)
	require.Contains(t, out1, "weir dead import --create")
	for range 2 { // the second time the tables exist
		require.Contains(t, ok("dead", "import", "--create", "--queue", "orders-dead", file), "1 message read")
	}
	require.Contains(t, ok("dead", "list", "--queue", "orders-dead"), "from a file")
	require.Contains(t, ok("dead", "purge", "--queue", "orders-dead", "--id", "from a file", "--yes"), "1 message removed")

	pool := connect(t, url)
	require.NoError(t, postgres.New(pool).Migrate(t.Context()), "the program's own, later")
	s := postgres.New(pool)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	for i := range 150 {
		cause := store.Exhausted
		if i%3 == 0 {
			cause = store.UnsafeToRepeat
		}
		require.NoError(t, s.Put(t.Context(), "dead", store.Message{
			Cause: cause, Payload: []byte("{}"),
			Meta: message.Meta{ID: fmt.Sprint("m", i), LastError: "no \x1b answer", UnsafeToRepeat: i%3 == 0},
		}))
	}
	require.NoError(t, s.Put(t.Context(), "layer", store.Message{Meta: message.Meta{ID: "a"}, Delay: time.Hour}))
	_, err = s.Locks().Acquire(t.Context(), "outbox", "host a", time.Hour)
	require.NoError(t, err)

	require.Contains(t, ok("dead", "list", "--max", "0"), `no \x1b answer`)
	require.Len(t, strings.Split(ok("dead", "list", "--max", "0"), "\n"), 152)
	require.Contains(t, ok("dead", "list", "--max", "120", "--json"), "There are more: --after ")
	require.Contains(t, ok("dead", "count"), "exhausted              100\n")
	require.Contains(t, ok("dead", "show", "m7"), "exhausted\n")
	require.Regexp(t, `dead +150 +\S+ +20\d\d-\S+ \S+ +100 exhausted, 50 unsafe to repeat\n`, ok("layers"))
	require.Regexp(t, `layer +1 +\S+ +20\d\d-\S+ \S+\n`, ok("layers"))
	require.Regexp(t, `outbox +0 +- +host a +59m`, ok("outbox"))
	require.Contains(t, ok("dead", "purge", "--id", "m1", "--id", "m2", "--yes"), "2 messages removed")
	merged := ok("dead", "merge", "--to", "orders", "--yes", "--to-empty")
	require.Contains(t, merged, "98 messages sent back to \"orders\"\n50 messages stayed: unsafe to repeat")
	require.Contains(t, ok("dead", "export"), "50 messages written")

	db := stdlib.OpenDBFromPool(pool)
	defer db.Close()
	require.NoError(t, keys.New(db, keys.PostgreSQL, keys.Config{}).Migrate(t.Context()))
	require.Contains(t, ok("requests"), "No request matches.")
	o := keys.New(db, keys.PostgreSQL, keys.Config{}).Operation("pay", func(ctx context.Context, run *keys.Run) (exactlyonce.Response, error) {
		_, err := keys.Phase(ctx, run, "stored", func(context.Context, *sql.Tx) (int, error) { return 1, nil })
		return exactlyonce.Response{}, errors.Join(err, errors.New("no answer"))
	})
	_, err = o.Do(t.Context(), keys.Request{User: "alice", Key: "k"})
	require.ErrorContains(t, err, "no answer")
	require.Regexp(t, `alice +k +pay +stored +1 +-\n`, ok("requests"))
	require.Contains(t, ok("requests", "--json", "--key", "k"), `"recoveryPoint":"stored"`)
	require.Contains(t, ok("requests", "--user", "bob"), "No request matches.")

	server.Kill()
	_, err = run(url, "layers")
	require.Error(t, err)
}

// The example payments on PostgreSQL: workers and providers are killed, and each order is
// charged once. The example's own tests cover its other engines.
func TestPayments(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t)
	binary := filepath.Join(t.TempDir(), "payments")
	build := exec.Command("go", "build", "-ldflags=-s -w", "-o", binary, ".")
	build.Dir = "../../examples/payments"
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	out, err = exec.CommandContext(t.Context(), binary, "-engine", server.URL(), "-orders", "100", "-kills", "2", "-progress", "off").CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "proven: each of 100 orders was charged once")
	require.Contains(t, string(out), "on PostgreSQL")
	require.Empty(t, server.Counts("SELECT queue, count(*) FROM weir_messages GROUP BY queue"), "it has removed its queues")
}
