package deadfile

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/internal/testing/golden"
)

// Two lines of a file of dead letters, and of the record of a replay: a line that is done and a line that waits (law W4).
func TestFormatsOfFiles(t *testing.T) {
	want := golden.Message()
	body, err := bodyOf(want)
	require.NoError(t, err)
	lines := bytes.SplitAfter(golden.Written(t, "dead.jsonl", appendLine(appendLine(nil, 0, body), 512, body)), []byte("\n"))
	require.Len(t, lines, 3)
	for i, batch := range []int64{0, 512} {
		got, err := parseLine(bytes.TrimSuffix(lines[i], []byte("\n")))
		require.NoError(t, err)
		require.Equal(t, line{batch, want}, got)
	}

	mark := markOf([]byte("a line"))
	done := bytes.SplitAfter(golden.Written(t, "replay.done", appendMark(appendMark(nil, mark, time.Time{}), mark, golden.At)), []byte("\n"))
	require.Len(t, done, 3)
	for i, due := range []time.Time{{}, golden.At} {
		m, at, ok := parseMark(bytes.TrimSuffix(done[i], []byte("\n")))
		require.True(t, ok)
		require.Equal(t, mark, m)
		require.True(t, due.Equal(at))
	}
}
