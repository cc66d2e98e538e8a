package embedded_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/jetstream/jscheckpoint"
	"github.com/weirflow/weir/message"
)

var errFault = errors.New("the n-th call fails")

// faults makes the n-th call to a real server fail: before it is made, or after, so that
// it takes effect.
type faults struct {
	jetstream.JetStream
	after bool
	left  atomic.Int64 // 0 lets all calls succeed
}

func (f *faults) fail(n int) { f.left.Store(int64(n)) }

// call makes a call; it fails if it is the n-th.
func (f *faults) call(do func() error) error {
	hit := f.left.Load() > 0 && f.left.Add(-1) == 0
	if hit && !f.after {
		return errFault
	}
	if err := do(); err != nil || !hit {
		return err
	}
	return errFault
}

func (f *faults) PublishMsg(ctx context.Context, m *nats.Msg, opts ...jetstream.PublishOpt) (ack *jetstream.PubAck, err error) {
	err = f.call(func() (err error) { ack, err = f.JetStream.PublishMsg(ctx, m, opts...); return err })
	return ack, err
}

func (f *faults) PublishMsgAsync(m *nats.Msg, opts ...jetstream.PublishOpt) (paf jetstream.PubAckFuture, err error) {
	err = f.call(func() (err error) { paf, err = f.JetStream.PublishMsgAsync(m, opts...); return err })
	return paf, err
}

func (f *faults) Stream(ctx context.Context, name string) (s jetstream.Stream, err error) {
	err = f.call(func() (err error) { s, err = f.JetStream.Stream(ctx, name); return err })
	return &faultyStream{s, f}, err
}

type faultyStream struct {
	jetstream.Stream
	faults *faults
}

func (s *faultyStream) Info(ctx context.Context, opts ...jetstream.StreamInfoOpt) (i *jetstream.StreamInfo, err error) {
	err = s.faults.call(func() (err error) { i, err = s.Stream.Info(ctx, opts...); return err })
	return i, err
}

func (s *faultyStream) GetMsg(ctx context.Context, seq uint64, opts ...jetstream.GetMsgOpt) (m *jetstream.RawStreamMsg, err error) {
	err = s.faults.call(func() (err error) { m, err = s.Stream.GetMsg(ctx, seq, opts...); return err })
	return m, err
}

func (s *faultyStream) GetLastMsgForSubject(ctx context.Context, subject string) (m *jetstream.RawStreamMsg, err error) {
	err = s.faults.call(func() (err error) { m, err = s.Stream.GetLastMsgForSubject(ctx, subject); return err })
	return m, err
}

func (s *faultyStream) Purge(ctx context.Context, opts ...jetstream.StreamPurgeOpt) error {
	return s.faults.call(func() error { return s.Stream.Purge(ctx, opts...) })
}

func newCheckpoints(t *testing.T, js jetstream.JetStream, change ...func(*jetstream.StreamConfig)) string {
	t.Helper()
	return newStream(t, js, append([]func(*jetstream.StreamConfig){func(c *jetstream.StreamConfig) { *c = jscheckpoint.StreamConfig(c.Name) }}, change...)...)
}

// A call fails before it reaches the server, or its answer is lost.
func testFaults(t *testing.T, f func(t *testing.T, after bool)) {
	t.Run("calls that are not made", func(t *testing.T) { f(t, false) })
	t.Run("answers that are lost", func(t *testing.T) { f(t, true) })
}

func TestCheckpointStore(t *testing.T) {
	t.Parallel()
	forPlaces(t, func(t *testing.T, p place) {
		js := p.connect(t)
		testFaults(t, func(t *testing.T, after bool) {
			checkpointtest.RunStore(t, func(t *testing.T) checkpointtest.Setup {
				t.Parallel()
				name := newCheckpoints(t, js, p.replicate)
				faulty := &faults{JetStream: js, after: after}
				other, err := jscheckpoint.Stores(js, name, "g").Open(t.Context(), "another pipeline", 0)
				require.NoError(t, err)
				require.NoError(t, other.Save(t.Context(), &checkpoint.Snapshot{ID: 100}))
				open := func() (checkpoint.Store, error) {
					return jscheckpoint.Stores(faulty, name, "flights").Open(context.Background(), "3", 0)
				}
				return checkpointtest.Setup{
					Open: open, TakeOver: open, Fail: faulty.fail,
					Damage: func(id uint64) error { return damage(js, name, fmt.Sprintf(".checkpoint.%d", id)) },
				}
			})
		})
	})
}

