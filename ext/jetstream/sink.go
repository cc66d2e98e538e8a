package jetstream

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/ext/jetstream/internal/headers"
	"github.com/weirflow/weir/ext/jetstream/internal/pubs"
	"github.com/weirflow/weir/internal/failed"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/message"
)

const (
	// window is the most unconfirmed messages, enough for servers that write many at
	// once.
	window        = 1000
	confirmWithin = 10 * time.Second
)

// SinkConfig are the settings of a sink. Stream is required.
type SinkConfig struct {
	// Stream is the name of the stream, which must exist and is not changed.
	Stream string
	// Subject is the subject to publish to. The default is the stream's only subject, if
	// it has no wildcards.
	Subject string
	// SubjectOf, if not nil, returns a message's subject, or "" for Subject.
	SubjectOf func(message.Meta) string
}

// Sink publishes values to a stream of other programs. It is a delivery.Sink. Safe for
// concurrent use.
type Sink[T any] struct {
	config SinkConfig
	js     jetstream.JetStream
	pubs   jetstream.JetStream // for publications that are confirmed later
	codec  codec.Codec[T]

	mu      sync.Mutex
	looked  bool   // at the stream
	subject string // Config.Subject or its default; "" if only SubjectOf has subjects
}

// NewSink returns a sink that publishes the values of messages to a stream, with their
// metadata in headers. It panics if an argument is nil or the stream has no name.
//
// A message's Nats-Msg-Id is its subject, its id and, if it has one, the origin of its
// put, with spaces in between. So the server stores it once on its subject within the
// Duplicates window of the stream, which is 2 minutes by default. Each message names the
// expected stream: a subject of another stream is an error. PutAll returns nil when the
// server has confirmed all messages. Several messages are not one transaction.
//
// A fault that only a person can fix ends a run: a stream that does not exist, a subject
// of no stream or of another stream, and a missing subject. A message that can never be
// published, because it is too large or has an invalid header or subject, is refused
// ([message.ErrRefused]) and goes to the dead letters of the worker's queue.
func NewSink[T any](js jetstream.JetStream, c codec.Codec[T], config SinkConfig) *Sink[T] {
	guard.RefuseNil("jetstream: NewSink", "JetStream", js)
	guard.RefuseNil("jetstream: NewSink", "codec", c)
	if config.Stream == "" {
		panic("jetstream: NewSink: the stream has no name")
	}
	return &Sink[T]{config: config, js: js, pubs: pubs.Own(js, 2*confirmWithin), codec: c}
}

// Close ends the subscription for confirmations. The sink must not be used afterwards.
func (s *Sink[T]) Close() {
	if s.pubs != s.js {
		s.pubs.CleanupPublisher()
	}
}

// PutAll implements delivery.Sink.
func (s *Sink[T]) PutAll(ctx context.Context, ms []message.Message[T]) error {
	subject, err := s.open(ctx)
	if err != nil {
		return err
	}
	out := make([]*nats.Msg, len(ms))
	errs := guard.Each(len(ms), func(i int) (err error) {
		out[i], err = s.encode(subject, ms[i])
		return err
	}, func(recovered any) error { return guard.Recovered("jetstream", recovered) })
	for i, err := range errs {
		switch {
		case errors.Is(err, errNoSubject):
			return guard.MarkPermanent(fmt.Errorf("jetstream: stream %s: message %q: %w", s.config.Stream, guard.Shown(ms[i].Meta().ID), err))
		case err != nil:
			return fmt.Errorf("jetstream: %w: message %q: %w", message.ErrRefused, guard.Shown(ms[i].Meta().ID), err)
		}
	}
	errs = publishEach(ctx, s.pubs, out)
	worst := slices.IndexFunc(errs, func(err error) bool { return err != nil })
	if worst < 0 {
		return nil
	}
	for i := range ms {
		if errs[i] == nil {
			ms[i].Ack() // it is safe
		}
	}
	return s.error(ctx, out[worst].Subject, errs[worst])
}

// open reads the stream's configuration, and returns the subject to use if SubjectOf
// returns "".
func (s *Sink[T]) open(ctx context.Context) (subject string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.looked {
		return s.subject, nil
	}
	stream, err := s.js.Stream(ctx, s.config.Stream)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return "", guard.MarkPermanent(fmt.Errorf("jetstream: stream %s: %w: create it, or correct SinkConfig.Stream", s.config.Stream, err))
	case err != nil:
		return "", fmt.Errorf("jetstream: stream %s: %w", s.config.Stream, err)
	}
	subject = s.config.Subject
	subjects := stream.CachedInfo().Config.Subjects
	if subject == "" && len(subjects) == 1 && checkSubject(subjects[0]) == nil {
		subject = subjects[0]
	}
	switch {
	case subject == "" && s.config.SubjectOf == nil:
		return "", guard.MarkPermanent(fmt.Errorf("jetstream: stream %s: its subjects are %q, and none of them can be the default: set SinkConfig.Subject or SubjectOf",
			s.config.Stream, subjects))
	case subject != "":
		if err := checkSubject(subject); err != nil {
			return "", guard.MarkPermanent(fmt.Errorf("jetstream: stream %s: %w: correct SinkConfig.Subject", s.config.Stream, err))
		}
	}
	s.looked, s.subject = true, subject
	return subject, nil
}

