package store

import (
	"bufio"
	"net"
	"sync"
	"time"

	"github.com/weirflow/weir/examples/hbase-like/internal/wire"
)

// writeTimeout ends the connection of a client that does not read.
const writeTimeout = 5 * time.Second

// handler answers a request by calling reply, once, from any goroutine.
type handler func(req wire.Request, reply func(wire.Response))

// listener accepts connections and hands their requests to a handler.
type listener struct {
	addr   string
	handle handler
	ln     net.Listener
	wg     sync.WaitGroup // the accept loop and one reader per connection

	mu     sync.Mutex // guards what follows
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

// serve reads the requests of one connection. Answers are written by the goroutine that
// has them, one at a time.
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
			return // the client left, the connection was dropped, or it talks nonsense
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

// close takes no more connections and breaks those there are.
func (l *listener) close() error {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	err := l.ln.Close()
	l.drop()
	return err
}

// wait returns when the goroutines of a closed listener have ended.
func (l *listener) wait() { l.wg.Wait() }

// server is a region server: a listener that may die and come back.
type server struct {
	cluster *Cluster
	id      int

	mu        sync.Mutex // guards what follows
	live      *listener  // nil while the server is dead
	dead      []*listener
	addr      string // of live, or of the last one
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

// delay is what a slow spell adds to every answer.
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

// stop kills the server.
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

// revive starts a dead server, on its old address if it is still free.
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

// wait returns when the goroutines of a stopped server have ended.
func (s *server) wait() {
	s.mu.Lock()
	dead := s.dead
	s.mu.Unlock()
	for _, l := range dead {
		l.wait()
	}
}
