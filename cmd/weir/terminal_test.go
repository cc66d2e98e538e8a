//go:build unix

package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/message"
)

// terminal runs the command in a terminal of 80 columns.
type terminal struct {
	t    *testing.T
	file *os.File
	wait func() error
	read chan struct{} // closed at the end of the output

	mu     sync.Mutex
	screen bytes.Buffer
}

func inTerminal(t *testing.T, dir string, args ...string) *terminal {
	t.Helper()
	cmd := command(t, dir, args...)
	file, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 24, Cols: 80})
	require.NoError(t, err)
	term := &terminal{t: t, file: file, wait: cmd.Wait, read: make(chan struct{})}
	go func() {
		defer close(term.read)
		_, _ = io.Copy(term, file) // until the command closes the terminal
	}()
	t.Cleanup(func() { file.Close() })
	return term
}

// Write records output.
func (s *terminal) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.screen.Write(b)
}

func (s *terminal) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.ReplaceAll(s.screen.String(), "\r\n", "\n")
}

// answer types a line once a text has appeared.
func (s *terminal) answer(question, line string) {
	s.t.Helper()
	require.Eventually(s.t, func() bool { return strings.Contains(s.text(), question) }, time.Minute, time.Millisecond)
	_, err := io.WriteString(s.file, line)
	require.NoError(s.t, err)
}

// end returns the complete output and the error of the command.
func (s *terminal) end() (string, error) {
	err := s.wait()
	<-s.read
	return s.text(), err
}

func TestTerminal(t *testing.T) {
	t.Parallel()
	dir := seed(t)
	for _, args := range []string{"dead list", "dead count", "dead groups", "layers", "outbox", "requests --all"} {
		screen, err := inTerminal(t, dir, strings.Fields(args)...).end()
		require.NoError(t, err)
		for line := range strings.SplitSeq(screen, "\n") {
			assert.LessOrEqual(t, text.StringWidthWithoutEscSequences(line), 80, line)
		}
		golden(t, "terminal-"+strings.ReplaceAll(args, " ", "-")+".txt", normal(screen))
	}
}

// On JetStream tables fit, and messages that arrive during the question stay.
func TestTerminalOnJetStream(t *testing.T) {
	url := "nats://" + startJetStream(t, seedAll(t)) + "/retries"
	dir := t.TempDir()
	for _, args := range []string{"dead list", "dead count", "layers"} {
		screen, err := inTerminal(t, dir, append(strings.Fields(args), "--db", url)...).end()
		require.NoError(t, err)
		assert.Contains(t, screen, "exhausted")
		for line := range strings.SplitSeq(screen, "\n") {
			assert.LessOrEqual(t, text.StringWidthWithoutEscSequences(line), 80, line)
		}
	}
	file := filepath.Join(dir, "later.jsonl")
	require.NoError(t, os.WriteFile(file, []byte(`{"meta":{"id":"later"},"cause":"permanent"}`), 0o600))
	s := inTerminal(t, dir, "dead", "purge", "--queue", "orders-dead", "--all", "--db", url)
	const question = `Remove 8 messages from queue "orders-dead" for good? [y/N] `
	require.Eventually(t, func() bool { return strings.Contains(s.text(), question) }, time.Minute, time.Millisecond)
	require.Zero(t, execute(t, command(t, dir, "dead", "import", "--queue", "orders-dead", file, "--db", url)).status)
	s.answer(question, "y\n")
	screen, err := s.end()
	require.NoError(t, err)
	assert.Contains(t, screen, "8 messages removed")
	assert.Contains(t, execute(t, command(t, dir, "dead", "list", "--db", url)).stdout, " later ")
}

// On Kafka, too.
func TestTerminalOnKafka(t *testing.T) {
	url := "kafka://" + startKafka(t) + "?group=billing"
	dir := t.TempDir()
	for _, args := range []string{"dead list --queue orders-dead", "dead count --queue orders-dead", "layers"} {
		screen, err := inTerminal(t, dir, append(strings.Fields(args), "--db", url)...).end()
		require.NoError(t, err)
		for line := range strings.SplitSeq(screen, "\n") {
			assert.LessOrEqual(t, text.StringWidthWithoutEscSequences(line), 80, line)
		}
	}
	s := inTerminal(t, dir, "dead", "merge", "--queue", "orders-dead", "--to", "orders", "--cause", "exhausted", "--db", url)
	s.answer(`Send 4 messages of queue "orders-dead" back to "orders"? [y/N] `, "y\n")
	screen, err := s.end()
	require.NoError(t, err)
	assert.Contains(t, screen, "3 messages sent back")
	assert.Contains(t, screen, "1 message stayed: merged 5 times already")
	file := filepath.Join(dir, "later.jsonl")
	require.NoError(t, os.WriteFile(file, []byte(`{"meta":{"id":"later"},"cause":"permanent"}`), 0o600))
	s = inTerminal(t, dir, "dead", "purge", "--queue", "orders-dead", "--all", "--db", url)
	const question = `Remove 5 messages from queue "orders-dead" for good? [y/N] `
	require.Eventually(t, func() bool { return strings.Contains(s.text(), question) }, time.Minute, time.Millisecond)
	require.Zero(t, execute(t, command(t, dir, "dead", "import", "--queue", "orders-dead", file, "--db", url)).status)
	s.answer(question, "y\n")
	screen, err = s.end()
	require.NoError(t, err)
	assert.Contains(t, screen, "5 messages removed")
	assert.Contains(t, execute(t, command(t, dir, "dead", "list", "--queue", "orders-dead", "--db", url)).stdout, " later ")
}