var errNoSubject = errors.New("SubjectOf has returned an empty subject, and SinkConfig.Subject is empty: set one of them")

func (s *Sink[T]) encode(subject string, m message.Message[T]) (*nats.Msg, error) {
	meta := failed.Onward(m.Meta())
	if s.config.SubjectOf != nil {
		if of := s.config.SubjectOf(meta); of != "" {
			subject = of
		}
	}
	if subject == "" {
		return nil, errNoSubject
	}
	if err := checkSubject(subject); err != nil {
		return nil, err
	}
	payload, err := s.codec.Append(nil, m.Value)
	if err != nil {
		return nil, fmt.Errorf("the codec: %w", err)
	}
	out := &nats.Msg{Subject: subject, Data: payload}
	out.Header, err = writeHeaders(meta, codec.SchemaOf(s.codec))
	if err != nil {
		return nil, err
	}
	out.Header.Set(jetstream.ExpectedStreamHeader, s.config.Stream)
	if meta.ID != "" { // with the subject, because a result has its message's id, and may be in the same stream
		id := subject + " " + out.Header.Get("Weir-Id")
		if meta.Put != "" { // law W5: the server would drop the result of a later put under the id
			id += " " + out.Header.Get("Weir-Put")
		}
		out.Header.Set(jetstream.MsgIDHeader, id)
	}
	return out, nil
}

func checkSubject(subject string) error {
	if subject == "" || strings.ContainsAny(subject, "*> \t\r\n") {
		return fmt.Errorf("cannot publish to the subject %q", subject)
	}
	return nil
}

// errCodeOtherStream is the server's number for a subject of another stream than
// expected.
const errCodeOtherStream = 10060

// error returns the error of a publication, permanent if only a person can fix it.
func (s *Sink[T]) error(ctx context.Context, subject string, err error) error {
	named := fmt.Errorf("jetstream: stream %s: publishing to %q: %w", s.config.Stream, subject, pubs.Refused(err))
	api, _ := errors.AsType[*jetstream.APIError](err)
	switch {
	case api != nil && api.ErrorCode == errCodeOtherStream:
		return guard.MarkPermanent(fmt.Errorf("%w: the subject belongs to another stream: correct the subject or SinkConfig.Stream", named))
	case errors.Is(err, nats.ErrNoResponders), errors.Is(err, jetstream.ErrNoStreamResponse):
		_, unknown := s.js.StreamNameBySubject(ctx, subject)
		if errors.Is(unknown, jetstream.ErrStreamNotFound) { // else the servers are not ready
			return guard.MarkPermanent(fmt.Errorf("%w: no stream has the subject: correct it, or add it to the stream", named))
		}
	case errors.Is(err, nats.ErrConnectionClosed):
		return guard.MarkPermanent(named)
	}
	return named
}

func writeHeaders(meta message.Meta, schema []byte) (nats.Header, error) {
	all, err := meta.ToHeaders()
	if err != nil {
		return nil, err
	}
	h := make(nats.Header, len(all)+3)
	for name, value := range all {
		if headers.OfServer(name) {
			continue // they describe the message they came with
		}
		if strings.ContainsAny(name, ": \r\n\x00") || strings.ContainsAny(value, "\r\n\x00") || strings.TrimSpace(value) != value {
			return nil, fmt.Errorf("the header %q cannot be written: names must not contain a space or colon, values must not contain a line end, or begin or end with a space", name)
		}
		h[name] = []string{value}
	}
	if len(schema) > 0 {
		h.Set(headers.Schema, base64.StdEncoding.EncodeToString(schema))
	}
	return h, nil
}

func publishEach(ctx context.Context, js jetstream.JetStream, ms []*nats.Msg) []error {
	errs := make([]error, len(ms))
	futures := make([]jetstream.PubAckFuture, len(ms))
	var over error // why no further confirmation is awaited: the others were published as long ago
	send := func(i int) {
		for errs[i] = over; over == nil; {
			futures[i], errs[i] = js.PublishMsgAsync(ms[i], jetstream.WithStallWait(confirmWithin))
			// Other calls share the client, and may fill its window.
			if !errors.Is(errs[i], jetstream.ErrTooManyStalledMsgs) || ctx.Err() != nil {
				break
			}
		}
	}
	wait := func(i int) {
		for tries := 0; errs[i] == nil; tries++ {
			_, errs[i], over = pubs.Confirmed(ctx, futures[i], confirmWithin, over)
			if !pubs.UnderWay(errs[i]) || tries == pubs.MaxTries || pubs.Pause(ctx) != nil {
				return // else it was published by a failed call
			}
			send(i)
		}
	}
	for i := range ms {
		if i >= window {
			wait(i - window)
		}
		send(i)
	}
	for i := max(0, len(ms)-window); i < len(ms); i++ {
		wait(i)
	}
	return errs
}
