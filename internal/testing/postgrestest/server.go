//go:build unix

package postgrestest

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Server is a PostgreSQL server. Only its test's goroutine may use it.
type Server struct {
	t    testing.TB
	bin  string
	dir  string
	port int
	met  bool                // clients know the port, which must not change
	cred *syscall.Credential // nil for the current user

	process *os.Process
	ended   chan struct{} // closed when the process ends; nil if not running
}

// Start creates a database cluster and starts its server, which ends with the test.
func Start(t testing.TB) *Server {
	t.Helper()
	s := newServer(t)
	t.Cleanup(s.remove)
	s.startFirst()
	return s
}

var shared struct {
	mu     sync.Mutex
	server *Server // nil if it does not run; guarded by mu
}

// Shared returns a server that the tests of a process share. It is for tests that neither
// stop the server nor freeze it. The first call starts the server, and [StopShared] stops
// it.
func Shared(t testing.TB) *Server {
	t.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.server == nil {
		s := newServer(t)
		defer func() {
			if shared.server == nil { // it failed
				s.remove()
			}
		}()
		s.startFirst()
		shared.server = s
	}
	own := *shared.server
	own.t = t
	return &own
}

// StopShared stops the server of Shared, if it runs. Call it when all tests have ended.
func StopShared() {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.server != nil {
		shared.server.remove()
		shared.server = nil
	}
}

// newServer returns a server with an empty directory.
func newServer(t testing.TB) *Server {
	t.Helper()
	bin, err := programs()
	if err != nil {
		unavailable(t, err)
	}
	s := &Server{t: t, bin: bin}
	s.cred, err = credential()
	if err != nil {
		unavailable(t, err)
	}
	s.makeDir()
	return s
}

// startFirst creates the database cluster, and starts the server on a new port.
func (s *Server) startFirst() {
	s.t.Helper()
	s.makeCluster()
	s.port = freePort(s.t)
	s.Start()
	s.met = true
}

// URL returns the connection string.
func (s *Server) URL() string {
	return fmt.Sprintf("postgres://weir@127.0.0.1:%d/postgres?sslmode=disable", s.port)
}

// Kill ends the server with SIGKILL, if it is running.
func (s *Server) Kill() { s.end(syscall.SIGKILL) }

// Shutdown ends the server like pg_ctl stop -m fast: its clients receive 57P01.
func (s *Server) Shutdown() { s.end(syscall.SIGINT) }

func (s *Server) end(sig syscall.Signal) {
	if s.ended == nil {
		return
	}
	_ = s.process.Signal(sig) // it may have ended
	<-s.ended
	s.ended = nil
}

// Start restarts an ended server, and waits until it answers.
func (s *Server) Start() {
	s.t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for {
		s.launch()
		for {
			if s.answers() {
				return
			}
			require.True(s.t, time.Now().Before(deadline), "PostgreSQL does not answer: see %s", s.logFile())
			select {
			case <-s.ended:
				s.ended = nil
				if !s.met {
					s.port = freePort(s.t) // it may be taken by now
				}
			case <-time.After(10 * time.Millisecond): // starting or recovering
				continue
			}
			break // after SIGKILL old backends may hold the shared memory for a while, so try again
		}
	}
}

func (s *Server) launch() {
	s.t.Helper()
	log, err := os.Create(s.logFile())
	require.NoError(s.t, err)
	defer log.Close()
	cmd := s.command("postgres", "-D", s.data(), "-h", "127.0.0.1", "-p", strconv.Itoa(s.port), "-k", s.dir,
		"-c", "fsync=off", "-c", "max_connections=100")
	cmd.Stderr = log
	require.NoError(s.t, cmd.Start())
	ended := make(chan struct{})
	s.process, s.ended = cmd.Process, ended
	go func() {
		defer close(ended)
		_ = cmd.Wait() // usually by a signal
	}()
}

