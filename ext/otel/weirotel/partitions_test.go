package weirotel_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/weirflow/weir/ext/internal/tallytest"
	"github.com/weirflow/weir/ext/otel/weirotel"
	"github.com/weirflow/weir/partitions"
)

// The partitions of a worker by state, those without an owner, and their lag.
func TestPartitions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		monitor := &partitions.Monitor{}
		reader := sdkmetric.NewManualReader()
		provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
		registration, err := weirotel.ObservePartitions("rows", monitor, provider)
		require.NoError(t, err)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- tallytest.RunPartitions(ctx, monitor) }() // ends with ctx
		synctest.Wait()
		assert.Equal(t, map[string]float64{
			"partitions running": 1, "partitions failing": 1, "partitions leaving": 0, "partitions ended": 0, "partitions unowned": 1,
			"partitions.lost": 0, "partition.lag a": 7,
		}, collect(t, reader))
		stop()
		require.NoError(t, <-ended)
		require.NoError(t, registration.Unregister())
		_, err = weirotel.ObservePartitions("rows", monitor, refusing{})
		assert.ErrorIs(t, err, tallytest.ErrDown)
		assert.Panics(t, func() { _, _ = weirotel.ObservePartitions("", monitor, provider) })
		assert.Panics(t, func() { _, _ = weirotel.ObservePartitions("rows", nil, provider) })
		assert.Panics(t, func() { _, _ = weirotel.ObservePartitions("rows", monitor, nil) })
	})
}
