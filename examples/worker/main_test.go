//go:build unix

package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/internal/testing/suite"
)

const childEnv = "WEIR_EXAMPLE_WORKER"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func start(t *testing.T, dir string, numbers ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0], numbers...)
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	cmd.Env = append(os.Environ(), childEnv+"=1")
	require.NoError(t, cmd.Start())
	return cmd
}

// A killed worker continues after a restart: each order is packed, and there is one
// parcel for each.
func TestWorker_Killed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var numbers []string
	for i := range 20 {
		numbers = append(numbers, strconv.Itoa(i))
	}
	first := start(t, dir, numbers...)
	engine, err := sqlite.Open(t.Context(), filepath.Join(dir, "shop.db"))
	require.NoError(t, err)
	defer func() { require.NoError(t, engine.Close()) }()
	parcels := func() int {
		c, err := delivery.NewQueue[string](engine, "parcels").Counts(context.Background())
		require.NoError(t, err)
		return c.Waiting
	}
	require.Eventually(t, func() bool { return parcels() >= 4 }, time.Minute, 5*time.Millisecond)
	require.NoError(t, first.Process.Kill())
	_ = first.Wait()
	require.Less(t, parcels(), 20)
	if !suite.Full() {
		endLeases(t, filepath.Join(dir, "shop.db"))
	}

	second := start(t, dir)
	orders := func() delivery.QueueCounts {
		c, err := delivery.NewQueue[order](engine, "orders").Counts(context.Background())
		require.NoError(t, err)
		return c
	}
	// The first worker may have stored a parcel without acknowledging its order.
	require.Eventually(t, func() bool { return parcels() == 20 && orders() == delivery.QueueCounts{} }, 2*time.Minute, 50*time.Millisecond,
		"the leases of the first worker last for 30 s")
	require.NoError(t, second.Process.Signal(syscall.SIGTERM))
	require.NoError(t, second.Wait())
	require.Equal(t, 20, parcels())
	require.Zero(t, orders())
}

// endLeases ends the leases of all messages, as if 30 s had passed.
func endLeases(t *testing.T, file string) {
	t.Helper()
	db, err := sqlite.OpenDB(t.Context(), file)
	require.NoError(t, err)
	defer db.Close()
	const lease = int64(30 * time.Second)
	_, err = db.Writer().ExecContext(t.Context(), "UPDATE weir_messages SET at = at - ?, leased = leased - ? WHERE leased IS NOT NULL", lease, lease)
	require.NoError(t, err)
}

// The tutorial's repair of a dead letter: export it, edit it, import it into the queue,
// and remove it.
func TestWorker_RepairOfADeadLetter(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	command := filepath.Join(dir, "weir")
	build, err := exec.Command("go", "build", "-o", command, "github.com/weirflow/weir/cmd/weir").CombinedOutput()
	require.NoError(t, err, "%s", build)
	weir := func(input string, args ...string) string {
		cmd := exec.Command(command, args...)
		cmd.Dir, cmd.Env, cmd.Stdin = dir, append(os.Environ(), "WEIR_DB=sqlite:shop.db"), strings.NewReader(input)
		out, err := cmd.Output()
		require.NoError(t, err, "weir %v", args)
		return string(out)
	}
	worker := start(t, dir, "1", "17a")
	engine, err := sqlite.Open(t.Context(), filepath.Join(dir, "shop.db"))
	require.NoError(t, err)
	defer func() { require.NoError(t, engine.Close()) }()
	parcels, orders := delivery.NewQueue[string](engine, "parcels"), delivery.NewQueue[order](engine, "orders")
	has := func(n, dead int) func() bool {
		return func() bool {
			p, err := parcels.Counts(context.Background())
			require.NoError(t, err)
			o, err := orders.Counts(context.Background())
			require.NoError(t, err)
			return p.Waiting == n && o.Dead == dead
		}
	}
	require.Eventually(t, has(1, 1), time.Minute, 5*time.Millisecond)
	require.Contains(t, weir("", "dead", "list", "--queue", "orders-dead"), "NOT_A_NUMBER")
	repaired := strings.ReplaceAll(weir("", "dead", "export", "--queue", "orders-dead"), "17a", "17")
	weir(repaired, "dead", "import", "--queue", "orders", "-")
	weir("", "dead", "purge", "--queue", "orders-dead", "--id", "17a", "--yes")
	require.Eventually(t, has(2, 0), time.Minute, 5*time.Millisecond)
	require.Equal(t, `"parcel 17"`, weir("", "dead", "show", "--queue", "parcels", "--raw", "17"))
	require.NoError(t, worker.Process.Signal(syscall.SIGTERM))
	require.NoError(t, worker.Wait())
}
