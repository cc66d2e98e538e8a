package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/checkpoint/files"
)

// checkpointedArgs returns flags for a quick job with checkpoints in a new directory, and
// the names of its directory and output file.
func checkpointedArgs(t *testing.T, in string) (args []string, dir, out string) {
	t.Helper()
	dir, out = filepath.Join(t.TempDir(), "checkpoints"), filepath.Join(t.TempDir(), "out.csv")
	return []string{"-in", in, "-faults=false", "-checkpoint", dir, "-checkpoint-interval", "10ms", "-out", out}, dir, out
}

func with(args []string, more ...string) []string { return append(args[:len(args):len(args)], more...) }

// Checkpoints do not change the output, and running a finished job again leaves it
// unchanged.
func TestCheckpointed(t *testing.T) {
	t.Parallel()
	in := csvFile(t, append(lines(t, 300), flight("XQQ", "LAX"), flight("LAX", "QZZ"))...)
	quick := []string{"-strategy", "fixed", "-retries", "2", "-delay", "1ms"}
	for _, format := range []string{"csv", "jsonl"} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			plain := filepath.Join(t.TempDir(), "plain")
			o := runJob("", with(quick, "-in", in, "-faults=false", "-out", plain, "-format", format)...)
			require.Equal(t, exitOK, o.status, o.stderr)

			args, dir, out := checkpointedArgs(t, in)
			args = append(with(args, quick...), "-format", format)
			o = runJob("", args...)
			require.Equal(t, exitOK, o.status, o.stdout+o.stderr)
			assert.Contains(t, o.stdout, "the beginning: there was no checkpoint")
			assert.Contains(t, flat(o.stdout), "proven: 302 flights are in the output file exactly once, in input order, or given up: 300 enriched, 2 given up.")
			assert.Equal(t, readFile(t, plain), readFile(t, out))

			for range 2 {
				o = runJob("", args...)
				require.Equal(t, exitOK, o.status, o.stdout+o.stderr)
				assert.Regexp(t, `resumed from +checkpoint \d+, which has all 302 flights: the job was done already`, flat(o.stdout))
				assert.Contains(t, o.stdout, `airport "QZZ": 1 flight, no such row, attempts: 3 (line 303)`)
				assert.Zero(t, number(t, o.stdout, "calls made"))
				assert.Equal(t, readFile(t, plain), readFile(t, out))
			}

			require.NoError(t, os.RemoveAll(dir))
			require.NoError(t, os.Remove(out))
			o = runJob("", args...)
			require.Equal(t, exitOK, o.status, o.stdout+o.stderr)
			assert.Contains(t, o.stdout, "there was no checkpoint")
			assert.Equal(t, readFile(t, plain), readFile(t, out))
		})
	}
}

// A job that cannot be resumed is refused with a reason, and its output is unchanged.
func TestCheckpointedRefusals(t *testing.T) {
	t.Parallel()
	l := lines(t, 50)
	in := csvFile(t, l...)
	args, dir, out := checkpointedArgs(t, in)
	o := runJob("", args...)
	require.Equal(t, exitOK, o.status, o.stdout+o.stderr)
	done := readFile(t, out)
	other := csvFile(t, l[:50]...)
	file := csvFile(t)
	flags := "the checkpoint is of other flags: they were -out " + out + " -format csv -mode ordered, now they are "

	for _, c := range []struct {
		args []string
		want string
	}{
		{with(args, "-in", other), `state of "flights" in checkpoint`},
		{with(args, "-in", other), other + " is not the input that the checkpoint is of"},
		{with(args, "-in", ""), "flights.csv (built in) is not the input"},
		{with(args, "-mode", "unordered"), flags + "-out " + out + " -format csv -mode unordered"},
		{with(args, "-format", "jsonl"), flags + "-out " + out + " -format jsonl -mode ordered"},
		{with(args, "-out", out+"2"), flags + "-out " + out + "2 -format csv -mode ordered"},
		{with(args, "-in", "/dev/null"), "not a regular file"},
		{with(args, "-out", "/dev/null"), "not a regular file"},
		{with(args, "-in", out), "would overwrite the input"},
		{with(args, "-out", filepath.Join(dir, "no", "such")), "no such file or directory"},
		{with(args, "-in", "nothing.csv"), "no such file or directory"},
		{with(args, "-checkpoint", file), file + ": it is not a directory"},
	} {
		o := runJob("", c.args...)
		assert.Equal(t, exitFailed, o.status, c.args)
		assert.Contains(t, o.stderr, c.want)
		assert.Empty(t, o.stdout)
		assert.Equal(t, done, readFile(t, out))
	}
	assert.NoFileExists(t, out+"2")

	store, err := files.OpenDir(dir)
	require.NoError(t, err)
	o = runJob("", args...)
	assert.Equal(t, exitFailed, o.status)
	assert.Equal(t, fmt.Sprintf("hbase-like: checkpoint: directory %s is in use by process %d: a pipeline needs one of its own\n", dir, os.Getpid()), o.stderr)
	require.NoError(t, store.Close())

	require.NoError(t, os.Remove(out))
	o = runJob("", args...)
	assert.Equal(t, exitFailed, o.status)
	assert.Contains(t, o.stderr, fmt.Sprintf("%s is not there, but had %d bytes at the checkpoint", out, len(done)))
}

