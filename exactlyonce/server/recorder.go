package server

import (
	"bufio"
	"bytes"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"

	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/internal/oncewire"
)

// recorder is the ResponseWriter of a handler. It holds the response back, to store it
// before it is sent, unless the handler streams it or it gets too long. Owned by the
// handler's goroutine.
type recorder struct {
	w      http.ResponseWriter
	outer  http.Header // header of w before
	header http.Header
	atMost int // bytes of a stored body

	status   int         // 0: not written
	sent     http.Header // header when it was written
	body     bytes.Buffer
	streamed bool // goes directly to w, and cannot be stored
}

func newRecorder(w http.ResponseWriter, atMost int) *recorder {
	return &recorder{w: w, outer: w.Header().Clone(), header: w.Header().Clone(), atMost: atMost}
}

func (r *recorder) Header() http.Header {
	if r.streamed {
		return r.w.Header()
	}
	return r.header
}

func (r *recorder) WriteHeader(status int) {
	switch {
	case status < 100 || status > 999: // as net/http does
		panic(fmt.Sprintf("invalid WriteHeader code %v", status))
	case r.streamed:
		if r.status == 0 && status >= 200 {
			r.status = status
		}
		r.w.WriteHeader(status)
	case r.status != 0: // net/http ignores it, too
	case status == http.StatusSwitchingProtocols:
		r.stream()
		r.status = status
		r.w.WriteHeader(status)
	case status < 200: // informational, not part of the answer
		r.copyHeader(r.header)
		r.w.WriteHeader(status)
	default:
		r.status = status
		r.sent = r.header.Clone()
	}
}

func (r *recorder) Write(b []byte) (int, error) {
	if r.status == 0 {
		r.WriteHeader(http.StatusOK)
	}
	if !r.streamed && r.body.Len()+len(b) > r.atMost {
		r.stream()
	}
	if r.streamed {
		return r.w.Write(b)
	}
	if r.status == http.StatusNoContent || r.status == http.StatusNotModified {
		return 0, http.ErrBodyNotAllowed
	}
	return r.body.Write(b)
}

// stream gives up recording and sends what was recorded so far.
func (r *recorder) stream() {
	if r.streamed {
		return
	}
	r.streamed = true
	if r.status == 0 {
		r.copyHeader(r.header)
		return
	}
	r.copyHeader(r.sent)
	r.w.WriteHeader(r.status)
	_, _ = r.w.Write(r.body.Bytes()) // the handler's next write fails, too
	r.body = bytes.Buffer{}
}

func (r *recorder) copyHeader(h http.Header) {
	to := r.w.Header()
	for name := range to {
		if _, ok := h[name]; !ok {
			delete(to, name)
		}
	}
	maps.Copy(to, h.Clone())
}

func (r *recorder) Flush() { _ = r.FlushError() }

// FlushError implements an interface of http.ResponseController.
func (r *recorder) FlushError() error {
	if r.status == 0 {
		r.WriteHeader(http.StatusOK)
	}
	r.stream()
	return http.NewResponseController(r.w).Flush()
}

// Hijack hands over the connection.
func (r *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(r.w).Hijack()
	if err == nil {
		r.streamed = true
		r.status = max(r.status, http.StatusSwitchingProtocols)
	}
	return conn, rw, err
}

// Unwrap lets http.ResponseController set deadlines.
func (r *recorder) Unwrap() http.ResponseWriter { return r.w }

func (r *recorder) finish() {
	if r.status == 0 && !r.streamed {
		r.WriteHeader(http.StatusOK)
	}
	r.sent.Del(oncewire.Kept) // of another tracker, with other records
}

func (r *recorder) send() {
	if r.streamed {
		return
	}
	r.copyHeader(r.sent)
	r.w.WriteHeader(r.status)
	_, _ = r.w.Write(r.body.Bytes()) // the caller is gone, or the status has no body
	for name, values := range r.header {
		if !slices.Equal(values, r.sent[name]) {
			r.w.Header()[name] = values
		}
	}
}

// response returns the response to store, without headers that w had before.
func (r *recorder) response() exactlyonce.Response {
	header := http.Header{}
	for name, values := range r.sent {
		if before, ok := r.outer[name]; !ok || !slices.Equal(before, values) {
			header[name] = values
		}
	}
	return exactlyonce.Response{Status: r.status, Header: header, Body: r.body.Bytes()}
}
