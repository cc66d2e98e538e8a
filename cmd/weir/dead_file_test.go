package main

import (
	"bytes"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

// putDead puts n dead letters of alternating providers.
func putDead(t *testing.T, s store.Store, n int) {
	t.Helper()
	for i := range n {
		m := store.Message{
			Meta: message.Meta{
				ID: strconv.Itoa(i), Visit: 4, Attempts: 9, LastError: "no answer", Provider: "bank" + strconv.Itoa(i%2),
				FirstFailure: time.Unix(1000, 0).UTC(), Reasons: []string{"TIMED_OUT"}, Headers: map[string]string{"a": "b"},
			},
			Payload: []byte(strconv.Itoa(i)), Cause: store.Exhausted,
		}
		require.NoError(t, s.Put(t.Context(), "dead", m))
	}
}

func countOf(t *testing.T, s store.Inspector, queue string) int {
	t.Helper()
	c, err := s.Count(t.Context(), queue, store.Filter{})
	require.NoError(t, err)
	return c.Messages
}

func TestLinesOfDeadLetters(t *testing.T) {
	s := inspected{Inspector: memory.Open(memory.WithClock(clock.NewMock()))}
	putDead(t, s, 250)
	var file bytes.Buffer
	n, err := export(t.Context(), s, "dead", store.Filter{Provider: "bank0"}, &file)
	require.NoError(t, err)
	require.Equal(t, 125, n)
	require.Equal(t, 125, strings.Count(file.String(), "\n"))
	require.Equal(t, 250, countOf(t, s, "dead"))

	for range 2 { // a repetition has no effect
		n, err = importMessages(t.Context(), s, "copy", exportedMessages(bytes.NewReader(file.Bytes())))
		require.NoError(t, err)
		require.Equal(t, 125, n)
	}
	want, err := s.List(t.Context(), "dead", store.Filter{Provider: "bank0"}, store.Page{Max: 1000})
	require.NoError(t, err)
	got, err := s.List(t.Context(), "copy", store.Filter{}, store.Page{Max: 1000})
	require.NoError(t, err)
	require.Len(t, got, len(want))
	for i := range want {
		require.Equal(t, want[i].Message, got[i].Message)
	}

	// An editor may have saved the file in another form.
	n, err = importMessages(t.Context(), s, "marked", exportedMessages(strings.NewReader("\xef\xbb\xbf"+file.String())))
	require.NoError(t, err)
	require.Equal(t, 125, n)
	_, err = importMessages(t.Context(), s, "UTF-16", exportedMessages(strings.NewReader("\xff\xfe{\x00")))
	require.ErrorContains(t, err, "UTF-16")
	require.ErrorContains(t, err, "iconv")

	lines := strings.SplitAfter(file.String(), "\n")
	n, err = importMessages(t.Context(), s, "broken", exportedMessages(strings.NewReader(lines[0]+"\n"+lines[1]+`{"meta":`+"\n"+lines[2])))
	require.ErrorContains(t, err, "line 4")
	require.Equal(t, 2, n)
	require.Equal(t, 2, countOf(t, s, "broken"))
}