// Flags that do not affect the output may change from run to run.
func TestCheckpointedOtherFlags(t *testing.T) {
	t.Parallel()
	in := csvFile(t, lines(t, 1000)...)
	args, _, out := checkpointedArgs(t, in)
	status, _, _ := suspended(t, with(args, "-calls", "16", "-capacity", "200"))
	require.Equal(t, exitInterrupted, status)
	o := runJob("", with(args, "-calls", "100", "-capacity", "10", "-strategy", "fixed", "-checkpoint-interval", "1h")...)
	require.Equal(t, exitOK, o.status, o.stdout+o.stderr)
	assert.Contains(t, flat(o.stdout), "proven: 1,000 flights")
	assert.Equal(t, 1001, strings.Count(readFile(t, out), "\n"))
}

// An invalid row would end every run, so it is refused before the first one.
func TestCheckpointedBadInput(t *testing.T) {
	t.Parallel()
	l := lines(t, 3)
	in := csvFile(t, l[0], l[1], l[2], "2001/01/01 00:47,late,1750,DTW,LAS\n", l[3])
	args, dir, out := checkpointedArgs(t, in)
	o := runJob("", args...)
	assert.Equal(t, exitFailed, o.status)
	assert.Contains(t, o.stderr, in+`:4: column "delay": "late" is not a whole number (with -checkpoint, a bad row is refused before the run begins)`)
	assert.NoDirExists(t, dir)
	assert.NoFileExists(t, out)
}

// A resumed run is proved by the file, not by the runs' own counts.
func TestCheckpointedProof(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"ordered", "unordered"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			args, _, out := checkpointedArgs(t, csvFile(t, lines(t, 50)...))
			args = append(args, "-mode", mode)
			o := runJob("", args...)
			require.Equal(t, exitOK, o.status, o.stdout+o.stderr)

			b := []byte(readFile(t, out))
			b[bytes.IndexByte(b, '\n')+1] ^= 1 // a digit of the first flight, which checkpoints do not check
			require.NoError(t, os.WriteFile(out, b, 0o600))
			o = runJob("", args...)
			assert.Equal(t, exitFailed, o.status)
			assert.Contains(t, o.stdout, "FAILED: the books do not balance")

			require.NoError(t, os.WriteFile(out, b[:len(b)-1], 0o600))
			o = runJob("", args...)
			assert.Equal(t, exitFailed, o.status)
			assert.Contains(t, o.stderr, out)
		})
	}
}

// suspended runs a job and interrupts it after the first checkpoint.
func suspended(t *testing.T, args []string) (status int, stdout, stderr string) {
	t.Helper()
	saved := filepath.Join(args[slices.Index(args, "-checkpoint")+1], "checkpoint-*.weir")
	out, errs := newBuffer(), newBuffer()
	interrupts := make(chan os.Signal, 2)
	ended := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		for tick := time.NewTicker(time.Millisecond); ; {
			if names, _ := filepath.Glob(saved); len(names) > 0 {
				interrupts <- os.Interrupt
				return
			}
			select {
			case <-tick.C:
			case <-ended:
				return
			}
		}
	})
	status = run(with(args, "-progress", "off"), nil, out, errs, interrupts)
	close(ended)
	watch.Wait()
	return status, out.String(), errs.String()
}

