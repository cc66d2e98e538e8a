package weirprom_test

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/ext/internal/tallytest"
	"github.com/weirflow/weir/ext/prometheus/weirprom"
)

// The numbers of the table, and the outcomes of attempts.
func TestKeys(t *testing.T) {
	down := false
	k, db := tallytest.NewKeys(t.Context(), &down)
	defer db.Close()
	collector := weirprom.NewKeys("rows", k)
	registry := prometheus.NewRegistry()
	registry.MustRegister(collector)
	values := metricsOf(t, registry)
	assert.Positive(t, values["keys_counted_timestamp_seconds"])
	delete(values, "keys_counted_timestamp_seconds")
	assert.Len(t, values, 13)
	assert.Equal(t, map[string]float64{
		"keys_records": 5, "keys_clients": 2, "keys_unfinished": 3, "keys_overdue": 1, "keys_requests_total invalid": 1,
	}, nonZero(values))
	problems, err := testutil.CollectAndLint(collector)
	require.NoError(t, err)
	assert.Empty(t, problems)
	assert.Panics(t, func() { weirprom.NewKeys("", k) })
	assert.Panics(t, func() { weirprom.NewKeys("rows", nil) })
}
