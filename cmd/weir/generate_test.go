package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestGenerate(t *testing.T) {
	r := execute(t, command(t, t.TempDir(), "generate", "dashboard"))
	require.Zero(t, r.status, r.stderr)
	var dashboard struct{ Panels []struct{ Title string } }
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &dashboard))
	require.NotEmpty(t, dashboard.Panels)
	r = execute(t, command(t, t.TempDir(), "generate", "alerts"))
	require.Zero(t, r.status, r.stderr)
	require.Contains(t, r.stdout, "alert: WeirBackendDown")
	require.NotContains(t, r.stdout, "console")
}

// With the address of a console, each alert has a link to a page of it.
func TestGenerate_LinksToConsole(t *testing.T) {
	for _, address := range []string{"https://ops.example.com/weir", "https://ops.example.com/weir/"} {
		r := execute(t, command(t, t.TempDir(), "generate", "alerts", "--console", address))
		require.Zero(t, r.status, r.stderr)
		require.Equal(t, strings.Count(r.stdout, "alert: "), strings.Count(r.stdout, "console_url: 'https://ops.example.com/weir/"))
		require.Contains(t, r.stdout, "console_url: 'https://ops.example.com/weir/queue?queue={{ $labels.queue | urlquery }}'")
		require.NotContains(t, r.stdout, exampleConsole)
	}
	for _, address := range []string{"ops.example.com", "ftp://ops", "https://", "https://ops/?a=b", "https://ops/#a", "https://ops/'", "https://ops/{{.}}", "https://ops/\n"} {
		r := execute(t, command(t, t.TempDir(), "generate", "alerts", "--console", address))
		require.Equal(t, exitUsage, r.status, address)
		require.Contains(t, r.stderr, "it must be the address of a console", address)
		require.Empty(t, r.stdout)
	}
}
