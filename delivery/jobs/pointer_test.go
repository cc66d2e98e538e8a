package jobs_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/settle"
	"github.com/weirflow/weir/message"
)

// A header of a client does not make a pointer of a dead letter that has its bytes.
func TestJobs_PointerHeaderOfAClient(t *testing.T) {
	s := memory.Open()
	m := letter(1)
	m.Meta.Headers = map[string]string{store.HeaderPointsTo: "nowhere"}
	m.Payload = []byte(`"whole"`)
	require.Empty(t, m.PointsTo())
	require.NoError(t, s.Put(t.Context(), "dead", m))
	j := jobsOf(t, s)
	job, err := j.Start(t.Context(), merge(0))
	require.NoError(t, err)
	job, err = j.Run(t.Context(), job.ID, nil)
	require.NoError(t, err)
	require.Equal(t, 1, job.Done, "%+v", job.Progress)
}

// A dead letter that points to its message has no bytes, so a merge leaves it. A person
// may edit it: then it is a message with bytes.
func TestJobs_MergeLeavesPointers(t *testing.T) {
	s := memory.Open()
	isWhole, err := settle.Bury(message.Meta{ID: "large", LastError: "down"}, `queue "orders", entry 17`, func(meta message.Meta, withBytes bool) error {
		if withBytes {
			return fmt.Errorf("%w: too large", message.ErrRefused)
		}
		return s.Put(t.Context(), "dead", store.Message{Meta: meta, Cause: store.Exhausted})
	})
	require.NoError(t, err)
	require.False(t, isWhole)
	require.NoError(t, s.Put(t.Context(), "dead", letter(1)))
	j := jobsOf(t, s)
	job, err := j.Start(t.Context(), merge(0))
	require.NoError(t, err)
	job, err = j.Run(t.Context(), job.ID, nil)
	require.NoError(t, err)
	require.Equal(t, 1, job.Done)
	require.Equal(t, 1, job.Skipped)
	left, err := s.List(t.Context(), "dead", store.Filter{}, store.Page{Max: 2})
	require.NoError(t, err)
	require.Len(t, left, 1)
	require.Equal(t, `queue "orders", entry 17`, left[0].PointsTo())

	_, err = j.Edit(t.Context(), "dead", left[0], "orders", []byte(`"small"`), "ann", "shortened")
	require.NoError(t, err)
	sent, err := s.List(t.Context(), "orders", store.Filter{}, store.Page{Max: 3})
	require.NoError(t, err)
	require.Len(t, sent, 2)
	require.Equal(t, `"small"`, string(sent[1].Payload))
	require.Empty(t, sent[1].PointsTo())
	require.Equal(t, map[string]string{"Edited-From": "large"}, sent[1].Meta.Headers)
}
