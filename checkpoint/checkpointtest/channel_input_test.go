package checkpointtest

import (
	"context"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestChannelInputWaits(t *testing.T) {
	values := make(chan string, 2)
	in := NewChannelInput(values).(*channelInput[string])
	ended, end := context.WithCancel(t.Context())
	end()
	require.ErrorIs(t, in.Wait(ended), context.Canceled)
	values <- "a"
	require.NoError(t, in.Wait(t.Context()))
	require.NoError(t, in.Wait(ended), "it has one already")
	require.Equal(t, []byte{0}, in.Position(), "not before Next has returned it")
	v, err := in.Next()
	require.NoError(t, err)
	require.Equal(t, "a", v)
	require.Equal(t, []byte{1}, in.Position())
	values <- "b"
	v, err = in.Next()
	require.NoError(t, err)
	require.Equal(t, "b", v, "without Wait")
	close(values)
	require.NoError(t, in.Wait(t.Context()), "there is an end to be read")
	for range 2 {
		_, err := in.Next()
		require.ErrorIs(t, err, io.EOF)
	}
}
