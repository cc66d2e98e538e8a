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

// Transport wraps base and reports how far its requests came. An error carries its stage,
// as [*predicates.StageError]:
//
//	ClientDispatch   no header was written, or the server said by HTTP/2 that it had
//	                 not processed the request (REFUSED_STREAM, a GOAWAY below its
//	                 stream); and no other request of another method was answered
//	                 before, by a redirect
//	NetworkTime      anything else
//	nothing          base does not say: it does not support package httptrace
//
// Errors are otherwise unchanged. The text of errors of ClientDispatch mentions the
// stage, too, since an http.Client whose Timeout has run out replaces errors by their
// text.
//
// Each request is reported to the attempt that its context belongs to
// ([predicates.ReportSent]) and stays in doubt unless its error or its status proves that
// it had no effect: see the package documentation. So if a call makes two POSTs and the
// second is refused, it is not repeated if the first may have been executed. Requests
// with a safe method (GET, HEAD, OPTIONS, TRACE; RFC 9110, 9.2.1) are not reported: by
// definition they do not have an effect to repeat.
//
// base has to call the hooks GetConn, GotConn and WroteHeaderField of httptrace, as an
// http.Transport does. An
// *http.Transport may repeat a request by itself, but a POST only if the server has certainly not got it. With another base, a
// request counts as sent from the first header on, and stays in doubt if the base repeats
// it, whatever the last answer is. An error after it got a connection is in NetworkTime,
// since such a base may have given up by itself. A nil base stands for
// http.DefaultTransport. Safe for concurrent use if base is.
//
// One such repetition does not prove that, and cannot be distinguished from the others:
// over HTTP/2 net/http sends a POST again after RST_STREAM with PROTOCOL_ERROR, which
// some servers send for requests that came too late. Requests with a body and without
// GetBody are not sent again.
func Transport(base http.RoundTripper) http.RoundTripper {
	if base == nil {
		base = http.DefaultTransport
	}
	return &transport{base}
}

type transport struct{ base http.RoundTripper }

func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx := req.Context()
	if ctx.Err() != nil { // base would say the same, but not that it has sent nothing
		if req.Body != nil {
			_ = req.Body.Close()
		}
		return nil, withStage(req, predicates.ClientDispatch, context.Cause(ctx))
	}
	var sent predicates.SentRequest
	if !safeMethod(req.Method) {
		sent = predicates.ReportSent(ctx) // before it is: the attempt may be over while it is on its way
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
			return nil, nil //nolint:nilnil // base breaks its contract: an http.Client says so
		}
		if withoutEffect(resp) && !p.repeated() { // the answer is about the last one
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

// withStage returns err with the stage of the call that req belongs to, of which stage is
// that of req alone.
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

// CloseIdleConnections implements an interface that http.Client looks for.
func (t *transport) CloseIdleConnections() {
	if c, ok := t.base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// progress is how far one request has come.
type progress struct {
	plain      bool // base is an *http.Transport
	repeatable bool // net/http may send it again although it was sent

	mu                sync.Mutex // base may tell from anywhere
	asked, got, wrote bool       // for a connection; one; a header, perhaps into a buffer only
	earlier           bool       // it was written to another connection before
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
	p.again() // HTTP/2 does not ask each time
	p.got = true
}

// again begins with another connection. The one before failed without a byte, or without
// having been served.
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

// repeated reports whether the request was sent before, and may have been executed then.
func (p *progress) repeated() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.earlier
}

// stage returns how far the request had come when err ended it.
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
	case p.wrote, p.got && (over || !p.plain): // HTTP/2 does not wait for who is about to write; base may have its own timeout
		return predicates.NetworkTime
	default:
		return predicates.ClientDispatch
	}
}

// notSentError is an error before anything was sent.
type notSentError struct{ error }

const notSentText = "httpretry: request not executed: "

func (e *notSentError) Error() string { return notSentText + e.error.Error() }
func (e *notSentError) Unwrap() error { return e.error }

// notSent reports whether err is that of an http.Client that has replaced a notSentError
// by its text.
func notSent(err error) bool {
	e, ok := errors.AsType[*url.Error](err)
	return ok && e.Err != nil && strings.HasPrefix(e.Err.Error(), notSentText)
}

// over reports whether req has been given up.
func over(req *http.Request) bool {
	select {
	case <-req.Cancel: //nolint:staticcheck // an http.Client with a Timeout sets it
		return true
	default:
		return req.Context().Err() != nil
	}
}
