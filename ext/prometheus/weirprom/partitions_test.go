package weirprom_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/ext/internal/tallytest"
	"github.com/weirflow/weir/ext/prometheus/weirprom"
	"github.com/weirflow/weir/partitions"
)

// The partitions of a worker by state, those without an owner, and their lag.
func TestPartitions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		monitor := &partitions.Monitor{}
		collector := weirprom.NewPartitions("rows", monitor)
		registry := prometheus.NewRegistry()
		registry.MustRegister(collector)
		none := map[string]float64{
			"partitions running": 0, "partitions failing": 0, "partitions leaving": 0, "partitions ended": 0, "partitions_lost_total": 0,
		}
		assert.Equal(t, none, metricsOf(t, registry))
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- tallytest.RunPartitions(ctx, monitor) }() // ends with ctx
		synctest.Wait()
		assert.Equal(t, map[string]float64{
			"partitions running": 1, "partitions failing": 1, "partitions leaving": 0, "partitions ended": 0, "partitions unowned": 1,
			"partitions_lost_total": 0, "partition_lag a": 7,
		}, metricsOf(t, registry))
		problems, err := testutil.CollectAndLint(collector)
		require.NoError(t, err)
		assert.Empty(t, problems)
		stop()
		require.NoError(t, <-ended)
		assert.Equal(t, none, metricsOf(t, registry))
		assert.Panics(t, func() { weirprom.NewPartitions("", monitor) })
		assert.Panics(t, func() { weirprom.NewPartitions("rows", nil) })
	})
}
