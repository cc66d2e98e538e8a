package store

import (
	"bufio"
	"net"
	"sync"
	"time"

	"github.com/weirflow/weir/examples/hbase-like/internal/wire"
)

// writeTimeout ends connections of clients that do not read.
const writeTimeout = 5 * time.Second

// handler answers a request by calling reply once, on any goroutine.
type handler func(req wire.Request, reply func(wire.Response))

// listener accepts connections and passes their requests to a handler.
type listener struct {
	addr   string
	handle handler
	ln     net.Listener
	wg     sync.WaitGroup // the accept loop and one reader per connection

	mu     sync.Mutex // guards the fields below
	conns  map[net.Conn]struct{}
	closed bool
}

func listen(addr string, handle handler) (*listener, error) {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	l := &listener{addr: ln.Addr().String(), handle: handle, ln: ln, conns: make(map[net.Conn]struct{})}
	l.wg.Go(l.accept)
	return l, nil
}

func (l *listener) accept() {
	for {
		nc, err := l.ln.Accept()
		if err != nil {
			return // closed
		}
		l.mu.Lock()
		if l.closed {
			l.mu.Unlock()
			_ = nc.Close()
			continue
		}
		l.conns[nc] = struct{}{}
		l.wg.Go(func() { l.serve(nc) })
		l.mu.Unlock()
	}
}

// serve reads the requests of one connection. The goroutines that call reply write the
// responses, one at a time.
func (l *listener) serve(nc net.Conn) {
	defer func() {
		l.mu.Lock()
		delete(l.conns, nc)
		l.mu.Unlock()
		_ = nc.Close()
	}()
	var writing sync.Mutex
	in := bufio.NewReader(nc)
	for {
		req, err := wire.ReadRequest(in)
		if err != nil {
			return // closed, dropped, or a malformed frame
		}
		l.handle(req, func(resp wire.Response) {
			resp.ID = req.ID
			frame := wire.AppendResponse(nil, resp)
			writing.Lock()
			defer writing.Unlock()
			_ = nc.SetWriteDeadline(time.Now().Add(writeTimeout))
			if _, err := nc.Write(frame); err != nil {
				_ = nc.Close()
			}
		})
	}
}

// drop breaks all connections.
func (l *listener) drop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for nc := range l.conns {
		_ = nc.Close()
	}
}

// close stops accepting and breaks all connections.
func (l *listener) close() error {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	err := l.ln.Close()
	l.drop()
	return err
}

// wait waits for the goroutines of a closed listener.
func (l *listener) wait() { l.wg.Wait() }

// server is a region server: a listener that can be stopped and revived.
type server struct {
	cluster *Cluster
	id      int

	mu        sync.Mutex // guards the fields below
	live      *listener  // nil while the server is stopped
	dead      []*listener
	addr      string // of live, or of the last live listener
	slowBy    time.Duration
	slowUntil time.Time
}

func startServer(c *Cluster, id int) (*server, error) {
	s := &server{cluster: c, id: id}
	return s, s.listen("127.0.0.1:0")
}

func (s *server) listen(addr string) error {
	l, err := listen(addr, func(req wire.Request, reply func(wire.Response)) {
		s.cluster.answerGet(s.id, s.delay(), req, reply)
	})
	if err != nil {
		return err
	}
	s.live, s.addr = l, l.addr
	return nil
}

func (s *server) address() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.addr
}

// delay returns the delay that a slow spell adds to every answer.
func (s *server) delay() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Now().Before(s.slowUntil) {
		return s.slowBy
	}
	return 0
}

func (s *server) slow(by, spell time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.slowBy, s.slowUntil = by, time.Now().Add(spell)
}

func (s *server) drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.live != nil {
		s.live.drop()
	}
}

func (s *server) stop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.live == nil {
		return nil
	}
	err := s.live.close()
	s.dead, s.live = append(s.dead, s.live), nil
	return err
}

// revive starts a stopped server, on its old address if that is still free.
func (s *server) revive() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.live != nil {
		return nil
	}
	if s.listen(s.addr) == nil {
		return nil
	}
	return s.listen("127.0.0.1:0")
}

// wait waits for the goroutines of a stopped server.
func (s *server) wait() {
	s.mu.Lock()
	dead := s.dead
	s.mu.Unlock()
	for _, l := range dead {
		l.wait()
	}
}
