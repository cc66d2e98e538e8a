//go:build unix

package postgrestest

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/stretchr/testify/require"
)

// Bouncer starts PgBouncer in front of the server and returns its connection string. Each
// transaction uses one of three connections. PgBouncer ends with the test. It must be
// installed (Debian: apt-get install pgbouncer).
func (s *Server) Bouncer() (url string) {
	s.t.Helper()
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		program = "/usr/sbin/pgbouncer" // Debian's path, which not every PATH has
		if !isFile(program) {
			unavailable(s.t, err)
		}
	}
	port := freePort(s.t)
	users, config := filepath.Join(s.dir, "users.txt"), filepath.Join(s.dir, "pgbouncer.ini")
	require.NoError(s.t, os.WriteFile(users, []byte(`"weir" ""`+"\n"), 0o644))
	require.NoError(s.t, os.WriteFile(config, fmt.Appendf(nil, `[databases]
postgres = host=127.0.0.1 port=%d
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = trust
auth_file = %s
pool_mode = transaction
default_pool_size = 3
`, s.port, port, users), 0o644))
	cmd := exec.Command(program, "-q", config)
	cmd.Dir = s.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.cred}
	require.NoError(s.t, cmd.Start())
	ended := make(chan struct{})
	go func() { // ends with the process
		defer close(ended)
		_ = cmd.Wait()
	}()
	s.t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		<-ended
	})
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	require.Eventually(s.t, func() bool {
		conn, err := net.DialTimeout("tcp", address, time.Second)
		return err == nil && conn.Close() == nil
	}, time.Minute, 10*time.Millisecond, "PgBouncer does not answer")
	return fmt.Sprintf("postgres://weir@%s/postgres?sslmode=disable", address)
}
