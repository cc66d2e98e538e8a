//go:build unix

package main

import (
	"bufio"
	"net"
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
	"github.com/weirflow/weir/internal/testing/suite"
)

const childEnv = "WEIR_PROGRAM_CHARGES"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// Service and worker are killed in the middle, and started again: each order is charged
// once, and has its receipt.
func TestCharges_EitherProcessIsKilled(t *testing.T) {
	const orders = 40
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := listener.Addr().String()
	require.NoError(t, listener.Close())
	dir := t.TempDir()
	start := func(args ...string) *exec.Cmd {
		cmd := exec.Command(os.Args[0], append([]string{"-address", address}, args...)...)
		cmd.Dir, cmd.Stderr = dir, os.Stderr
		cmd.Env = append(os.Environ(), childEnv+"=1", "CHARGES_SECRET=0123456789abcdef")
		if args[0] == "serve" {
			out, err := cmd.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())
			require.True(t, bufio.NewScanner(out).Scan()) // it serves
			return cmd
		}
		require.NoError(t, cmd.Start())
		return cmd
	}
	end := func(cmd *exec.Cmd, s syscall.Signal) {
		require.NoError(t, cmd.Process.Signal(s))
		_ = cmd.Wait()
	}

	service := start("serve")
	var numbers []string
	for i := range orders {
		numbers = append(numbers, strconv.Itoa(i))
	}
	worker := start(append([]string{"work"}, numbers...)...)
	engine, err := sqlite.Open(t.Context(), filepath.Join(dir, "orders.db"))
	require.NoError(t, err)
	defer engine.Close()
	books, err := sqlite.OpenDB(t.Context(), filepath.Join(dir, "charges.db"))
	require.NoError(t, err)
	defer books.Close()
	receipts := delivery.NewQueue[string](engine, "receipts")
	has := func(n int) func() bool {
		return func() bool {
			counts, err := receipts.Counts(t.Context())
			return err == nil && counts.Waiting >= n
		}
	}
	require.Eventually(t, has(4), time.Minute, 5*time.Millisecond)
	end(service, syscall.SIGKILL)
	service = start("serve")
	require.Eventually(t, has(12), time.Minute, 5*time.Millisecond)
	end(worker, syscall.SIGKILL)
	require.False(t, has(orders)())
	if !suite.Full() {
		endLeases(t, filepath.Join(dir, "orders.db"))
	}

	worker = start("work")
	require.Eventually(t, has(orders), 2*time.Minute, 50*time.Millisecond, "the leases of the killed worker last for 30 s")
	end(worker, syscall.SIGTERM)
	end(service, syscall.SIGTERM)
	var charges, different int
	require.NoError(t, books.Reader().QueryRowContext(t.Context(), "SELECT count(*), count(DISTINCT number) FROM charges").Scan(&charges, &different))
	require.Equal(t, orders, charges)
	require.Equal(t, orders, different)
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
