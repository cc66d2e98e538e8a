package couchbase_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/couchbase/gocb/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/ext/couchbase"
)

// connection is the key of a request's connection in its context.
type connection struct{}

// startLossyNode starts a node of couchbase2:// that executes an increment, and ends the
// connection before it answers. It counts the increments. The node is an HTTP server
// because gocb sets the logger of grpc-go, which races with a server of grpc-go.
func startLossyNode(t *testing.T, increments *atomic.Int64) *httptest.Server {
	t.Helper()
	node := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/Increment") {
			http.NotFound(w, r)
			return
		}
		_, err := io.Copy(io.Discard, r.Body)
		assert.NoError(t, err)
		increments.Add(1)
		conn, ok := r.Context().Value(connection{}).(net.Conn)
		assert.True(t, ok)
		_ = conn.Close()
	}))
	node.Config.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		return context.WithValue(ctx, connection{}, conn)
	}
	node.EnableHTTP2 = true
	node.StartTLS()
	t.Cleanup(node.Close)
	return node
}

// gocb reports a connection that ends after the execution as ErrServiceNotAvailable.
func TestCouchbase2_ConnectionEndsAfterTheWrite(t *testing.T) {
	var increments atomic.Int64
	node := startLossyNode(t, &increments)
	cluster, err := gocb.Connect("couchbase2://"+node.Listener.Addr().String(), gocb.ClusterOptions{
		Username: "user", Password: "password", RetryStrategy: couchbase.NoRetries(),
		SecurityConfig: gocb.SecurityConfig{TLSSkipVerify: true},
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = cluster.Close(nil) })

	counters := cluster.Bucket("bucket").DefaultCollection().Binary()
	_, err = counters.Increment("k", &gocb.IncrementOptions{Delta: 1, Timeout: patience})
	require.ErrorIs(t, err, gocb.ErrServiceNotAvailable)
	assert.Equal(t, int64(1), increments.Load())
	reason, stage := classify(err)
	assert.Equal(t, weak(named(t, "SERVICE_NOT_AVAILABLE")), reason)
	assert.Equal(t, unreported, stage)
}
