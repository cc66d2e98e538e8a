package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// number returns the number after a label of the summary.
func number(t *testing.T, summary, label string) int {
	t.Helper()
	m := regexp.MustCompile(`(?m)^ +` + label + ` +([\d,]+)`).FindStringSubmatch(summary)
	require.NotNil(t, m, "no %q in:\n%s", label, summary)
	n, err := strconv.Atoi(strings.ReplaceAll(m[1], ",", ""))
	require.NoError(t, err)
	return n
}

// With faults, in both modes, every flight comes out, and the output equals the output
// without faults.
func TestJob(t *testing.T) {
	t.Parallel()
	const n = 800
	in := csvFile(t, lines(t, n)...)
	file := func(name string) string { return filepath.Join(t.TempDir(), name) }
	fair := file("fair.csv")
	o := runJob("", "-in", in, "-faults=false", "-calls", "200", "-out", fair)
	require.Equal(t, exitOK, o.status, o.stderr)
	assert.Zero(t, number(t, o.stdout, "retried"))
	assert.Contains(t, o.stdout, "no faults")
	want := readFile(t, fair)
	assert.Equal(t, n+1, strings.Count(want, "\n"))

	for _, mode := range []string{"ordered", "unordered"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			out := filepath.Join(t.TempDir(), "out.csv")
			o := runJob("", "-in", in, "-mode", mode, "-seed", "3", "-calls", "64", "-out", out)
			require.Equal(t, exitOK, o.status, o.stdout+o.stderr)
			assert.Equal(t, n, number(t, o.stdout, "elements in"))
			assert.Equal(t, n, number(t, o.stdout, "enriched"))
			assert.Zero(t, number(t, o.stdout, "given up"))
			assert.Greater(t, number(t, o.stdout, "retried"), 20)
			assert.Positive(t, number(t, o.stdout, "no row yet"))
			assert.Regexp(t, `late row, .*(region move|dropped connections|server crash)`, o.stdout)
			assert.Positive(t, number(t, o.stdout, "errors"))
			assert.Contains(t, flat(o.stdout), "proven: 800 flights came out exactly once")
			if mode == "ordered" {
				assert.Contains(t, o.stdout, "in input order")
				assert.Equal(t, want, readFile(t, out))
			} else {
				assert.Equal(t, sorted(want), sorted(readFile(t, out)))
			}
		})
	}
}

// Capacity 1 and one call at a time are slow but correct.
func TestTightLimits(t *testing.T) {
	t.Parallel()
	in := csvFile(t, lines(t, 40)...)
	for _, mode := range []string{"ordered", "unordered"} {
		o := runJob("", "-in", in, "-mode", mode, "-faults=false", "-capacity", "1", "-calls", "1")
		assert.Equal(t, exitOK, o.status, o.stdout+o.stderr)
		assert.Equal(t, 40, number(t, o.stdout, "enriched"))
	}
}

func TestUnknownAirports(t *testing.T) {
	t.Parallel()
	l := lines(t, 6)
	in := csvFile(t, l[0], l[1], flight("XQQ", "LAX"), l[2], flight("LAX", "QZZ"), flight("QZZ", "XQQ"), l[3])
	out := filepath.Join(t.TempDir(), "out.csv")
	o := runJob("", "-in", in, "-faults=false", "-strategy", "fixed", "-retries", "3", "-delay", "1ms", "-out", out)
	require.Equal(t, exitOK, o.status, "given up is not failed: %s", o.stdout)
	assert.Equal(t, 3, number(t, o.stdout, "enriched"))
	assert.Equal(t, 3, number(t, o.stdout, "given up"))
	assert.Equal(t, 9, number(t, o.stdout, "no row yet"))
	assert.Contains(t, o.stdout, `airport "QZZ": 2 flights, no such row, attempts: 4 (lines 5, 6)`)
	assert.Contains(t, o.stdout, `airport "XQQ": 1 flight, no such row, attempts: 4 (line 3)`)
	assert.Contains(t, flat(o.stdout), "proven: 6 flights came out exactly once, in input order: 3 enriched, 3 given up.")
	assert.Equal(t, 4, strings.Count(readFile(t, out), "\n"), "header and enriched flights")
}

