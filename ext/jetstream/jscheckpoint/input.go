package jscheckpoint

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/jetstream/internal/headers"
	"github.com/weirflow/weir/ext/jetstream/internal/pubs"
	"github.com/weirflow/weir/internal/decoder"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/settle"
	"github.com/weirflow/weir/internal/varint"
	"github.com/weirflow/weir/message"
)

type input[T any] struct {
	js      jetstream.JetStream
	stream  string
	codec   codec.Codec[T]
	decoder *decoder.Decoder[T]
	config  InputConfig

	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	created time.Time     // of the stream; zero until it was read
	next    uint64        // the next message's sequence number, or less
	reader  *reader       // nil if it is not open
	began   bool          // a reader was opened before
	undone  jetstream.Msg // received, and neither decoded nor among the dead letters
	waiting *T            // received by Wait
	at      uint64        // its sequence number
	last    bool          // the previous message was the last one, for now
	ended   bool          // Wait has found the end
	lag     atomic.Int64  // see Lag
}

var (
	_ checkpoint.Input[int] = (*input[int])(nil)
	_ checkpoint.Waiter     = (*input[int])(nil)
	_ checkpoint.Lagger     = (*input[int])(nil)
)

const (
	expiry    = 10 * time.Second
	heartbeat = time.Second
	ahead     = 64 // messages read ahead, besides the client's buffer
)

// InputConfig are the settings of an input.
type InputConfig struct {
	Subjects []string // to read, wildcards allowed; the default is all
	End      bool     // end after the messages that the stream has now

	// DeadLetters has the queue DeadLetterQueue for messages that the codec cannot read.
	// They are put there unchanged, as [store.Undecodable], and the input continues. A
	// restart may put such a message again, with the same id. Without it, such a message
	// is an error of Next, at each restart.
	DeadLetters     store.Store
	DeadLetterQueue string
}

// NewInput returns an input of the values in a stream's messages, in order. It panics if
// an argument is nil or empty, or if only one of DeadLetters and DeadLetterQueue is set.
//
// Its position is a sequence number, so it does not need a consumer at the server or
// acknowledge messages: the stream must keep messages until a checkpoint includes them.
// It is a [checkpoint.Waiter].
//
// Seek returns an error if the position's message was removed from the beginning of the
// stream. Next returns an error if the stream is deleted or made anew while it is read;
// it waits for servers that do not answer.
func NewInput[T any](js jetstream.JetStream, stream string, c codec.Codec[T], config InputConfig) checkpoint.Input[T] {
	guard.RefuseNil("jscheckpoint: NewInput", "JetStream", js)
	guard.RefuseNil("jscheckpoint: NewInput", "codec", c)
	if stream == "" {
		panic("jscheckpoint: NewInput: the stream has no name")
	}
	if (config.DeadLetters == nil) != (config.DeadLetterQueue == "") {
		panic("jscheckpoint: NewInput: DeadLetters and DeadLetterQueue belong together")
	}
	ctx, cancel := context.WithCancel(context.Background())
	in := &input[T]{js: js, stream: stream, codec: c, decoder: decoder.New("jscheckpoint", c), config: config, ctx: ctx, cancel: cancel, next: 1}
	in.lag.Store(-1)
	return in
}

func (in *input[T]) Seek(position []byte) error {
	next, err := parsePosition(position)
	if err != nil {
		return err
	}
	stream, err := in.find(in.ctx)
	if err != nil {
		return in.failed(err)
	}
	state := stream.CachedInfo().State
	switch {
	case next > 1 && next < state.FirstSeq:
		return fmt.Errorf("jscheckpoint: stream %s begins with message %d, the checkpoint continues with %d: the messages between were removed", in.stream, state.FirstSeq, next)
	case next > state.LastSeq+1:
		return fmt.Errorf("jscheckpoint: stream %s ends with message %d, the checkpoint continues with %d: is it another stream?", in.stream, state.LastSeq, next)
	}
	in.next = next
	return nil
}

func parsePosition(position []byte) (next uint64, err error) {
	r := varint.Reader{Rest: position}
	next = r.Uvarint()
	if r.Err != nil || len(r.Rest) > 0 || next == 0 {
		return 0, errors.New("jscheckpoint: damaged position in a stream")
	}
	return next, nil
}

func (in *input[T]) Position() []byte { return binary.AppendUvarint(nil, in.next) }