// damage flips a bit of the last message of the pipeline whose subject ends with subject.
func damage(js jetstream.JetStream, name, subject string) error {
	ctx := context.Background()
	stream, err := js.Stream(ctx, name)
	if err != nil {
		return err
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter("weir.checkpoints."+name+".*"+subject))
	if err != nil {
		return err
	}
	for s := range info.State.Subjects {
		m, err := stream.GetLastMsgForSubject(ctx, s)
		if err != nil {
			return err
		}
		data := append([]byte{}, m.Data...)
		data[len(data)/2] ^= 4
		m.Header.Del(jetstream.ExpectedLastSubjSeqHeader) // they require its former position
		m.Header.Del(jetstream.ExpectedLastSubjSeqSubjHeader)
		if _, err := js.PublishMsg(ctx, &nats.Msg{Subject: s, Header: m.Header, Data: data}); err != nil {
			return err
		}
	}
	return nil
}

// Law P1: a run with a lower number than one before cannot take over.
func TestEpochs(t *testing.T) {
	js := connect(t, fresh(t))
	name := newCheckpoints(t, js)
	open := func(epoch uint64) (checkpoint.Store, error) {
		return jscheckpoint.Stores(js, name, "g").Open(t.Context(), "p", epoch)
	}
	second, err := open(2)
	require.NoError(t, err)
	_, err = open(1)
	require.ErrorIs(t, err, checkpoint.ErrFenced)
	require.NoError(t, second.Save(t.Context(), &checkpoint.Snapshot{ID: 1}))
	again, err := open(2)
	require.NoError(t, err, "the same owner, restarted")
	require.ErrorIs(t, second.Save(t.Context(), &checkpoint.Snapshot{ID: 2}), checkpoint.ErrFenced)
	_, err = second.List(t.Context())
	require.ErrorIs(t, err, checkpoint.ErrFenced)
	next, err := open(0)
	require.NoError(t, err)
	require.ErrorIs(t, again.Save(t.Context(), &checkpoint.Snapshot{ID: 2}), checkpoint.ErrFenced)
	require.NoError(t, next.Save(t.Context(), &checkpoint.Snapshot{ID: 2}))
	_, err = open(2)
	require.ErrorIs(t, err, checkpoint.ErrFenced, "next had 3")
}

// Law W3: old checkpoints are removed although each run saves few. Damaged ones do not
// count: three that can be restored are kept.
func TestCheckpointsOfShortRuns(t *testing.T) {
	t.Parallel()
	js := connect(t, fresh(t))
	name := newCheckpoints(t, js)
	run := func(id uint64) (left []uint64) {
		s, err := jscheckpoint.Stores(js, name, "g").Open(t.Context(), "p", 0)
		require.NoError(t, err)
		require.NoError(t, s.Save(t.Context(), &checkpoint.Snapshot{
			ID: id, States: map[string]participant.State{"large": {make([]byte, 1<<20)}}, // in several messages
		}))
		entries, err := s.List(t.Context())
		require.NoError(t, err)
		for _, e := range entries {
			left = append(left, e.ID)
		}
		require.NoError(t, s.Close())
		return left
	}
	for id := range uint64(10) {
		run(id + 1)
	}
	require.Equal(t, []uint64{9, 10, 11}, run(11))
	require.NoError(t, damage(js, name, ".chunk.11.0"))
	require.NoError(t, damage(js, name, ".chunk.9.0"))
	require.Equal(t, []uint64{9, 10, 11, 12}, run(12), "two can be restored")
	require.Equal(t, []uint64{10, 11, 12, 13}, run(13))
	s, err := js.Stream(t.Context(), name)
	require.NoError(t, err)
	info, err := s.Info(t.Context(), jetstream.WithSubjectFilter("weir.checkpoints."+name+".*.chunk.9.*"))
	require.NoError(t, err)
	require.Empty(t, info.State.Subjects, "nothing of it is left")
}

