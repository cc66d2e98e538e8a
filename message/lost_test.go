package message_test

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/message"
)

// collect runs the garbage collector until a verdict comes.
func collect(t *testing.T, verdicts <-chan message.Verdict) message.Verdict {
	t.Helper()
	limit := time.After(2 * time.Minute)
	for {
		runtime.GC()
		select {
		case v := <-verdicts:
			return v
		case <-limit:
			t.Fatal("the message was not found")
		case <-time.After(time.Millisecond):
		}
	}
}

var lost = message.Verdict{Kind: message.Nacked, Err: message.ErrLost}

func TestLostMessageIsFound(t *testing.T) {
	verdicts := make(chan message.Verdict, 10)
	source := func() message.Message[int] {
		return message.FindLost(message.New(1, nil, func(v message.Verdict) { verdicts <- v }))
	}
	drop := func() { _ = message.With(source(), "dropped") }
	drop()
	require.Equal(t, lost, collect(t, verdicts))

	half := func() { message.Split(source(), 1, 2)[0].Ack() } // and the other part is lost
	half()
	require.Equal(t, lost, collect(t, verdicts))

	// What is settled, or still somewhere, is not lost.
	kept := message.Split(source(), 1, 2)[1]
	settledOnce := func() { source().Ack() }
	settledOnce()
	require.Equal(t, acked, collect(t, verdicts))
	for range 5 {
		runtime.GC()
	}
	require.Empty(t, verdicts)
	require.True(t, kept.Pending())
	runtime.KeepAlive(kept)
}
