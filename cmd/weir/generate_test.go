package main

import (
	"encoding/json"
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
}
