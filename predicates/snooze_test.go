package predicates_test

import (
	"errors"
	"fmt"
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

// A snooze of 0, or until a time that has passed, does not spin.
func TestWithSnooze_AtLeastASecond(t *testing.T) {
	for _, delay := range []time.Duration{-time.Hour, 0, time.Millisecond, time.Second} {
		got, ok := predicates.SnoozeOf(predicates.WithSnooze(errors.New("closed"), delay))
		require.True(t, ok)
		require.Equal(t, time.Second, got)
	}
}
