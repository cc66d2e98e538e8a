package predicates_test

import (
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/predicates"
)

func TestWithSnooze(t *testing.T) {
	errClosed := errors.New("closed")
	require.NoError(t, predicates.WithSnooze(nil, time.Hour))

	err := predicates.WithSnooze(errClosed, time.Hour)
	require.EqualError(t, err, "closed (again in 1h0m0s)")
	require.ErrorIs(t, err, errClosed)
}

func TestSnoozeOf(t *testing.T) {
	errClosed := errors.New("closed")
	err := predicates.WithSnooze(errClosed, time.Hour)
	for _, wrapped := range []error{err, fmt.Errorf("shop: %w", err), errors.Join(errors.New("other"), err)} {
		delay, ok := predicates.SnoozeOf(wrapped)
		require.True(t, ok)
		require.Equal(t, time.Hour, delay)
	}
	_, ok := predicates.SnoozeOf(errClosed)
	require.False(t, ok)
	_, ok = predicates.SnoozeOf(nil)
	require.False(t, ok)
}

// A snooze of 0, or until a time that has passed, does not spin. Delays are rounded up, so
// that messages with nearly the same delay are released together (law D3).
func TestWithSnooze_WholeSeconds(t *testing.T) {
	const most = 25 * 365 * 24 * time.Hour
	for delay, want := range map[time.Duration]time.Duration{
		math.MinInt64:       time.Second,
		-time.Hour:          time.Second,
		0:                   time.Second,
		1:                   time.Second,
		time.Second:         time.Second,
		time.Second + 1:     2 * time.Second,
		time.Hour - 1:       time.Hour,
		time.Hour:           time.Hour,
		most - 1:            most,
		most + time.Second:  most,
		math.MaxInt64 - 500: most,
		math.MaxInt64:       most,
	} {
		got, ok := predicates.SnoozeOf(predicates.WithSnooze(errors.New("closed"), delay))
		require.True(t, ok)
		require.Equal(t, want, got, delay)
	}
}