func TestTimeouts(t *testing.T) {
	t.Parallel()
	o := runJob(lines(t, 0)[0]+flight("XQQ", "LAX"), "-in", "-", "-faults=false", "-retries", "-1", "-delay", "1ms", "-timeout", "50ms")
	assert.Equal(t, exitOK, o.status)
	assert.Equal(t, 1, number(t, o.stdout, "timed out"))
	assert.Equal(t, 1, number(t, o.stdout, "given up"))
	assert.Contains(t, o.stdout, `airport "XQQ": 1 flight, timed out (line 2)`)
}

func TestJob_NoRetries(t *testing.T) {
	t.Parallel()
	o := runJob(lines(t, 0)[0]+flight("XQQ", "LAX"), "-in", "-", "-faults=false", "-retries", "0")
	assert.Equal(t, exitOK, o.status)
	assert.Contains(t, o.stdout, "no such row, attempts: 1")
	assert.Equal(t, 1, number(t, o.stdout, "calls made"))
}

func TestOutputToStdout(t *testing.T) {
	t.Parallel()
	in := csvFile(t, lines(t, 5)...)
	o := runJob("", "-in", in, "-faults=false", "-out", "-", "-format", "jsonl")
	assert.Equal(t, exitOK, o.status)
	assert.Equal(t, 5, strings.Count(o.stdout, "\n"), "flights and nothing else")
	assert.True(t, strings.HasPrefix(o.stdout, `{"date":"2001/01/01 00:47","delay":66,`), o.stdout)
	assert.Contains(t, o.stderr, "proven: 5 flights")
}

// An input error is reported with file and line, and the flights before it are kept.
func TestJob_BadInput(t *testing.T) {
	t.Parallel()
	l := lines(t, 3)
	out := filepath.Join(t.TempDir(), "out.csv")
	in := csvFile(t, l[0], l[1], l[2], "2001/01/01 00:47,late,1750,DTW,LAS\n", l[3])
	o := runJob("", "-in", in, "-faults=false", "-out", out)
	assert.Equal(t, exitFailed, o.status)
	assert.Equal(t, "hbase-like: "+in+`:4: column "delay": "late" is not a whole number (the 2 flights before it were processed)`+"\n", o.stderr)
	assert.Contains(t, flat(o.stdout), "proven: 2 flights came out exactly once", "the summary is printed all the same")
	assert.Equal(t, 3, strings.Count(readFile(t, out), "\n"))

	o = runJob("date,delay,distance,origin\n", "-in", "-")
	assert.Equal(t, exitFailed, o.status)
	assert.Equal(t, "hbase-like: standard input:1: missing column \"destination\" (the header has date, delay, distance, origin)\n", o.stderr)
	assert.Empty(t, o.stdout)

	dir := t.TempDir()
	for _, args := range [][]string{
		{"-in", filepath.Join(dir, "nothing.csv")},
		{"-in", dir},
		{"-in", in, "-out", filepath.Join(dir, "no", "such", "dir")},
		{"-in", in, "-out", in},
	} {
		o := runJob("", args...)
		assert.Equal(t, exitFailed, o.status, args)
		assert.Contains(t, o.stderr, args[len(args)-1])
		assert.Empty(t, o.stdout)
	}
	assert.Equal(t, 5, strings.Count(readFile(t, in), "\n"), "the input is untouched")
}

func TestJob_NoFlights(t *testing.T) {
	t.Parallel()
	for _, progress := range []string{"plain", "bar"} {
		out, errs := newBuffer(), newBuffer()
		status := run([]string{"-in", csvFile(t, lines(t, 0)...), "-progress", progress}, nil, out, errs, nil)
		assert.Equal(t, exitOK, status)
		assert.Contains(t, flat(out.String()), "proven: 0 flights")
	}
}

func TestUsage(t *testing.T) {
	o := runJob("", "-capacity", "0")
	assert.Equal(t, exitUsage, o.status)
	assert.Equal(t, "hbase-like: -capacity 0: must be at least 1 (-h for help)\n", o.stderr)
	o = runJob("", "-h")
	assert.Equal(t, exitOK, o.status)
	assert.Contains(t, o.stdout, "Usage: hbase-like")
}

// failing is an output that fails after some writes.
type failing struct{ writes int }

func (f *failing) Write(p []byte) (int, error) {
	if f.writes--; f.writes < 0 {
		return 0, errors.New("no space left on device")
	}
	return len(p), nil
}

