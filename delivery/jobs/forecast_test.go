package jobs_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

// judged are dead letters, and what a merge counts of each.
var judged = []struct {
	name    string
	message store.Message

	zero    jobs.Progress // with the zero Spec
	unsafe  jobs.Progress // with UnsafeToRepeat
	careful jobs.Progress // with LeaveLapsed
}{
	{"safe", deadLetter(store.Exhausted, message.Meta{}), isSent, isSent, isSent},
	{"pointless", deadLetter(store.Permanent, message.Meta{}), isSent, isSent, isSent},
	{"merged four times", deadLetter(store.Exhausted, message.Meta{Merges: 4}), isSent, isSent, isSent},
	{"merged five times", deadLetter(store.Exhausted, message.Meta{Merges: 5}), isLooping, isLooping, isLooping},
	{"in doubt", deadLetter(store.UnsafeToRepeat, message.Meta{UnsafeToRepeat: true}), isUnsafe, isSent, isUnsafe},
	{"in doubt by its cause alone", deadLetter(store.UnsafeToRepeat, message.Meta{}), isUnsafe, isSent, isUnsafe},
	{"in doubt, and merged five times", deadLetter(store.UnsafeToRepeat, message.Meta{UnsafeToRepeat: true, Merges: 5}), isLooping, isLooping, isLooping},
	{"remembered", deadLetter(store.UnsafeToRepeat, message.Meta{UnsafeToRepeat: true, Remembered: time.Now().Add(time.Hour)}), isSent, isSent, isSent},
	{"lapsed", deadLetter(store.Lapsed, message.Meta{}), isSent, isSent, isLapsed},
	{"lapsed, and merged five times", deadLetter(store.Lapsed, message.Meta{Merges: 5}), isLooping, isLooping, isLooping},
	{"lapsed and in doubt", deadLetter(store.Lapsed, message.Meta{UnsafeToRepeat: true}), isUnsafe, isSent, isUnsafe},
	{"a pointer", pointer(message.Meta{}), isSkipped, isSkipped, isSkipped},
	{"a pointer in doubt", pointer(message.Meta{UnsafeToRepeat: true}), isSkipped, isSkipped, isSkipped},
	{"a pointer merged five times", pointer(message.Meta{Merges: 5}), isSkipped, isSkipped, isSkipped},
}

var (
	isSent    = jobs.Progress{Done: 1}
	isLooping = jobs.Progress{Looping: 1}
	isUnsafe  = jobs.Progress{Unsafe: 1}
	isLapsed  = jobs.Progress{Lapsed: 1}
	isSkipped = jobs.Progress{Skipped: 1}
)

func deadLetter(cause store.Cause, meta message.Meta) store.Message {
	meta.ID = "a"
	return store.Message{Meta: meta, Cause: cause, Payload: []byte("payload")}
}

func pointer(meta message.Meta) store.Message {
	meta.ID = "a"
	meta.Headers = map[string]string{store.HeaderPointsTo: "the queue"}
	return store.Message{Meta: meta, Cause: store.Exhausted}
}

// A merge does what the forecast has counted. A message that is counted as in doubt or
// lapsed is sent back with the other setting.
func TestSpecSendsBack(t *testing.T) {
	for _, c := range judged {
		t.Run(c.name, func(t *testing.T) {
			for _, tt := range []struct {
				spec jobs.Spec
				want jobs.Progress
			}{
				{jobs.Spec{}, c.zero},
				{jobs.Spec{UnsafeToRepeat: true}, c.unsafe},
				{jobs.Spec{LeaveLapsed: true}, c.careful},
			} {
				engine := memory.Open()
				require.NoError(t, engine.Put(t.Context(), "dead", c.message))
				spec := tt.spec
				spec.Do, spec.Queue, spec.To, spec.By, spec.Why = store.Merge, "dead", "orders", "ann", "test"
				counts, err := jobs.Forecast(t.Context(), engine, spec, time.Now())
				require.NoError(t, err)
				require.Equal(t, tt.want, counts)
				j, err := jobs.New(engine, jobs.Config{})
				require.NoError(t, err)
				job, err := j.Start(t.Context(), spec)
				require.NoError(t, err)
				job, err = j.Run(t.Context(), job.ID, nil)
				require.NoError(t, err)
				require.Equal(t, tt.want, job.Progress)
			}
		})
	}
}

func TestForecast(t *testing.T) {
	engine := memory.Open()
	for i, c := range judged {
		m := c.message
		m.Meta.ID = fmt.Sprint(i)
		require.NoError(t, engine.Put(t.Context(), "dead", m))
	}
	spec := jobs.Spec{Queue: "dead", LeaveLapsed: true}
	counts, err := jobs.Forecast(t.Context(), engine, spec, time.Now())
	require.NoError(t, err)
	require.Equal(t, jobs.Progress{Done: 4, Looping: 3, Unsafe: 3, Lapsed: 1, Skipped: 3}, counts)
	spec.Filter, spec.MaxMerges = store.Filter{Cause: store.Lapsed}, 6
	counts, err = jobs.Forecast(t.Context(), engine, spec, time.Now())
	require.NoError(t, err)
	require.Equal(t, jobs.Progress{Unsafe: 1, Lapsed: 2}, counts)

	ended, end := context.WithCancel(t.Context())
	end()
	_, err = jobs.Forecast(ended, engine, spec, time.Now())
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
	_, err = j.Start(t.Context(), jobs.Spec{Queue: "dead", By: "ann", Why: "test"})
	require.EqualError(t, err, `jobs: unknown action "": Do must be one of ["merge" "purge" "hold" "release" "due"]`)
}
