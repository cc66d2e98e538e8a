package settle_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/internal/settle"
)

var errDown = errors.New("the server is down")

// start starts a recorder whose first calls of Record fail.
func start(failures int) (r *settle.Recorder, record func(context.Context) error) {
	record = func(context.Context) error {
		if failures--; failures >= 0 {
			return errDown
		}
		return nil
	}
	return settle.Start(clock.New(), time.Hour, errors.New("closed"), settle.Hooks{
		Extend: func(context.Context) {}, Record: func(ctx context.Context) (time.Duration, error) { return settle.Idle, record(ctx) }, Failed: func(error) {},
	}), record
}

// A settlement that was recorded in the end is not a failure: a worker that has outlived
// an outage of its server ends without an error.
func TestRecorder_FailureThatWasRecordedLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, record := start(1)
		r.Kick()
		time.Sleep(time.Second)
		require.NoError(t, r.Failure())
		require.NoError(t, r.Close(t.Context(), record))

		r, record = start(1)
		r.Kick()
		synctest.Wait()
		require.NoError(t, r.Close(t.Context(), record), "Close has recorded it")
	})
}

func TestRecorder_FailureThatStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, record := start(1000)
		r.Kick()
		synctest.Wait()
		require.Equal(t, errDown, r.Failure())
		require.NoError(t, r.Failure(), "each error once")
		require.Equal(t, errDown, r.Close(t.Context(), record))
	})
}

// Regression: the ticker was made on the goroutine of the recorder, so a test that moved
// its clock first waited for ever.
func TestLeasesAreExtendedFromTheStart(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // so the goroutine runs later than this one
	synctest.Test(t, func(t *testing.T) {
		mock, extended := clock.NewMock(), 0
		r := settle.Start(mock, time.Minute, errors.New("closed"), settle.Hooks{
			Extend: func(context.Context) { extended++ }, Record: func(context.Context) (time.Duration, error) { return settle.Idle, nil },
			Failed: func(error) {},
		})
		mock.Add(20 * time.Second)
		synctest.Wait()
		require.Equal(t, 1, extended)
		require.NoError(t, r.Close(t.Context(), func(context.Context) error { return nil }))
	})
}
