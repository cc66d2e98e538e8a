package wire_test

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/examples/hbase-like/internal/wire"
)

var responses = map[string]wire.Response{
	"row":         {ID: 7, Status: wire.StatusResult, Cells: []wire.Cell{{Column: "info:name", Value: "Kahului"}, {Column: "info:city"}}},
	"missing row": {ID: 1<<64 - 1, Status: wire.StatusResult},
	"location":    {ID: 8, Status: wire.StatusLocation, Region: wire.Region{Name: "r1", Start: "C", End: "G", Server: "127.0.0.1:1"}},
	"not serving": {ID: 9, Status: wire.StatusNotServing},
	"error":       {ID: 10, Status: wire.StatusError, Message: "no such operation"},
}

func TestRequestsSurviveTheWire(t *testing.T) {
	want := []wire.Request{
		{ID: 1, Op: wire.OpGet, Region: "airports,C", Row: "DTW"},
		{ID: 2, Op: wire.OpLocate, Row: ""},
	}
	var b []byte
	for _, r := range want {
		b = wire.AppendRequest(b, r)
	}
	in := bufio.NewReader(bytes.NewReader(b))
	for _, w := range want {
		got, err := wire.ReadRequest(in)
		require.NoError(t, err)
		assert.Equal(t, w, got)
	}
	_, err := wire.ReadRequest(in)
	assert.Equal(t, io.EOF, err, "between two frames")
}

func TestResponsesSurviveTheWire(t *testing.T) {
	for name, want := range responses {
		t.Run(name, func(t *testing.T) {
			frame := wire.AppendResponse([]byte("before"), want)[len("before"):]
			got, err := wire.ReadResponse(bufio.NewReader(bytes.NewReader(frame)))
			require.NoError(t, err)
			assert.Equal(t, want, got)

			for cut := 1; cut < len(frame); cut++ {
				_, err := wire.ReadResponse(bufio.NewReader(bytes.NewReader(frame[:cut])))
				assert.ErrorIs(t, err, io.ErrUnexpectedEOF, "cut after %d bytes", cut)
			}
		})
	}
}

func TestRegionContains(t *testing.T) {
	first, last := wire.Region{End: "C"}, wire.Region{Start: "C"}
	for row, in := range map[string]wire.Region{"": first, "BZZ": first, "C": last, "ZZZ": last} {
		other := first
		if in == first {
			other = last
		}
		assert.True(t, in.Contains(row), row)
		assert.False(t, other.Contains(row), row)
	}
}

func TestMalformedFramesAreErrors(t *testing.T) {
	frame := func(body ...byte) []byte { return append([]byte{0, 0, 0, byte(len(body))}, body...) }
	id := make([]byte, 8)
	for name, b := range map[string][]byte{
		"too short":       frame(1, 2, 3),
		"too long":        {0xff, 0xff, 0xff, 0xff},
		"unknown kind":    frame(append(id, 99)...),
		"string too long": frame(append(id, byte(wire.StatusError), 200)...),
		"many cells":      frame(append(id, byte(wire.StatusResult), 0xff, 0xff, 0xff, 0x7f)...),
		"left over":       frame(append(id, byte(wire.StatusNotServing), 1)...),
	} {
		_, err := wire.ReadResponse(bufio.NewReader(bytes.NewReader(b)))
		require.ErrorIs(t, err, wire.ErrMalformed, name)
	}
	_, err := wire.ReadRequest(bufio.NewReader(bytes.NewReader(frame(append(id, 3, 0, 0)...))))
	require.ErrorIs(t, err, wire.ErrMalformed)
}

// A response that can be read can be written and read again without a change.
func FuzzReadResponse(f *testing.F) {
	for _, r := range responses {
		f.Add(wire.AppendResponse(nil, r))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := wire.ReadResponse(bufio.NewReader(bytes.NewReader(b)))
		if err != nil {
			return
		}
		again, err := wire.ReadResponse(bufio.NewReader(bytes.NewReader(wire.AppendResponse(nil, r))))
		require.NoError(t, err)
		assert.Equal(t, r, again)
	})
}

func FuzzReadRequest(f *testing.F) {
	f.Add(wire.AppendRequest(nil, wire.Request{ID: 3, Op: wire.OpGet, Region: "r", Row: "DTW"}))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := wire.ReadRequest(bufio.NewReader(bytes.NewReader(b)))
		switch {
		case err == nil:
			again, err := wire.ReadRequest(bufio.NewReader(bytes.NewReader(wire.AppendRequest(nil, r))))
			require.NoError(t, err)
			assert.Equal(t, r, again)
		case errors.Is(err, wire.ErrMalformed), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		default:
			t.Fatalf("unexpected kind of error: %v", err)
		}
	})
}
