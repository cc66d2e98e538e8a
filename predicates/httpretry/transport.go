package httpretry

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync"

	"github.com/weirflow/weir/predicates"
)

// Transport wraps base and reports how far its requests came. It wraps an error in a
// [*predicates.StageError] with the stage:
//
//	ClientDispatch   no header was written, or the server reported by HTTP/2 that it had
//	                 not processed the request (REFUSED_STREAM, a GOAWAY below its
//	                 stream); and no earlier request of another method was answered by
//	                 a redirect
//	NetworkTime      otherwise
//	not wrapped      base does not support package httptrace
//
// Errors are otherwise unchanged. The text of errors of ClientDispatch mentions the
// stage, too, since an http.Client whose Timeout has run out replaces errors by their
// text.
//
// Each request is reported to the attempt of its context ([predicates.ReportSent]) and
// stays in doubt unless its error or its status proves that it had no effect: see the
// package documentation. Requests with a safe method (GET, HEAD, OPTIONS, TRACE; RFC
// 9110, 9.2.1) are not reported.
//
// base has to call the hooks GetConn, GotConn and WroteHeaderField of httptrace. An
// *http.Transport may repeat a request by itself, but a POST only if the server has
// certainly not received it. With another base, a request counts as sent from the first
// header on, and stays in doubt if base repeats it, whatever the last answer is. An error
// after such a base got a connection is in NetworkTime, since it may have its own
// timeout. A nil base means http.DefaultTransport. Transport is safe for concurrent use
// if base is.
//
// There is one exception, which cannot be detected: over HTTP/2 net/http repeats a POST
// after RST_STREAM with PROTOCOL_ERROR, which some servers send for late requests, unless
// it has a body without GetBody.
func Transport(base http.RoundTripper) http.RoundTripper {
	if base == nil {
		base = http.DefaultTransport
	}
	return &transport{base}
}

type transport struct{ base http.RoundTripper }

func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx := req.Context()
	if ctx.Err() != nil { // base would fail without the stage
		if req.Body != nil {
			_ = req.Body.Close()
		}
		return nil, withStage(req, predicates.ClientDispatch, context.Cause(ctx))
	}
	var sent predicates.SentRequest
	if !safeMethod(req.Method) {
		sent = predicates.ReportSent(ctx) // before sending: the attempt may end meanwhile
	}
	p := &progress{}
	_, p.plain = t.base.(*http.Transport)
	p.repeatable = safeMethod(req.Method) || hasKey(req)
	resp, err := t.base.RoundTrip(req.WithContext(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn:          func(string) { p.getConn() },
		GotConn:          func(httptrace.GotConnInfo) { p.gotConn() },
		WroteHeaderField: func(string, []string) { p.writes() },
		WroteHeaders:     p.writes,
		WroteRequest:     func(httptrace.WroteRequestInfo) { p.writes() },
	})))
	if err == nil {
		if resp == nil {
			return nil, nil //nolint:nilnil // base breaks its contract: an http.Client reports that
		}
		if withoutEffect(resp) && !p.repeated() { // the answer is for the last repetition
			sent.Refused()
		}
		resp.Request = req
		return resp, nil
	}
	stage := p.stage(err, over(req))
	if stage == predicates.ClientDispatch {
		sent.Refused()
	}
	return nil, withStage(req, stage, err)
}

// withStage adds the stage of the call to err. stage is the stage of req alone: after a
// redirect of a request of another method, the call is in NetworkTime.
func withStage(req *http.Request, stage predicates.Stage, err error) error {
	switch {
	case methodChanged(req):
		stage = predicates.NetworkTime
	case stage == predicates.Unreported:
		return err
	case stage == predicates.ClientDispatch:
		err = &notSentError{err}
	}
	return &predicates.StageError{Stage: stage, Err: err}
}

type idleCloser interface{ CloseIdleConnections() }

// CloseIdleConnections closes the idle connections of base.
func (t *transport) CloseIdleConnections() {
	if c, ok := t.base.(idleCloser); ok {
		c.CloseIdleConnections()
	}
}

// progress records how far a request has come.
type progress struct {
	plain      bool // base is an *http.Transport
	repeatable bool // net/http may repeat a sent request

	mu      sync.Mutex // base may call the hooks on any goroutine
	asked   bool       // for a connection
	got     bool       // a connection
	wrote   bool       // a header, perhaps to a buffer
	earlier bool       // the request was written to an earlier connection
}

func (p *progress) getConn() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = true
	p.again()
}

func (p *progress) gotConn() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.again() // HTTP/2 may repeat a request without calling GetConn
	p.got = true
}

// again records that the request moves to another connection. Unless it is repeatable, an
// *http.Transport does that only if the server has not received it. Called with mu held.
func (p *progress) again() {
	if !p.plain || p.repeatable {
		p.earlier = p.earlier || p.wrote
	}
	p.got, p.wrote = false, false
}

func (p *progress) writes() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wrote = true
}

// repeated reports whether the request may have been executed over an earlier connection.
func (p *progress) repeated() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.earlier
}

// stage returns how far the request had come when it failed with err. over means that it
// was cancelled.
func (p *progress) stage(err error, over bool) predicates.Stage {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case !p.asked && !p.wrote:
		return predicates.Unreported
	case p.earlier:
		return predicates.NetworkTime
	case unprocessed(err):
		return predicates.ClientDispatch
	case p.wrote, p.got && (over || !p.plain): // HTTP/2 may still be about to write; another base may have its own timeout
		return predicates.NetworkTime
	default:
		return predicates.ClientDispatch
	}
}

type notSentError struct{ error }

const notSentText = "httpretry: request not executed: "

func (e *notSentError) Error() string { return notSentText + e.error.Error() }
func (e *notSentError) Unwrap() error { return e.error }

// notSent reports whether an http.Client has replaced a notSentError by its text.
func notSent(err error) bool {
	e, ok := errors.AsType[*url.Error](err)
	return ok && e.Err != nil && strings.HasPrefix(e.Err.Error(), notSentText)
}

func over(req *http.Request) bool {
	select {
	case <-req.Cancel: //nolint:staticcheck // an http.Client with a Timeout sets it
		return true
	default:
		return req.Context().Err() != nil
	}
}
