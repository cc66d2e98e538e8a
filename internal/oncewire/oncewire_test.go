package oncewire_test

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/internal/oncewire"
)

func TestOf(t *testing.T) {
	for value, want := range map[string]string{
		"": "", oncewire.Replayed: "", "STALE": "", "stale, stale": "",
		oncewire.Stale: oncewire.Stale, oncewire.Mismatch: oncewire.Mismatch, oncewire.InProgress: oncewire.InProgress,
		oncewire.Full: oncewire.Full, oncewire.Invalid: oncewire.Invalid,
	} {
		h := http.Header{}
		h.Set(oncewire.Result, value)
		require.Equal(t, want, oncewire.Of(h), value)
	}
	require.Equal(t, "", oncewire.Of(http.Header{}))
	require.Equal(t, "urn:weir:exactly-once:stale", oncewire.ProblemType(oncewire.Stale))
}

// A body that came too slowly or was cut off may come whole next time: that is no refusal
// for good.
func TestBodyThatDoesNotCome(t *testing.T) {
	for name, c := range map[string]struct {
		body io.Reader
		want int
	}{
		"too slow":  {iotest.ErrReader(&net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}), http.StatusRequestTimeout},
		"cut off":   {iotest.ErrReader(io.ErrUnexpectedEOF), http.StatusRequestTimeout},
		"malformed": {iotest.ErrReader(errors.New("malformed chunked encoding")), http.StatusBadRequest},
		"too long":  {strings.NewReader("12345"), http.StatusRequestEntityTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			w := httptest.NewRecorder()
			_, ok := oncewire.ReadBody(w, httptest.NewRequest(http.MethodPost, "/", c.body), 4)
			require.False(t, ok)
			require.Equal(t, c.want, w.Code)
			require.Equal(t, "application/problem+json", w.Header().Get("Content-Type"))
		})
	}
}
