package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/weirflow/weir/examples/hbase-like/internal/data"
	"github.com/weirflow/weir/examples/hbase-like/internal/job"
	"github.com/weirflow/weir/examples/internal/procs"
	"github.com/weirflow/weir/internal/testing/suite"
	"github.com/weirflow/weir/internal/testing/testhook"
)

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		armKill()
		main() // exits
	}
	procs.Child(job.Worker(newPipeline))
	suite.SetParallel(4, 2)
	goleak.VerifyTestMain(m)
}

// asCommand is set in processes that run the command instead of the tests.
const asCommand = "HBASE_LIKE_COMMAND"

// killAt names the environment variable that makes the command kill itself inside the
// write of a checkpoint: "sync:3" is before the third sync. [testhook.OnStoreStep] lists
// the steps.
const killAt = "HBASE_LIKE_KILL_AT"

func armKill() {
	name, number, _ := strings.Cut(os.Getenv(killAt), ":")
	left, err := strconv.Atoi(number)
	if err != nil {
		return
	}
	testhook.OnStoreStep(func(step string) { // steps are reported one at a time
		if step != name {
			return
		}
		left--
		if left > 0 {
			return
		}
		_, _ = fmt.Fprintf(os.Stderr, "killed before step %q\n", step)
		self, err := os.FindProcess(os.Getpid())
		if err == nil {
			_ = self.Kill()
		}
		select {} // until the signal arrives
	})
}

// command returns the command as a process of its own.
func command(ctx context.Context, t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(ctx, exe, args...)
	cmd.Env = append(os.Environ(), asCommand+"=1")
	return cmd
}

// buffer is an output for several goroutines. Tests can wait for its text.
type buffer struct {
	mu   sync.Mutex
	text bytes.Buffer
	more chan struct{} // capacity 1: signals that something was written
}

func newBuffer() *buffer { return &buffer{more: make(chan struct{}, 1)} }

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case b.more <- struct{}{}:
	default:
	}
	return b.text.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// await returns once the buffer contains text. The test's timeout bounds it.
func (b *buffer) await(text string) {
	for !strings.Contains(b.String(), text) {
		<-b.more
	}
}

// lines returns the header and the first n flights of the embedded input.
func lines(t *testing.T, n int) []string {
	t.Helper()
	_, text, err := data.Flights("")
	require.NoError(t, err)
	return strings.SplitAfter(string(text), "\n")[:n+1]
}

func csvFile(t *testing.T, lines ...string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "in.csv")
	require.NoError(t, os.WriteFile(name, []byte(strings.Join(lines, "")), 0o600))
	return name
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	require.NoError(t, err)
	return string(b)
}

func sorted(text string) []string {
	return slices.Sorted(strings.Lines(text))
}

// flight is a line of input.
func flight(origin, destination string) string {
	return fmt.Sprintf("2001/01/01 12:00,0,100,%s,%s\n", origin, destination)
}

// The exit statuses of the command.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitInterrupted = 130
)

// run is main without the process's globals.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer, interrupts <-chan os.Signal) int {
	return job.Run(newPipeline, stream, args, stdin, stdout, stderr, interrupts)
}

type runResult struct {
	status         int
	stdout, stderr string
}

func runJob(stdin string, args ...string) runResult {
	out, errs := newBuffer(), newBuffer()
	status := run(append(args, "-progress", "off"), strings.NewReader(stdin), out, errs, nil)
	return runResult{status, out.String(), errs.String()}
}

// flat returns a text on one line, with single spaces.
func flat(text string) string { return strings.Join(strings.Fields(text), " ") }
