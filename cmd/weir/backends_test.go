package main

import (
	"context"
	"encoding/json"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/backend"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/ext/sqlite"
)

// A backend that workers share has one row, with the workers below it.
func TestBackends_SharedByWorkers(t *testing.T) {
	dir := t.TempDir()
	engine, err := sqlite.Open(t.Context(), filepath.Join(dir, "orders.db"))
	require.NoError(t, err)
	defer engine.Close()
	quiet := slog.New(slog.DiscardHandler)
	queue := delivery.NewQueue[int](engine, "orders", delivery.WithLogger(quiet))
	results := delivery.NewQueue[int](engine, "results", delivery.WithLogger(quiet))
	pays := func(_ context.Context, n int) (int, error) { return n, nil }
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	for range 2 {
		bank := backend.New("bank", backend.Limit(50), backend.Shared(engine), backend.WithLogger(quiet))
		op := asyncop.UnorderedWait(asyncop.Blocking(pays), time.Minute, 10, asyncop.WithBackend(bank), asyncop.WithDropOnFailure(), asyncop.WithLogger(quiet))
		go func() { // ends with ctx
			_, err := delivery.Run(ctx, queue, op, results, delivery.WithLogger(quiet))
			ended <- err
		}()
	}
	defer func() {
		stop()
		require.NoError(t, <-ended)
		require.NoError(t, <-ended)
	}()
	j, err := jobs.New(engine, jobs.Config{})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		list, err := j.Workers(t.Context())
		return err == nil && len(list) == 2
	}, time.Minute, time.Millisecond)

	run := func(args ...string) string {
		r := execute(t, command(t, dir, args...))
		require.Zero(t, r.status, r.stderr)
		return r.stdout
	}
	assert.Regexp(t, `(?m)^bank +2 processes +up +\S+ \S+ +50 +0 *\nbank +\w{10} +\d+s +up .*\nbank +\w{10} +\d+s +up .*\n\z`, run("backend", "list"))
	assert.Regexp(t, `(?m)^bank +2 processes +up +\S+ +0 +50 *\n +\w{10} +up .*\n +\w{10} +up `, run("top"))
	var process struct {
		Name, Worker string
		Fleet        int
	}
	first, _, _ := strings.Cut(run("backend", "list", "--json"), "\n")
	require.NoError(t, json.Unmarshal([]byte(first), &process))
	assert.Equal(t, 50, process.Fleet)
	assert.Equal(t, "Backend bank is not held, with a limit of 9 calls in all workers together: 2 workers have it\n", run("backend", "limit", "bank", "9"))
}
