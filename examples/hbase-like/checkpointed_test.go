package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// checkpointedArgs returns the flags of a quick job with checkpoints in a new
// directory, and the names of its files.
func checkpointedArgs(t *testing.T, in string) (args []string, dir, out string) {
	t.Helper()
	dir, out = filepath.Join(t.TempDir(), "checkpoints"), filepath.Join(t.TempDir(), "out.csv")
	return []string{"-in", in, "-faults=false", "-checkpoint", dir, "-checkpoint-interval", "10ms", "-out", out}, dir, out
}

func with(args []string, more ...string) []string { return append(args[:len(args):len(args)], more...) }

// With checkpoints, the output is what it is without; once it is done, it stays.
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
			assert.Contains(t, o.stdout, "proven: 302 flights are in the output file exactly once, in input order, or given up: 300 enriched, 2 given up.")
			assert.Equal(t, readFile(t, plain), readFile(t, out))

			for range 2 {
				o = runJob("", args...)
				require.Equal(t, exitOK, o.status, o.stdout+o.stderr)
				assert.Regexp(t, `resumed from +checkpoint \d+, which has all 302 flights: the job was done already`, o.stdout)
				assert.Contains(t, o.stdout, `airport "QZZ": 1 flight, no such row, attempts: 3 (line 303)`)
				assert.Zero(t, number(t, o.stdout, "calls made"))
				assert.Equal(t, readFile(t, plain), readFile(t, out))
			}

			require.NoError(t, os.RemoveAll(dir))
			o = runJob("", args...)
			require.Equal(t, exitOK, o.status, o.stdout+o.stderr)
			assert.Contains(t, o.stdout, "there was no checkpoint")
			assert.Equal(t, readFile(t, plain), readFile(t, out))
		})
	}
}

// What cannot be resumed is refused with a reason, and nothing is touched.
func TestCheckpointedRefusals(t *testing.T) {
	t.Parallel()
	l := lines(t, 50)
	in := csvFile(t, l...)
	args, dir, out := checkpointedArgs(t, in)
	o := runJob("", args...)
	require.Equal(t, exitOK, o.status, o.stdout+o.stderr)
	done := readFile(t, out)
	other := csvFile(t, l[:50]...)

	for _, c := range []struct {
		args []string
		want string
	}{
		{with(args, "-in", other), `state of "flights" in checkpoint`},
		{with(args, "-in", other), "is not the input that the checkpoint is of"},
		{with(args, "-in", ""), "flights.csv (built in) is not the input"},
		{with(args, "-mode", "unordered"), "it is of other flags: the output was " + out + " (csv, ordered), now it is " + out + " (csv, unordered)"},
		{with(args, "-format", "jsonl"), "it is of other flags"},
		{with(args, "-out", out+"2"), "it is of other flags"},
		{with(args, "-in", "/dev/null"), "not a regular file"},
		{with(args, "-out", "/dev/null"), "not a regular file"},
		{with(args, "-in", out), "would overwrite the input"},
		{with(args, "-out", filepath.Join(dir, "no", "such")), "no such file or directory"},
		{with(args, "-in", "nothing.csv"), "no such file or directory"},
	} {
		o := runJob("", c.args...)
		assert.Equal(t, exitFailed, o.status, c.args)
		assert.Contains(t, o.stderr, c.want)
		assert.Empty(t, o.stdout)
		assert.Equal(t, done, readFile(t, out))
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{with(args, "-in", "-"), "standard input cannot be read again"},
		{with(args, "-out", "-"), "needs a file that survives a crash"},
		{with(args, "-out", ""), "needs a file that survives a crash"},
		{with(args, "-checkpoint-interval", "0"), "must be positive"},
	} {
		o := runJob("", c.args...)
		assert.Equal(t, exitUsage, o.status, c.args)
		assert.Contains(t, o.stderr, c.want)
	}
}

// A row that makes no sense ends the run. What came before stays.
func TestCheckpointedBadInput(t *testing.T) {
	t.Parallel()
	l := lines(t, 3)
	in := csvFile(t, l[0], l[1], l[2], "2001/01/01 00:47,late,1750,DTW,LAS\n", l[3])
	args, dir, _ := checkpointedArgs(t, in)
	o := runJob("", args...)
	assert.Equal(t, exitFailed, o.status)
	assert.Contains(t, o.stderr, in+`:4: column "delay": "late" is not a whole number`)
	assert.Contains(t, o.stderr, "start again with the same flags to go on from the last checkpoint in "+dir)
}

// The proof of a resumed run is by the file, not by what the runs remember.
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
			b[len(b)-3] ^= 1 // a digit of the last line
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

// The first interrupt takes a checkpoint of what is in flight; the next run goes
// on with it.
func TestCheckpointedInterrupt(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"ordered", "unordered"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			in := csvFile(t, lines(t, 6000)...)
			args, _, out := checkpointedArgs(t, in)
			args = append(args, "-calls", "16", "-capacity", "20", "-mode", mode)
			stdout, stderr := newBuffer(), newBuffer()
			interrupts := make(chan os.Signal, 2)
			go func() {
				stderr.await("flights done")
				interrupts <- os.Interrupt
			}()
			status := run(with(args, "-progress", "plain"), nil, stdout, stderr, interrupts)
			require.Equal(t, exitInterrupted, status, stdout.String()+stderr.String())
			assert.Regexp(t, `suspended in checkpoint \d+: of 6,000 flights, [\d,]+ are in the output and 0 given up`, stdout.String())
			first := number(t, stdout.String(), "enriched")
			assert.Equal(t, 6000-first, number(t, stdout.String(), "to be done"))
			assert.Equal(t, 1+first, strings.Count(readFile(t, out), "\n"))

			o := runJob("", args...)
			require.Equal(t, exitOK, o.status, o.stdout+o.stderr)
			assert.Regexp(t, `resumed from +checkpoint \d+, with [\d,]+ flights done`, o.stdout)
			assert.Equal(t, 6000, number(t, o.stdout, "enriched"))
			assert.Contains(t, o.stdout, "proven: 6,000 flights")
		})
	}
}
