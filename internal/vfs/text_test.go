package vfs

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCheckText(t *testing.T) {
	mark, err := CheckText([]byte(ByteOrderMark+"id"), "in")
	require.NoError(t, err)
	require.Equal(t, 3, mark)
	for _, text := range []string{"", "id,name", "\x1f", "PK", "\xef\xbb", "a\x00bc"} {
		mark, err := CheckText([]byte(text), "in")
		require.NoError(t, err, "%q", text)
		require.Zero(t, mark)
	}
	_, err = CheckText([]byte("\x1f\x8b\x08"), "in put.gz")
	require.EqualError(t, err, `in put.gz is not UTF-8 text, but compressed by gzip: decompress it first ("gunzip -k in put.gz")`)
	for _, f := range formats {
		require.LessOrEqual(t, len(f.start), TextStart)
		require.Equal(t, 1, strings.Count(f.remedy, "%s"), f.remedy)
	}
}

func FuzzCheckText(f *testing.F) {
	f.Add([]byte("a\x00b\x00"))
	f.Fuzz(func(t *testing.T, start []byte) {
		mark, err := CheckText(start, "in")
		require.True(t, mark == 0 || err == nil && strings.HasPrefix(string(start), ByteOrderMark))
	})
}
