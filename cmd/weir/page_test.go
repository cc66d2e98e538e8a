//go:build unix

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The commands of each section of the page on dead letters, run in order, print the text
// of the page.
func TestPage(t *testing.T) {
	t.Parallel()
	const page = "../../docs/dead-letters.md"
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	dir := seed(t)
	run := func(line string) string {
		cmd := exec.CommandContext(t.Context(), "sh", "-c", line)
		cmd.Dir = dir
		cmd.Env = append(command(t, dir).Env, "COLUMNS=110", "PATH="+filepath.Dir(binary)+":"+os.Getenv("PATH"))
		out, _ := cmd.CombinedOutput() // some commands fail on purpose
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

// The commands and flags in the pages exist.
func TestPages_NameCommands(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	require.NoError(t, err)
	pages = append(pages, "../../README.md", "../../CHANGELOG.md", "../../DESIGN.md")
	checked := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, line := range commandsOf(string(text)) {
			command, rest, err := (&app{}).commands().Find(strings.Fields(line))
			if !assert.NoError(t, err, "%s: weir %s", page, line) {
				continue
			}
			checked++
			isCommand := !command.HasSubCommands() || len(rest) == 0 || strings.HasPrefix(rest[0], "-")
			assert.True(t, isCommand, "%s: weir %s: no such command", page, line)
			for _, word := range rest {
				name, isFlag := strings.CutPrefix(word, "--")
				name, _, _ = strings.Cut(name, "=")
				if isFlag {
					assert.True(t, command.Flag(name) != nil || command.InheritedFlags().Lookup(name) != nil, "%s: weir %s: no flag --%s", page, line, name)
				}
			}
		}
	}
	assert.Greater(t, checked, 100)
}

var commandSpan = regexp.MustCompile("`weir ([a-z][^`\n]*)`")

// commandsOf returns the arguments of commands in a page's code spans and code blocks.
func commandsOf(page string) (commands []string) {
	inBlock := false
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, "```") {
			inBlock = !inBlock
			continue
		}
		if !inBlock {
			for _, m := range commandSpan.FindAllStringSubmatch(line, -1) {
				commands = append(commands, strings.ReplaceAll(m[1], ",", ""))
			}
			continue
		}
		args, ok := strings.CutPrefix(strings.TrimPrefix(line, "$ "), "weir ")
		if ok {
			args, _, _ = strings.Cut(args, "  #")
			commands = append(commands, args)
		}
	}
	return commands
}
