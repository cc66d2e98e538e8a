//go:build unix

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/internal/testing/suite"
)

var (
	killsFlag = flag.Int("kills", 0, "how often TestKilled kills; 0: 8, or 30 in CI")
	killSeed  = flag.Uint64("kill-seed", 0, "seed of the moments at which TestKilled kills; 0: a new one")
)

// A job that is killed at random times, even inside the write of a checkpoint, and
// restarted with the same flags, writes the same output as an undisturbed run.
func TestKilled(t *testing.T) {
	t.Parallel()
	kills := *killsFlag
	switch {
	case kills > 0:
	case !suite.Full():
		kills = 8
	default:
		kills = 30
	}
	seed := *killSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-kill-seed %d", seed)

	fair := []string{"-faults=false", "-calls", "64", "-capacity", "50", "-strategy", "fixed", "-retries", "3", "-delay", "5ms"}
	trouble := []string{"-calls", "64", "-capacity", "50", "-retries", "-1", "-max-delay", "100ms"}
	total := &killCount{before: make(map[string]int)}
	t.Cleanup(func() {
		if !t.Failed() {
			total.check(t, kills)
		}
	})
	for i, j := range []*killedJob{
		{flags: fair, flights: 2000, unknown: 50},
		{flags: fair, flights: 2000, unknown: 50, unordered: true},
		{flags: trouble, flights: 400},
		{flags: trouble, flights: 400, unordered: true},
	} {
		name := "ordered"
		if j.unordered {
			name = "unordered"
			j.flags = append(j.flags[:len(j.flags):len(j.flags)], "-mode", "unordered")
		}
		if j.unknown == 0 {
			name += " with trouble"
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j.dir, j.count = t.TempDir(), total
			j.rnd = rand.New(rand.NewPCG(seed, uint64(i)))
			share := (kills + 1) * 3 / 8 // the quick jobs are killed more often
			if j.unknown == 0 {
				share = (kills+1)/2 - share
			}
			if share == 0 || !suite.Full() && j.unknown == 0 {
				t.Skip("too few kills")
			}
			j.run(t, share)
		})
	}
}

// inWrite maps the steps of a checkpoint's write that can leave something on disk to the
// state after a kill before that step.
var inWrite = map[string]string{
	"write":   "a file beside, without content or with some",
	"sync":    "a file beside, whole but not durable",
	"rename":  "a file beside, whole and durable",
	"syncdir": "a checkpoint, whose name is not durable",
}

type killCount struct {
	mu      sync.Mutex
	kills   int
	before  map[string]int // kills by the write step they preceded
	resumed int            // starts with a checkpoint to resume from
	done    int            // jobs that completed
}

func (c *killCount) add(f func(c *killCount)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(c)
}

func (c *killCount) check(t *testing.T, kills int) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	inside := 0
	for step := range inWrite {
		inside += c.before[step]
	}
	t.Logf("%d kills, %d of them inside the write of a checkpoint: before %v; %d starts went on from a checkpoint; %d jobs came to their end",
		c.kills, inside, c.before, c.resumed, c.done)
	assert.Positive(t, c.resumed)
	assert.GreaterOrEqual(t, inside, min(kills/4, 5))
	if suite.Full() {
		assert.GreaterOrEqual(t, c.kills, kills)
	}
}

type killedJob struct {
	flags     []string
	unordered bool
	flights   int // flights with known airports in the input
	unknown   int // flights with an unknown airport, spread over the input

	dir   string
	rnd   *rand.Rand
	count *killCount
	want  string // the output of an undisturbed run
}

func (j *killedJob) file(name string) string { return filepath.Join(j.dir, name) }

// input returns the flights, with the flights of unknown airports spread among them.
func (j *killedJob) input(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	nowhere := 0
	for i, line := range lines(t, j.flights) {
		b.WriteString(line)
		if nowhere < j.unknown && i >= nowhere*j.flights/j.unknown {
			b.WriteString([]string{flight("XQQ", "LAX"), flight("LAX", "QZZ")}[nowhere%2])
			nowhere++
		}
	}
	return b.String()
}

func (j *killedJob) run(t *testing.T, kills int) {
	t.Helper()
	require.NoError(t, os.WriteFile(j.file("in.csv"), []byte(j.input(t)), 0o600))
	begun := time.Now()
	plain := j.start(t, killPoint{}, "-faults=false", "-retries", "0", "-out", j.file("undisturbed.csv"))
	require.Equal(t, exitOK, plain.status, plain.stdout+plain.stderr)
	alive := time.Since(begun) // depends on this machine and its load
	require.Equal(t, j.unknown, number(t, plain.stdout, "given up"))
	j.want = readFile(t, j.file("undisturbed.csv")) // depends only on the input

	args := []string{"-checkpoint", j.file("checkpoints"), "-checkpoint-interval", "10ms", "-out", j.file("out.csv")}
	steps := slices.Sorted(maps.Keys(inWrite))
	j.rnd.Shuffle(len(steps), func(a, b int) { steps[a], steps[b] = steps[b], steps[a] })
	steps = append(steps, "create", "remove")
	for done := 0; done < kills; {
		at := killPoint{after: 1 + time.Duration(j.rnd.Int64N(int64(alive)))}
		switch {
		case j.unknown == 0: // with faults it lives longer
			at.after += at.after
		case done%2 == 0: // every other kill by a failpoint, each step in turn
			at = killPoint{step: steps[done/2%len(steps)], number: 1 + j.rnd.IntN(3)}
		}
		o := j.start(t, at, args...)
		if !o.killed { // it completed before the kill
			j.check(t, o)
			require.NoError(t, os.RemoveAll(j.file("checkpoints")))
			require.NoError(t, os.Remove(j.file("out.csv")))
			continue
		}
		done++
		j.checkKilled(t, o)
	}
	j.check(t, j.start(t, killPoint{}, args...))

	// Run it once more: no calls are made and the output is unchanged.
	o := j.start(t, killPoint{}, args...)
	j.check(t, o)
	assert.Contains(t, flat(o.stdout), "the job was done already")
	assert.Zero(t, number(t, o.stdout, "calls made"))
}

