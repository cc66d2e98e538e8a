package caller

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/internal/testing/golden"
)

// The state of a tracker, and the clients derived from messages (laws W4, X1).
func TestFormats(t *testing.T) {
	tracker := NewTracker(Config{})
	tracker.client, tracker.next = exactlyonce.Client{1, 2, 3, 15: 255}, 18
	client, next, sent, err := parseState(golden.Written(t, "tracker-3", tracker.Snapshot(1)))
	require.NoError(t, err)
	require.Equal(t, tracker.client, client)
	require.EqualValues(t, 18, next)
	require.Equal(t, time.Time{}, sent)

	golden.Written(t, "clients", []byte(clientOf(nil, "payments", "order 17").String()+"\n"+clientOf([]byte("secret"), "payments", "order 17").String()+"\n"))
}