func (in *input[T]) failed(err error) error {
	return fmt.Errorf("jscheckpoint: stream %s: %w", in.stream, err)
}

var errAnew = errors.New("it was made anew since the input has begun to read it")

func (in *input[T]) find(ctx context.Context) (jetstream.Stream, error) {
	stream, err := leader(ctx, in.js, in.stream)
	if err != nil {
		return nil, err
	}
	created := stream.CachedInfo().Created
	if in.created.IsZero() {
		in.created = created
	}
	if !created.Equal(in.created) {
		return nil, errAnew
	}
	return stream, nil
}

func (in *input[T]) open(ctx context.Context) error {
	ctx = pubs.NoDeadline(ctx)
	reconnected := in.js.Conn().StatusChanged(nats.CONNECTED) // also while the reader is being made
	r, err := in.newReader(ctx)
	if err != nil {
		in.js.Conn().RemoveStatusListener(reconnected)
		return err
	}
	r.reconnected = reconnected
	in.reader, in.began = r, true
	return nil
}

func (in *input[T]) newReader(ctx context.Context) (*reader, error) {
	if _, err := in.find(ctx); err != nil {
		return nil, err
	}
	config := jetstream.ConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: in.next, AckPolicy: jetstream.AckNonePolicy,
		FilterSubjects: in.config.Subjects, MemoryStorage: true, Replicas: 1, InactiveThreshold: 5 * time.Minute,
	}
	if len(in.config.Subjects) == 1 { // permissions may name it
		config.FilterSubject, config.FilterSubjects = in.config.Subjects[0], nil
	}
	c, err := in.js.CreateConsumer(ctx, in.stream, config)
	if err != nil {
		return nil, err
	}
	// Heartbeats detect soon that the consumer's server has died.
	iterator, err := c.Messages(jetstream.PullExpiry(expiry), jetstream.PullHeartbeat(heartbeat))
	if err != nil {
		return nil, err
	}
	in.pending(c.CachedInfo().NumPending)
	r := &reader{consumer: c.CachedInfo().Name, iterator: iterator, received: make(chan received, ahead)}
	r.ctx, r.stop = context.WithCancel(in.ctx)
	go r.read()
	return r, nil
}

type reader struct {
	consumer    string
	iterator    jetstream.MessagesContext
	received    chan received    // from read to wait
	taken       uint64           // number of messages that wait has received
	reconnected chan nats.Status // messages may have been lost since
	ctx         context.Context  // ends with the reader
	stop        context.CancelFunc
}

// received is a message, or the error after the last one.
type received struct {
	msg jetstream.Msg
	err error
}

