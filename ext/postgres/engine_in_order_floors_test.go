package postgres

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A call begins after the floor of its queue, and with the first message each second, after
// it has found a message before the floor, and when the floor is old.
func TestFloorsBegin(t *testing.T) {
	now := time.Unix(1000, 0)
	low, high := place{now, 7}, place{now, 8}
	var f floors
	require.Equal(t, place{}, f.begin("q", now))
	f.raise("q", high, now)
	require.Equal(t, high, f.begin("q", now))
	require.Equal(t, place{}, f.begin("other", now))
	f.noteFound("q", high)
	require.Equal(t, high, f.begin("q", now))

	now = now.Add(wholeLook)
	require.Equal(t, place{}, f.begin("q", now))
	require.Equal(t, high, f.begin("q", now))
	f.noteFound("q", low)
	require.Equal(t, place{}, f.begin("q", now))
	require.Equal(t, high, f.begin("q", now))

	now = now.Add(placesKept)
	require.Equal(t, place{}, f.begin("q", now))
	require.Equal(t, place{}, f.begin("q", now), "an old floor is kept")
}
