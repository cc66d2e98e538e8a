package storebench

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/testing/suite"
	"github.com/weirflow/weir/message"
)

// Keys counts a queue's messages by key, and logs the time. With WEIR_LONG there are a
// million messages of ten thousand keys, in a queue, two layers and the dead letters.
func Keys(t *testing.T, s store.Inspector) {
	t.Helper()
	n, keys := 5000, 50
	if suite.Long() {
		n, keys = 1_000_000, 10_000
	}
	const batch = 1000
	queues := []string{"q", "q", "q", "q", "q", "q-retry-1", "q-retry-2", "q-dead"}
	waiting := 0
	for i := 0; i < n; i += batch {
		ms := make([]store.Message, batch)
		for j := range ms {
			ms[j] = store.Message{Meta: message.Meta{ID: strconv.Itoa(i + j), Key: "customer " + strconv.Itoa((i+j)*7919%keys)}, Payload: make([]byte, 256)}
		}
		queue := queues[i/batch%len(queues)]
		if queue != "q-dead" {
			waiting += batch
		}
		require.NoError(t, s.Put(t.Context(), queue, ms...))
	}
	var took []time.Duration
	for range 3 {
		start := time.Now()
		list, err := jobs.Keys(t.Context(), s, "q", jobs.KeyFilter{Max: 2 * keys})
		took = append(took, time.Since(start))
		require.NoError(t, err)
		require.Len(t, list, keys)
		found := store.KeyCounts{}
		for _, c := range list {
			found.Waiting += c.Waiting
			found.Dead += c.Dead
		}
		require.Equal(t, store.KeyCounts{Waiting: waiting, Dead: n - waiting}, found)
	}
	t.Logf("%d messages of %d keys were counted in %v, the longest of three counts", n, keys, slices.Max(took).Round(time.Millisecond))
}
