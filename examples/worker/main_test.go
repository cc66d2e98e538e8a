//go:build unix

package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/ext/sqlite"
)

const childEnv = "WEIR_EXAMPLE_WORKER"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// start starts a worker in a directory.
func start(t *testing.T, dir string, numbers ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0], numbers...)
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	cmd.Env = append(os.Environ(), childEnv+"=1")
	require.NoError(t, cmd.Start())
	return cmd
}

// A worker that is killed goes on when it is started again: each order is packed, and its parcel is there once.
func TestAWorkerThatIsKilledGoesOn(t *testing.T) {
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

	second := start(t, dir)
	require.Eventually(t, func() bool { return parcels() == 20 }, 2*time.Minute, 50*time.Millisecond, "the lease of the first one lasts for 30 s")
	require.NoError(t, second.Process.Signal(syscall.SIGTERM))
	require.NoError(t, second.Wait())
	c, err := delivery.NewQueue[order](engine, "orders").Counts(t.Context())
	require.NoError(t, err)
	require.Equal(t, delivery.QueueCounts{}, c)
	require.Equal(t, 20, parcels())
}
