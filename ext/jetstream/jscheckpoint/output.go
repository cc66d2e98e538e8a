package jscheckpoint

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/ext/jetstream/internal/headers"
	"github.com/weirflow/weir/ext/jetstream/internal/pubs"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/varint"
)

const (
	closing = time.Second
	confirm = 10 * time.Second
	window  = 256 // messages that are published and not confirmed

	stateVersion = 1
)

type output[T any] struct {
	js      jetstream.JetStream
	pubs    jetstream.JetStream // for publications that are confirmed later
	stream  string
	subject string
	codec   codec.Codec[T]
	schema  []byte
	run     string

	limit   int64    // maximum bytes of a message in the stream; 0 means no limit
	known   bool     // base and last are valid
	base    uint64   // sequence number before the first of pending
	pending [][]byte // written and not published
	last    uint64   // sequence number of the stream's last message
	unsure  bool     // published messages may be in the stream
	fenced  bool
}

var _ checkpoint.Output[int] = (*output[int])(nil)

// NewOutput returns an output that publishes elements to a subject of a stream, exactly
// once. It panics if an argument is nil or empty.
//
// It must be the only publisher to the stream: so each element's sequence number is known
// before it is published, and is part of the checkpoint, with the unpublished elements.
// Each is published only directly behind the previous element, with retries.
//
// After another run has taken over, Commit returns [checkpoint.ErrFenced] and publishes
// no more. Restore returns an error if the stream has more or fewer messages than the
// checkpoint knows. Write returns an error for an element that is larger than the server
// (max_payload) or the stream (MaxMsgSize) takes, less room for headers.
func NewOutput[T any](js jetstream.JetStream, stream, subject string, c codec.Codec[T]) checkpoint.Output[T] {
	guard.RefuseNil("jscheckpoint: NewOutput", "JetStream", js)
	guard.RefuseNil("jscheckpoint: NewOutput", "codec", c)
	if stream == "" || subject == "" {
		panic(fmt.Sprintf("jscheckpoint: NewOutput: the stream %q and the subject %q must have names", stream, subject))
	}
	return &output[T]{
		js: js, pubs: pubs.Own(js, confirm), stream: stream, subject: subject, codec: c, schema: codec.SchemaOf(c), run: nuid.Next(),
	}
}

func (o *output[T]) failed(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return fmt.Errorf("jscheckpoint: stream %s: %w", o.stream, err)
}

// leader returns a stream whose messages are read at its leader. With AllowDirect the
// client would ask any server, which may be behind, and would need another permission.
func leader(ctx context.Context, js jetstream.JetStream, name string) (jetstream.Stream, error) {
	stream, err := js.Stream(ctx, name)
	if err == nil {
		stream.CachedInfo().Config.AllowDirect = false
	}
	return stream, err
}

func (o *output[T]) end(ctx context.Context) (uint64, jetstream.Stream, error) {
	ctx = pubs.NoDeadline(ctx)
	stream, err := leader(ctx, o.js, o.stream)
	if err != nil {
		return 0, nil, o.failed(ctx, err)
	}
	info := stream.CachedInfo()
	o.limit = int64(max(0, info.Config.MaxMsgSize))
	return info.State.LastSeq, stream, nil
}

// begin finds the stream's end, for a run without a checkpoint.
func (o *output[T]) begin(ctx context.Context) error {
	if o.known {
		return nil
	}
	last, _, err := o.end(ctx)
	if err == nil {
		o.base = last
		o.last = last
		o.known = true
	}
	return err
}

func (o *output[T]) Write(ctx context.Context, v T) error {
	if err := o.begin(ctx); err != nil {
		return err
	}
	b, err := o.codec.Append(nil, v)
	if err != nil {
		return err
	}
	limit, whose := o.js.Conn().MaxPayload(), "server (max_payload)"
	if 0 < o.limit && o.limit < limit {
		limit, whose = o.limit, "stream (MaxMsgSize)"
	}
	room := int64(256 + 2*len(o.stream) + base64.StdEncoding.EncodedLen(len(o.schema))) // of headers
	if int64(len(b)) > limit-room {
		return fmt.Errorf("jscheckpoint: stream %s: an element has %d bytes, the %s takes %d with its headers", o.stream, len(b), whose, limit-room)
	}
	o.pending = append(o.pending, b)
	return nil
}

// Prepare implements [checkpoint.Output]. The state has the unpublished elements.
func (o *output[T]) Prepare(ctx context.Context) ([]byte, error) {
	if err := o.begin(ctx); err != nil {
		return nil, err
	}
	b := binary.AppendUvarint([]byte{stateVersion}, o.base)
	b = varint.AppendBytes(b, o.schema)
	b = binary.AppendUvarint(b, uint64(len(o.pending)))
	for _, p := range o.pending {
		b = varint.AppendBytes(b, p)
	}
	return b, nil
}

type state struct {
	base    uint64
	schema  []byte
	pending [][]byte
}

