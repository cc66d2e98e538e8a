package postgres

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// An option with a wrong argument panics where it is written, with its name and the
// value.
func TestOptions_WrongArguments(t *testing.T) {
	for want, f := range map[string]func(){
		"postgres: WithConnections: 0 is not from 1 to 2147483647":  func() { WithConnections(0) },
		"postgres: WithConnections: -1 is not from 1 to 2147483647": func() { WithConnections(-1) },
		"postgres: WithLogger: nil logger":                          func() { WithLogger(nil) },
		"postgres: Open: option 1 is nil":                           func() { _, _ = Open(t.Context(), "postgres://nowhere", nil) },
	} {
		require.PanicsWithValue(t, want, f)
	}
	s := newSettings("Open", []Option{WithConnections(3), WithConnections(9), WithoutMigrations()})
	require.Equal(t, 9, s.connections, "the last one counts")
	require.True(t, s.withoutMigrations)
	require.Equal(t, 6, newSettings("New", nil).connections)
}
