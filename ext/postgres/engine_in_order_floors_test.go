package postgres

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/ext/internal/storesql"
)

// A call begins after the floor of its queue, and with the first message after others were
// found before the floor, and when the floor is old.
func TestFloorsBegin(t *testing.T) {
	now := time.Unix(1000, 0)
	low, high := storesql.Place{At: 1000, Position: 7}, storesql.Place{At: 1000, Position: 8}
	var f floors
	begin := func(queue string) storesql.Place {
		after, _ := f.begin(queue, now)
		return after
	}
	require.Equal(t, storesql.Place{}, begin("q"))
	f.raise("q", high, now)
	require.Equal(t, high, begin("q"))
	require.Equal(t, storesql.Place{}, begin("other"))
	f.raise("q", low, now)
	require.Equal(t, high, begin("q"), "a call that began with the first message has parked fewer")
	f.noteDue("q", high)
	require.Equal(t, high, begin("q"))
	f.noteDue("q", low)
	require.Equal(t, storesql.Place{}, begin("q"))
	require.Equal(t, high, begin("q"))

	now = now.Add(placesKept - 1)
	f.raise("q", high, now)
	now = now.Add(placesKept - 1)
	require.Equal(t, high, begin("q"), "it was raised a short time ago")
	now = now.Add(1)
	require.Equal(t, storesql.Place{}, begin("q"))
	require.Equal(t, storesql.Place{}, begin("q"), "an old floor is kept")
}

// Each call that begins after a floor is followed by a look before the floor. A look that
// has begun may miss a message which was committed before a later call.
func TestFloorsBegin_ToCheck(t *testing.T) {
	now := time.Unix(1000, 0)
	var f floors
	toCheck := func(queue string) bool {
		_, toCheck := f.begin(queue, now)
		return toCheck
	}
	require.False(t, toCheck("q"), "it has begun with the first message")
	_, ok := f.beginCheck("q")
	require.False(t, ok)
	to := storesql.Place{At: 1000, Position: 7}
	f.raise("q", to, now)
	f.raise("other", to, now)
	require.True(t, toCheck("q"))
	require.False(t, toCheck("q"), "a look will follow already")
	require.True(t, toCheck("other"))
	before, ok := f.beginCheck("q")
	require.True(t, ok)
	require.Equal(t, to, before)
	require.True(t, toCheck("q"))
}