// answers reads the status that the server writes to postmaster.pid: the process, and in
// the last line whether it accepts connections, as a standby or as a primary.
func (s *Server) answers() bool {
	text, err := os.ReadFile(filepath.Join(s.data(), "postmaster.pid"))
	lines := strings.Fields(string(text))
	if err != nil || len(lines) < 2 || lines[0] != strconv.Itoa(s.process.Pid) {
		return false
	}
	state := lines[len(lines)-1]
	return state == "ready" || state == "standby"
}

func (s *Server) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(s.bin, name), args...)
	cmd.Dir = s.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.cred}
	return cmd
}

func (s *Server) data() string    { return filepath.Join(s.dir, "data") }
func (s *Server) logFile() string { return filepath.Join(s.dir, "log") }

func programs() (dir string, err error) {
	candidates, _ := filepath.Glob("/usr/lib/postgresql/*/bin") // Debian's path; the pattern is valid
	slices.Reverse(candidates)                                  // newest first
	if path, err := exec.LookPath("postgres"); err == nil {
		if target, err := filepath.EvalSymlinks(path); err == nil { // some programs have no link, and are next to the target
			path = target
		}
		candidates = append([]string{filepath.Dir(path)}, candidates...)
	}
	for _, dir := range candidates {
		if isFile(filepath.Join(dir, "initdb")) && isFile(filepath.Join(dir, "postgres")) {
			return dir, nil
		}
	}
	return "", errors.New("no initdb and postgres, neither in PATH nor in /usr/lib/postgresql")
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && !info.IsDir()
}

// credential returns the server's user: PostgreSQL refuses to run as root.
func credential() (*syscall.Credential, error) {
	if os.Getuid() != 0 {
		return nil, nil // run as the current user
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return nil, fmt.Errorf("PostgreSQL does not run as root: %w", err)
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, err
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}

func unavailable(t testing.TB, err error) {
	t.Helper()
	if os.Getenv("CI") != "" || os.Getenv("WEIR_REQUIRE_POSTGRES") != "" {
		t.Fatalf("PostgreSQL is required here: %v", err)
	}
	t.Skipf("skipped, this test needs PostgreSQL (apt-get install postgresql): %v", err)
}

// freePort returns a port below the ephemeral range, which stays free when a server is
// killed.
func freePort(t testing.TB) int {
	t.Helper()
	for try := 0; ; try++ {
		port := 12_000 + rand.IntN(20_000)
		l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port))
		if err == nil {
			require.NoError(t, l.Close())
			return port
		}
		require.Less(t, try, 100, "%v", err)
	}
}

// Freeze stops the server's processes until Thaw or the end of the test. The server does
// not answer, and keeps its connections open; the kernel still accepts new ones. Without
// /proc the test is skipped.
func (s *Server) Freeze() {
	s.t.Helper()
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		s.t.Skip("skipped, this test needs /proc")
	}
	s.t.Cleanup(s.Thaw) // before the kill, because stopped processes notice that only after they continue
	s.signal(syscall.SIGSTOP)
}

// Thaw lets a frozen server continue.
func (s *Server) Thaw() { s.signal(syscall.SIGCONT) }

// signal sends a signal to the server and its children.
func (s *Server) signal(sig syscall.Signal) {
	s.t.Helper()
	require.NoError(s.t, s.process.Signal(sig)) // once stopped, it starts no further children
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	require.NoError(s.t, err)
	for _, stat := range stats {
		text, err := os.ReadFile(stat)
		if err != nil {
			continue // the process has ended
		}
		// "17 (name, perhaps with spaces) S 16 …": the parent's pid follows the state.
		_, rest, _ := strings.Cut(string(text[bytes.LastIndexByte(text, ')')+1:]), " ")
		fields := strings.Fields(rest)
		if len(fields) < 2 || fields[1] != strconv.Itoa(s.process.Pid) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(stat)))
		require.NoError(s.t, err)
		_ = syscall.Kill(pid, sig) // it may have ended
	}
}