// read is not bounded by the contexts of Wait, so missing heartbeats are noticed although
// the waits are short. It ends with the iterator.
func (r *reader) read() {
	for {
		m, err := r.iterator.Next()
		select {
		case r.received <- received{m, err}:
		case <-r.ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

var errBroken = errors.New("the connection was broken")

// take returns the next message, or nil when ctx ends. After an error the reader must be
// given up.
func (r *reader) take(ctx context.Context) (jetstream.Msg, error) {
	var got received
	select {
	case got = <-r.received:
	case <-r.reconnected:
		return nil, errBroken
	case <-ctx.Done():
		return nil, nil
	}
	if got.err != nil {
		return nil, got.err
	}
	at, err := got.msg.Metadata()
	if err == nil && at.Sequence.Consumer != r.taken+1 {
		err = errBroken
	}
	r.taken++
	return got.msg, err
}

// giveUp ends a reader. The server removes its consumer within some minutes.
func (in *input[T]) giveUp(ctx context.Context) {
	r := in.reader
	in.reader = nil
	r.stop()
	r.iterator.Stop()
	in.js.Conn().RemoveStatusListener(r.reconnected)
	ctx, cancel := context.WithTimeout(ctx, closing)
	defer cancel()
	_ = in.js.DeleteConsumer(ctx, in.stream, r.consumer)
}

// more asks the stream's leader whether there is another message: the consumer's server
// may be behind.
func (in *input[T]) more(ctx context.Context) (bool, error) {
	ctx = pubs.NoDeadline(ctx)
	stream, err := in.find(ctx)
	if err != nil {
		return false, err
	}
	if stream.CachedInfo().State.LastSeq < in.next {
		return false, nil
	}
	subjects := in.config.Subjects
	if len(subjects) == 0 {
		subjects = []string{">"}
	}
	for _, s := range subjects {
		_, err = stream.GetMsg(ctx, in.next, jetstream.WithGetMsgSubject(s))
		if !errors.Is(err, jetstream.ErrMsgNotFound) {
			return err == nil, err
		}
	}
	return false, nil
}

// Wait implements [checkpoint.Waiter]. The position includes messages among the dead
// letters.
func (in *input[T]) Wait(ctx context.Context) error {
	for in.waiting == nil && !in.ended {
		if err := in.wait(ctx); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return in.failed(err)
		}
	}
	return nil
}

// wait gets one message, or finds the end.
func (in *input[T]) wait(ctx context.Context) error {
	if in.reader == nil {
		if err := in.open(ctx); err != nil {
			if !in.began || errors.Is(err, jetstream.ErrStreamNotFound) || errors.Is(err, errAnew) || in.js.Conn().IsClosed() {
				return err
			}
			return pause(ctx)
		}
	}
	if in.last && in.config.End {
		more, err := in.more(ctx)
		if err != nil || !more {
			in.ended = err == nil
			return err
		}
	}
	if in.undone == nil {
		r := in.reader
		m, err := r.take(ctx)
		switch {
		case err != nil && r.taken == 0:
			in.giveUp(ctx)
			return pause(ctx)
		case err != nil:
			in.giveUp(ctx)
			return nil //nolint:nilerr // another one goes on at in.next
		case m == nil:
			return ctx.Err()
		}
		in.undone = m
	}
	m := in.undone
	at, err := m.Metadata()
	if err != nil {
		return err
	}
	in.pending(at.NumPending)
	in.at = at.Sequence.Stream
	in.lag.Add(1) // until Next
	schema, err := headers.ReadSchema(m.Headers())
	var v T
	if err == nil {
		writer := schema
		if writer == nil { // another program
			writer = codec.SchemaOf(in.codec)
		}
		v, err = in.decoder.Decode(writer, m.Data())
	}
	switch {
	case err == nil:
		in.undone, in.waiting = nil, &v
		return nil
	case in.config.DeadLetters == nil:
		return fmt.Errorf("message %d: %w", in.at, err)
	}
	here := headers.Place{Stream: at.Stream, Incarnation: headers.Incarnation(in.created), Seq: at.Sequence.Stream}
	meta, _, _ := headers.Read(m.Headers(), m.Subject(), here) // without damaged headers
	meta.LastError = guard.Text(err)
	where := fmt.Sprintf("stream %s, message %d", in.stream, in.at)
	if _, err := settle.Bury(meta, where, func(meta message.Meta, whole bool) error {
		dead := store.Message{Meta: meta, Cause: store.Undecodable}
		if whole {
			dead.Payload, dead.Schema = m.Data(), schema
		}
		return in.config.DeadLetters.Put(ctx, in.config.DeadLetterQueue, dead)
	}); err != nil {
		return fmt.Errorf("message %d: dead letters %q: %w", in.at, in.config.DeadLetterQueue, err)
	}
	in.undone, in.next = nil, in.at+1 // law D1: it is stored
	in.lag.Add(-1)
	return nil
}

func pause(ctx context.Context) error {
	waiting, cancel := context.WithTimeout(ctx, heartbeat)
	defer cancel()
	<-waiting.Done()
	return ctx.Err()
}

// pending sets how many messages the server has after the last one.
func (in *input[T]) pending(n uint64) {
	in.last = n == 0
	in.lag.Store(int64(min(n, math.MaxInt64-1)))
}

// Lag implements [checkpoint.Lagger]: the number of unread messages of the chosen
// subjects, as the server reported it with the last message. It is unknown before the
// first request.
func (in *input[T]) Lag() int64 { return in.lag.Load() }

func (in *input[T]) Next() (v T, err error) {
	if err := in.Wait(in.ctx); err != nil {
		return v, err
	}
	if in.ended {
		return v, io.EOF
	}
	v = *in.waiting
	in.next = in.at + 1
	in.waiting = nil
	in.lag.Add(-1)
	return v, nil
}

// Close implements [checkpoint.Input]. The connection stays open.
func (in *input[T]) Close() error {
	in.cancel()
	if in.reader != nil {
		in.giveUp(context.Background())
	}
	return nil
}
