package hclient

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"github.com/weirflow/weir/examples/hbase-like/internal/wire"
)

// conn is one connection, shared by many calls. It is not reused: when it breaks, all its
// calls end and the client creates another.
//
// It has two goroutines: run dials and then writes, read reads and calls back. Both end
// when the connection breaks. Client.Close waits for them.
type conn struct {
	client *Client
	server string
	wake   chan struct{} // capacity 1: signals that queue is not empty
	broken chan struct{} // closed by fail

	mu      sync.Mutex // guards the fields below; not held while callbacks run
	nc      net.Conn   // nil until dialed
	armed   bool       // a read deadline is set
	queue   []byte     // frames to write
	pending map[uint64]reply
	nextID  uint64
	err     error // why it is broken
}

// reply receives the response to a request, or an error.
type reply func(wire.Response, error)

func newConn(c *Client, server string) *conn {
	return &conn{
		client:  c,
		server:  server,
		wake:    make(chan struct{}, 1),
		broken:  make(chan struct{}),
		pending: make(map[uint64]reply),
	}
}

// send queues a request and returns its number. It does not wait for the connection.
func (n *conn) send(req wire.Request, done reply) uint64 {
	n.mu.Lock()
	if n.err != nil {
		err := n.err
		n.mu.Unlock()
		done(wire.Response{}, err)
		return 0
	}
	n.nextID++
	req.ID = n.nextID
	n.pending[req.ID] = done
	n.queue = wire.AppendRequest(n.queue, req)
	n.armLocked()
	n.mu.Unlock()
	select {
	case n.wake <- struct{}{}:
	default:
	}
	return req.ID
}

// forget makes the connection ignore the answer to a request.
func (n *conn) forget(id uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.pending, id)
}

// armLocked sets the read deadline if the server owes an answer. Forgotten requests do
// not change the deadline, because they were not answered in time either.
func (n *conn) armLocked() {
	if n.nc != nil && !n.armed && len(n.pending) > 0 {
		n.armed = true
		_ = n.nc.SetReadDeadline(time.Now().Add(n.client.silence))
	}
}

// heardLocked resets the deadline after an answer.
func (n *conn) heardLocked() {
	n.armed = false
	if len(n.pending) > 0 {
		n.armLocked()
	} else {
		_ = n.nc.SetReadDeadline(time.Time{})
	}
}

// run dials, starts the reader, and then writes the whole queue each time.
func (n *conn) run() {
	ctx, cancel := context.WithTimeout(n.client.ctx, dialTimeout)
	defer cancel()
	nc, err := new(net.Dialer).DialContext(ctx, "tcp", n.server)
	if err != nil {
		n.fail(err)
		return
	}
	n.mu.Lock()
	broken := n.err != nil // closed during the dial
	n.nc = nc
	n.armLocked()
	n.mu.Unlock()
	if broken {
		_ = nc.Close()
		return
	}
	n.client.wg.Go(n.read)

	var frames []byte
	for {
		select {
		case <-n.broken:
			return
		case <-n.wake:
		}
		n.mu.Lock()
		frames, n.queue = n.queue, frames[:0]
		n.mu.Unlock()
		if _, err := nc.Write(frames); err != nil {
			n.fail(err)
			return
		}
	}
}

func (n *conn) read() {
	in := bufio.NewReader(n.nc)
	for {
		resp, err := wire.ReadResponse(in)
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF // the server should not close the connection
			}
			n.fail(err)
			return
		}
		n.mu.Lock()
		done, ok := n.pending[resp.ID]
		delete(n.pending, resp.ID)
		n.heardLocked()
		n.mu.Unlock()
		if ok {
			done(resp, nil)
		}
	}
}

// fail breaks the connection and ends its calls. Only the first call of fail has an
// effect.
func (n *conn) fail(err error) {
	if n.client.ctx.Err() != nil {
		err = ErrClosed // Close is the reason for any error now
	} else {
		err = &ConnectionError{Server: n.server, Err: err}
	}
	n.mu.Lock()
	if n.err != nil {
		n.mu.Unlock()
		return
	}
	n.err = err
	nc, pending := n.nc, n.pending
	n.pending, n.queue = nil, nil
	n.mu.Unlock()

	close(n.broken)
	if nc != nil {
		_ = nc.Close()
	}
	// Remove the connection first, so that a callback that retries gets a new one.
	n.client.lost(n, err, nc != nil)
	for _, done := range pending {
		done(wire.Response{}, err)
	}
}
