package exactlyonce_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/internal/testing/golden"
)

// A stored answer, and an id as sent and stored with a message (law W4).
func TestFormats(t *testing.T) {
	want := exactlyonce.Response{Status: 201, Header: http.Header{"Content-Type": {"text/plain"}, "X-Two": {"a", "b"}}, Body: []byte("done\n")}
	var got exactlyonce.Response
	err := got.Decode(golden.Written(t, "response-1", want.Encode()))
	require.NoError(t, err)
	require.Equal(t, want, got)

	id := exactlyonce.ID{Client: exactlyonce.Client{1, 2, 3, 15: 255}, Sequence: 17, Attempt: 3, Step: "refund"}
	parsed, err := parseID(string(golden.Written(t, "id", []byte(id.String()))))
	require.NoError(t, err)
	require.Equal(t, id, parsed)
}

func parseID(text string) (id exactlyonce.ID, err error) {
	err = id.UnmarshalText([]byte(text))
	return id, err
}
