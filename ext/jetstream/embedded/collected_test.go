package embedded_test

import (
	"context"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/store"
)

// ahead is a server that reports a clock that is ahead.
type ahead struct {
	jetstream.JetStream
	by time.Duration
}

func (a ahead) Stream(ctx context.Context, name string) (jetstream.Stream, error) {
	s, err := a.JetStream.Stream(ctx, name)
	return aheadStream{s, a.by}, err
}

type aheadStream struct {
	jetstream.Stream
	by time.Duration
}

func (a aheadStream) Info(ctx context.Context, opts ...jetstream.StreamInfoOpt) (*jetstream.StreamInfo, error) {
	info, err := a.Stream.Info(ctx, opts...)
	if err == nil {
		info.TimeStamp = info.TimeStamp.Add(a.by)
	}
	return info, err
}

// subjectsOf returns the subjects of a stream that begin with a prefix.
func subjectsOf(t *testing.T, js jetstream.JetStream, name, prefix string) (all []string) {
	t.Helper()
	stream, err := js.Stream(t.Context(), name)
	require.NoError(t, err)
	info, err := stream.Info(t.Context(), jetstream.WithSubjectFilter("weir.store."+name+"."+prefix+".>"))
	require.NoError(t, err)
	for s := range info.State.Subjects {
		all = append(all, s)
	}
	slices.Sort(all)
	return all
}

// Law W3: the name of an empty queue is removed some minutes after the last Put. The
// names of other queues stay, and a Put brings a name back.
func TestNamesOfQueuesAreCollected(t *testing.T) {
	t.Parallel()
	js := connect(t, fresh(t))
	name := newStore(t, js)
	first := openStore(t, js, name)
	for i := range 20 {
		require.NoError(t, first.Put(t.Context(), "empty"+strconv.Itoa(i), newMessage("a")))
		_, err := first.Purge(t.Context(), "empty"+strconv.Itoa(i), store.Filter{})
		require.NoError(t, err)
	}
	require.NoError(t, first.Put(t.Context(), "full", newMessage("a")))
	stream, err := js.Stream(t.Context(), name)
	require.NoError(t, err)
	young := openStore(t, js, name)
	for i := range 20 {
		require.NoError(t, young.Put(t.Context(), "young"+strconv.Itoa(i), newMessage("a")))
	}
	require.Len(t, subjectsOf(t, js, name, "=queue"), 41, "others may put without publishing the name again")
	for i := range 20 { // the marks of removed messages live for two minutes
		subject := "weir.store." + name + "." + tokenOf("empty"+strconv.Itoa(i)) + ".>"
		require.NoError(t, stream.Purge(t.Context(), jetstream.WithPurgeSubject(subject)))
	}
	later := openStore(t, ahead{js, 11 * time.Minute}, name)
	for i := range 20 {
		require.NoError(t, later.Put(t.Context(), "later"+strconv.Itoa(i), newMessage("a")))
	}
	names := subjectsOf(t, js, name, "=queue")
	require.Len(t, names, 41, "young, later and full")
	require.NoError(t, later.Put(t.Context(), "empty7", newMessage("b")))
	queues, err := first.Queues(t.Context())
	require.NoError(t, err)
	require.Len(t, queues, 42)
	require.Contains(t, queues, "full")
	require.Contains(t, queues, "empty7")
}
