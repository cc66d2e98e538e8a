package job

import (
	"context"
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/examples/hbase-like/internal/cli"
)

func TestExitStatus(t *testing.T) {
	assert.Equal(t, exitOK, exitStatus(&cli.Summary{}))
	assert.Equal(t, exitInterrupted, exitStatus(&cli.Summary{Interrupted: true}))
	assert.Equal(t, exitFailed, exitStatus(&cli.Summary{Interrupted: true, Proof: errors.New("lost one")}))
}

// A blocked Read returns when its context ends.
func TestInterruptibleRead(t *testing.T) {
	stdin, feed := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	go cancel()
	_, err := (&interruptible{ctx: ctx, r: stdin}).Read(make([]byte, 10))
	require.ErrorIs(t, err, context.Canceled)
	_, err = (&interruptible{ctx: ctx, r: stdin}).Read(make([]byte, 10))
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, feed.Close())
}
