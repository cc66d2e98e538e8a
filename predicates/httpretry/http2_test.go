package httpretry_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/httpretry"
	"github.com/weirflow/weir/predicates/netretry"
)

// Types of frames, flags and codes of HTTP/2 (RFC 9113).
const (
	frameData     = 0x0
	frameHeaders  = 0x1
	frameReset    = 0x3
	frameSettings = 0x4
	frameGoAway   = 0x7

	endStream  = 0x1
	endHeaders = 0x4

	noError         = 0x0
	protocolError   = 0x1
	internalError   = 0x2
	refusedStream   = 0x7
	cancelStream    = 0x8
	enhanceYourCalm = 0xb
	http11Required  = 0xd
)

// h2Conn is the server's end of a connection.
type h2Conn struct {
	net.Conn
	in *bufio.Reader
}

func (c *h2Conn) send(kind, flags byte, stream uint32, payload ...byte) {
	frame := binary.BigEndian.AppendUint32(nil, uint32(len(payload))<<8|uint32(kind))
	frame = append(frame, flags)
	frame = binary.BigEndian.AppendUint32(frame, stream)
	_, _ = c.Write(append(frame, payload...))
}

func (c *h2Conn) reset(stream, code uint32) {
	c.send(frameReset, 0, stream, binary.BigEndian.AppendUint32(nil, code)...)
}

func (c *h2Conn) goAway(last, code uint32) {
	c.send(frameGoAway, 0, 0, binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, last), code)...)
}

// ok answers with 200 and, if body is set, with a part of a body.
func (c *h2Conn) ok(stream uint32, body string) {
	const status200 = 0x88 // indexed in HPACK's static table
	if body == "" {
		c.send(frameHeaders, endHeaders|endStream, stream, status200)
		return
	}
	c.send(frameHeaders, endHeaders, stream, status200)
	c.send(frameData, 0, stream, []byte(body)...)
}

// next returns the stream of the next request, after the whole request has arrived.
func (c *h2Conn) next() (stream uint32, ok bool) {
	for {
		var head [9]byte
		if _, err := io.ReadFull(c.in, head[:]); err != nil {
			return 0, false
		}
		length := binary.BigEndian.Uint32(append([]byte{0}, head[:3]...))
		if _, err := c.in.Discard(int(length)); err != nil {
			return 0, false
		}
		switch kind, flags := head[3], head[4]; {
		case kind == frameSettings && flags == 0:
			c.send(frameSettings, 1, 0) // acknowledged
		case (kind == frameHeaders || kind == frameData) && flags&endStream != 0:
			return binary.BigEndian.Uint32(head[5:]), true
		}
	}
}

// h2Server is a server of raw HTTP/2, without TLS. It counts its requests.
type h2Server struct {
	net.Listener
	url      string
	requests atomic.Int32
}

// serveH2 serves each request by answer, which returns false to close the connection.
func serveH2(t *testing.T, answer func(c *h2Conn, stream uint32) bool) *h2Server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &h2Server{Listener: l, url: "http://" + l.Addr().String()}
	done := make(chan struct{})
	serve := func(conn net.Conn) {
		defer conn.Close()
		c := &h2Conn{Conn: conn, in: bufio.NewReader(conn)}
		if _, err := c.in.Discard(len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")); err != nil {
			return
		}
		c.send(frameSettings, 0, 0)
		for {
			stream, ok := c.next()
			if !ok {
				return
			}
			s.requests.Add(1)
			if !answer(c, stream) {
				// Continue to read, so that a reset of the connection does not discard
				// the data that was sent.
				_ = conn.(*net.TCPConn).CloseWrite()
				_, _ = io.Copy(io.Discard, conn)
				return
			}
		}
	}
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go serve(conn)
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return s
}

func h2Clients(t *testing.T) (plain, tracing *http.Client) {
	t.Helper()
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	base := &http.Transport{Protocols: protocols}
	t.Cleanup(base.CloseIdleConnections)
	return &http.Client{Transport: base}, &http.Client{Transport: httpretry.Transport(base)}
}

// onceOnly is a body that net/http cannot read again, so that it does not repeat requests
// by itself.
func onceOnly() io.Reader { return struct{ io.Reader }{strings.NewReader("body")} }

