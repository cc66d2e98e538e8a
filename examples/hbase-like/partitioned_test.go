package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/checkpoint/files"
)

// Several workers, some of them killed, write the same output as one pipeline. Running
// the finished job again leaves the output unchanged.
func TestPartitioned(t *testing.T) {
	t.Parallel()
	in := csvFile(t, append(lines(t, 600), flight("XQQ", "LAX"), flight("LAX", "QZZ"))...)
	quick := []string{"-in", in, "-faults=false", "-strategy", "fixed", "-retries", "2", "-delay", "1ms"}
	plain := filepath.Join(t.TempDir(), "plain.csv")
	o := runJob("", with(quick, "-out", plain)...)
	require.Equal(t, exitOK, o.status, o.stderr)

	for _, mode := range []string{"ordered", "unordered"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			dir, out := filepath.Join(t.TempDir(), "checkpoints"), filepath.Join(t.TempDir(), "out.csv")
			args := with(quick, "-mode", mode, "-checkpoint", dir, "-checkpoint-interval", "50ms", "-out", out, "-calls", "1", "-partitions", "5",
				"-workers", "3", "-kills", "1")
			o := runJob("", args...)
			require.Equal(t, exitOK, o.status, o.stdout+o.stderr)
			assert.Contains(t, o.stdout, ": 5 partitions, 3 workers, no faults\n")
			assert.Equal(t, 1, number(t, o.stdout, "workers killed"))
			assert.Positive(t, number(t, o.stdout, "partitions moved"))
			assert.Contains(t, o.stdout, `given up: airport "QZZ", no such row, attempts: 3 (line 603)`)
			if mode == "ordered" {
				assert.Contains(t, flat(o.stdout), "proven: 602 flights are in the output file exactly once, in input order, or given up: 600 enriched, 2 given up.")
				assert.Equal(t, readFile(t, plain), readFile(t, out))
			} else {
				assert.Contains(t, flat(o.stdout), "proven: 602 flights are in the output file exactly once, or given up: 600 enriched, 2 given up.")
				assert.Equal(t, sorted(readFile(t, plain)), sorted(readFile(t, out)))
			}

			done := readFile(t, out)
			o = runJob("", args...)
			require.Equal(t, exitOK, o.status, o.stdout+o.stderr)
			assert.Zero(t, number(t, o.stdout, "calls made"))
			assert.Equal(t, done, readFile(t, out))
		})
	}
}

// A second job on the same directory fails with a message.
func TestPartitioned_TwoJobs(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "checkpoints")
	first, err := files.OpenDir(filepath.Join(dir, "job"))
	require.NoError(t, err)
	args := []string{"-in", csvFile(t, lines(t, 50)...), "-faults=false", "-checkpoint", dir, "-out", filepath.Join(t.TempDir(), "out.csv"), "-partitions", "2", "-workers", "1"}
	o := runJob("", args...)
	assert.Equal(t, exitFailed, o.status)
	assert.Contains(t, o.stderr, "checkpoints/job is in use by process ")
	require.NoError(t, first.Close())
	o = runJob("", args...)
	require.Equal(t, exitOK, o.status, o.stderr)
}

// Each refusal states its reason, and the workers end.
func TestPartitionedRefusals(t *testing.T) {
	t.Parallel()
	in := csvFile(t, lines(t, 50)...)
	dir, out := filepath.Join(t.TempDir(), "checkpoints"), csvFile(t, "precious")
	args := []string{"-in", in, "-faults=false", "-checkpoint", dir, "-out", out, "-partitions", "2", "-workers", "1"}
	o := runJob("", args...)
	assert.Equal(t, exitFailed, o.status)
	assert.Contains(t, o.stderr, "is not empty, and there is no checkpoint to go on from")
	assert.Equal(t, "precious", readFile(t, out))

	require.NoError(t, os.Remove(out))
	require.NoError(t, os.MkdirAll(dir, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "part-2-of-2.csv"), []byte("precious"), 0o600))
	o = runJob("", args...)
	assert.Equal(t, exitFailed, o.status)
	assert.Regexp(t, `part-2-of-2: .*part-2-of-2\.csv is not empty`, o.stderr)
	assert.Equal(t, "precious", readFile(t, filepath.Join(dir, "part-2-of-2.csv")))
}

// An interrupted job resumes at the next start.
func TestPartitionedInterrupted(t *testing.T) {
	t.Parallel()
	in := csvFile(t, lines(t, 400)...)
	dir, out := filepath.Join(t.TempDir(), "checkpoints"), filepath.Join(t.TempDir(), "out.csv")
	args := []string{
		"-in", in, "-faults=false", "-calls", "1", "-checkpoint", dir, "-checkpoint-interval", "50ms", "-out", out,
		"-partitions", "3", "-workers", "2", "-kills", "0", "-progress", "off",
	}
	interrupts := make(chan os.Signal, 1)
	stop := time.AfterFunc(300*time.Millisecond, func() { interrupts <- os.Interrupt })
	defer stop.Stop()
	stdout, stderr := newBuffer(), newBuffer()
	status := run(args, strings.NewReader(""), stdout, stderr, interrupts)
	require.Equal(t, exitInterrupted, status, stdout.String()+stderr.String())
	assert.Contains(t, stderr.String(), "start again with the same flags to go on from the last checkpoints in "+dir)
	assert.NoFileExists(t, out)

	o := runJob("", args...)
	require.Equal(t, exitOK, o.status, o.stdout+o.stderr)
	assert.Contains(t, flat(o.stdout), "proven: 400 flights are in the output file exactly once, in input order, or given up: 400 enriched, 0 given up.")
}
