package httpin

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/oncewire"
	"github.com/weirflow/weir/message"
)

const (
	idempotencyKey = "Idempotency-Key"
	patience       = 10 * time.Second // with the sink
)

// kept are the headers of a request that go into the message: of the trace, and of the
// type of the body.
var kept = [...]string{"Traceparent", "Tracestate", "Content-Type"}

type handler[T any] struct {
	settings

	sink  delivery.Sink[T]
	codec codec.Codec[T]
	meta  func(r *http.Request, v T) message.Meta

	memory memory
}

// NewHandler returns a handler that reads the body of each POST with c, puts it into
// sink, and answers when that has returned (law D1).
//
// meta returns the metadata of the message; it may be nil. The handler fills in the
// fields that meta leaves empty: the id with the header Idempotency-Key, or with a random
// id if the request does not have it, and Headers with traceparent, tracestate and
// Content-Type. Keys are the client's: where clients do not trust each other, meta must
// put the client's name and the key into the id. The package's documentation explains how
// long a key is remembered.
//
// It panics if sink or c is nil.
func NewHandler[T any](sink delivery.Sink[T], c codec.Codec[T], meta func(r *http.Request, v T) message.Meta, opts ...Option) http.Handler {
	guard.RefuseNil("httpin: NewHandler", "sink", sink)
	guard.RefuseNil("httpin: NewHandler", "codec", c)
	if meta == nil {
		meta = func(*http.Request, T) message.Meta { return message.Meta{} }
	}
	h := &handler[T]{settings: newSettings(opts), sink: sink, codec: c, meta: meta, memory: memory{limit: maxRemembered}}
	return h
}

// answer is an error with the status to answer with, and what the client gets to read.
type answer struct {
	status int
	text   string
	err    error
}

func (a *answer) Error() string { return fmt.Sprintf("%s: %v", a.text, a.err) }
func (a *answer) Unwrap() error { return a.err }

// ServeHTTP implements http.Handler.
func (h *handler[T]) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id, err := h.take(w, r)
	if err != nil {
		a := err
		level := slog.LevelInfo // the client's fault
		if a.status >= http.StatusInternalServerError {
			level = slog.LevelError
			w.Header().Set("Retry-After", "1")
		}
		h.logger.Log(r.Context(), level, "httpin: a message was not taken", slog.String("id", id), slog.Int("status", a.status), slog.Any("error", err))
		if a.status == http.StatusMethodNotAllowed {
			w.Header().Set("Allow", http.MethodPost)
		}
		http.Error(w, a.text, a.status)
		return
	}
	body, _ := json.Marshal(map[string]string{"id": id}) // strings cannot fail
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusAccepted)
	_, _ = w.Write(append(body, '\n')) // a client that does not hear it sends the message again
}

// take makes a message of the request and puts it into the sink.
func (h *handler[T]) take(w http.ResponseWriter, r *http.Request) (id string, failed *answer) {
	if r.Method != http.MethodPost {
		return "", &answer{http.StatusMethodNotAllowed, "send a POST", fmt.Errorf("method %q", r.Method)}
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, h.maxBytes))
	if err != nil {
		status := oncewire.BodyStatus(err)
		return "", &answer{status, map[int]string{
			http.StatusRequestEntityTooLarge: fmt.Sprintf("the body has more than %d bytes", h.maxBytes),
			http.StatusRequestTimeout:        "the body did not come in time, or not whole: send it again",
			http.StatusBadRequest:            "the body cannot be read",
		}[status], err}
	}
	v, err := h.decode(body)
	if err != nil {
		return "", &answer{http.StatusBadRequest, "the body is not what is wanted here", err}
	}
	meta := h.meta(r, v)
	h.complete(&meta, r)
	if _, err := meta.ToHeaders(); err != nil {
		return "", &answer{http.StatusBadRequest, "the id or a header is too long", err}
	}
	given := r.Header.Get(idempotencyKey)
	if given == "" {
		return meta.ID, h.put(r.Context(), v, &meta)
	}
	first := h.memory.begin(hashOf(given, meta.ID), hashOf(r.URL.RequestURI(), r.Header.Get("Content-Type"), string(body)))
	if first == nil {
		return meta.ID, &answer{http.StatusUnprocessableEntity, "another request had this Idempotency-Key", errors.New("the key was used for another request")}
	}
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	select {
	case first.storing <- struct{}{}:
		defer func() { <-first.storing }()
	case <-ctx.Done():
		return meta.ID, &answer{http.StatusServiceUnavailable, "the same request is still being stored: send it again", context.Cause(ctx)}
	}
	if first.safe {
		return meta.ID, nil
	}
	failed = h.put(r.Context(), v, &meta)
	first.safe = failed == nil
	return meta.ID, failed
}

// decode is a call of user code.
func (h *handler[T]) decode(body []byte) (v T, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = guard.Recovered("httpin", p)
		}
	}()
	return h.codec.Decode(body)
}

// complete fills in what meta has left empty.
func (h *handler[T]) complete(meta *message.Meta, r *http.Request) {
	if meta.ID == "" {
		meta.ID = r.Header.Get(idempotencyKey)
	}
	if meta.ID == "" {
		meta.ID = "random:" + rand.Text()
	}
	if meta.Headers != nil {
		return
	}
	meta.Headers = make(map[string]string)
	for _, name := range kept {
		if v := r.Header.Get(name); v != "" {
			meta.Headers[name] = v
		}
	}
}

// put returns nil when the message is safe. It does not end with the request, or a
// message might be safe that is not known to be.
func (h *handler[T]) put(ctx context.Context, v T, meta *message.Meta) *answer {
	var settlement atomic.Pointer[message.Settlement]
	m := message.New(v, meta, func(v message.Settlement) { settlement.Store(&v) })
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	if err := h.sink.PutAll(ctx, []message.Message[T]{m}); err != nil {
		m.Nack(0)
		if errors.Is(err, message.ErrRefused) {
			return &answer{http.StatusUnprocessableEntity, "the message can never be stored", err}
		}
		return &answer{http.StatusServiceUnavailable, "the message could not be stored: send it again", err}
	}
	m.Ack()
	switch got := settlement.Load(); got.Kind {
	case message.Rejected:
		return &answer{http.StatusUnprocessableEntity, "the message was rejected", got.Err}
	case message.Released, message.Failed:
		return &answer{http.StatusServiceUnavailable, "the message could not be stored: send it again", fmt.Errorf("the sink has settled it as %v", got.Kind)}
	case message.Done, message.HandedOver:
	}
	return nil
}