// The ways in which a stream can end before its answer, with the reason for a plain
// client and with Transport.
func TestHTTP2StreamsThatEnd(t *testing.T) {
	reset := func(code uint32) func(c *h2Conn, stream uint32) bool {
		return func(c *h2Conn, stream uint32) bool { c.reset(stream, code); return true }
	}
	inBody := func(code uint32) func(c *h2Conn, stream uint32) bool {
		return func(c *h2Conn, stream uint32) bool { c.ok(stream, "half"); c.reset(stream, code); return true }
	}
	goAway := func(below, code uint32) func(c *h2Conn, stream uint32) bool {
		return func(c *h2Conn, stream uint32) bool { c.goAway(stream-below, code); return false }
	}
	lost, notSent := netretry.ConnectionLost, netretry.NotSent
	for name, tt := range map[string]struct {
		answer         func(c *h2Conn, stream uint32) bool
		plain, tracing predicates.Reason
	}{
		"INTERNAL_ERROR":                       {reset(internalError), lost, lost},
		"CANCEL":                               {reset(cancelStream), lost, lost},
		"NO_ERROR":                             {reset(noError), lost, lost},
		"PROTOCOL_ERROR":                       {reset(protocolError), lost, lost},
		"ENHANCE_YOUR_CALM":                    {reset(enhanceYourCalm), lost, lost},
		"HTTP_1_1_REQUIRED":                    {reset(http11Required), none, none},
		"REFUSED_STREAM":                       {reset(refusedStream), lost, notSent},
		"INTERNAL_ERROR in the body":           {inBody(internalError), lost, lost},
		"CANCEL in the body":                   {inBody(cancelStream), lost, lost},
		"REFUSED_STREAM in the body":           {inBody(refusedStream), lost, lost}, // a contradiction is no proof
		"GOAWAY at the stream":                 {goAway(0, noError), lost, lost},
		"GOAWAY at the stream, INTERNAL_ERROR": {goAway(0, internalError), lost, lost},
		"GOAWAY below the stream":              {goAway(1, noError), lost, notSent},
		"GOAWAY below, INTERNAL_ERROR":         {goAway(1, internalError), lost, notSent},
		"closed":                               {func(*h2Conn, uint32) bool { return false }, lost, lost},
		"closed in the body":                   {func(c *h2Conn, s uint32) bool { c.ok(s, "half"); return false }, lost, lost},
	} {
		t.Run(name, func(t *testing.T) {
			plain, tracing := h2Clients(t)
			for kind, client := range map[string]*http.Client{"plain": plain, "tracing": tracing} {
				s := serveH2(t, tt.answer)
				calls, failed := run(t, func(ctx context.Context) error {
					req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url, onceOnly())
					if err != nil {
						return err
					}
					return do(client, req)
				})
				want := map[string]predicates.Reason{"plain": tt.plain, "tracing": tt.tracing}[kind]
				require.NotNil(t, failed, kind)
				assert.Equal(t, want, failed.Reason, "%s: %v", kind, failed.Err)
				assert.Equal(t, want != notSent, failed.UnsafeToRepeat(), kind)
				if want == notSent {
					assert.Equal(t, 4, calls, kind)
				} else {
					assert.EqualValues(t, 1, s.requests.Load(), kind)
				}
			}
		})
	}
}

// A server that shuts down names the last request that it has processed, and refuses new
// connections. net/http repeats an unprocessed request on a new connection, which is
// refused.
func TestHTTP2GoAwayAndNoServerAnyMore(t *testing.T) {
	for below, want := range map[uint32]predicates.Reason{0: netretry.ConnectionLost, 1: netretry.NotConnected} {
		var s *h2Server
		s = serveH2(t, func(c *h2Conn, stream uint32) bool {
			if stream == 1 { // the first request only opens the connection
				c.ok(stream, "")
				return true
			}
			s.Close()
			c.goAway(stream-below, noError)
			return false
		})
		_, client := h2Clients(t)
		require.NoError(t, request(t.Context(), client, http.MethodPost, s.url))
		calls, failed := run(t, func(ctx context.Context) error { return request(ctx, client, http.MethodPost, s.url) })
		require.NotNil(t, failed)
		assert.Equal(t, want, failed.Reason, "%v", failed.Err)
		assert.Equal(t, want == netretry.ConnectionLost, failed.UnsafeToRepeat())
		if want == netretry.ConnectionLost {
			assert.Equal(t, 1, calls)
		} else {
			assert.Equal(t, 4, calls)
		}
	}
}

// The same with a server of net/http over TLS.
func TestHTTP2OfARealServer(t *testing.T) {
	var requests atomic.Int32
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		if r.URL.Path == "/body" {
			w.Header().Set("Content-Length", "1000")
			_, _ = io.WriteString(w, "half")
			_ = http.NewResponseController(w).Flush()
		}
		panic(http.ErrAbortHandler)
	}))
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)
	client := s.Client()
	t.Cleanup(client.CloseIdleConnections)
	client.Transport = httpretry.Transport(client.Transport)
	for _, path := range []string{"/", "/body"} {
		requests.Store(0)
		calls, failed := run(t, func(ctx context.Context) error { return request(ctx, client, http.MethodPost, s.URL+path) })
		assert.Equal(t, 1, calls)
		assert.EqualValues(t, 1, requests.Load())
		require.NotNil(t, failed)
		assert.Equal(t, netretry.ConnectionLost, failed.Reason, "%v", failed.Err)
		assert.True(t, failed.UnsafeToRepeat())
	}
}
