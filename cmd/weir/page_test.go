//go:build unix

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The commands of each section of the page about dead letters, one after the other, print what the page says.
func TestPage(t *testing.T) {
	const page = "../../docs/dead-letters.md"
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	dir := seed(t)
	run := func(line string) string {
		cmd := exec.CommandContext(t.Context(), "sh", "-c", line)
		cmd.Dir = dir
		cmd.Env = append(command(t, dir).Env, "COLUMNS=110", "PATH="+filepath.Dir(binary)+":"+os.Getenv("PATH"))
		out, _ := cmd.CombinedOutput() // some fail on purpose, and say so
		if text := string(out); text != "" && !strings.HasSuffix(text, "\n") {
			return text + "\n"
		}
		return string(out)
	}
	var got strings.Builder
	commands, console := 0, false
	for line := range strings.Lines(string(text)) {
		command, isCommand := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "$ ")
		switch {
		case strings.HasPrefix(line, "## "):
			dir = seed(t)
			got.WriteString(line)
		case line == "```console\n":
			console = true
			got.WriteString(line)
		case console && isCommand:
			commands++
			got.WriteString(line + run(command))
		case console && line == "```\n":
			console = false
			got.WriteString(line)
		case !console:
			got.WriteString(line)
		}
	}
	if *update {
		require.NoError(t, os.WriteFile(page, []byte(got.String()), 0o644))
	}
	assert.Equal(t, normal(string(text)), normal(got.String()))
	assert.Positive(t, commands)
}
