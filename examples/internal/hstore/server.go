package hstore

import (
	"net"
	"net/rpc"
	"sync"
	"time"
)

// Region is a range of row keys and the server that serves it.
type Region struct {
	Name   string
	Start  string
	End    string // first key after it; "" means no end
	Server string // host:port
}

// Contains reports whether row belongs to the region.
func (r Region) Contains(row string) bool {
	return row >= r.Start && (r.End == "" || row < r.End)
}

// The methods of the servers.
const (
	MethodGet    = service + ".Get"    // of a region server: GetRequest, GetResponse
	MethodLocate = service + ".Locate" // of the meta server: a row key, Region

	service = "Store"
)

// GetRequest asks a region server for a row.
type GetRequest struct{ Region, Row string }

// GetResponse is a row, without cells if it is missing.
type GetResponse struct {
	NotServing bool
	Cells      map[string]string
}

type regionServer struct {
	cluster *Cluster
	id      int
}

// Get is the method of MethodGet.
func (s *regionServer) Get(req GetRequest, resp *GetResponse) error {
	time.Sleep(s.cluster.begin(s.id, req.Row))
	*resp = s.cluster.get(s.id, req)
	return nil
}

type metaServer struct{ cluster *Cluster }

// Locate is the method of MethodLocate.
func (s *metaServer) Locate(row string, region *Region) error {
	time.Sleep(minLatency)
	*region = s.cluster.locate(row)
	return nil
}

// server serves one receiver's methods on an address.
type server struct {
	rpc *rpc.Server
	ln  net.Listener
	wg  sync.WaitGroup // of the accept loop and the connections

	mu        sync.Mutex // guards the fields below
	conns     map[net.Conn]struct{}
	closed    bool
	slowUntil time.Time
	downUntil time.Time
}

func listen(methods any) (*server, error) {
	s := &server{rpc: rpc.NewServer(), conns: make(map[net.Conn]struct{})}
	err := s.rpc.RegisterName(service, methods)
	if err != nil {
		return nil, err
	}
	s.ln, err = net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s.wg.Go(s.accept)
	return s, nil
}

func (s *server) address() string { return s.ln.Addr().String() }

func (s *server) accept() {
	for {
		conn, err := s.ln.Accept()
		if err != nil {
			return // closed
		}
		s.wg.Go(func() { s.serve(conn) })
	}
}

// serve answers a connection's requests until it breaks. A server that is down breaks it
// at once.
func (s *server) serve(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	s.mu.Lock()
	up := !s.closed && time.Now().After(s.downUntil)
	if up {
		s.conns[conn] = struct{}{}
	}
	s.mu.Unlock()
	if !up {
		return
	}
	s.rpc.ServeConn(conn) // returns after its last call
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, conn)
}

func (s *server) drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for conn := range s.conns {
		_ = conn.Close()
	}
}

func (s *server) slow(spell time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.slowUntil = time.Now().Add(spell)
}

func (s *server) slowness(f Faults) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Now().Before(s.slowUntil) {
		return f.SlowBy
	}
	return 0
}

// crash breaks all connections, and new ones for a while. The data stays, as in HBase.
func (s *server) crash(down time.Duration) {
	s.mu.Lock()
	s.downUntil = time.Now().Add(down)
	s.mu.Unlock()
	s.drop()
}

func (s *server) close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	err := s.ln.Close()
	s.drop()
	s.wg.Wait()
	return err
}