func TestAnswers(t *testing.T) {
	t.Parallel()
	dir := seed(t)
	const question = `Remove 1 message from queue "orders-dead" for good? [y/N] `
	for _, no := range []string{"\n", "n\n", "yess\n", "\x04"} {
		s := inTerminal(t, dir, "dead", "purge", "--queue", "orders-dead", "orders/0/17")
		s.answer(question, no)
		screen, err := s.end()
		assert.ErrorContains(t, err, "exit status 1", no)
		assert.Contains(t, screen, "weir: the answer was not yes: the database is unchanged")
	}
	s := inTerminal(t, dir, "dead", "purge", "--queue", "orders-dead", "orders/0/17")
	s.answer(question, "\x03") // Ctrl-C
	screen, err := s.end()
	assert.ErrorContains(t, err, "exit status 1")
	assert.Contains(t, screen, "weir: interrupted: the database is unchanged")
	s = inTerminal(t, dir, "dead", "purge", "--queue", "orders-dead", "orders/0/17")
	s.answer(question, "Yes\n")
	screen, err = s.end()
	require.NoError(t, err)
	assert.Contains(t, screen, "1 message removed")
}

// A file without write permission can be read.
func TestReadOnlyFile(t *testing.T) {
	t.Parallel()
	dir := seed(t)
	require.NoError(t, os.Chmod(filepath.Join(dir, "orders.db"), 0o444))
	asAnother := func(args ...string) result {
		cmd := command(t, dir, args...)
		if os.Getuid() == 0 { // root may write all files
			for d := range strings.SplitSeq(filepath.Dir(binary)+"\n"+dir+"\n"+filepath.Dir(dir), "\n") {
				require.NoError(t, os.Chmod(d, 0o755))
			}
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		}
		return execute(t, cmd)
	}
	for _, args := range []string{"dead list", "dead count", "dead show orders/0/18", "layers", "outbox", "requests --all", "dead export"} {
		assert.Zero(t, asAnother(strings.Fields(args)...).status, args)
	}
	r := asAnother("dead", "purge", "--queue", "orders-dead", "orders/0/18", "--yes")
	assert.Equal(t, exitFailed, r.status)
	assert.Contains(t, r.stderr, "readonly database")

	db, err := sqlite.OpenDB(t.Context(), filepath.Join(dir, "orders.db")) // the program is running
	require.NoError(t, err)
	defer db.Close()
	s := sqlite.New(db)
	require.NoError(t, s.Put(t.Context(), "orders-dead", store.Message{Meta: message.Meta{ID: "later"}, Cause: store.Permanent}))
	assert.Contains(t, asAnother("dead", "list").stdout, "later")
}

// Messages that arrive during the question stay.
func TestPurgeWhatWasAskedFor(t *testing.T) {
	t.Parallel()
	dir := seed(t)
	s := inTerminal(t, dir, "dead", "purge", "--queue", "orders-dead", "--all")
	const question = `Remove 8 messages from queue "orders-dead" for good? [y/N] `
	require.Eventually(t, func() bool { return strings.Contains(s.text(), question) }, time.Minute, time.Millisecond)
	put(t, dir, "later")
	s.answer(question, "y\n")
	screen, err := s.end()
	require.NoError(t, err)
	assert.Contains(t, screen, "8 messages removed")
	assert.Contains(t, execute(t, command(t, dir, "dead", "list")).stdout, " later ")
}

// A long merge shows its progress and can be interrupted.
func TestMergeInTerminal(t *testing.T) {
	t.Parallel()
	dir := seed(t)
	var ids []string
	for i := range 500 {
		ids = append(ids, fmt.Sprint("m", i))
	}
	put(t, dir, ids...)
	s := inTerminal(t, dir, "dead", "merge", "--queue", "orders-dead", "--to", "sales", "--cause", "permanent", "--rate", "100")
	s.answer("Queue \"sales\" is empty, and no worker reads it: is the name right?\n"+`Send 502 messages of queue "orders-dead" back to "sales"? [y/N] `, "y\n")
	some := regexp.MustCompile(`[1-9]\d* of 502, `)
	require.Eventually(t, func() bool { return some.MatchString(s.text()) }, time.Minute, time.Millisecond, "no progress")
	_, err := io.WriteString(s.file, "\x03") // Ctrl-C
	require.NoError(t, err)
	screen, err := s.end()
	assert.ErrorContains(t, err, "exit status 1")
	assert.Contains(t, screen, "weir: interrupted: job 1 continues in a worker, or with weir jobs run 1")
	assert.Regexp(t, `\d+ messages sent back to "sales"`, screen)
	for line := range strings.FieldsFuncSeq(screen, func(r rune) bool { return r == '\n' || r == '\r' }) {
		assert.LessOrEqual(t, text.StringWidthWithoutEscSequences(line), 80, line)
	}

	s = inTerminal(t, dir, "jobs", "run", "1")
	screen, err = s.end()
	require.NoError(t, err)
	assert.Contains(t, screen, `502 messages sent back to "sales"`)
	assert.Contains(t, execute(t, command(t, dir, "layers", "sales")).stdout, "sales       502")
}

// A silent terminal or pipe does not prevent an import from ending.
func TestInterruptAnImport(t *testing.T) {
	cmd := command(t, seed(t), "dead", "import", "--queue", "orders-dead", "-")
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	var said bytes.Buffer
	cmd.Stderr = &said
	require.NoError(t, cmd.Start())
	_, err = in.Write(bytes.Repeat([]byte("\n"), 1<<20)) // more than a pipe holds, so the command is reading
	require.NoError(t, err)
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	assert.ErrorContains(t, cmd.Wait(), "exit status 1")
	assert.Contains(t, said.String(), "interrupted")
}
