package postgres

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestConfigThatIsRefused(t *testing.T) {
	require.PanicsWithValue(t, "postgres: Config: -1 connections", func() { _, _ = Open(t.Context(), "postgres://nowhere", Config{Connections: -1}) })
}
