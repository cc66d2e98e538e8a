package httpretry

import (
	"net/http"
	"net/http/httptrace"
	"sync/atomic"

	"github.com/weirflow/weir/predicates"
)

// Transport returns base with errors that tell their stage, as
// [*predicates.StageError]:
//
//	ClientDispatch   no connection was there yet, and no other request of the call
//	                 was answered before, except by a redirect that keeps the method
//	NetworkTime      there was one, or an earlier request of another method
//	nothing          base does not say: it does not support package httptrace
//
// Errors are otherwise what they were, with the same text. A connection counts as
// used as soon as the request has it, and stays so if base tries another. A nil
// base stands for http.DefaultTransport. Safe for concurrent use if base is.
func Transport(base http.RoundTripper) http.RoundTripper {
	if base == nil {
		base = http.DefaultTransport
	}
	return &transport{base}
}

type transport struct{ base http.RoundTripper }

func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	var asked, got atomic.Bool // for, and a connection: base may tell from anywhere
	if methodChanged(req) {
		got.Store(true)
	}
	ctx := httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
		GetConn: func(string) { asked.Store(true) },
		GotConn: func(httptrace.GotConnInfo) { got.Store(true) },
	})
	resp, err := t.base.RoundTrip(req.WithContext(ctx))
	switch {
	case err == nil:
		resp.Request = req
		return resp, nil
	case got.Load():
		return nil, &predicates.StageError{Stage: predicates.NetworkTime, Err: err}
	case asked.Load():
		return nil, &predicates.StageError{Stage: predicates.ClientDispatch, Err: err}
	default:
		return nil, err
	}
}

// CloseIdleConnections is what http.Client looks for.
func (t *transport) CloseIdleConnections() {
	if c, ok := t.base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}