// killPoint selects when a process is killed: never, after a time, or before a step of a
// checkpoint's write.
type killPoint struct {
	after  time.Duration
	step   string
	number int // occurrence of the step, from 1
}

type killedRun struct {
	runResult
	killed bool
}

// start runs the binary until it ends or is killed.
func (j *killedJob) start(t *testing.T, at killPoint, args ...string) killedRun {
	t.Helper()
	if saved, _ := filepath.Glob(j.file("checkpoints/*.weir")); len(saved) > 0 {
		j.count.add(func(c *killCount) { c.resumed++ })
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := command(ctx, t, slices.Concat([]string{"-in", j.file("in.csv"), "-progress", "off"}, j.flags, args)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGQUIT) } // it hangs: print its goroutines
	cmd.WaitDelay = 5 * time.Second
	if at.step != "" {
		cmd.Env = append(cmd.Env, fmt.Sprintf("%s=%s:%d", killAt, at.step, at.number))
	}
	stdout, stderr := newBuffer(), newBuffer()
	cmd.Stdout, cmd.Stderr = stdout, stderr
	begun := time.Now()
	defer func() { t.Logf("%+v: ended after %v", at, time.Since(begun).Round(time.Millisecond)) }()
	require.NoError(t, cmd.Start())
	if at.after > 0 {
		kill := time.AfterFunc(at.after, func() { _ = cmd.Process.Kill() }) // no effect if it has ended
		defer kill.Stop()
	}
	err := cmd.Wait()
	require.NoError(t, ctx.Err(), stderr.String())
	o := killedRun{runResult: runResult{stdout: stdout.String(), stderr: stderr.String()}}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		if s, ok := exit.Sys().(syscall.WaitStatus); ok && s.Signaled() {
			require.Equal(t, syscall.SIGKILL, s.Signal(), o.stderr)
			require.NotZero(t, at)
			o.killed = true
			return o
		}
	}
	o.status = status(t, err)
	return o
}

var killedBefore = regexp.MustCompile(`^killed before step "(\w+)"\n$`)

// checkKilled checks the state after a kill.
func (j *killedJob) checkKilled(t *testing.T, o killedRun) {
	t.Helper()
	step := ""
	if m := killedBefore.FindStringSubmatch(o.stderr); m != nil {
		step = m[1]
	} else {
		require.Empty(t, o.stderr)
	}
	j.count.add(func(c *killCount) {
		c.kills++
		if step != "" {
			c.before[step]++
		}
	})
	torn, err := filepath.Glob(j.file("checkpoints/*.tmp"))
	require.NoError(t, err)
	switch step {
	case "":
	case "write", "sync", "rename":
		require.Len(t, torn, 1, "killed before %s: %s", step, inWrite[step])
	default:
		require.Empty(t, torn, "killed before %s", step)
	}
	got, err := os.ReadFile(j.file("out.csv"))
	if errors.Is(err, os.ErrNotExist) {
		return // killed before the output was created
	}
	require.NoError(t, err)
	if !j.unordered {
		require.True(t, strings.HasPrefix(j.want, string(got)), "what is visible has no gap and nothing twice")
	}
}

// check checks the state after a run that completed.
func (j *killedJob) check(t *testing.T, o killedRun) {
	t.Helper()
	require.False(t, o.killed)
	require.Equal(t, exitOK, o.status, o.stdout+o.stderr)
	require.Empty(t, o.stderr)
	got := readFile(t, j.file("out.csv"))
	if j.unordered {
		require.Equal(t, sorted(j.want), sorted(got))
	} else {
		require.Equal(t, j.want, got)
	}
	require.Equal(t, j.flights+j.unknown, number(t, o.stdout, "elements in"))
	require.Equal(t, j.flights, number(t, o.stdout, "enriched"))
	require.Equal(t, j.unknown, number(t, o.stdout, "given up"))
	require.Contains(t, o.stdout, "\nproven: ")
	if j.unknown > 0 {
		for _, airport := range []string{"XQQ", "QZZ"} {
			require.Contains(t, o.stdout, fmt.Sprintf(`airport %q: %d flights, no such row, attempts: 4`, airport, j.unknown/2))
		}
	}
	for _, leftover := range []string{"checkpoints/*.tmp", "out.csv.part-*"} {
		left, err := filepath.Glob(j.file(leftover))
		require.NoError(t, err)
		require.Empty(t, left)
	}
	j.count.add(func(c *killCount) { c.done++ })
}
