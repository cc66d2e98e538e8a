package store_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

func TestMessageRepetition(t *testing.T) {
	now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	later, before := now.Add(time.Hour), now.Add(-time.Hour)
	for _, c := range []struct {
		name       string
		cause      store.Cause
		isUnsafe   bool
		remembered time.Time
		want       store.Repetition
	}{
		{"layers used up", store.Exhausted, false, time.Time{}, store.RepeatSafe},
		{"a cause of a later version", "overturned", false, time.Time{}, store.RepeatSafe},
		{"a message that is no dead letter", "", false, time.Time{}, store.RepeatSafe},
		{"remembered", store.UnsafeToRepeat, true, later, store.RepeatSafeUntil},
		{"remembered, and undecodable", store.Undecodable, true, later, store.RepeatPointless},
		{"permanent", store.Permanent, false, time.Time{}, store.RepeatPointless},
		{"a request of an earlier visit is remembered", store.Permanent, false, later, store.RepeatPointless},
		{"undecodable", store.Undecodable, false, time.Time{}, store.RepeatPointless},
		{"expired", store.Expired, false, time.Time{}, store.RepeatPointless},
		{"refused by a sink", store.Refused, false, time.Time{}, store.RepeatPointless},
		{"in doubt", store.UnsafeToRepeat, true, time.Time{}, store.RepeatInDoubt},
		{"in doubt, forgotten by the service", store.UnsafeToRepeat, true, before, store.RepeatInDoubt},
		{"in doubt, forgotten just now", store.UnsafeToRepeat, true, now, store.RepeatInDoubt},
		{"in doubt by its cause alone", store.UnsafeToRepeat, false, time.Time{}, store.RepeatInDoubt},
		{"in doubt and undecodable", store.Undecodable, true, time.Time{}, store.RepeatInDoubt},
		{"lapsed", store.Lapsed, false, time.Time{}, store.RepeatLookFirst},
		{"lapsed, with a remembered call", store.Lapsed, true, later, store.RepeatLookFirst},
		{"lapsed, with a call in doubt", store.Lapsed, true, before, store.RepeatInDoubt},
	} {
		m := store.Message{Meta: message.Meta{UnsafeToRepeat: c.isUnsafe, Remembered: c.remembered}, Cause: c.cause}
		require.Equal(t, c.want, m.Repetition(now), c.name)
	}
	pointer := store.Message{Meta: message.Meta{Headers: map[string]string{store.HeaderPointsTo: "queue \"orders\", entry 17"}}, Cause: store.Exhausted}
	require.Equal(t, store.RepeatPointless, pointer.Repetition(now), "a pointer")
	pointer.Meta.UnsafeToRepeat = true
	require.Equal(t, store.RepeatInDoubt, pointer.Repetition(now), "a pointer to a message in doubt")
	require.Equal(t, "look first", store.RepeatLookFirst.String())
	require.Equal(t, "safe until", store.RepeatSafeUntil.String())
}
