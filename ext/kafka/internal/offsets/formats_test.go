package offsets

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/internal/testing/golden"
)

// The metadata of a committed offset (law W4).
func TestFormatOfMetadata(t *testing.T) {
	done := []Span{{12, 13}, {15, 40}}
	delays := []Delay{{Span{10, 12}, 1767323045678}}
	got, due, err := Decode(10, string(golden.Written(t, "metadata-2", []byte(New(10, done).Encode(delays, 4096)))))
	require.NoError(t, err)
	require.Equal(t, done, got)
	require.Equal(t, delays, due)
}
