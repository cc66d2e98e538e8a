// Package couchbasetest starts CouchbaseMock, a stand-in for a Couchbase cluster that
// injects faults, in a process. Its nodes listen on loopback, its REST service on all
// addresses. It needs Java and the jar of CouchbaseMock 1.5 in the directory
// WEIR_COUCHBASE:
//
//	mvn -q -B -f tools/couchbase/pom.xml dependency:copy-dependencies
//	WEIR_COUCHBASE=$PWD/tools/couchbase/target/dependency go test …
//
// Without them a test is skipped, or fails if CI or WEIR_REQUIRE_COUCHBASE is set.
package couchbasetest

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Bucket is the name of the only bucket and of the user, whose password is empty.
const Bucket = "default"

const patience = 2 * time.Minute

// Mock is a cluster of two nodes. Only the test's goroutine may use it.
type Mock struct {
	t       testing.TB
	control net.Conn // closing it ends the mock
	answers *bufio.Reader
	ports   []int
}

// Start starts a mock, which ends with the test.
func Start(t testing.TB) *Mock {
	t.Helper()
	jar, err := findJar()
	if err != nil {
		unavailable(t, err)
	}
	listener, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	defer listener.Close()

	log, err := os.Create(filepath.Join(t.TempDir(), "couchbase.log"))
	require.NoError(t, err)
	defer log.Close()
	cmd := exec.Command("java", "-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-jar", jar,
		"--host", "127.0.0.1", "--port", "0", "--harakiri-monitor", listener.Addr().String(),
		"--buckets", Bucket+"::couchbase", "--nodes", "2", "--replicas", "0", "--vbuckets", "16", "--cccp")
	cmd.Stdout, cmd.Stderr = log, log
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended with its control connection
		_ = cmd.Wait()
	})

	require.NoError(t, listener.SetDeadline(time.Now().Add(patience)))
	control, err := listener.Accept()
	require.NoError(t, err, "CouchbaseMock does not start: see %s", log.Name())
	t.Cleanup(func() { _ = control.Close() })
	m := &Mock{t: t, control: control, answers: bufio.NewReader(control)}
	require.NoError(t, control.SetReadDeadline(time.Now().Add(patience)))
	_, err = m.answers.ReadString(0) // the port of its REST service
	require.NoError(t, err)
	m.run("get_mcports", map[string]any{"bucket": Bucket}, &m.ports)
	require.Len(t, m.ports, 2)
	return m
}

// URL returns the connection string for gocb.
func (m *Mock) URL() string {
	return fmt.Sprintf("couchbase://127.0.0.1:%d,127.0.0.1:%d", m.ports[0], m.ports[1])
}

// Fail makes the nodes answer the next n key-value requests with a status. n < 0 means
// all requests until the next Fail.
func (m *Mock) Fail(status, n int) {
	m.t.Helper()
	m.run("opfail", map[string]any{"code": status, "count": n}, nil)
}

// FailQueries makes the query service answer with an error until ResetQueries.
func (m *Mock) FailQueries(code int, message string) {
	m.t.Helper()
	m.run("set_query_error_state", map[string]any{
		"code": code, "message": message, "fail_regular": true, "fail_prepared": true,
	}, nil)
}

// ResetQueries ends the effect of FailQueries.
func (m *Mock) ResetQueries() {
	m.t.Helper()
	m.run("reset_querystate", nil, nil)
}

// Stall makes the nodes pause for d after the first byte of each response.
func (m *Mock) Stall(d time.Duration) {
	m.t.Helper()
	m.run("hiccup", map[string]any{"msecs": d.Milliseconds(), "offset": 1}, nil)
}

// Kill ends all nodes without a shutdown.
func (m *Mock) Kill() { _ = m.control.Close() }

// run executes a control command and reads its result into result, unless that is nil.
func (m *Mock) run(command string, payload map[string]any, result any) {
	m.t.Helper()
	if payload == nil {
		payload = map[string]any{}
	}
	line, err := json.Marshal(map[string]any{"command": command, "payload": payload})
	require.NoError(m.t, err)
	require.NoError(m.t, m.control.SetDeadline(time.Now().Add(patience)))
	_, err = m.control.Write(append(line, '\n'))
	require.NoError(m.t, err)
	text, err := m.answers.ReadBytes('\n')
	require.NoError(m.t, err)
	var answer struct {
		Status  string          `json:"status"`
		Payload json.RawMessage `json:"payload"`
	}
	require.NoError(m.t, json.Unmarshal(text, &answer), "%s", text)
	require.True(m.t, strings.EqualFold(answer.Status, "ok"), "%s: %s", line, text)
	if result != nil {
		require.NoError(m.t, json.Unmarshal(answer.Payload, result), "%s", text)
	}
}

func findJar() (string, error) {
	if _, err := exec.LookPath("java"); err != nil {
		return "", err
	}
	dir := os.Getenv("WEIR_COUCHBASE")
	if dir == "" {
		return "", errors.New("WEIR_COUCHBASE is not set")
	}
	jars, err := filepath.Glob(filepath.Join(dir, "CouchbaseMock-*.jar"))
	if err != nil {
		return "", err
	}
	if len(jars) != 1 {
		return "", fmt.Errorf("%d files CouchbaseMock-*.jar in %s, not 1", len(jars), dir)
	}
	return jars[0], nil
}

func unavailable(t testing.TB, err error) {
	t.Helper()
	if os.Getenv("CI") != "" || os.Getenv("WEIR_REQUIRE_COUCHBASE") != "" {
		t.Fatalf("CouchbaseMock is required here: %v", err)
	}
	t.Skipf("skipped, this test needs Java and CouchbaseMock (see package couchbasetest): %v", err)
}
