package weirprom_test

import (
	"context"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/exactlyonce/server"
	"github.com/weirflow/weir/ext/prometheus/weirprom"
)

func TestResults(t *testing.T) {
	r := server.NewResults(server.Config{})
	t.Cleanup(func() { require.NoError(t, r.Close(context.WithoutCancel(t.Context()))) })
	registry := prometheus.NewRegistry()
	collector := weirprom.NewResults("rows", r)
	registry.MustRegister(collector)
	families, err := registry.Gather()
	require.NoError(t, err)
	require.Len(t, families, 5)
	assert.Equal(t, "weir_answers_requests_total", families[4].GetName())
	assert.Len(t, families[4].GetMetric(), 8)
	problems, err := testutil.CollectAndLint(collector)
	require.NoError(t, err)
	assert.Empty(t, problems)
	assert.Panics(t, func() { weirprom.NewResults("", r) })
	assert.Panics(t, func() { weirprom.NewResults("payments", nil) })
}
