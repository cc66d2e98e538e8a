package server

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/oncewire"
)

// HandlerConfig configures [Results.Handler]. Scope is required.
type HandlerConfig struct {
	// Scope returns the authenticated principal of a request, so that no client gets the
	// answers of another. A request that is not ok gets 403, and is not tracked. A
	// service with a single client returns a constant.
	Scope func(req *http.Request) (scope string, ok bool)

	// Required refuses a request without an id with 400. Default: it is handled
	// untracked.
	Required bool

	// Stored reports whether a response with status is definite: it is stored and given
	// again. After others the next attempt is NEW. Responses of another tracker are never
	// stored. Default: 2xx, 3xx and 4xx but for 408, 425 and 429.
	Stored func(status int) bool

	// Fingerprint hashes the content of a request. An attempt with another fingerprint is
	// refused. Default: SHA-256 of method, path, query, Content-Type and body.
	Fingerprint func(req *http.Request, body []byte) [32]byte

	// MismatchStatus is the status of that refusal: 409 (default) or 422.
	MismatchStatus int

	// RetryAfter is how long clients are asked to wait, rounded up to seconds. Default 1
	// s.
	RetryAfter time.Duration

	// MaxBody bounds the body of a tracked request, which is read before its handler
	// runs. A longer body gets 413, and a late or incomplete one 408. Default 1 MiB.
	MaxBody int64

	// Logger logs failures that clients do not see: errors of Records, and unreadable
	// stored responses. Default: slog.Default().
	Logger *slog.Logger
}

// Handler returns next with request tracking. A request with the header
// [exactlyonce.Header] runs at most once at a time, and not again after a definite
// response. Others pass through. Put authentication and authorisation around it.
//
//	mux.Handle("POST /charges", authenticate(results.Handler(charge, server.HandlerConfig{Scope: userOf})))
//
// # Responses of the tracker
//
// They carry the header Exactly-Once-Result and, except replayed, a problem document (RFC
// 9457) of type urn:weir:exactly-once: with the same value:
//
//	replayed     any status   the response to another attempt
//	in-progress  409          an earlier attempt runs, and MaxWaiters others wait; Retry-After
//	mismatch     409 or 422   another request had this id
//	stale        410          the request stays in doubt
//	invalid      400          the id is missing, comes twice or is not valid
//	full         503          a bound of Config refuses it; nothing was executed; Retry-After
//
// A refusal, such as 402, that the tracker keeps for all attempts
// ([Results.KeepsRefusal]) has the header Exactly-Once-Kept: true. The caller then knows
// that a lost earlier attempt had no effect.
//
// A client may repeat the request after in-progress and full. Without that header there
// are 403, 408 and 413 (see [HandlerConfig]), 500 if the attempt that ran ended without a
// response, and 503 if Records cannot be read.
//
// # Stored responses
//
// Status, headers and body of a definite response. Never stored: Set-Cookie, headers of a
// connection, trailers, headers that w had before, and 1xx. A response that is flushed,
// hijacked or longer than MaxAnswer goes to its caller unstored: if it is definite, the
// request is STALE afterwards, even if next panics then. Other responses are sent when
// next has returned.
//
// # The handler
//
// Its context comes from [Results.Do]: the handler continues without its caller while
// others wait. With a [exactlyonce.Store] it stores the encoded [exactlyonce.Response] in
// the transaction of its effect. When Put or COMMIT fails it rolls back and answers with
// a 5xx, which a stored record replaces.
//
// Handler panics if next or Scope is nil, or if a field of c is invalid.
func (r *Results) Handler(next http.Handler, c HandlerConfig) http.Handler {
	guard.RefuseNil("server: Handler", "next", next)
	if c.Scope == nil {
		panic("server: Handler: Scope is nil: it says whose request it is, and whose answers it may get")
	}
	if c.Stored == nil {
		c.Stored = isDefinite
	}
	if c.Fingerprint == nil {
		c.Fingerprint = fingerprint
	}
	var err error
	c.MismatchStatus, c.MaxBody, err = oncewire.Limits(c.MismatchStatus, c.MaxBody)
	if err != nil {
		panic("server: Handler: " + err.Error())
	}
	c.RetryAfter = cmp.Or(c.RetryAfter, time.Second)
	if c.RetryAfter < 0 {
		panic(fmt.Sprintf("server: Handler: RetryAfter is %v", c.RetryAfter))
	}
	c.Logger = guard.Logger(c.Logger)
	return &handler{r, next, c}
}

