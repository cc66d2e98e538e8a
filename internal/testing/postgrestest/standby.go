//go:build unix

package postgrestest

import (
	"os"
	"strconv"

	"github.com/stretchr/testify/require"
)

// Standby creates and starts a hot standby of the server, which answers reads and ends
// with the test.
func (s *Server) Standby() *Server {
	s.t.Helper()
	standby := &Server{t: s.t, bin: s.bin, cred: s.cred}
	standby.makeDir()
	s.t.Cleanup(standby.remove)
	out, err := s.command("pg_basebackup", "-h", "127.0.0.1", "-p", strconv.Itoa(s.port), "-U", "weir", "-D", standby.data(), "-R", "-X", "stream",
		"-c", "fast").CombinedOutput()
	require.NoError(s.t, err, "%s", out)
	standby.port = freePort(s.t)
	standby.Start()
	standby.met = true
	return standby
}

// makeDir creates the server's directory. Other users cannot access t.TempDir.
func (s *Server) makeDir() {
	s.t.Helper()
	dir, err := os.MkdirTemp("", "weir-pg-")
	require.NoError(s.t, err)
	s.dir = dir
	if s.cred != nil {
		require.NoError(s.t, os.Chown(s.dir, int(s.cred.Uid), int(s.cred.Gid)))
	}
}

// remove kills the server, and removes its directory.
func (s *Server) remove() {
	s.Kill()
	_ = os.RemoveAll(s.dir)
}
