package participant_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/internal/testing/golden"
)

// Law W4.
func TestFormatOfAState(t *testing.T) {
	c := codec.JSON[map[string]int]()
	want := map[string]int{"a": 1, "b": 2}
	state, err := participant.MarshalState(c, want)
	require.NoError(t, err)
	got, err := participant.UnmarshalState(c, participant.State{golden.Written(t, "value-2", state.Bytes())})
	require.NoError(t, err)
	require.Equal(t, want, got)
}
