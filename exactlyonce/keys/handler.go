package keys

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/internal/oncewire"
)

const header = "Idempotency-Key"

// HandlerConfig configures [Operation.Handler].
type HandlerConfig struct {
	// User returns the authenticated user, for whom keys are separate. If ok is false,
	// the answer is 403. Required; a service with a single user returns a constant.
	User func(req *http.Request) (user string, ok bool)
	// Key returns an entity-level key, such as payment-1234-refund. An error, or a
	// missing key, is answered with 400. Default: the request-level key in the header
	// Idempotency-Key, bare or in double quotes.
	Key func(req *http.Request, body []byte) (key string, err error)
	// Fingerprint hashes the content of a request: the same key with another fingerprint
	// is refused. Default: method, path, query, Content-Type and body (see [Request]).
	Fingerprint func(req *http.Request, body []byte) [32]byte
	// MismatchStatus is the status for other content: 409 (default) or 422.
	MismatchStatus int
	// MaxBody limits the body, in bytes. A longer body gets 413, a late or incomplete one
	// 408. Default 1 MiB.
	MaxBody int64
}

// Handler returns the operation as an HTTP handler. Put authentication and authorisation
// around it. A run continues if its client disconnects.
//
// A response to an earlier attempt has the header Exactly-Once-Result: replayed. Refusals
// are problem documents (RFC 9457), with this header and a type urn:weir:exactly-once:
// plus the same value:
//
//	in-progress  409         a run has the lock, or transactions collide; Retry-After
//	mismatch     409 or 422  the key had other content
//	invalid      400         the key is missing, or a value is too long or not valid text
//
// Without the header there are 403, 408, 413, and 500 after an error of the handler
// without a response. Handler panics if User is nil, or MismatchStatus or MaxBody is
// invalid.
func (o *Operation) Handler(c HandlerConfig) http.Handler {
	if c.User == nil {
		panic("keys: Handler: User is nil: it says whose key it is, and whose responses it may get")
	}
	if c.Key == nil {
		c.Key = headerKey
	}
	var err error
	c.MismatchStatus, c.MaxBody, err = oncewire.Limits(c.MismatchStatus, c.MaxBody)
	if err != nil {
		panic("keys: Handler: " + err.Error())
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { o.serve(w, req, &c) })
}

// headerKey reads the header, bare or as a string of structured fields (RFC 9651).
func headerKey(req *http.Request, _ []byte) (string, error) {
	values := req.Header.Values(header)
	if len(values) != 1 {
		return "", fmt.Errorf("%d headers %s instead of one", len(values), header)
	}
	key := values[0]
	if quoted, ok := strings.CutPrefix(key, `"`); ok {
		key, ok = strings.CutSuffix(quoted, `"`)
		if !ok {
			return "", fmt.Errorf("the header %s has one quote", header)
		}
	}
	for _, b := range []byte(key) {
		if b <= ' ' || b > '~' || b == '"' || b == '\\' {
			return "", fmt.Errorf("the header %s has the character %q", header, b)
		}
	}
	return key, nil
}

func (o *Operation) serve(w http.ResponseWriter, req *http.Request, c *HandlerConfig) {
	user, ok := c.User(req)
	if !ok {
		oncewire.Problem(w, http.StatusForbidden, "", "the request has no user")
		return
	}
	body, ok := oncewire.ReadBody(w, req, c.MaxBody)
	if !ok {
		return
	}
	key, err := c.Key(req, body)
	if err != nil {
		oncewire.Problem(w, http.StatusBadRequest, oncewire.Invalid, err.Error())
		return
	}
	request := Request{
		User: user, Key: key, Method: req.Method, Path: req.URL.EscapedPath(), Query: req.URL.RawQuery,
		ContentType: req.Header.Get("Content-Type"), Body: body,
	}
	if c.Fingerprint != nil {
		request.Fingerprint = c.Fingerprint(req, body)
	}
	end := o.do(context.WithoutCancel(req.Context()), request)
	switch {
	case end.err == nil:
		if end.replayed {
			w.Header().Set(oncewire.Result, oncewire.Replayed)
		}
		end.response.Send(w)
	case end.refused && errors.Is(end.err, exactlyonce.ErrInvalid):
		oncewire.Problem(w, http.StatusBadRequest, oncewire.Invalid, end.err.Error())
	case end.refused && errors.Is(end.err, exactlyonce.ErrMismatch):
		oncewire.Problem(w, c.MismatchStatus, oncewire.Mismatch, "another request had this key")
	case end.refused && errors.Is(end.err, exactlyonce.ErrInProgress):
		w.Header().Set("Retry-After", "1")
		oncewire.Problem(w, http.StatusConflict, oncewire.InProgress, "the request is in progress; repeat it later")
	default:
		o.keys.config.Logger.Error("a request is not finished", "operation", o.name, "key", key, "error", end.err)
		if end.response.Status != 0 {
			end.response.Send(w)
		} else {
			oncewire.Problem(w, http.StatusInternalServerError, "", "the request is not finished; repeat it with the same key")
		}
	}
}
