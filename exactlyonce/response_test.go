package exactlyonce_test

import (
	"bytes"
	"encoding/binary"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/exactlyonce"
)

// A stored response with damaged numbers is refused at once.
func TestDamagedResponse(t *testing.T) {
	huge := binary.AppendUvarint(nil, math.MaxUint64)
	status := binary.AppendUvarint([]byte{1}, 200)
	for _, stored := range [][]byte{
		slices.Concat(status, huge),                          // headers
		slices.Concat(status, []byte{1, 1, 'A'}, huge),       // values of a header
		slices.Concat(status, []byte{1}, huge, []byte{'A'}),  // bytes of a name
		slices.Concat(status, []byte{1, 1, 'A', 1}, huge),    // bytes of a value
		slices.Concat([]byte{1}, huge, []byte{0}, []byte{0}), // status
	} {
		err := new(exactlyonce.Response).Decode(stored)
		require.ErrorContains(t, err, "exactlyonce: stored response", "%x", stored)
	}
}

func TestResponseEncode_StoredAndRead(t *testing.T) {
	for _, resp := range []exactlyonce.Response{
		{Status: 200},
		{Status: 999, Body: []byte("x")},
		{Status: 201, Header: http.Header{"A": {"1"}, "B": {"", "2"}}, Body: bytes.Repeat([]byte{0}, 1000)},
	} {
		var got exactlyonce.Response
		err := got.Decode(resp.Encode())
		require.NoError(t, err)
		require.Equal(t, resp.Status, got.Status)
		require.Equal(t, resp.Header, got.Header)
		require.Equal(t, string(resp.Body), string(got.Body))
	}
	for _, stored := range []string{"", "\x02", "\x01", "\x01\x64\x00", "\x01\xc8\x01\x01\x01A\x00", "\x01\xc8\x01\x01\x09A"} {
		err := new(exactlyonce.Response).Decode([]byte(stored))
		require.ErrorContains(t, err, "exactlyonce: stored response: ", "%q", stored)
	}
}

// Damaged bytes are refused, or read as a response that is stored as the same bytes.
func FuzzDecodeResponse_Send(f *testing.F) {
	f.Add(exactlyonce.Response{Status: 200, Header: http.Header{"A": {"1", "2"}, "Set-Cookie": {"x"}}, Body: []byte("x")}.Encode())
	f.Add([]byte{1, 200, 1, 1, 1, 'A', 1, 0})
	f.Fuzz(func(t *testing.T, stored []byte) {
		var resp exactlyonce.Response
		err := resp.Decode(stored)
		if err != nil {
			return
		}
		var again exactlyonce.Response
		err = again.Decode(resp.Encode())
		require.NoError(t, err)
		require.Equal(t, resp.Status, again.Status)
		require.Equal(t, string(resp.Body), string(again.Body))
		w := httptest.NewRecorder()
		resp.Send(w)
		require.Equal(t, resp.Status, w.Code)
	})
}
