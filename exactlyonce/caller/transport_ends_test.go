package caller

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/internal/oncewire"
)

// body records whether it was closed.
type body struct {
	io.Reader
	closed bool
}

func (b *body) Close() error {
	b.closed = true
	return nil
}

type stalePeer struct {
	response body
	sent     int
	idle     int
}

func (p *stalePeer) CloseIdleConnections() { p.idle++ }

func (p *stalePeer) RoundTrip(req *http.Request) (*http.Response, error) {
	p.sent++
	return &http.Response{StatusCode: http.StatusGone, Header: http.Header{oncewire.Result: {oncewire.Stale}}, Body: &p.response, Request: req},
		req.Body.Close()
}

// Transport closes bodies that its caller does not receive, so that connections are
// reused, and does not send requests without an id.
func TestTransportClosesBodies(t *testing.T) {
	const url = "http://pay.example.com/charges"
	peer := &stalePeer{response: body{Reader: strings.NewReader(strings.Repeat("x", 10_000))}}
	transport := Transport(peer, url)
	tracker := NewTracker(Config{})
	request := &body{Reader: strings.NewReader("{}")}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, request)
	require.NoError(t, err)
	_, err = transport.RoundTrip(req) //nolint:bodyclose // there is no body
	require.ErrorIs(t, err, ErrNoID)
	require.True(t, request.closed)
	require.Zero(t, peer.sent)

	ctx := tracker.AttemptStarted(tracker.Accepted(t.Context(), nil, false), 1)
	resp, err := transport.RoundTrip(req.WithContext(ctx)) //nolint:bodyclose // there is no body
	require.ErrorIs(t, err, exactlyonce.ErrStale)
	require.Nil(t, resp)
	require.True(t, peer.response.closed)
	require.Equal(t, 1, peer.sent)

	(&http.Client{Transport: transport}).CloseIdleConnections()
	require.Equal(t, 1, peer.idle)
}
