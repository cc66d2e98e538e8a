package jscheckpoint

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/internal/testing/golden"
)

// The states of an input and an output (law W4).
func TestFormats(t *testing.T) {
	out := &output[string]{known: true, base: 300, schema: []byte("j"), pending: [][]byte{[]byte(`"a"`), []byte(`"b"`)}}
	b, err := out.Prepare(t.Context())
	require.NoError(t, err)
	got, err := parse(golden.Written(t, "output-1", b))
	require.NoError(t, err)
	require.Equal(t, state{base: 300, schema: out.schema, pending: out.pending}, got)

	next, err := parsePosition(golden.Written(t, "input", (&input[string]{next: 300}).Position()))
	require.NoError(t, err)
	require.EqualValues(t, 300, next)
}
