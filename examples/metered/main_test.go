package main

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const childEnv = "WEIR_EXAMPLE_METERED"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func start(t *testing.T, dir string, out *strings.Builder) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], dir)
	cmd.Env = append(os.Environ(), childEnv+"=1")
	cmd.Stdout, cmd.Stderr = out, os.Stderr
	require.NoError(t, cmd.Start())
	return cmd
}

// A killed run continues: each line has its row once, in order, and the answers already
// paid for are not paid for again.
func TestMetered_KilledAndStartedAgain(t *testing.T) {
	dir := t.TempDir()
	var out strings.Builder
	first := start(t, dir, &out)
	stored := func() (size int64) {
		for _, name := range []string{"answers.db", "answers.db-wal"} {
			info, err := os.Stat(filepath.Join(dir, name))
			if err == nil {
				size += info.Size()
			}
		}
		return size
	}
	require.Eventually(t, func() bool { return stored() > 500_000 }, time.Minute, 5*time.Millisecond)
	require.NoError(t, first.Process.Kill())
	require.Error(t, first.Wait())

	out.Reset()
	require.NoError(t, start(t, dir, &out).Wait())
	t.Log(out.String())
	require.Regexp(t, `(?m)^estimate: 48354 tokens$`, out.String())
	require.Regexp(t, `(?m)^time: \d+\.\d s, of which the provider was overloaded for \d+\.\d s$`, out.String())
	require.Regexp(t, `(?m)^calls: \d+ answered, \d+ throttled \(429\), \d+ overloaded \(529\), \d+ refused \(422\)$`, out.String())
	require.Regexp(t, `(?m)^limit: \d+ % of the tokens that it allowed$`, out.String())
	require.Regexp(t, `(?m)^cost: \$\d\.\d\d$`, out.String())
	require.Regexp(t, `(?m)^rows: 3000, failed: 31, without a call of their own: \d{3,4}$`, out.String())

	file, err := os.Open(filepath.Join(dir, "answers.jsonl"))
	require.NoError(t, err)
	defer file.Close()
	prompts, err := os.ReadFile(filepath.Join(dir, "prompts.txt"))
	require.NoError(t, err)
	got := bufio.NewScanner(file)
	for prompt := range strings.Lines(string(prompts)) {
		require.True(t, got.Scan())
		var r row
		require.NoError(t, json.Unmarshal(got.Bytes(), &r))
		require.Equal(t, strings.TrimSuffix(prompt, "\n"), r.Prompt)
		require.Equal(t, strings.Contains(prompt, "13."), r.Error != "")
	}
	require.False(t, got.Scan())
}