func isDefinite(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return false
	}
	return 200 <= status && status < 500
}

func fingerprint(req *http.Request, body []byte) [32]byte {
	return oncewire.Fingerprint(body, req.Method, req.URL.EscapedPath(), req.URL.RawQuery, req.Header.Get("Content-Type"))
}

type handler struct {
	results *Results
	next    http.Handler
	config  HandlerConfig
}

// transientError is the error of a handler whose response is not stored. Waiting attempts
// send it.
type transientError struct{ stored []byte }

func (*transientError) Error() string { return "exactlyonce: the response is not definite" }

func (h *handler) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	values := req.Header.Values(exactlyonce.Header)
	if len(values) == 0 && !h.config.Required {
		h.next.ServeHTTP(w, req)
		return
	}
	if len(values) != 1 {
		h.results.invalid()
		h.refuse(w, fmt.Errorf("%w: %d headers %s instead of one", exactlyonce.ErrInvalid, len(values), exactlyonce.Header))
		return
	}
	var id exactlyonce.ID
	if err := id.UnmarshalText([]byte(values[0])); err != nil {
		h.results.invalid()
		h.refuse(w, err)
		return
	}
	scope, ok := h.config.Scope(req)
	if !ok {
		oncewire.Problem(w, http.StatusForbidden, "", "the request has no principal")
		return
	}
	body, ok := oncewire.ReadBody(w, req, h.config.MaxBody)
	if ok {
		h.track(w, req, exactlyonce.Request{ID: id, Scope: scope, Fingerprint: h.config.Fingerprint(req, body)}, body)
	}
}

func (h *handler) track(w http.ResponseWriter, req *http.Request, request exactlyonce.Request, body []byte) {
	call, err := h.results.Track(req.Context(), request)
	if err != nil {
		h.refuse(w, err)
		return
	}
	if call.state == stateNew {
		h.run(w, req, call, body)
		return
	}
	stored, err := call.Wait(req.Context())
	if err != nil && req.Context().Err() != nil && errors.Is(err, context.Cause(req.Context())) {
		err = exactlyonce.ErrInProgress // for a client that is still connected
	}
	h.replay(req.Context(), w, call, stored, err)
}

func (h *handler) run(w http.ResponseWriter, req *http.Request, call *Call, body []byte) {
	rec := newRecorder(w, h.results.config.MaxAnswer)
	stored, replayed, err := call.run(req.Context(), func(ctx context.Context) ([]byte, error) {
		inner := req.WithContext(ctx)
		inner.Body = io.NopCloser(bytes.NewReader(body))
		inner.ContentLength = int64(len(body))
		returned := false
		// If the handler panics, as a proxy does when its backend fails, the caller
		// already has the status (law X1).
		defer func() {
			if !returned && h.isLost(rec) {
				_, _, _ = call.failed(req.Context(), errStreamed)
			}
		}()
		h.next.ServeHTTP(rec, inner)
		returned = true
		rec.finish()
		switch {
		case h.isLost(rec):
			return nil, errStreamed
		case rec.streamed:
			return nil, ErrNoAnswer
		case h.isDefinite(rec):
			return rec.response().Encode(), nil
		}
		return nil, &transientError{rec.response().Encode()}
	})
	_, transient := errors.AsType[*transientError](err)
	switch {
	case rec.streamed: // sent
	case err == nil && !replayed:
		if rec.status >= http.StatusBadRequest && h.results.KeepsRefusal(req.Context(), call.req, isRefusal) {
			rec.sent.Set(oncewire.Kept, "true")
		}
		rec.send()
	case transient && !isRefused(err):
		rec.send()
	case errors.Is(err, errNotDriver):
		h.refuse(w, exactlyonce.ErrInProgress) // another handler gives the answer
	default:
		h.replay(req.Context(), w, call, stored, err)
	}
}

