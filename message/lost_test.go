package message_test

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/message"
)

// collect runs the garbage collector until a settlement arrives.
func collect(t *testing.T, settlements <-chan message.Settlement) message.Settlement {
	t.Helper()
	limit := time.After(2 * time.Minute)
	for {
		runtime.GC()
		select {
		case v := <-settlements:
			return v
		case <-limit:
			t.Fatal("the message was not found")
		case <-time.After(time.Millisecond):
		}
	}
}

var lost = message.Settlement{Kind: message.Failed, Err: message.ErrLost}

func TestFindLost(t *testing.T) {
	settlements := make(chan message.Settlement, 10)
	source := func() message.Message[int] {
		return message.FindLost(message.New(1, nil, func(v message.Settlement) { settlements <- v }))
	}
	drop := func() { _ = message.With(source(), "dropped") }
	drop()
	require.Equal(t, lost, collect(t, settlements))

	half := func() { message.Split(source(), 1, 2)[0].Ack() } // the other part is lost
	half()
	require.Equal(t, lost, collect(t, settlements))

	// Messages that were settled, or are still referenced, are not lost.
	kept := message.Split(source(), 1, 2)[1]
	settledOnce := func() { source().Ack() }
	settledOnce()
	require.Equal(t, done, collect(t, settlements))
	for range 5 {
		runtime.GC()
	}
	require.Empty(t, settlements)
	require.True(t, kept.Pending())
	runtime.KeepAlive(kept)
}
