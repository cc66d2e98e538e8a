package caller

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/internal/ctxkey"
	"github.com/weirflow/weir/internal/oncewire"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/httpretry"
)

// Transport returns base with the ids of a [Tracker] for requests to the named endpoints:
//
//	client := &http.Client{Transport: caller.Transport(nil, "https://pay.example.com/charges")}
//
// An endpoint is an absolute URL. A path that ends with a slash names all paths below it.
// Name only endpoints that recognise the ids, such as a service behind package server,
// because calls to them are repeated.
//
//	request                                  its id
//	to a named endpoint                      the id of the element and step (WithStep), with a new attempt number each time
//	with a safe method: GET, HEAD, …         none, because it has no effect
//	to another endpoint                      none
//	after a redirect within the host         the same, with another step
//	after a redirect to another host         none, even if the endpoint is named
//	without a possible id: see NextID        fails without being sent
//
// Answers from the server's tracker become errors that match:
//
//	ErrStale       the call stays in doubt, and is not repeated
//	ErrMismatch    refused permanently
//	ErrInvalid     refused permanently
//	ErrInProgress  may be repeated, after the time that the server demands
//	ErrFull        not executed, may be repeated
//
// Other answers come from the service, perhaps to an earlier attempt. The server marks a
// refusal, such as 402, that it keeps for all attempts: none of them had an effect.
//
// # Retries
//
// A request with an id is reported as deduplicated ([predicates.WithDeduplicated]). A
// reason-aware strategy therefore repeats a call that was lost in flight, unless the call
// has also sent a request without an id. Transport includes [httpretry.Transport], so
// base need not.
//
// Hedges and retries around Transport send the same request again, so the function has to
// name it by [WithStep]. Below Transport they keep its attempt number, unless another
// Transport is their base:
//
//	caller.Transport(hedged(caller.Transport(nil, endpoint)), endpoint)
//
// A nil base means http.DefaultTransport. Transport panics without endpoints, or if one
// is not such a URL. The result is safe for concurrent use if base is.
func Transport(base http.RoundTripper, endpoints ...string) http.RoundTripper {
	if len(endpoints) == 0 {
		panic("caller: Transport: no endpoint is named")
	}
	t := &transport{base: httpretry.Transport(base)}
	for _, e := range endpoints {
		t.endpoints = append(t.endpoints, mustParseEndpoint(e))
	}
	return t
}

type transport struct {
	base      http.RoundTripper
	endpoints []endpoint
}

func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	hops, away := redirects(req)
	if isSafe(req.Method) || away || !t.names(req) {
		return t.base.RoundTrip(withoutID(req))
	}
	r, id, err := begin(req.Context(), hops)
	if err != nil {
		if req.Body != nil {
			_ = req.Body.Close()
		}
		return nil, &predicates.StageError{Stage: predicates.ClientDispatch, Err: err}
	}
	numbered := context.WithValue(context.WithValue(req.Context(), sendingKey{}, r), ctxkey.Numbered{}, true)
	sent := req.WithContext(predicates.WithDeduplicated(numbered))
	sent.Header = req.Header.Clone()
	if sent.Header == nil {
		sent.Header = http.Header{}
	}
	sent.Header.Set(exactlyonce.Header, id.String())
	resp, err := t.base.RoundTrip(sent)
	if err != nil || resp == nil {
		return nil, err
	}
	resp.Request = req
	if err := r.refusal(resp, id); err != nil {
		return nil, err
	}
	if isKeptRefusal(resp) {
		r.ids.element.NoteRefused(r.step)
	}
	return resp, nil
}

// idleCloser has connections to close. http.Client looks for this method.
type idleCloser interface{ CloseIdleConnections() }

var _ idleCloser = (*transport)(nil)

func (t *transport) CloseIdleConnections() {
	if c, ok := t.base.(idleCloser); ok {
		c.CloseIdleConnections()
	}
}

// names reports whether req goes to a named endpoint. A different Host is another
// service.
func (t *transport) names(req *http.Request) bool {
	if req.Host != "" && req.Host != req.URL.Host {
		return false
	}
	origin, path := originOf(req.URL), cleanPath(req.URL.Path)
	for _, e := range t.endpoints {
		if e.names(origin, path) {
			return true
		}
	}
	return false
}

// withoutID returns req without an id set by an outer Transport or by a program that
// copies headers.
func withoutID(req *http.Request) *http.Request {
	if _, ok := req.Header[exactlyonce.Header]; !ok {
		return req
	}
	c := req.WithContext(req.Context())
	c.Header = req.Header.Clone()
	c.Header.Del(exactlyonce.Header)
	return c
}

func redirects(req *http.Request) (hops int, away bool) {
	for r := req; r.Response != nil && r.Response.Request != nil; r = r.Response.Request {
		hops++
		away = away || originOf(r.URL) != originOf(r.Response.Request.URL)
	}
	return hops, away
}

func begin(ctx context.Context, hops int) (outgoing, exactlyonce.ID, error) {
	r, err := requestIn(ctx, hops)
	if err != nil {
		return r, exactlyonce.ID{}, err
	}
	id, err := r.next()
	return r, id, err
}

// refusal returns the error for an answer of the server's tracker and closes the body,
// otherwise nil.
func (r outgoing) refusal(resp *http.Response, id exactlyonce.ID) error {
	status := httpretry.CheckResponse(resp)
	result := oncewire.Of(resp.Header)
	if status == nil || result == "" {
		return nil
	}
	if resp.Body != nil {
		_, _ = io.CopyN(io.Discard, resp.Body, 4096) // so that the connection can be reused
		_ = resp.Body.Close()
	}
	err := &answerError{class: classes[result], id: id, status: status}
	if result == oncewire.Stale {
		predicates.ReportSent(r.ctx) // law X1: no longer deduplicated, so it is not repeated
	}
	return &predicates.StageError{Stage: predicates.ResponseReceived, Err: err}
}

// isKeptRefusal reports whether resp is a permanent refusal that the server keeps as its
// answer to all attempts. A refusal without the header may come from a proxy in front of
// the tracker, which cannot know the effect of an earlier attempt.
func isKeptRefusal(resp *http.Response) bool {
	err := httpretry.CheckResponse(resp)
	if err == nil || !oncewire.IsKept(resp.Header) {
		return false
	}
	reason, _ := classify(&predicates.Attempt[struct{}]{Err: err})
	return reason.IsRejection()
}

var classify = httpretry.Classifier[struct{}]()

var classes = map[string]error{
	oncewire.Stale:      exactlyonce.ErrStale,
	oncewire.Mismatch:   exactlyonce.ErrMismatch,
	oncewire.InProgress: exactlyonce.ErrInProgress,
	oncewire.Full:       exactlyonce.ErrFull,
	oncewire.Invalid:    exactlyonce.ErrInvalid,
}

// answerError is an answer of the server's tracker.
type answerError struct {
	class  error
	id     exactlyonce.ID
	status error // a *httpretry.StatusError
}

func (e *answerError) Error() string {
	step := ""
	if e.id.Step != "" {
		step = ", step " + strconv.Quote(e.id.Step)
	}
	return fmt.Sprintf("%v: element %d%s: %v", e.class, e.id.Sequence, step, e.status)
}

func (e *answerError) Is(target error) bool { return target == e.class }

// Unwrap returns the status for classifiers, or nil for a stale request, because 410
// would count as a refusal without effect.
func (e *answerError) Unwrap() error {
	if e.class == exactlyonce.ErrStale { //nolint:errorlint // set from classes
		return nil
	}
	return e.status
}
