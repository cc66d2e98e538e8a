package hbase_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/tsuna/gohbase"
	"github.com/tsuna/gohbase/hrpc"
	"github.com/tsuna/gohbase/pb"
	"github.com/tsuna/gohbase/region"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// Exceptions of a server that does not answer, and of a server that does not even read
// more than the beginning of a request.
const (
	silent = "silent"
	frozen = "frozen"
)

// fakeServer is a region server that answers each request with the same exception, or
// ends the connection, or is silent. So gohbase makes the errors that a real server
// cannot be made to return.
type fakeServer struct {
	listener         net.Listener
	exception, stack string // if exception is empty, the server ends the connection

	received1 chan struct{} // closed by the first request
	stopped   chan struct{} // closed at the end of the test

	mu       sync.Mutex // guards the fields below
	requests int
	conns    []net.Conn
}

func startServer(t *testing.T, exception, stack string) *fakeServer {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &fakeServer{listener: listener, exception: exception, stack: stack, received1: make(chan struct{}), stopped: make(chan struct{})}
	var wg sync.WaitGroup
	t.Cleanup(func() {
		close(s.stopped)
		listener.Close()
		s.mu.Lock()
		for _, conn := range s.conns {
			conn.Close()
		}
		s.mu.Unlock()
		wg.Wait()
	})
	wg.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.conns = append(s.conns, conn)
			s.mu.Unlock()
			wg.Go(func() { s.serve(conn) })
		}
	})
	return s
}

// serve reads requests until the connection ends. See the HBase book, "RPC spec".
func (s *fakeServer) serve(conn net.Conn) {
	defer conn.Close()
	in := bufio.NewReader(conn)
	if _, err := io.ReadFull(in, make([]byte, len("HBas\x00\x50"))); err != nil {
		return
	}
	if _, err := readFrame(in); err != nil { // about the connection
		return
	}
	if s.exception == frozen {
		_, err := io.ReadFull(in, make([]byte, 1<<10))
		if err == nil {
			close(s.received1)
		}
		<-s.stopped
		return
	}
	for {
		frame, err := readFrame(in)
		if err != nil {
			return
		}
		text, _ := protowire.ConsumeBytes(frame)
		var header pb.RequestHeader
		err = proto.Unmarshal(text, &header)
		if err != nil {
			return
		}
		s.mu.Lock()
		s.requests++
		if s.requests == 1 {
			close(s.received1)
		}
		s.mu.Unlock()
		switch s.exception {
		case "":
			return
		case silent:
			continue
		}
		answer, err := proto.Marshal(&pb.ResponseHeader{
			CallId:    header.CallId,
			Exception: &pb.ExceptionResponse{ExceptionClassName: &s.exception, StackTrace: &s.stack},
		})
		if err != nil {
			return
		}
		answer = protowire.AppendBytes(nil, answer)
		answer = append(binary.BigEndian.AppendUint32(nil, uint32(len(answer))), answer...)
		_, err = conn.Write(answer)
		if err != nil {
			return
		}
	}
}

func readFrame(in io.Reader) ([]byte, error) {
	var size [4]byte
	_, err := io.ReadFull(in, size[:])
	if err != nil {
		return nil, err
	}
	frame := make([]byte, binary.BigEndian.Uint32(size[:]))
	_, err = io.ReadFull(in, frame)
	return frame, err
}

// received returns the number of requests so far.
func (s *fakeServer) received() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests
}

// regionOnly is a client of one region, with gohbase's own connection. Its SendRPC
// repeats a request after the errors after which gohbase repeats it.
type regionOnly struct {
	gohbase.Client // nil, because only SendRPC is called

	address string
	refused error // the error of SendRPC in place of a request, or nil
}

func (c *regionOnly) SendRPC(rpc hrpc.Call) (proto.Message, error) {
	if c.refused != nil {
		return nil, c.refused
	}
	reg := region.NewInfo(1, nil, []byte("t"), []byte("t,,1.x."), nil, nil)
	var conn hrpc.RegionClient
	defer func() {
		if conn != nil {
			conn.Close()
		}
	}()
	for {
		if conn == nil {
			conn = region.NewClient(c.address, region.RegionClient, 100, time.Millisecond, "root", patience, nil)
			err := conn.Dial(context.Background())
			if err != nil {
				return nil, err
			}
		}
		reg.SetClient(conn)
		rpc.SetRegion(reg)
		conn.QueueRPC(rpc)
		var result hrpc.RPCResult
		select {
		case result = <-rpc.ResultChan():
		case <-rpc.Context().Done():
			return nil, rpc.Context().Err()
		}
		switch result.Error.(type) {
		case region.ServerError:
			conn.Close()
			conn = nil
		case region.RetryableError:
			select {
			case <-time.After(time.Millisecond):
			case <-rpc.Context().Done():
				return nil, rpc.Context().Err()
			}
		case region.NotServingRegionError:
		default:
			return result.Msg, result.Error
		}
	}
}