func TestStreamsThatDoNotFitCheckpoints(t *testing.T) {
	js := connect(t, fresh(t))
	for _, change := range []func(*jetstream.StreamConfig){
		func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 2 },
		func(c *jetstream.StreamConfig) { c.MaxAge = time.Hour },
		func(c *jetstream.StreamConfig) { c.AllowDirect = true },
		func(c *jetstream.StreamConfig) { c.Discard = jetstream.DiscardOld },
	} {
		name := newStream(t, js, func(c *jetstream.StreamConfig) { *c = jscheckpoint.StreamConfig(c.Name); change(c) })
		_, err := jscheckpoint.Stores(js, name, "g").Open(t.Context(), "p", 0)
		require.ErrorContains(t, err, "does not fit")
	}
}

func TestInput(t *testing.T) {
	t.Parallel()
	forPlaces(t, func(t *testing.T, p place) {
		js := p.connect(t)
		stream := newStream(t, js, p.replicate)
		for i := range 30 {
			publish(t, js, stream+".in", strconv.Itoa(i))
			publish(t, js, stream+".other", "x")
		}
		s, err := js.Stream(t.Context(), stream)
		require.NoError(t, err)
		require.NoError(t, s.DeleteMsg(t.Context(), 11), "a gap")
		checkpointtest.RunInput(t, func(*testing.T) checkpoint.Input[string] {
			return jscheckpoint.NewInput(js, stream, codec.JSON[string](), jscheckpoint.InputConfig{Subjects: []string{stream + ".in"}, End: true})
		}, nil)
	})
}

// An interrupted wait loses no message, and neither does a restart of the server.
func TestInputThatIsIdle(t *testing.T) {
	js := connect(t, fresh(t))
	stream := newStream(t, js)
	in := jscheckpoint.NewInput(js, stream, codec.JSON[string](), jscheckpoint.InputConfig{})
	defer in.Close()
	for i := range 20 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*time.Millisecond)
		require.ErrorIs(t, in.(checkpoint.Waiter).Wait(ctx), context.DeadlineExceeded)
		cancel()
		publish(t, js, stream, strconv.Itoa(i))
		require.NoError(t, in.(checkpoint.Waiter).Wait(bounded(t)))
		v, err := in.Next()
		require.NoError(t, err)
		require.Equal(t, strconv.Itoa(i), v)
	}
}

// The lag is the number of messages of the chosen subjects behind the last message read.
func TestInputLag(t *testing.T) {
	js := connect(t, fresh(t))
	stream := newStream(t, js)
	for i := range 10 {
		publish(t, js, stream, strconv.Itoa(i))
	}
	in := jscheckpoint.NewInput(js, stream, codec.JSON[string](), jscheckpoint.InputConfig{End: true})
	defer in.Close()
	require.Negative(t, in.(checkpoint.Lagger).Lag(), "it has asked nobody")
	for i := range 10 {
		require.NoError(t, in.(checkpoint.Waiter).Wait(bounded(t)))
		require.EqualValues(t, 10-i, in.(checkpoint.Lagger).Lag())
		_, err := in.Next()
		require.NoError(t, err)
		require.EqualValues(t, 9-i, in.(checkpoint.Lagger).Lag())
	}
	_, err := in.Next()
	require.Equal(t, io.EOF, err)
	require.Zero(t, in.(checkpoint.Lagger).Lag())
}

