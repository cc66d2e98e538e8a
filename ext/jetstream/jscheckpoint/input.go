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

	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/jetstream/internal/headers"
	"github.com/weirflow/weir/internal/decoder"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/varint"
	"github.com/weirflow/weir/internal/verdicts"
	"github.com/weirflow/weir/message"
)

// Input reads the values of the messages of a stream, in the order of the stream. Its position is a sequence number, so it does not need a
// consumer at the server, and does not acknowledge messages: the stream must keep messages until a checkpoint holds them. It is a
// [checkpoint.Waiter].
//
// A position whose message was removed from the beginning of the stream is an error of Seek, since the messages after it would be skipped.
type Input[T any] struct {
	js      jetstream.JetStream
	stream  string
	codec   codec.Codec[T]
	decoder *decoder.Decoder[T]
	config  InputConfig

	ctx      context.Context // ends with Close
	cancel   context.CancelFunc
	next     uint64 // the sequence number of the next message, or less
	iterator jetstream.MessagesContext
	consumer jetstream.Consumer
	undone   jetstream.Msg // was received, and is neither decoded nor among the dead letters
	waiting  *T            // what Wait has got
	at       uint64        // the sequence number of its message
	last     bool          // there is no message behind the one before, for now
	ended    bool          // Wait has found the end
	lag      atomic.Int64  // see Lag
}

var (
	_ checkpoint.Input[int] = (*Input[int])(nil)
	_ checkpoint.Waiter     = (*Input[int])(nil)
	_ checkpoint.Lagger     = (*Input[int])(nil)
)

const (
	expiry    = 10 * time.Second
	heartbeat = time.Second
)

// InputConfig are the settings of an [Input].
type InputConfig struct {
	Subjects []string // of the messages to read, with wildcards if need be; the default is all
	End      bool     // the input ends after the present messages of the stream, in place of waiting for more

	// DeadLetters has the queue DeadLetterQueue for messages that the codec cannot read: they are put there unchanged, as [store.Undecodable],
	// and the input continues behind them. A restart may put such a message again, with the same id. Without it, such a message is the error of
	// Next, and the pipeline fails there each time it is restarted.
	DeadLetters     store.Store
	DeadLetterQueue string
}

// NewInput returns an input of the values of a stream. It panics if an argument is nil or empty, or if only one of DeadLetters and
// DeadLetterQueue is set.
func NewInput[T any](js jetstream.JetStream, stream string, c codec.Codec[T], config InputConfig) *Input[T] {
	guard.RefuseNil("jscheckpoint: NewInput", "JetStream", js)
	guard.RefuseNil("jscheckpoint: NewInput", "codec", c)
	if stream == "" {
		panic("jscheckpoint: NewInput: the stream has no name")
	}
	if (config.DeadLetters == nil) != (config.DeadLetterQueue == "") {
		panic("jscheckpoint: NewInput: DeadLetters and DeadLetterQueue belong together")
	}
	ctx, cancel := context.WithCancel(context.Background())
	in := &Input[T]{js: js, stream: stream, codec: c, decoder: decoder.New("jscheckpoint", c), config: config, ctx: ctx, cancel: cancel, next: 1}
	in.lag.Store(-1)
	return in
}

