package channel_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/weirflow/weir/delivery/channel"
	"github.com/weirflow/weir/message"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func feed(values ...string) chan string {
	c := make(chan string, len(values))
	for _, v := range values {
		c <- v
	}
	return c
}

// D3: by the injected clock, to the nanosecond, in the order of the delays.
func TestDelays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mock := clock.NewMock()
		c := feed("a", "b", "c", "d", "e")
		close(c)
		s := channel.NewSourceBy(c, mock)
		ms, err := s.Receive(t.Context(), 10)
		require.NoError(t, err)
		require.Len(t, ms, 5)
		mock.Add(time.Second)
		ms[0].Nack(2 * time.Second)
		ms[1].Nack(time.Second)
		ms[2].Nack(1<<63 - 1)
		got := make(chan string)
		go func() {
			for range 2 {
				ms, err := s.Receive(t.Context(), 10)
				if err != nil || len(ms) != 1 {
					got <- "not one"
					return
				}
				got <- ms[0].Value
				ms[0].Ack()
			}
		}()
		for _, want := range []string{"b", "a"} {
			synctest.Wait()
			mock.Add(time.Second - 1)
			ms[3].Ack() // the source checks its delays again
			ms = ms[1:]
			synctest.Wait()
			select {
			case v := <-got:
				t.Fatal("early:", v)
			default:
			}
			mock.Add(1)
			require.Equal(t, want, <-got)
		}
		synctest.Wait()
		require.EqualError(t, s.Close(t.Context()), "channel: the source was closed with messages that are not done, and are lost: 1")
		require.Error(t, s.Close(t.Context()), "and again")
	})
}

// jumpingClock advances right before its second timer is set.
type jumpingClock struct {
	*clock.Mock
	timers int
}

func (c *jumpingClock) Timer(d time.Duration) *clock.Timer {
	if c.timers++; c.timers == 2 {
		c.Add(d)
	}
	return c.Mock.Timer(d)
}

// A clock that advances between the reading and the timer does not make a message late.
func TestClockThatGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := channel.NewSourceBy(feed("a"), &jumpingClock{Mock: clock.NewMock()})
		for range 2 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			ms, err := s.Receive(ctx, 1)
			cancel()
			require.NoError(t, err)
			ms[0].Nack(time.Second)
		}
	})
}

// A nacked message goes before the values in the channel, and the end waits for it.
func TestSource_OrderAndEnd(t *testing.T) { synctest.Test(t, testOrderAndEnd) }

func testOrderAndEnd(t *testing.T) {
	c := feed("a", "b", "c")
	s := channel.NewSource(c, func(v string) *message.Meta { return &message.Meta{ID: v} })
	one := func() message.Message[string] {
		ms, err := s.Receive(t.Context(), 1)
		require.NoError(t, err)
		require.Equal(t, ms[0].Value, ms[0].Meta().ID)
		return ms[0]
	}
	a := one()
	require.Equal(t, "a", a.Value)
	a.Nack(0)
	a = one()
	require.Equal(t, "a", a.Value)
	one().Ack()
	one().Reject(errors.New("no"))
	close(c)
	ended := make(chan error, 1)
	go func() {
		_, err := s.Receive(t.Context(), 1)
		ended <- err
	}()
	synctest.Wait()
	require.Empty(t, ended)
	a.Ack() // which ends the wait
	require.Equal(t, io.EOF, <-ended)
	require.NoError(t, s.Close(t.Context()))
	_, err := s.Receive(t.Context(), 1)
	require.EqualError(t, err, "delivery: the source is closed")
}

func TestSink(t *testing.T) { synctest.Test(t, testSink) }

func testSink(t *testing.T) {
	c := make(chan string, 2)
	sink := channel.NewSink(c)
	settlements := map[string]message.Kind{}
	withText := func(v string) message.Message[string] {
		return message.New(v, nil, func(settlement message.Settlement) { settlements[v] = settlement.Kind })
	}
	require.NoError(t, sink.PutAll(t.Context(), []message.Message[string]{withText("a")}))
	require.Equal(t, "a", <-c)
	require.Empty(t, settlements, "the caller acknowledges")

	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stop")
	ms := []message.Message[string]{withText("b"), withText("c"), withText("d")}
	time.AfterFunc(10*time.Millisecond, func() { cancel(stop) })
	require.Equal(t, stop, sink.PutAll(ctx, ms))
	for _, m := range ms {
		m.Nack(0)
	}
	require.Equal(t, map[string]message.Kind{"b": message.Done, "c": message.Done, "d": message.Failed}, settlements, "what was sent is safe")
}

func TestArguments(t *testing.T) {
	require.PanicsWithValue(t, "channel: NewSource: nil channel", func() { channel.NewSource[int](nil, nil) })
	require.PanicsWithValue(t, "channel: NewSink: nil channel", func() { channel.NewSink[int](nil) })
	require.PanicsWithValue(t, "delivery: Receive: n is 0, want 1 or more", func() {
		_, _ = channel.NewSource(make(chan int), nil).Receive(t.Context(), 0)
	})
}

// Regression: the first Visit of a message was 0 if it came from a channel, and 1 if it
// came from a store.
func TestVisitsCountFromOne(t *testing.T) {
	for name, c := range map[string]struct {
		meta func(string) *message.Meta
		want int
	}{
		"nothing is known": {nil, 1},
		"no history":       {func(string) *message.Meta { return &message.Meta{ID: "a"} }, 1},
		"two visits":       {func(string) *message.Meta { return &message.Meta{ID: "a", Visit: 2} }, 3},
	} {
		values := make(chan string, 1)
		values <- "a"
		s := channel.NewSource(values, c.meta)
		for range 2 { // the second time it was released, which is not a visit
			ms, err := s.Receive(t.Context(), 1)
			require.NoError(t, err)
			require.Equal(t, c.want, ms[0].Meta().Visit, name)
			ms[0].Nack(0)
		}
		_ = s.Close(t.Context())
	}
}
