package weirotel_test

import (
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/internal/tallytest"
	"github.com/weirflow/weir/ext/otel/weirotel"
	"github.com/weirflow/weir/message"
)

// Depth, age, causes and reasons of a queue, as they are when they are read.
func TestQueues(t *testing.T) {
	mock := clock.NewMock()
	s := memory.Open(memory.WithClock(mock))
	reader := sdkmetric.NewManualReader()
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	registration, err := weirotel.ObserveQueues(s, provider, "rows")
	require.NoError(t, err)
	assert.Equal(t, map[string]float64{"queue.messages ": 0, "queue.oldest_age": 0, "queue.count_failures": 0}, collect(t, reader))
	put := func(m store.Message) { require.NoError(t, s.Put(t.Context(), "rows", m)) }
	put(store.Message{Meta: message.Meta{ID: "a", Reasons: []string{"LOST", "BUSY"}}, Cause: store.Exhausted})
	mock.Add(time.Minute)
	put(store.Message{Meta: message.Meta{ID: "b", Reasons: []string{"LOST"}}})
	assert.Equal(t, map[string]float64{
		"queue.messages ": 1, "queue.messages exhausted": 1, "queue.oldest_age": 60,
		"queue.reason.messages LOST": 2, "queue.reason.messages BUSY": 1,
		"queue.count_failures": 0,
	}, collect(t, reader))
	require.NoError(t, s.Close())
	require.NoError(t, registration.Unregister())
	assert.Empty(t, collect(t, reader))

	_, err = weirotel.ObserveQueues(s, refusing{}, "rows")
	assert.ErrorIs(t, err, tallytest.ErrDown)
	assert.Panics(t, func() { _, _ = weirotel.ObserveQueues(nil, provider, "rows") })
	assert.Panics(t, func() { _, _ = weirotel.ObserveQueues(s, nil, "rows") })
	assert.PanicsWithValue(t, "weirotel: ObserveQueues: no queue", func() { _, _ = weirotel.ObserveQueues(s, provider) })
}