// Seek implements [checkpoint.Input].
func (in *Input[T]) Seek(position []byte) error {
	next, err := parsePosition(position)
	if err != nil {
		return err
	}
	stream, err := in.js.Stream(in.ctx, in.stream)
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

// parsePosition reads what Position has written.
func parsePosition(position []byte) (next uint64, err error) {
	r := varint.Reader{Rest: position}
	next = r.Uvarint()
	if r.Err != nil || len(r.Rest) > 0 || next == 0 {
		return 0, errors.New("jscheckpoint: damaged position in a stream")
	}
	return next, nil
}

// Position implements [checkpoint.Input].
func (in *Input[T]) Position() []byte { return binary.AppendUvarint(nil, in.next) }

func (in *Input[T]) failed(err error) error {
	return fmt.Errorf("jscheckpoint: stream %s: %w", in.stream, err)
}

// open begins to read.
func (in *Input[T]) open(ctx context.Context) error {
	c, err := in.js.OrderedConsumer(ctx, in.stream, jetstream.OrderedConsumerConfig{
		FilterSubjects: in.config.Subjects, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: in.next,
	})
	if err != nil {
		return err
	}
	// The heartbeats find out soon that the server of the consumer has died.
	if in.iterator, err = c.Messages(jetstream.PullExpiry(expiry), jetstream.PullHeartbeat(heartbeat)); err != nil {
		return err
	}
	in.pending(c.CachedInfo().NumPending)
	in.consumer = c
	return nil
}

// more asks the leader of the stream whether there is another message: the server of the consumer may be behind.
func (in *Input[T]) more(ctx context.Context) (bool, error) {
	stream, err := in.js.Stream(ctx, in.stream)
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
		if _, err = stream.GetMsg(ctx, in.next, jetstream.WithGetMsgSubject(s)); !errors.Is(err, jetstream.ErrMsgNotFound) {
			return err == nil, err
		}
	}
	return false, nil
}

// Wait implements [checkpoint.Waiter]. The position passes messages that are among the dead letters.
func (in *Input[T]) Wait(ctx context.Context) error {
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
func (in *Input[T]) wait(ctx context.Context) error {
	if in.iterator == nil {
		if err := in.open(ctx); err != nil {
			return err
		}
	}
	if in.last && in.config.End {
		more, err := in.more(ctx)
		if err != nil || !more {
			in.ended = err == nil
			return err
		}
	}
	m := in.undone
	if m == nil {
		var err error
		if m, err = in.iterator.Next(jetstream.NextContext(ctx)); err != nil {
			return err
		}
	}
	at, err := m.Metadata()
	if err != nil {
		return err
	}
	in.pending(at.NumPending)
	in.undone, in.at = m, at.Sequence.Stream
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
	meta, _, _ := headers.Read(m.Headers(), m.Subject(), at.Stream, at.Sequence.Stream) // what is sound
	meta.LastError = guard.Text(err)
	where := fmt.Sprintf("stream %s, message %d", in.stream, in.at)
	if _, err := verdicts.Bury(meta, where, func(meta message.Meta, whole bool) error {
		dead := store.Message{Meta: meta, Cause: store.Undecodable}
		if whole {
			dead.Payload, dead.Schema = m.Data(), schema
		}
		return in.config.DeadLetters.Put(ctx, in.config.DeadLetterQueue, dead)
	}); err != nil {
		return fmt.Errorf("message %d: dead letters %q: %w", in.at, in.config.DeadLetterQueue, err)
	}
	in.undone, in.next = nil, in.at+1 // law D1: it is safe
	in.lag.Add(-1)
	return nil
}

// pending notes how many messages the server has behind the last one.
func (in *Input[T]) pending(n uint64) {
	in.last = n == 0
	in.lag.Store(int64(min(n, math.MaxInt64-1)))
}

// Lag implements [checkpoint.Lagger]: the messages of the chosen subjects, as the server said with the last one. It does not know before
// the first one was asked for.
func (in *Input[T]) Lag() int64 { return in.lag.Load() }

// Next implements [checkpoint.Input].
func (in *Input[T]) Next() (v T, err error) {
	if err := in.Wait(in.ctx); err != nil {
		return v, err
	}
	if in.ended {
		return v, io.EOF
	}
	v, in.next, in.waiting = *in.waiting, in.at+1, nil
	in.lag.Add(-1)
	return v, nil
}

// Close implements [checkpoint.Input]. The connection stays open.
func (in *Input[T]) Close() error {
	in.cancel()
	if in.iterator == nil {
		return nil
	}
	in.iterator.Stop()
	if info := in.consumer.CachedInfo(); info != nil {
		ctx, cancel := context.WithTimeout(context.Background(), closing)
		defer cancel()
		_ = in.js.DeleteConsumer(ctx, in.stream, info.Name) // else it goes after some minutes
	}
	return nil
}