func isRefusal(stored []byte) bool {
	var response exactlyonce.Response
	err := response.Decode(stored)
	return err == nil && response.Status >= http.StatusBadRequest
}

var errStreamed = fmt.Errorf("%w: its response was streamed", exactlyonce.ErrStale)

// isLost reports whether a definite response went to its caller and cannot be stored.
func (h *handler) isLost(rec *recorder) bool {
	return rec.streamed && (rec.status == http.StatusSwitchingProtocols || h.isDefinite(rec))
}

func (h *handler) isDefinite(rec *recorder) bool {
	return h.config.Stored(rec.status) && oncewire.Of(rec.Header()) == ""
}

// isRefused reports whether Records have refused the request permanently.
func isRefused(err error) bool {
	return errors.Is(err, exactlyonce.ErrStale) || errors.Is(err, exactlyonce.ErrMismatch)
}

func (h *handler) replay(ctx context.Context, w http.ResponseWriter, call *Call, stored []byte, err error) {
	t, isTransient := errors.AsType[*transientError](err)
	isTransient = isTransient && !isRefused(err)
	if isTransient {
		stored, err = t.stored, nil
	}
	if err != nil {
		h.refuse(w, err)
		return
	}
	var response exactlyonce.Response
	if err := response.Decode(stored); err != nil {
		h.config.Logger.Error("a stored response cannot be sent", "error", err)
		oncewire.Problem(w, http.StatusInternalServerError, "", "the stored response cannot be read")
		return
	}
	if w.Header().Get(oncewire.Result) == "" && response.Header.Get(oncewire.Result) == "" {
		w.Header().Set(oncewire.Result, oncewire.Replayed)
	}
	if !isTransient && response.Status >= http.StatusBadRequest && h.results.KeepsRefusal(ctx, call.req, isRefusal) {
		w.Header().Set(oncewire.Kept, "true")
	}
	response.Send(w)
}

func (h *handler) refuse(w http.ResponseWriter, err error) {
	retryAfter := strconv.FormatInt(int64((h.config.RetryAfter+time.Second-1)/time.Second), 10)
	switch {
	case errors.Is(err, exactlyonce.ErrStale):
		oncewire.Problem(w, http.StatusGone, oncewire.Stale, "whether the request took effect is unknown; do not repeat it")
	case errors.Is(err, exactlyonce.ErrInvalid):
		oncewire.Problem(w, http.StatusBadRequest, oncewire.Invalid, err.Error())
	case errors.Is(err, exactlyonce.ErrMismatch):
		oncewire.Problem(w, h.config.MismatchStatus, oncewire.Mismatch, "another request had this id")
	case errors.Is(err, exactlyonce.ErrInProgress):
		w.Header().Set("Retry-After", retryAfter)
		oncewire.Problem(w, http.StatusConflict, oncewire.InProgress, "an earlier attempt of the request runs; repeat it later")
	case errors.Is(err, exactlyonce.ErrFull):
		w.Header().Set("Retry-After", retryAfter)
		oncewire.Problem(w, http.StatusServiceUnavailable, oncewire.Full, "too many requests are tracked; repeat it later")
	case errors.Is(err, ErrNoAnswer):
		oncewire.Problem(w, http.StatusInternalServerError, "", "the attempt that ran ended without a response")
	default:
		h.config.Logger.Error("a tracked request was not handled", "error", err)
		w.Header().Set("Retry-After", retryAfter)
		oncewire.Problem(w, http.StatusServiceUnavailable, "", "the records of earlier attempts cannot be read; repeat it later")
	}
}
