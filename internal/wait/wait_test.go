package wait

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"
)

func TestFor_TimeHasPassed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		require.NoError(t, For(t.Context(), clock.New(), time.Minute))
		require.Equal(t, time.Minute, time.Since(begun))
	})
}

func TestFor_CauseOfItsContext(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("gone")
	mock := clock.NewMock()
	result := make(chan error)
	go func() { result <- For(ctx, mock, time.Minute) }()
	cancel(gone)
	require.ErrorIs(t, <-result, gone)
}