func parse(b []byte) (s state, err error) {
	r := varint.Reader{Rest: b}
	if v := r.Byte(); r.Err == nil && v != stateVersion {
		return s, fmt.Errorf("jscheckpoint: the state of an output has version %d, this version of weir knows %d", v, stateVersion)
	}
	s.base, s.schema = r.Uvarint(), r.Bytes()
	n := r.Uvarint()
	for i := uint64(0); i < n && r.Err == nil; i++ {
		s.pending = append(s.pending, r.Bytes())
	}
	if r.Err != nil || len(r.Rest) > 0 {
		return s, errors.New("jscheckpoint: damaged state of an output")
	}
	return s, nil
}

func (o *output[T]) Restore(ctx context.Context, b []byte) error {
	s, err := parse(b)
	if err != nil {
		return err
	}
	last, _, err := o.end(ctx)
	if err != nil {
		return err
	}
	if end := s.base + uint64(len(s.pending)); last < s.base || last > end {
		return fmt.Errorf("jscheckpoint: stream %s ends with message %d, the checkpoint knows %d to %d: is it another stream, does another one write to it, or was a checkpoint lost?",
			o.stream, last, s.base, end)
	}
	o.base = s.base
	o.last = last
	o.known = true
	o.pending = nil
	for _, p := range s.pending {
		o.pending = append(o.pending, append([]byte{}, p...))
	}
	return o.Commit(ctx, b)
}

func (o *output[T]) Commit(ctx context.Context, b []byte) error {
	s, err := parse(b)
	if err != nil {
		return err
	}
	if o.unsure {
		if err := o.find(ctx); err != nil {
			return err
		}
	}
	if o.fenced {
		return fmt.Errorf("jscheckpoint: stream %s: %w", o.stream, checkpoint.ErrFenced)
	}
	end := s.base + uint64(len(s.pending))
	if o.last < s.base {
		return fmt.Errorf("jscheckpoint: stream %s ends with message %d, the state to commit begins behind %d", o.stream, o.last, s.base)
	}
	tries := 0
	for o.last < end {
		before := o.last
		err := o.publish(ctx, s.schema, s.pending[before-s.base:])
		switch came := !o.unsure && o.last > before; {
		case err == nil || came && pubs.Moved(err): // messages of an earlier Commit came late
			tries = 0
		case !o.unsure && pubs.UnderWay(err) && tries < pubs.MaxTries: // being stored
			tries++
			if err := pubs.Pause(ctx); err != nil {
				return err
			}
		default:
			return err
		}
	}
	if end > o.base {
		o.pending = o.pending[end-o.base:]
		o.base = end
	}
	return nil
}

func (o *output[T]) publish(ctx context.Context, schema []byte, values [][]byte) error {
	o.unsure = true
	first := o.last
	futures := make([]jetstream.PubAckFuture, len(values))
	var stop error // set when waiting is useless
	wait := func(i int) (err error) {
		var ack *jetstream.PubAck
		ack, err, stop = pubs.Confirmed(ctx, futures[i], confirm, stop)
		if want := first + uint64(i) + 1; err == nil && ack.Sequence != want {
			return fmt.Errorf("message %d was stored as %d: does another one write to the stream?", want, ack.Sequence)
		}
		return err
	}
	var err error
	sent := 0
	for i, v := range values {
		if i >= window {
			err = wait(i - window)
			if err != nil {
				break
			}
		}
		seq := first + uint64(i)
		m := &nats.Msg{Subject: o.subject, Data: v, Header: nats.Header{headerRun: {o.run}}}
		m.Header.Set(jetstream.MsgIDHeader, o.stream+"/"+strconv.FormatUint(seq+1, 10))
		if len(schema) > 0 {
			m.Header.Set(headers.Schema, base64.StdEncoding.EncodeToString(schema))
		}
		for {
			futures[i], err = o.pubs.PublishMsgAsync(m, jetstream.WithExpectLastSequence(seq), jetstream.WithExpectStream(o.stream), jetstream.WithStallWait(confirm))
			// Publications of an earlier Commit may fill the window for a time.
			if !errors.Is(err, jetstream.ErrTooManyStalledMsgs) || ctx.Err() != nil {
				break
			}
		}
		if err != nil {
			break
		}
		sent++
	}
	for i := max(0, sent-window); i < sent; i++ { // also after an error: sent messages may still be stored
		err = cmp.Or(err, wait(i))
	}
	if err != nil {
		return errors.Join(o.failed(ctx, err), o.find(ctx))
	}
	o.last, o.unsure = first+uint64(len(values)), false
	return nil
}

// find finds what this run has published, and whether another run has published since
// (law P1).
func (o *output[T]) find(ctx context.Context) error {
	ctx = pubs.NoDeadline(ctx)
	last, stream, err := o.end(ctx)
	if err != nil {
		return err
	}
	if last > o.last {
		m, err := stream.GetMsg(ctx, last)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return fmt.Errorf("jscheckpoint: stream %s: message %d was removed before it was confirmed: who has published it is not known", o.stream, last)
		}
		if err != nil {
			return o.failed(ctx, err)
		}
		if m.Header.Get(headerRun) != o.run {
			o.fenced = true
			return fmt.Errorf("jscheckpoint: stream %s: %w", o.stream, checkpoint.ErrFenced)
		}
	}
	o.last, o.unsure = last, false
	return nil
}

// Close implements [checkpoint.Output]. The connection stays open.
func (o *output[T]) Close() error {
	if o.pubs != o.js {
		o.pubs.CleanupPublisher()
	}
	return nil
}
