package jobs_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/jobs"
)

// Messages that stay are handled, but a job with a Max ends when it has changed that many.
func TestJob_Reached(t *testing.T) {
	job := jobs.Job{Total: 20, Progress: jobs.Progress{Done: 2, Looping: 1, Unsafe: 1, Lapsed: 1, Skipped: 3}}
	reached := func() []int {
		n, of := job.Reached()
		return []int{n, of}
	}
	require.Equal(t, []int{8, 20}, reached())
	job.Max = 3
	require.Equal(t, []int{2, 3}, reached())
	job.Max = 50
	require.Equal(t, []int{2, 20}, reached(), "fewer messages match than the job may change")
	job.Done = 21
	require.Equal(t, []int{20, 20}, reached(), "messages that arrived later")
}
