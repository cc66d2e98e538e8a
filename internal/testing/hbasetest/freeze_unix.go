//go:build unix

package hbasetest

import (
	"syscall"

	"github.com/stretchr/testify/require"
)

// Freeze stops the region server at address until it is killed: it keeps its connections
// and does not answer.
func (c *Cluster) Freeze(address string) {
	c.t.Helper()
	server, ok := c.servers[address]
	require.True(c.t, ok, "no region server at %s", address)
	require.NoError(c.t, server.Process.Signal(syscall.SIGSTOP))
}