// The first interrupt saves everything in flight in a checkpoint. The next run resumes
// it.
func TestCheckpointedInterrupt(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"ordered", "unordered"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			const n = 2000
			in := csvFile(t, append(lines(t, n), flight("XQQ", "LAX"))...)
			args, _, out := checkpointedArgs(t, in)
			args = append(args, "-calls", "16", "-capacity", "20", "-mode", mode, "-retries", "1")
			status, stdout, stderr := suspended(t, args)
			require.Equal(t, exitInterrupted, status, stdout+stderr)
			assert.Contains(t, stderr, "interrupted: taking a last checkpoint for up to 5s; interrupt again to stop at once")
			assert.Regexp(t, `suspended in a last checkpoint: of 2,001 flights, [\d,]+ are in the output file and 0 given up`, flat(stdout))
			first := number(t, stdout, "enriched")
			assert.Equal(t, n+1-first, number(t, stdout, "to be done"))
			assert.Equal(t, 1+first, strings.Count(readFile(t, out), "\n"))

			o := runJob("", args...)
			require.Equal(t, exitOK, o.status, o.stdout+o.stderr)
			assert.Regexp(t, `resumed from +checkpoint \d+, with [\d,]+ flights? done`, o.stdout)
			assert.Equal(t, n, number(t, o.stdout, "enriched"))
			assert.Equal(t, 1, number(t, o.stdout, "given up"))
			assert.Contains(t, flat(o.stdout), "proven: 2,001 flights")
		})
	}
}

// Checkpoints continue after the end of the input, and an interrupt still saves
// everything in flight.
func TestCheckpointedInterruptAtTheEnd(t *testing.T) {
	t.Parallel()
	in := csvFile(t, append(lines(t, 3), flight("XQQ", "LAX"))...)
	args, _, _ := checkpointedArgs(t, in)
	forever := with(args, "-retries", "-1", "-delay", "10ms", "-timeout", "1h", "-drain", "1h", "-progress", "plain")
	stdout, stderr := newBuffer(), newBuffer()
	interrupts := make(chan os.Signal, 2)
	go func() {
		stderr.await("1 in flight")
		interrupts <- os.Interrupt
	}()
	status := run(forever, nil, stdout, stderr, interrupts)
	require.Equal(t, exitInterrupted, status, stdout.String()+stderr.String())
	assert.Contains(t, flat(stdout.String()), "suspended in a last checkpoint: of 4 flights, 3 are in the output file and 0 given up")

	o := runJob("", with(args, "-retries", "0")...)
	require.Equal(t, exitOK, o.status, o.stdout+o.stderr)
	assert.Contains(t, flat(o.stdout), "proven: 4 flights are in the output file exactly once, in input order, or given up: 3 enriched, 1 given up.")
}

// If an interrupt cannot take a last checkpoint, the run stops at once, and the next run
// resumes from the previous checkpoint.
func TestCheckpointedInterruptWithoutACheckpoint(t *testing.T) {
	t.Parallel()
	in := csvFile(t, append(lines(t, 3), flight("XQQ", "LAX"))...)
	args, dir, _ := checkpointedArgs(t, in)
	forever := with(args, "-retries", "-1", "-delay", "10ms", "-timeout", "1h", "-drain", "1h", "-progress", "plain")
	stdout, stderr := newBuffer(), newBuffer()
	interrupts := make(chan os.Signal, 2)
	go func() {
		stderr.await("1 in flight")
		assert.NoError(t, os.Rename(dir, dir+".away"))
		interrupts <- os.Interrupt
	}()
	status := run(forever, nil, stdout, stderr, interrupts)
	require.Equal(t, exitInterrupted, status, stdout.String()+stderr.String())
	assert.Contains(t, stderr.String(), "hbase-like: interrupted, without a last checkpoint\nstart again with the same flags")

	require.NoError(t, os.Rename(dir+".away", dir))
	o := runJob("", with(args, "-retries", "0")...)
	require.Equal(t, exitOK, o.status, o.stdout+o.stderr)
	assert.Contains(t, flat(o.stdout), "proven: 4 flights are in the output file exactly once, in input order, or given up: 3 enriched, 1 given up.")
}
