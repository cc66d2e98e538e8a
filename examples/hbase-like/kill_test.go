//go:build unix

package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// killsVariable sets how many kills TestKilled makes; the default is 30.
const killsVariable = "HBASE_LIKE_KILLS"

// Killed at any moment, inside the write of a checkpoint too, and started again
// with the same flags, the job writes what an undisturbed run does.
func TestKilled(t *testing.T) {
	t.Parallel()
	kills := 30
	if s := os.Getenv(killsVariable); s != "" {
		var err error
		kills, err = strconv.Atoi(s)
		require.NoError(t, err)
	}
	bin := filepath.Join(t.TempDir(), "hbase-like")
	out, err := exec.Command("go", "build", "-tags", "failpoint", "-o", bin, ".").CombinedOutput()
	require.NoError(t, err, string(out))

	// Real flights, and every fiftieth to or from an airport that does not exist.
	var lost int
	input := lines(t, 1000)
	unknown := []string{input[0]}
	for i, l := range input[1:] {
		unknown = append(unknown, l)
		if i%50 == 10 {
			unknown = append(unknown, flight("XQQ", "LAX"), flight("LAX", "QZZ"))
			lost += 2
		}
	}
	fair := []string{"-faults=false", "-calls", "16", "-strategy", "fixed", "-retries", "4", "-delay", "10ms", "-timeout", "5s"}
	trouble := []string{"-calls", "64", "-retries", "-1", "-timeout", "15s"}
	jobs := []*killedJob{
		{name: "ordered", flags: fair, input: unknown, lost: lost, within: 400 * time.Millisecond},
		{name: "unordered", flags: append(fair, "-mode", "unordered"), input: unknown, lost: lost, within: 400 * time.Millisecond},
		{name: "ordered with trouble", flags: trouble, input: input, within: time.Second},
		{name: "unordered with trouble", flags: append(trouble, "-mode", "unordered", "-seed", "3"), input: input, within: time.Second},
	}
	var total killCount
	t.Cleanup(func() {
		t.Logf("%d kills, %d of them inside the write of a checkpoint, before: %v; %d runs went on from a checkpoint, %d jobs came to their end",
			total.kills, total.inWrite, total.before, total.resumed, total.finished)
		assert.GreaterOrEqual(t, total.kills, kills)
		assert.GreaterOrEqual(t, total.inWrite, 5)
		assert.Positive(t, total.resumed)
	})
	for i, j := range jobs {
		t.Run(j.name, func(t *testing.T) {
			t.Parallel()
			j.bin, j.dir = bin, t.TempDir()
			j.count, j.first = &total, 2*i
			j.run(t, (kills+len(jobs)-1)/len(jobs))
		})
	}
}

// killCount counts what happened to all jobs.
type killCount struct {
	mu                                sync.Mutex
	kills, inWrite, resumed, finished int
	before                            map[string]int // kills by the step of the write that they came before
}

func (c *killCount) killed(step string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kills++
	if step == "" {
		return
	}
	c.inWrite++
	if c.before == nil {
		c.before = make(map[string]int)
	}
	c.before[step]++
}

func (c *killCount) ended(resumed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.finished++
	if resumed {
		c.resumed++
	}
}

// killedJob is a job that is killed again and again.
type killedJob struct {
	name   string
	flags  []string
	input  []string
	lost   int           // flights of the input that cannot be looked up
	within time.Duration // the time of a kill after the start, at most

	bin, dir string
	count    *killCount
	first    int    // step of a write to be killed at
	want     string // the output of an undisturbed run
}

func (j *killedJob) file(name string) string { return filepath.Join(j.dir, name) }