// Law W2: a message that cannot be read goes to the dead letters as it is, and stops no
// other message. It is not read again after that.
func TestInputWithAMessageThatCannotBeRead(t *testing.T) {
	js := connect(t, fresh(t))
	stream := newStream(t, js)
	publish(t, js, stream, "1")
	bad := nats.NewMsg(stream)
	bad.Data = []byte("\xff{")
	bad.Header.Set("Traceparent", "00-1")
	_, err := js.PublishMsg(t.Context(), bad)
	require.NoError(t, err)
	publish(t, js, stream, "3")
	require.NoError(t, js.Conn().Publish(stream, []byte("[")))

	in := jscheckpoint.NewInput(js, stream, codec.JSON[string](), jscheckpoint.InputConfig{End: true})
	_, err = in.Next()
	require.NoError(t, err)
	position := in.Position()
	for range 2 {
		_, err = in.Next()
		require.ErrorContains(t, err, "message 2: ")
	}
	require.NoError(t, in.Close())

	dead := memory.Open(memory.Limit(2))
	in = jscheckpoint.NewInput(js, stream, codec.JSON[string](), jscheckpoint.InputConfig{End: true, DeadLetters: dead, DeadLetterQueue: "dead"})
	defer in.Close()
	require.NoError(t, in.Seek(position))
	full := store.Message{Meta: message.Meta{ID: "x"}}
	require.NoError(t, dead.Put(t.Context(), "other", full, store.Message{Meta: message.Meta{ID: "y"}}))
	_, err = in.Next()
	require.ErrorIs(t, err, store.ErrFull, "law D1")
	_, err = dead.Purge(t.Context(), "other", store.Filter{})
	require.NoError(t, err)
	v, err := in.Next()
	require.NoError(t, err)
	require.Equal(t, "3", v)
	_, err = in.Next()
	require.Equal(t, io.EOF, err)
	letters, err := dead.List(t.Context(), "dead", store.Filter{}, store.Page{Max: 10})
	require.NoError(t, err)
	require.Len(t, letters, 2)
	require.Equal(t, bad.Data, letters[0].Payload)
	require.Equal(t, store.Undecodable, letters[0].Cause)
	require.Equal(t, message.Origin{Source: stream, Position: "2"}, letters[0].Meta.Origin)
	require.Equal(t, idIn(t, js, stream, 2), letters[0].Meta.ID)
	require.Equal(t, "00-1", letters[0].Meta.Headers["Traceparent"])
	require.NotEmpty(t, letters[0].Meta.LastError)

	again := jscheckpoint.NewInput(js, stream, codec.JSON[string](), jscheckpoint.InputConfig{End: true})
	defer again.Close()
	require.NoError(t, again.Seek(in.Position()))
	_, err = again.Next()
	require.Equal(t, io.EOF, err, "the position is behind both")
}

type narrow struct{ *memory.Engine }

func (n narrow) Put(ctx context.Context, queue string, ms ...store.Message) error {
	if len(ms[0].Payload) > 0 {
		return message.ErrRefused
	}
	return n.Engine.Put(ctx, queue, ms...)
}

// Law W2: a message that can neither be read nor kept with the dead letters stays in its
// stream, and its dead letter reports that.
func TestInputWithAMessageThatCannotBeReadNorKept(t *testing.T) {
	js := connect(t, fresh(t))
	stream := newStream(t, js)
	require.NoError(t, js.Conn().Publish(stream, []byte("[")))
	publish(t, js, stream, "2")
	dead := narrow{memory.Open()}
	in := jscheckpoint.NewInput(js, stream, codec.JSON[string](), jscheckpoint.InputConfig{End: true, DeadLetters: dead, DeadLetterQueue: "dead"})
	defer in.Close()
	v, err := in.Next()
	require.NoError(t, err)
	require.Equal(t, "2", v)
	letters, err := dead.List(t.Context(), "dead", store.Filter{}, store.Page{Max: 10})
	require.NoError(t, err)
	require.Len(t, letters, 1)
	require.Contains(t, letters[0].Meta.LastError, "stays in stream "+stream+", message 1")
}

// A checkpoint whose next message was removed cannot be resumed: the message is not
// skipped.
func TestInputWhoseMessagesWereRemoved(t *testing.T) {
	js := connect(t, fresh(t))
	stream := newStream(t, js)
	publish(t, js, stream, "1", "2", "3", "4")
	in := jscheckpoint.NewInput(js, stream, codec.JSON[string](), jscheckpoint.InputConfig{End: true})
	_, err := in.Next()
	require.NoError(t, err)
	position := in.Position()
	require.NoError(t, in.Close())
	s, err := js.Stream(t.Context(), stream)
	require.NoError(t, err)
	require.NoError(t, s.Purge(t.Context(), jetstream.WithPurgeSequence(2)))
	in = jscheckpoint.NewInput(js, stream, codec.JSON[string](), jscheckpoint.InputConfig{})
	defer in.Close()
	require.NoError(t, in.Seek(position), "the next one is there")
	require.NoError(t, s.Purge(t.Context(), jetstream.WithPurgeSequence(3)))
	require.ErrorContains(t, in.Seek(position), "removed")
	require.ErrorContains(t, in.Seek([]byte{99}), "another stream")
}

