package varint_test

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/internal/varint"
)

func TestReader(t *testing.T) {
	b := binary.AppendUvarint(nil, math.MaxUint64)
	b = binary.AppendVarint(b, math.MinInt64)
	b = varint.AppendBytes(append(b, 7), []byte("text"))
	read := func(b []byte) []any {
		r := varint.Reader{Rest: b}
		return []any{r.Uvarint(), r.Varint(), r.Byte(), string(r.Bytes()), r.Err, len(r.Rest)}
	}
	got := read(b)
	require.Equal(t, []any{uint64(math.MaxUint64), int64(math.MinInt64), byte(7), "text", nil, 0}, got)
	for n := range b {
		got := read(b[:n])
		require.Equal(t, varint.ErrCut, got[4], "cut after %d", n)
	}
	for name, bad := range map[string][]byte{
		"longer than it need be": {0x81, 0},
		"too large":              {255, 255, 255, 255, 255, 255, 255, 255, 255, 2},
	} {
		r := varint.Reader{Rest: append(bad, b...)}
		require.Zero(t, r.Uvarint(), name)
		require.Zero(t, r.Byte(), "nothing is read after an error")
		require.Equal(t, varint.ErrNumber, r.Err, name)
	}
	r := varint.Reader{Rest: binary.AppendUvarint(nil, math.MaxUint64)}
	require.Nil(t, r.Bytes())
	require.Equal(t, varint.ErrCut, r.Err)
}
