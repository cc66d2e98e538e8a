package failed_test

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/internal/failed"
)

// What is stored of an error has no secrets of URLs: more people read histories than
// messages.
func TestAHistoryHasNoSecrets(t *testing.T) {
	meta := failed.History(t.Context(), asyncop.Failure[int]{Err: errors.New("https://ann:s3cret@pay is down")}, time.Now())
	require.Equal(t, "https://ann:xxxxx@pay is down", meta.LastError)
}

// A server that sends a point in time where seconds are meant does not put a message away
// for decades.
func TestADemandIsADayAtMost(t *testing.T) {
	for demanded, want := range map[time.Duration]time.Duration{
		0: 0, time.Hour: time.Hour, 24 * time.Hour: 24 * time.Hour, 25 * time.Hour: 24 * time.Hour, math.MaxInt64: 24 * time.Hour,
	} {
		require.Equal(t, want, failed.Demand(asyncop.Failure[int]{Demanded: demanded}), demanded)
	}
}
