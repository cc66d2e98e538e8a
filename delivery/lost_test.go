package delivery_test

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery"
)

// collect runs the garbage collector until a verdict comes.
func collect(t *testing.T, verdicts <-chan delivery.Verdict) delivery.Verdict {
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

var lost = delivery.Verdict{Kind: delivery.Nacked, Err: delivery.ErrLost}

func TestLostMessageIsFound(t *testing.T) {
	verdicts := make(chan delivery.Verdict, 10)
	source := func() delivery.Message[int] {
		return delivery.FindLost(delivery.New(1, nil, func(v delivery.Verdict) { verdicts <- v }))
	}
	drop := func() { _ = delivery.With(source(), "dropped") }
	drop()
	require.Equal(t, lost, collect(t, verdicts))

	half := func() { delivery.Split(source(), 1, 2)[0].Ack() } // and the other part is lost
	half()
	require.Equal(t, lost, collect(t, verdicts))

	// What is settled, or still somewhere, is not lost.
	kept := delivery.Split(source(), 1, 2)[1]
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
