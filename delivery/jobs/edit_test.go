package jobs_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

// An edited message is a new message, with a link to the message it replaces, and a line
// in the log (law J2).
func TestEdit(t *testing.T) {
	s := memory.Open()
	meta := message.Meta{
		ID: "o/1", Visit: 3, Attempts: 9, LastError: "no such airport", Headers: map[string]string{"Trace": "7"},
		UnsafeToRepeat: true, Request: "r", Remembered: time.Now().Add(time.Hour), Provider: "bank",
	}
	require.NoError(t, s.Put(t.Context(), "orders-dead", store.Message{Meta: meta, Payload: []byte(`"XQQ"`), Cause: store.Permanent}))
	list, err := s.List(t.Context(), "orders-dead", store.Filter{}, store.Page{Max: 2})
	require.NoError(t, err)
	j := jobsOf(t, s)

	_, err = j.Edit(t.Context(), "orders-dead", list[0], "orders", []byte(`"TXL"`), "", "")
	require.Error(t, err, "who, and why?")
	job, err := j.Edit(t.Context(), "orders-dead", list[0], "orders", []byte(`"TXL"`), "ann", "a typing error")
	require.NoError(t, err)
	require.Equal(t, "done", job.State())
	_, err = j.Edit(t.Context(), "orders-dead", list[0], "orders", []byte(`"TXL"`), "ann", "twice")
	require.ErrorIs(t, err, store.ErrChanged, "it is gone: a second click changes nothing")

	left, err := s.List(t.Context(), "orders-dead", store.Filter{}, store.Page{Max: 2})
	require.NoError(t, err)
	require.Empty(t, left)
	sent, err := s.List(t.Context(), "orders", store.Filter{}, store.Page{Max: 2})
	require.NoError(t, err)
	require.Len(t, sent, 1)
	m := sent[0]
	require.Equal(t, `"TXL"`, string(m.Payload))
	require.NotEqual(t, "o/1", m.Meta.ID)
	require.Equal(t, map[string]string{"Trace": "7", "Edited-From": "o/1"}, m.Meta.Headers)
	require.Equal(t, []any{store.Cause(""), 0, 1, false, "", true, "bank"},
		[]any{m.Cause, m.Meta.Visit, m.Meta.Merges, m.Meta.UnsafeToRepeat, m.Meta.Request, m.Meta.Remembered.IsZero(), m.Meta.Provider})

	var lines []jobs.Line
	for l, err := range j.Log(t.Context()) {
		require.NoError(t, err)
		lines = append(lines, l)
	}
	require.Len(t, lines, 1)
	require.Equal(t, []any{"edit", "ann", "a typing error", job.ID}, []any{lines[0].Event, lines[0].By, lines[0].Why, lines[0].Job.ID})
	again, err := j.Get(t.Context(), job.ID)
	require.NoError(t, err)
	require.Equal(t, []string{"o/1"}, again.Filter.IDs)
	next, err := j.Start(t.Context(), merge(0))
	require.NoError(t, err)
	require.Greater(t, next.ID, job.ID)
}

// A client may have set the header with another spelling.
func TestEdit_HeaderOfAPointerInAnotherCase(t *testing.T) {
	s := memory.Open()
	headers := map[string]string{"weir-points-to": "elsewhere", "WEIR-Points-To": "there", "Trace": "7"}
	meta := message.Meta{ID: "o/1", Headers: headers}
	require.NoError(t, s.Put(t.Context(), "orders-dead", store.Message{Meta: meta, Payload: []byte(`1`), Cause: store.Permanent}))
	list, err := s.List(t.Context(), "orders-dead", store.Filter{}, store.Page{Max: 2})
	require.NoError(t, err)
	_, err = jobsOf(t, s).Edit(t.Context(), "orders-dead", list[0], "orders", nil, "ann", "empty is right")
	require.NoError(t, err)
	sent, err := s.List(t.Context(), "orders", store.Filter{}, store.Page{Max: 2})
	require.NoError(t, err)
	require.Equal(t, map[string]string{"Trace": "7", "Edited-From": "o/1"}, sent[0].Meta.Headers)
	require.Len(t, list[0].Meta.Headers, 3, "the entry of the caller")
}