// An output that fails ends the run early and with the reason.
func TestBrokenOutput(t *testing.T) {
	t.Parallel()
	errs := newBuffer()
	status := run([]string{"-faults=false", "-out", "-", "-calls", "1000", "-progress", "off"}, nil, &failing{writes: 3}, errs, nil)
	assert.Equal(t, exitFailed, status)
	assert.Contains(t, errs.String(), "hbase-like: output: no space left on device\n")
	assert.Less(t, number(t, errs.String(), "elements in"), 20_000)

	errs = newBuffer()
	status = run([]string{"-in", csvFile(t, lines(t, 1)...), "-faults=false", "-out", "-", "-progress", "off"}, nil, &failing{}, errs, nil)
	assert.Equal(t, exitFailed, status, "the last write counts, too")
}

// endless is an input without end. It calls enough once it was read often enough for
// flights to be in flight.
type endless struct {
	line   string
	reads  int
	enough func()
}

func (e *endless) Read(p []byte) (n int, err error) {
	if e.reads++; e.reads == 5 {
		e.enough()
	}
	for n+len(e.line) <= len(p) {
		n += copy(p[n:], e.line)
	}
	return n, nil
}

// At the first interrupt the flights in flight still come out.
func TestInterruptDrains(t *testing.T) {
	t.Parallel()
	out, errs := newBuffer(), newBuffer()
	interrupts := make(chan os.Signal, 2)
	in := io.MultiReader(strings.NewReader(lines(t, 0)[0]),
		&endless{line: flight("ATL", "DTW"), enough: func() { interrupts <- os.Interrupt }})
	status := run([]string{"-in", "-", "-faults=false", "-drain", "1h", "-progress", "bar"}, in, out, errs, interrupts)
	require.Equal(t, exitInterrupted, status, out.String()+errs.String())
	assert.Contains(t, errs.String(), "interrupted: finishing what is in flight for up to 1h0m0s")
	assert.Zero(t, number(t, out.String(), "abandoned"))
	assert.Contains(t, flat(out.String()), "none twice, none lost")
	assert.Positive(t, number(t, out.String(), "enriched"))
	// Flights waiting before the first look-up are not started. Flights that have left it
	// continue to the second.
	assert.LessOrEqual(t, number(t, out.String(), "not started"), 128+2) // the default of WithBuffer
}

// brokenPipe is a pipe whose reader has exited.
type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, syscall.EPIPE }

// If an interrupt also ends the reader of a pipe, the summary goes to standard error.
func TestSummaryWithoutAReader(t *testing.T) {
	t.Parallel()
	errs := newBuffer()
	status := run([]string{"-in", "-", "-faults=false", "-progress", "off"}, strings.NewReader(lines(t, 0)[0]+flight("ATL", "DTW")), brokenPipe{}, errs, nil)
	require.Equal(t, exitOK, status)
	assert.Contains(t, flat(errs.String()), "proven: 1 flight came out exactly once")
}

// Flights that never complete are cut off after the drain time or at the second
// interrupt.
func TestInterruptCutsOff(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		drain      string
		interrupts int
	}{
		"time is over":     {"1ms", 1},
		"second interrupt": {"1h", 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, errs := newBuffer(), newBuffer()
			interrupts := make(chan os.Signal, 2)
			stdin, feed := io.Pipe() // stays open, like an idle terminal
			t.Cleanup(func() { assert.NoError(t, feed.Close()) })
			go func() {
				_, _ = io.WriteString(feed, lines(t, 0)[0]+flight("XQQ", "LAX")+flight("ATL", "LAX"))
				errs.await("2 in flight")
				for range c.interrupts {
					interrupts <- os.Interrupt
				}
			}()
			args := []string{
				"-in", "-", "-faults=false", "-progress", "plain", "-drain", c.drain,
				"-retries", "-1", "-delay", "10ms", "-max-delay", "10ms", "-timeout", "1h",
			}
			status := run(args, stdin, out, errs, interrupts)
			require.Equal(t, exitInterrupted, status, out.String()+errs.String())
			assert.Equal(t, 2, number(t, out.String(), "elements in"))
			assert.Equal(t, 2, number(t, out.String(), "abandoned"), "ordered: ATL waits behind XQQ")
			assert.Zero(t, number(t, out.String(), "given up"))
		})
	}
}
