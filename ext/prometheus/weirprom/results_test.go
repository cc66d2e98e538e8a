package weirprom_test

import (
	"context"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/ext/internal/tallytest"
	"github.com/weirflow/weir/ext/prometheus/weirprom"
)

func TestResults(t *testing.T) {
	r := tallytest.NewResults(t.Context())
	t.Cleanup(func() { require.NoError(t, r.Close(context.WithoutCancel(t.Context()))) })
	registry := prometheus.NewRegistry()
	collector := weirprom.NewResults("rows", r)
	registry.MustRegister(collector)
	assert.Equal(t, map[string]float64{
		"answers_clients": 1, "answers_records": 1, "answers_in_progress": 0, "answers_bytes": float64(r.Stats().Bytes),
		"answers_requests_total new": 2, "answers_requests_total attached": 0, "answers_requests_total replayed": 2,
		"answers_requests_total stale": 1, "answers_requests_total invalid": 1, "answers_requests_total mismatch": 0,
		"answers_requests_total full": 0, "answers_requests_total too_many_waiting": 0,
	}, metricsOf(t, registry))
	problems, err := testutil.CollectAndLint(collector)
	require.NoError(t, err)
	assert.Empty(t, problems)
	assert.Panics(t, func() { weirprom.NewResults("", r) })
	assert.Panics(t, func() { weirprom.NewResults("payments", nil) })
}
