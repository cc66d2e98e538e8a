package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The command as users run it, in a process of its own.
func TestCommand(t *testing.T) {
	t.Parallel()
	command := func(t *testing.T, stdin string, args ...string) *exec.Cmd {
		t.Helper()
		cmd := command(t.Context(), t, args...)
		cmd.Dir = t.TempDir() // it must run from any directory
		cmd.Stdin = strings.NewReader(stdin)
		return cmd
	}
	execute := func(t *testing.T, stdin string, args ...string) runResult {
		t.Helper()
		cmd := command(t, stdin, args...)
		stdout, stderr := newBuffer(), newBuffer()
		cmd.Stdout, cmd.Stderr = stdout, stderr
		return runResult{status(t, cmd.Run()), stdout.String(), stderr.String()}
	}
	input := strings.Join(lines(t, 400), "")

	t.Run("two runs write the same", func(t *testing.T) {
		t.Parallel()
		for _, format := range []string{"csv", "jsonl"} {
			t.Run(format, func(t *testing.T) {
				t.Parallel()
				var outputs []string
				for range 2 {
					name := filepath.Join(t.TempDir(), "out."+format)
					o := execute(t, input, "-in", "-", "-seed", "4", "-calls", "64", "-out", name)
					require.Equal(t, exitOK, o.status, o.stdout+o.stderr)
					assert.Contains(t, flat(o.stdout), "proven: 400 flights came out exactly once, in input order")
					assert.Contains(t, o.stderr, " flights, ", "lines, since this is not a terminal")
					outputs = append(outputs, readFile(t, name))
				}
				assert.NotEmpty(t, outputs[0])
				assert.Equal(t, outputs[0], outputs[1])
			})
		}
	})
	t.Run("two unordered runs write the same flights", func(t *testing.T) {
		t.Parallel()
		var outputs [][]string
		for range 2 {
			o := execute(t, input, "-in", "-", "-mode", "unordered", "-out", "-", "-progress", "off")
			require.Equal(t, exitOK, o.status, o.stderr)
			outputs = append(outputs, sorted(o.stdout))
		}
		assert.Equal(t, outputs[0], outputs[1])
	})
	t.Run("unknown airport", func(t *testing.T) {
		t.Parallel()
		o := execute(t, input+flight("XQQ", "LAX"), "-in", "-", "-calls", "64")
		assert.Equal(t, exitOK, o.status, o.stdout+o.stderr)
		assert.Contains(t, o.stdout, `airport "XQQ": 1 flight, no such row, attempts: 16 (line 402)`)
		assert.Contains(t, flat(o.stdout), "400 enriched, 1 given up.")
	})
	t.Run("bad input", func(t *testing.T) {
		t.Parallel()
		o := execute(t, "date,delay\n", "-in", "-")
		assert.Equal(t, runResult{status: exitFailed, stderr: "hbase-like: standard input:1: missing column \"distance\" (the header has date, delay)\n"}, o)
		o = execute(t, "", "-in", "nothing.csv")
		assert.Equal(t, runResult{status: exitFailed, stderr: "hbase-like: open nothing.csv: no such file or directory\n"}, o)
	})
	t.Run("bad usage", func(t *testing.T) {
		t.Parallel()
		o := execute(t, "", "-mode", "sideways")
		assert.Equal(t, runResult{status: exitUsage, stderr: "hbase-like: -mode sideways: must be ordered or unordered (-h for help)\n"}, o)
		o = execute(t, "", "-help")
		assert.Equal(t, exitOK, o.status)
		assert.Contains(t, o.stdout, "Flags:")
	})
	t.Run("Ctrl-C", func(t *testing.T) {
		t.Parallel()
		// The first flight and all flights behind it stay in flight forever.
		cmd := command(t, strings.Replace(input, "\n", "\n"+flight("XQQ", "LAX"), 1), "-in", "-", "-retries", "-1", "-timeout", "1h", "-drain", "1h")
		stdout, stderr := newBuffer(), newBuffer()
		cmd.Stdout, cmd.Stderr = stdout, stderr
		require.NoError(t, cmd.Start())
		stderr.await(" flights, ")
		require.NoError(t, cmd.Process.Signal(os.Interrupt))
		stderr.await("interrupted: finishing what is in flight for up to 1h0m0s")
		require.NoError(t, cmd.Process.Signal(syscall.SIGTERM)) // has the same effect
		require.Equal(t, exitInterrupted, status(t, cmd.Wait()), stdout.String()+stderr.String())
		assert.Contains(t, flat(stdout.String()), "none twice, none lost")
		assert.Positive(t, number(t, stdout.String(), "abandoned"))
	})
}

func status(t *testing.T, err error) int {
	t.Helper()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode()
	}
	require.NoError(t, err)
	return exitOK
}