func (j *killedJob) run(t *testing.T, kills int) {
	t.Helper()
	seed := rand.Uint64()
	t.Log("seed", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	require.NoError(t, os.WriteFile(j.file("in.csv"), []byte(strings.Join(j.input, "")), 0o600))

	o, _ := j.start(t, 0, 0, "-out", j.file("undisturbed.csv"))
	require.Equal(t, exitOK, o.status, o.stdout+o.stderr)
	require.Equal(t, j.lost, number(t, o.stdout, "given up"))
	j.want = readFile(t, j.file("undisturbed.csv"))

	args := []string{"-checkpoint", j.file("checkpoints"), "-checkpoint-interval", "20ms", "-out", j.file("out.csv")}
	for done := 0; done < kills; {
		after, step := time.Duration(0), 0
		switch {
		case done%4 == 1:
			step = 1 + (j.first+done/4)%5 // of the first write: create, write, sync, rename, syncdir
		case done%4 == 3:
			step = 6 + rnd.IntN(40) // of a later one
		default:
			after = time.Duration(1 + rnd.Int64N(int64(j.within)))
		}
		o, killed := j.start(t, after, step, args...)
		if !killed {
			j.check(t, o)
			require.NoError(t, os.RemoveAll(j.file("checkpoints")))
			continue
		}
		done++
		j.checkKilled(t, o)
	}
	o, _ = j.start(t, 0, 0, args...)
	j.check(t, o)

	// And once more: nothing is doubled.
	o, _ = j.start(t, 0, 0, args...)
	j.check(t, o)
	assert.Contains(t, o.stdout, "the job was done already")
	assert.Zero(t, number(t, o.stdout, "calls made"))
}

// start runs the binary, kills it after a time or lets it kill itself at a step
// (0: neither), and reports whether it was killed.
func (j *killedJob) start(t *testing.T, after time.Duration, step int, args ...string) (outcome, bool) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), j.bin, append(append([]string{"-in", j.file("in.csv"), "-progress", "off"}, j.flags...), args...)...)
	cmd.Env = append(os.Environ(), "HBASE_LIKE_KILL_AT_STEP="+strconv.Itoa(step))
	stdout, stderr := newBuffer(), newBuffer()
	cmd.Stdout, cmd.Stderr = stdout, stderr
	require.NoError(t, cmd.Start())
	if after > 0 {
		kill := time.AfterFunc(after, func() { _ = cmd.Process.Kill() }) // unless it has ended
		defer kill.Stop()
	}
	hung := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Signal(syscall.SIGQUIT) }) // tells its goroutines
	defer hung.Stop()
	err := cmd.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		if s, ok := exit.Sys().(syscall.WaitStatus); ok && s.Signaled() {
			require.Equal(t, syscall.SIGKILL, s.Signal(), stderr.String())
			require.True(t, after > 0 || step > 0)
			return outcome{stdout: stdout.String(), stderr: stderr.String()}, true
		}
	}
	return outcome{status(t, err), stdout.String(), stderr.String()}, false
}

var killedBefore = regexp.MustCompile(`killed before step "(\w+)"\n$`)

// checkKilled checks what a killed run has left.
func (j *killedJob) checkKilled(t *testing.T, o outcome) {
	t.Helper()
	step := ""
	if m := killedBefore.FindStringSubmatch(o.stderr); m != nil {
		step = m[1]
	} else {
		require.Empty(t, o.stderr)
	}
	j.count.killed(step)
	torn, err := filepath.Glob(j.file("checkpoints/*.tmp"))
	require.NoError(t, err)
	switch step {
	case "write", "sync", "rename":
		require.Len(t, torn, 1, "killed before %s: a checkpoint is half written", step)
	case "create", "syncdir", "remove":
		require.Empty(t, torn, "killed before %s", step)
	}
	got, err := os.ReadFile(j.file("out.csv"))
	if errors.Is(err, os.ErrNotExist) {
		return // too soon
	}
	require.NoError(t, err)
	if !strings.Contains(j.name, "unordered") {
		require.True(t, strings.HasPrefix(j.want, string(got)), "what is visible has no gap and nothing twice")
	}
}

// check checks what a run that came to its end has left.
func (j *killedJob) check(t *testing.T, o outcome) {
	t.Helper()
	require.Equal(t, exitOK, o.status, o.stdout+o.stderr)
	got := readFile(t, j.file("out.csv"))
	if strings.Contains(j.name, "unordered") {
		require.Equal(t, sorted(j.want), sorted(got))
	} else {
		require.Equal(t, j.want, got)
	}
	n := len(j.input) - 1
	require.Equal(t, n, number(t, o.stdout, "elements in"))
	require.Equal(t, n-j.lost, number(t, o.stdout, "enriched"))
	require.Equal(t, j.lost, number(t, o.stdout, "given up"))
	require.Contains(t, o.stdout, "proven: ")
	if j.lost > 0 {
		require.Contains(t, o.stdout, fmt.Sprintf(`airport "XQQ": %d flights, no such row, attempts: 5`, j.lost/2))
		require.Contains(t, o.stdout, fmt.Sprintf(`airport "QZZ": %d flights, no such row, attempts: 5`, j.lost/2))
	}
	for _, name := range []string{"checkpoints/*.tmp", "out.csv.part-*"} {
		left, err := filepath.Glob(j.file(name))
		require.NoError(t, err)
		require.Empty(t, left)
	}
	j.count.ended(regexp.MustCompile(`resumed from +checkpoint \d`).MatchString(o.stdout))
}
