package embedded_test

import (
	"errors"
	"net"
	"sync/atomic"

	"github.com/weirflow/weir/ext/jetstream/embedded"
)

// switchable dials the server that it has now.
type switchable struct {
	server atomic.Pointer[embedded.Server]
}

func (s *switchable) Dial(string, string) (net.Conn, error) {
	server := s.server.Load()
	if server == nil {
		return nil, errors.New("there is no server")
	}
	return server.Dial()
}
