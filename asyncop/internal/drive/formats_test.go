package drive

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/internal/testing/golden"
)

// The state of an operator with all its possible parts (law W4).
func TestFormatOfAState(t *testing.T) {
	s := testCodec(t, true)
	want := testSnapshots()[3]
	state, err := s.Encode(want)
	require.NoError(t, err)
	got, err := s.Decode(golden.Written(t, "operator-3", state.Bytes()))
	require.NoError(t, err)
	require.Equal(t, want, got)
}
