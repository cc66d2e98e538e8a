package couchbase_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/couchbase/gocb/v2"
	"github.com/couchbase/goprotostellar/genproto/kv_v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/weirflow/weir/ext/couchbase"
)

// lossyNode is a node of couchbase2:// that executes an increment, and ends all its
// connections before it answers.
type lossyNode struct {
	kv_v1.UnimplementedKvServiceServer
	net.Listener

	mu    sync.Mutex // guards the fields below
	conns []net.Conn
	count int // of increments
}

// Accept implements net.Listener.
func (n *lossyNode) Accept() (net.Conn, error) {
	conn, err := n.Listener.Accept()
	if err == nil {
		n.mu.Lock()
		n.conns = append(n.conns, conn)
		n.mu.Unlock()
	}
	return conn, err
}

// Increment implements kv_v1.KvServiceServer.
func (n *lossyNode) Increment(ctx context.Context, _ *kv_v1.IncrementRequest) (*kv_v1.IncrementResponse, error) {
	n.mu.Lock()
	n.count++
	for _, conn := range n.conns {
		_ = conn.Close()
	}
	n.mu.Unlock()
	<-ctx.Done()
	return nil, ctx.Err()
}

func (n *lossyNode) increments() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.count
}

// startLossyNode starts a node that ends with the test. couchbase2:// needs TLS.
func startLossyNode(t *testing.T) *lossyNode {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	node := &lossyNode{Listener: listener}
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{certificate}, PrivateKey: key}},
		NextProtos:   []string{"h2"},
	})))
	kv_v1.RegisterKvServiceServer(server, node)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(node) }()
	t.Cleanup(func() {
		server.Stop()
		assert.NoError(t, <-ended)
	})
	return node
}

// gocb reports a connection that ends after the execution as ErrServiceNotAvailable.
func TestCouchbase2_ConnectionEndsAfterTheWrite(t *testing.T) {
	node := startLossyNode(t)
	cluster, err := gocb.Connect("couchbase2://"+node.Addr().String(), gocb.ClusterOptions{
		Username: "user", Password: "password", RetryStrategy: couchbase.NoRetries(),
		SecurityConfig: gocb.SecurityConfig{TLSSkipVerify: true},
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = cluster.Close(nil) })

	counters := cluster.Bucket("bucket").DefaultCollection().Binary()
	_, err = counters.Increment("k", &gocb.IncrementOptions{Delta: 1, Timeout: patience})
	require.ErrorIs(t, err, gocb.ErrServiceNotAvailable)
	assert.Equal(t, 1, node.increments())
	reason, stage := classify(err)
	assert.Equal(t, weak(named(t, "SERVICE_NOT_AVAILABLE")), reason)
	assert.Equal(t, unreported, stage)
}
