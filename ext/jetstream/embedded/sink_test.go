package embedded_test

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	weirjs "github.com/weirflow/weir/ext/jetstream"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/message"
)

// A fault of the result stream that only a person can mend ends the run with its reason.
// Results become neither dead letters nor messages of another stream.
func TestSink_FaultThatOnlyAPersonCanMend(t *testing.T) {
	t.Parallel()
	js := connect(t, fresh(t))
	stream, other := newStream(t, js), newStream(t, js)
	for name, of := range map[string]struct {
		config weirjs.SinkConfig
		want   string
	}{
		"no subject":                {weirjs.SinkConfig{Stream: stream}, "set SinkConfig.Subject or SubjectOf"},
		"no subject of a message":   {weirjs.SinkConfig{Stream: stream, SubjectOf: func(message.Meta) string { return "" }}, "SinkConfig.Subject is empty: set one of them"},
		"wildcards":                 {weirjs.SinkConfig{Stream: stream, Subject: stream + ".>"}, "correct SinkConfig.Subject"},
		"subject of another stream": {weirjs.SinkConfig{Stream: stream, Subject: other + ".results"}, "belongs to another stream"},
		"subject of no stream":      {weirjs.SinkConfig{Stream: stream, Subject: "nowhere"}, "no stream has the subject"},
		"no stream":                 {weirjs.SinkConfig{Stream: "NONE", Subject: stream}, "create it, or correct SinkConfig.Stream"},
	} {
		t.Run(name, func(t *testing.T) {
			engine := memory.Open()
			q := delivery.NewQueue[string](engine, "q", delivery.WithLogger(quiet()))
			for i := range 20 {
				require.NoError(t, q.Put(t.Context(), strconv.Itoa(i)))
			}
			op := asyncop.OrderedWait(asyncop.Blocking(func(_ context.Context, v string) (string, error) { return v, nil }), time.Minute, 10,
				asyncop.WithFailureSink(q.TakeFailure), asyncop.WithLogger(quiet()))
			_, err := delivery.Run(bounded(t), q, op, newSink(t, js, of.config), delivery.WithLogger(quiet()))
			require.ErrorContains(t, err, of.want)
			require.True(t, guard.IsPermanent(err), err)
			dead, err := engine.Count(t.Context(), "q-dead", store.Filter{})
			require.NoError(t, err)
			require.Zero(t, dead.Messages)
			left, err := engine.Count(t.Context(), "q", store.Filter{})
			require.NoError(t, err)
			require.Equal(t, 20, left.Messages)
			require.Zero(t, count(t, js, other))
		})
	}
}

// A result that was published before is stored once within the Duplicates window. The
// confirmations of a sink leave no subscription behind.
func TestSink_SameIDTwice(t *testing.T) {
	js := connect(t, fresh(t))
	stream := newStream(t, js)
	before := js.Conn().NumSubscriptions()
	s := sinkTo(t, js, stream, stream)
	for range 2 {
		require.NoError(t, s.PutAll(t.Context(), []message.Message[string]{message.New("v", &message.Meta{ID: "a"}, nil)}))
	}
	require.EqualValues(t, 1, count(t, js, stream))
	s.Close()
	require.Equal(t, before, js.Conn().NumSubscriptions())
}

// Regression: messages of a stream that was deleted and created again have other ids than
// messages at the same positions of the stream before. When the first three were dead
// letters, the next three were acknowledged and lost.
func TestSource_StreamIsRecreated(t *testing.T) {
	js := connect(t, fresh(t))
	stream := newStream(t, js)
	e := engineOf(t, js, stream)
	reject := func(values ...string) {
		publish(t, js, stream, values...)
		s := weirjs.NewSource(js, codec.JSON[string](), sourceConfig(e, stream, time.Minute))
		for range values {
			one(t, s).Reject(errors.New("no"))
		}
		require.NoError(t, s.Close(t.Context()))
	}
	reject("0", "1", "2")
	require.NoError(t, js.DeleteStream(t.Context(), stream))
	_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: stream, Subjects: []string{stream}})
	require.NoError(t, err)
	reject("3", "4", "5")
	var got []string
	for _, d := range deadLetters(t, js, stream) {
		got = append(got, string(d.Payload))
	}
	require.ElementsMatch(t, []string{`"0"`, `"1"`, `"2"`, `"3"`, `"4"`, `"5"`}, got)
}

// A stream that was deleted and created again under a source that runs: its message in
// flight belongs to the stream before, and does not hide the message at the same
// position.
func TestSource_StreamIsRecreatedWhileItRuns(t *testing.T) {
	js := connect(t, fresh(t))
	stream := newStream(t, js)
	s := newSource(t, js, stream, time.Minute)
	publish(t, js, stream, "before")
	old := one(t, s)
	require.NoError(t, js.DeleteStream(t.Context(), stream))
	_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: stream, Subjects: []string{stream}})
	require.NoError(t, err)
	newConsumer(t, js, stream, time.Minute)
	publish(t, js, stream, "after")
	var m message.Message[string]
	require.Eventually(t, func() bool {
		ms, err := s.Receive(bounded(t), 1) // returns an error at first, because the old consumer was removed
		if err == nil {
			m = ms[0]
		}
		return err == nil
	}, time.Minute, 10*time.Millisecond)
	require.Equal(t, "after", m.Value)
	require.NotEqual(t, old.Meta().ID, m.Meta().ID)
	old.Ack()
	m.Ack()
	require.NoError(t, s.Close(t.Context()))
	c, err := js.Consumer(t.Context(), stream, "workers")
	require.NoError(t, err)
	require.EqualValues(t, 1, c.CachedInfo().AckFloor.Stream)
}
