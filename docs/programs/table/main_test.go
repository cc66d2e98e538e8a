//go:build unix

package main

import (
	"database/sql"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const childEnv = "WEIR_PROGRAM_TABLE"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// A run is killed, a second one is refused while it runs, another one is interrupted, and
// the last ones finish all rows.
func TestTable_KillStopAndRestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "places.db")
	start := func(args ...string) (*exec.Cmd, *strings.Builder) {
		cmd := exec.Command(os.Args[0], append([]string{"-db", path}, args...)...)
		var out strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &out
		cmd.Env = append(os.Environ(), childEnv+"=1")
		require.NoError(t, cmd.Start())
		return cmd, &out
	}
	count := func(what string) (n int) {
		db, err := sql.Open("sqlite", path+"?_pragma=busy_timeout(5000)")
		require.NoError(t, err)
		defer db.Close()
		if db.QueryRow("SELECT count(*) FROM places WHERE "+what).Scan(&n) != nil {
			return 0 // there is no table yet
		}
		return n
	}
	written := func(more int) {
		before := count("zone IS NOT NULL")
		require.Eventually(t, func() bool { return count("zone IS NOT NULL") >= before+more }, time.Minute, 5*time.Millisecond)
	}

	killed, _ := start("-sample", "400", "-rate", "200")
	written(10)
	second, out := start()
	require.Error(t, second.Wait())
	require.Contains(t, out.String(), fmt.Sprintf("by process %d", killed.Process.Pid))
	require.NoError(t, killed.Process.Kill())
	require.Error(t, killed.Wait())
	require.Positive(t, count("zone IS NULL AND failed IS NULL"))

	stopped, out := start("-rate", "200")
	written(10)
	require.NoError(t, stopped.Process.Signal(syscall.SIGINT))
	require.NoError(t, stopped.Wait(), out)
	require.NotContains(t, out.String(), "ERROR")
	require.Positive(t, count("zone IS NULL AND failed IS NULL"))

	rest, out := start()
	require.NoError(t, rest.Wait(), out)
	require.Contains(t, out.String(), "396 rows have a zone, and 4 have failed")

	db, err := sql.Open("sqlite", path)
	require.NoError(t, err)
	_, err = db.Exec("UPDATE places SET address = 'street 100' WHERE id = 100")
	require.NoError(t, err)
	require.NoError(t, db.Close())
	again, out := start("-only-failed")
	require.NoError(t, again.Wait(), out)
	require.Contains(t, out.String(), "397 rows have a zone, and 3 have failed")
	require.Equal(t, 1, count("zone = 'zone of street 100' AND failed IS NULL"))
}