// An input fails if its stream was deleted, or made anew: its position belongs to the
// former stream.
func TestInputWhoseStreamIsGone(t *testing.T) {
	js := connect(t, fresh(t))
	for _, anew := range []bool{false, true} {
		stream := newStream(t, js)
		publish(t, js, stream, "1", "2")
		in := jscheckpoint.NewInput(js, stream, codec.JSON[string](), jscheckpoint.InputConfig{})
		for range 2 {
			_, err := in.Next()
			require.NoError(t, err)
		}
		require.NoError(t, js.DeleteStream(t.Context(), stream))
		want := jetstream.ErrStreamNotFound.Error()
		if anew {
			_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: stream})
			require.NoError(t, err)
			publish(t, js, stream, "one", "two", "three")
			want = "made anew"
		}
		for range 2 {
			require.ErrorContains(t, in.(checkpoint.Waiter).Wait(bounded(t)), want)
		}
		require.NoError(t, in.Close())
	}
}

// A wait ends with its context, whatever the server does, and loses no message. Close
// does not wait for an answer.
func TestInputOfAServerThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	dialer, js := connectSilent(t, fresh(t))
	stream := newStream(t, js)
	publish(t, js, stream, "1")
	in := jscheckpoint.NewInput(js, stream, codec.JSON[string](), jscheckpoint.InputConfig{})
	_, err := in.Next()
	require.NoError(t, err)
	dialer.deaf.Store(true)
	for range 3 { // the second is after the heartbeats have stopped
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		waited := make(chan error, 1)
		go func() { waited <- in.(checkpoint.Waiter).Wait(ctx) }()
		select {
		case err := <-waited:
			require.ErrorIs(t, err, context.DeadlineExceeded)
		case <-time.After(20 * time.Second):
			require.Fail(t, "it waits on")
		}
		cancel()
	}
	dialer.deaf.Store(false)
	publish(t, js, stream, "2")
	require.NoError(t, in.(checkpoint.Waiter).Wait(bounded(t)))
	v, err := in.Next()
	require.NoError(t, err)
	require.Equal(t, "2", v)
	dialer.deaf.Store(true)
	closed := make(chan error, 1)
	go func() { closed <- in.Close() }()
	select {
	case err := <-closed:
		require.NoError(t, err)
	case <-time.After(20 * time.Second):
		require.Fail(t, "it does not close")
	}
}

// Of a stream with AllowDirect, too, the leader is asked: a replica may be behind, and
// the documented permissions suffice.
func TestInput_LeaderIsAsked(t *testing.T) {
	js := connect(t, fresh(t))
	stream := newStream(t, js, func(c *jetstream.StreamConfig) { c.AllowDirect = true })
	publish(t, js, stream+".a", "1")
	publish(t, js, stream+".b", "2")
	direct, err := js.Conn().SubscribeSync("$JS.API.DIRECT.GET.>")
	require.NoError(t, err)
	require.NoError(t, js.Conn().Flush())
	asked := func() int {
		require.NoError(t, js.Conn().Flush())
		n, _, err := direct.Pending()
		require.NoError(t, err)
		return n
	}
	s, err := js.Stream(t.Context(), stream)
	require.NoError(t, err)
	_, err = s.GetMsg(t.Context(), 1)
	require.NoError(t, err)
	require.Equal(t, 1, asked(), "so the test sees it")

	in := jscheckpoint.NewInput(js, stream, codec.JSON[string](), jscheckpoint.InputConfig{Subjects: []string{stream + ".a"}, End: true})
	_, err = in.Next()
	require.NoError(t, err)
	_, err = in.Next()
	require.ErrorIs(t, err, io.EOF)
	require.NoError(t, in.Close())
	require.Equal(t, 1, asked(), "by the input")

	faulty := &faults{JetStream: js, after: true}
	out := jscheckpoint.NewOutput(faulty, stream, stream, codec.JSON[string]())
	require.NoError(t, out.Write(t.Context(), "3"))
	state, err := out.Prepare(t.Context())
	require.NoError(t, err)
	faulty.fail(1) // so it looks for its messages
	require.ErrorIs(t, out.Commit(t.Context(), state), errFault)
	require.NoError(t, out.Commit(t.Context(), state))
	require.NoError(t, out.Close())
	require.Equal(t, 1, asked(), "by the output")
}

