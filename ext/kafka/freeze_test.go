package kafka

import (
	"context"
	"errors"
	"net"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
)

// freezer stops a worker for a while, as SIGSTOP or a long pause of its machine does: its
// connections do not send or receive, and waiting calls do not continue. They send their
// data when the worker continues.
type freezer struct {
	state  sync.Mutex
	frozen chan struct{} // closed when the worker continues; nil if it is not frozen
	broken bool          // the worker no longer reaches the brokers
}

func (f *freezer) freeze() {
	f.state.Lock()
	defer f.state.Unlock()
	f.frozen = make(chan struct{})
}

// thaw lets a worker continue. A dropped worker no longer reaches the brokers, as if its
// process were dead.
func (f *freezer) thaw(dropped bool) {
	f.state.Lock()
	defer f.state.Unlock()
	f.broken = f.broken || dropped
	if f.frozen != nil {
		close(f.frozen)
		f.frozen = nil
	}
}

var errDropped = errors.New("the worker was dropped")

func (f *freezer) wait() error {
	f.state.Lock()
	frozen := f.frozen
	f.state.Unlock()
	if frozen != nil {
		<-frozen
	}
	f.state.Lock()
	defer f.state.Unlock()
	if f.broken {
		return errDropped
	}
	return nil
}

func (f *freezer) dialer() kgo.Opt {
	return kgo.Dialer(func(ctx context.Context, network, host string) (net.Conn, error) {
		if err := f.wait(); err != nil {
			return nil, err
		}
		c, err := (&net.Dialer{}).DialContext(ctx, network, host)
		if err != nil {
			return nil, err
		}
		return &frozenConn{c, f}, nil
	})
}

type frozenConn struct {
	net.Conn
	f *freezer
}

func (c *frozenConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if broken := c.f.wait(); broken != nil {
		return 0, broken
	}
	return n, err
}

func (c *frozenConn) Write(b []byte) (int, error) {
	if err := c.f.wait(); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

// breaker breaks a connection.
type breaker struct {
	state  sync.Mutex
	writes int  // until then; 0 means never
	sent   bool // the last one is sent
}

// set makes the connection break at one of the next requests, or never if n is 0.
func (b *breaker) set(n int) {
	b.state.Lock()
	defer b.state.Unlock()
	b.writes, b.sent = 0, n%2 == 0
	if n > 0 {
		b.writes = 1 + n%9
	}
}

func (b *breaker) dialer() kgo.Opt {
	return kgo.Dialer(func(ctx context.Context, network, host string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, host)
		if err != nil {
			return nil, err
		}
		return &breakingConn{c, b}, nil
	})
}

type breakingConn struct {
	net.Conn
	b *breaker
}

func (c *breakingConn) Write(p []byte) (int, error) {
	c.b.state.Lock()
	last, sent := c.b.writes == 1, c.b.sent
	c.b.writes = max(0, c.b.writes-1)
	c.b.state.Unlock()
	if !last {
		return c.Conn.Write(p)
	}
	n := 0
	var err error
	if sent {
		n, err = c.Conn.Write(p)
	}
	return n, errors.Join(err, c.Close(), errDropped)
}
