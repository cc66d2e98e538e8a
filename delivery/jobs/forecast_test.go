package jobs_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

func TestForecast(t *testing.T) {
	engine := memory.Open()
	require.NoError(t, engine.Put(t.Context(), "dead",
		store.Message{Meta: message.Meta{ID: "1"}, Cause: store.Exhausted},
		store.Message{Meta: message.Meta{ID: "2"}, Cause: store.Lapsed},
		store.Message{Meta: message.Meta{ID: "3"}, Cause: store.Lapsed},
		store.Message{Meta: message.Meta{ID: "4", UnsafeToRepeat: true}, Cause: store.UnsafeToRepeat},
		store.Message{Meta: message.Meta{ID: "5", UnsafeToRepeat: true, Remembered: time.Now().Add(time.Hour)}, Cause: store.UnsafeToRepeat}))
	counts, err := jobs.Forecast(t.Context(), engine, "dead", store.Filter{}, time.Now())
	require.NoError(t, err)
	require.Equal(t, map[store.Repetition]int{store.RepeatSafe: 1, store.RepeatLookFirst: 2, store.RepeatInDoubt: 1, store.RepeatSafeUntil: 1}, counts)
	counts, err = jobs.Forecast(t.Context(), engine, "dead", store.Filter{Cause: store.Lapsed}, time.Now())
	require.NoError(t, err)
	require.Equal(t, map[store.Repetition]int{store.RepeatLookFirst: 2}, counts)

	ended, end := context.WithCancel(t.Context())
	end()
	_, err = jobs.Forecast(ended, engine, "dead", store.Filter{}, time.Now())
	require.ErrorIs(t, err, context.Canceled)
}

// Law W4: a version that does not know LeaveLapsed would send back what was to stay, so
// it must not run the job.
func TestSpec_FormatOfLeaveLapsed(t *testing.T) {
	j, err := jobs.New(memory.Open(), jobs.Config{})
	require.NoError(t, err)
	spec := jobs.Spec{Do: store.Merge, Queue: "dead", To: "orders", By: "ann", Why: "test"}
	job, err := j.Start(t.Context(), spec)
	require.NoError(t, err)
	require.Equal(t, 1, job.Format)
	spec.LeaveLapsed = true
	job, err = j.Start(t.Context(), spec)
	require.NoError(t, err)
	require.Equal(t, 3, job.Format)
	_, err = j.Start(t.Context(), jobs.Spec{Do: store.Hold, Queue: "dead", LeaveLapsed: true, By: "ann", Why: "test"})
	require.ErrorContains(t, err, "LeaveLapsed are for a merge")
}