func values[T any](js jetstream.JetStream, stream string) ([]T, error) {
	in := jscheckpoint.NewInput(js, stream, codec.JSON[T](), jscheckpoint.InputConfig{End: true})
	defer in.Close()
	var all []T
	for {
		v, err := in.Next()
		if err != nil {
			if err == io.EOF {
				err = nil
			}
			return all, err
		}
		all = append(all, v)
	}
}

func TestOutput(t *testing.T) {
	t.Parallel()
	forPlaces(t, func(t *testing.T, p place) {
		js := p.connect(t)
		testFaults(t, func(t *testing.T, after bool) {
			checkpointtest.RunOutput(t, func(t *testing.T) checkpointtest.Outlet[string] {
				t.Parallel()
				stream := newStream(t, js, p.replicate)
				faulty := &faults{JetStream: js, after: after}
				return checkpointtest.Outlet[string]{
					Open: func() (checkpoint.Output[string], error) {
						return jscheckpoint.NewOutput(faulty, stream, stream, codec.JSON[string]()), nil
					},
					Fail:    faulty.fail,
					Visible: func() ([]string, error) { return values[string](js, stream) },
				}
			}, strconv.Itoa, nil)
		})
	})
}

// More elements than are published at once.
func TestOutputOfManyElements(t *testing.T) {
	t.Parallel()
	js := connect(t, fresh(t))
	stream := newStream(t, js)
	out := jscheckpoint.NewOutput(js, stream, stream, codec.JSON[string]())
	var want []string
	for i := range 1000 {
		want = append(want, strconv.Itoa(i))
		require.NoError(t, out.Write(t.Context(), want[i]))
	}
	state, err := out.Prepare(t.Context())
	require.NoError(t, err)
	require.NoError(t, out.Commit(t.Context(), state))
	got, err := values[string](js, stream)
	require.NoError(t, err)
	require.Equal(t, want, got)
}

// Law W2: an element that is too large for the server or the stream fails its Write,
// before it is in a checkpoint. Elements that Write accepts are published.
func TestOutputOfWhatIsTooLarge(t *testing.T) {
	t.Parallel()
	js := connect(t, fresh(t))
	for limit, text := range map[int32]string{0: "the server (max_payload) takes 104", 3000: "the stream (MaxMsgSize) takes 27"} {
		stream := newStream(t, js, func(c *jetstream.StreamConfig) { c.MaxMsgSize = limit })
		out := jscheckpoint.NewOutput(js, stream, stream, codec.JSON[string]())
		require.NoError(t, out.Write(t.Context(), "a"))
		state, err := out.Prepare(t.Context())
		require.NoError(t, err)
		require.NoError(t, out.Commit(t.Context(), state))
		out = jscheckpoint.NewOutput(js, stream, stream, codec.JSON[string]())
		require.NoError(t, out.Restore(t.Context(), state))
		largest := 0
		for size := int(cmp.Or(limit, 1<<20)); largest == 0; size -= 10 {
			if err = out.Write(t.Context(), strings.Repeat("x", size)); err == nil {
				largest = size
			} else {
				require.ErrorContains(t, err, text)
			}
		}
		state, err = out.Prepare(t.Context())
		require.NoError(t, err)
		require.NoError(t, out.Commit(t.Context(), state), "%d bytes", largest)
	}
}

// Law P1: a run that was taken over does not publish.
func TestOutputThatWasTakenOver(t *testing.T) {
	js := connect(t, fresh(t))
	stream := newStream(t, js)
	open := func() checkpoint.Output[string] {
		return jscheckpoint.NewOutput(js, stream, stream, codec.JSON[string]())
	}
	prepared := func(o checkpoint.Output[string], v string) []byte {
		require.NoError(t, o.Write(t.Context(), v))
		state, err := o.Prepare(t.Context())
		require.NoError(t, err)
		return state
	}
	loser := open()
	state := prepared(loser, "one")
	owner := open()
	require.NoError(t, owner.Restore(t.Context(), state))
	require.NoError(t, owner.Commit(t.Context(), prepared(owner, "two")))
	for range 2 {
		require.ErrorIs(t, loser.Commit(t.Context(), prepared(loser, "not this")), checkpoint.ErrFenced)
	}
	got, err := values[string](js, stream)
	require.NoError(t, err)
	require.Equal(t, []string{"one", "two"}, got)
	require.ErrorContains(t, open().Restore(t.Context(), state), "does another one write to it", "a checkpoint was lost")
}
