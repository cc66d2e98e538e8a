package files

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/internal/testing/golden"
)

// The states of an input and an output, and the name of a checkpoint (law W4).
func TestFormatsOfFiles(t *testing.T) {
	at := filePosition{offset: 300, line: 7, summed: true, sum: 0x0123456789abcdef}
	position, err := decodeFilePosition(golden.Written(t, "input", at.encode()))
	require.NoError(t, err)
	require.Equal(t, at, position)

	want := fileState{before: 300, after: 311, next: 9, parts: []part{{7, 5}, {8, 6}}, summed: true, beforeSum: 1, afterSum: 0x0123456789abcdef}
	state, err := decodeFileState(golden.Written(t, "output", want.encode()))
	require.NoError(t, err)
	require.Equal(t, want, state)

	golden.Written(t, "name", []byte(fileName(42)+"\n"))
}
