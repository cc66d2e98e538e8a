package sqlite

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// An option with a wrong argument panics where it is written, with its name and the
// value.
func TestOptions_WrongArguments(t *testing.T) {
	for want, f := range map[string]func(){
		"sqlite: WithReaders: 0 is less than 1":       func() { WithReaders(0) },
		"sqlite: WithBusyTimeout: 0s is not positive": func() { WithBusyTimeout(0) },
		"sqlite: WithClock: nil clock":                func() { WithClock(nil) },
		"sqlite: WithLogger: nil logger":              func() { WithLogger(nil) },
		"sqlite: Open: option 1 is nil":               func() { _, _ = Open(t.Context(), "x.db", nil) },
		"sqlite: OpenDB: option 2 is nil":             func() { _, _ = OpenDB(t.Context(), "x.db", WithReaders(1), nil) },
	} {
		require.PanicsWithValue(t, want, f)
	}
}

func TestWithReaders_NumberOfConnections(t *testing.T) {
	for want, opts := range map[int][]Option{4: nil, 2: {WithReaders(3), WithReaders(2)}} {
		db, err := OpenDB(t.Context(), filepath.Join(t.TempDir(), "x.db"), opts...)
		require.NoError(t, err)
		require.Equal(t, want, db.Reader().Stats().MaxOpenConnections)
		require.NoError(t, db.Close())
	}
}

func TestOptions_Defaults(t *testing.T) {
	s := newSettings("Open", nil)
	require.Equal(t, 10*time.Second, s.busyTimeout)
	require.False(t, s.readOnly || s.synchronousNormal || s.withoutMigrations)
}
