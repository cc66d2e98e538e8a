package netretry_test

import (
	"context"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/netretry"
)

// The errors of real sockets of this system.

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	return l
}

// connect returns both ends of a connection.
func connect(t *testing.T) (client, server net.Conn) {
	t.Helper()
	l := listen(t)
	client, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { client.Close() })
	server, err = l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { server.Close() })
	return client, server
}

func assertReason(t *testing.T, want predicates.Reason, err error) {
	t.Helper()
	require.Error(t, err)
	reason, _ := classify(err, predicates.Unreported)
	assert.Equal(t, want, reason, "%#v", err)
}

func TestRealRefusal(t *testing.T) {
	client, _ := connect(t)
	_, err := net.Dial("tcp", client.LocalAddr().String()) // a port that no other process gets meanwhile
	assertReason(t, netretry.NotConnected, err)
}

func TestRealUnknownHost(t *testing.T) {
	_, err := net.Dial("tcp", "no.such.host.invalid:1")
	reason, _ := classify(err, predicates.Unreported)
	assert.NotEqual(t, netretry.ConnectionLost, reason, "%#v", err) // a resolver may return any other error
	assert.NotEqual(t, netretry.TimedOut, reason, "%#v", err)
}

func TestRealBadAddress(t *testing.T) {
	_, err := net.Dial("tcp", "127.0.0.1")
	assertReason(t, none, err)
	_, err = net.Dial("no such network", "127.0.0.1:1")
	assertReason(t, none, err)
}

func TestRealDialCutByItsContext(t *testing.T) {
	ctx, cancel := context.WithDeadline(t.Context(), time.Unix(0, 0))
	defer cancel()
	_, err := (&net.Dialer{}).DialContext(ctx, "tcp", listen(t).Addr().String())
	assertReason(t, netretry.NotConnected, err)

	ctx, cancel = context.WithCancel(t.Context())
	cancel()
	_, err = (&net.Dialer{}).DialContext(ctx, "tcp", listen(t).Addr().String())
	assertReason(t, none, err)
}

func TestRealEndOfConnection(t *testing.T) {
	client, server := connect(t)
	server.Close()
	_, err := client.Read(make([]byte, 1))
	assert.Equal(t, io.EOF, err)
	assertReason(t, netretry.ConnectionLost, err)
}

func TestRealReset(t *testing.T) {
	client, server := connect(t)
	require.NoError(t, server.(*net.TCPConn).SetLinger(0))
	server.Close()
	_, err := client.Read(make([]byte, 1))
	assertReason(t, netretry.ConnectionLost, err)
	for err = nil; err == nil; {
		_, err = client.Write(make([]byte, 1<<16))
	}
	assertReason(t, netretry.ConnectionLost, err)
}

func TestRealClosedHere(t *testing.T) {
	client, _ := connect(t)
	client.Close()
	_, err := client.Read(make([]byte, 1))
	assertReason(t, netretry.ConnectionLost, err)
}

func TestRealReadTimeout(t *testing.T) {
	client, _ := connect(t)
	require.NoError(t, client.SetReadDeadline(time.Unix(0, 0)))
	_, err := client.Read(make([]byte, 1))
	assertReason(t, netretry.TimedOut, err)
}

// The datagram was sent before its refusal arrived.
func TestRealRefusalOfADatagram(t *testing.T) {
	l, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	address := l.LocalAddr().String()
	l.Close()
	conn, err := net.Dial("udp", address)
	require.NoError(t, err)
	defer conn.Close()
	_, err = conn.Write([]byte("x"))
	require.NoError(t, err)
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(time.Minute)))
	_, err = conn.Read(make([]byte, 1))
	assertReason(t, netretry.ConnectionLost, err)
}
