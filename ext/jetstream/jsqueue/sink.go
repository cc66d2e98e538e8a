package jsqueue

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/ext/jetstream/internal/pubs"
	"github.com/weirflow/weir/internal/guard"
)

// ErrNotTheOnlyWriter is matched by the error of PutAll if [WithOnlyWriter] is set and another one has published to the stream.
var ErrNotTheOnlyWriter = errors.New("jsqueue: another one writes to the stream")

// Sink publishes the values of messages, as a [delivery.Sink]. They keep id, key, origin, provider and headers; their visits
// begin anew. A value that the codec cannot encode, whose headers cannot be written, or that is too large for the server, is rejected. If
// its message has no acknowledgement, PutAll returns an error that matches [delivery.ErrRefused], and what it cannot encode keeps it from
// publishing anything. Safe for concurrent use.
type Sink[T any] struct {
	js      jetstream.JetStream
	pubs    jetstream.JetStream // for publications that are confirmed later
	subject string
	codec   codec.Codec[T]
	sinkSettings

	writing chan struct{} // room for one: the PutAll that publishes, if this is the only writer
	last    uint64        // the sequence number of the last message of the stream
	known   bool          // last is known
	doubts  []*nats.Msg   // one of them may be, or may come, directly behind last
}

var _ delivery.Sink[int] = (*Sink[int])(nil)

type sinkSettings struct {
	subjectOf func(meta delivery.Meta) string
	only      string // the stream, or ""
	timeout   time.Duration
}

// SinkOption changes a setting of [NewSink].
type SinkOption func(*sinkSettings)

// WithSubject sets the subject of each message, which takes the place of that of the sink. An empty one stands for that.
// A message is rejected whose subject has spaces or wildcards, such as one made of a key as it comes.
func WithSubject(subject func(meta delivery.Meta) string) SinkOption {
	if subject == nil {
		panic("jsqueue: WithSubject: the function is nil")
	}
	return func(s *sinkSettings) { s.subjectOf = subject }
}

// WithOnlyWriter says that nothing else publishes to the stream. Each message is published only directly behind the one before,
// so a sink that another process has taken over from publishes nothing any more: PutAll returns an error that matches
// [ErrNotTheOnlyWriter], for good. Messages are then published one after the other.
func WithOnlyWriter(stream string) SinkOption {
	if stream == "" {
		panic("jsqueue: WithOnlyWriter: the stream has no name")
	}
	return func(s *sinkSettings) { s.only = stream }
}

// WithConfirmWithin sets how long PutAll waits for the next confirmation; the default is 10 s. It panics if d ≤ 0.
func WithConfirmWithin(d time.Duration) SinkOption {
	if d <= 0 {
		panic(fmt.Sprintf("jsqueue: WithConfirmWithin: %v is not positive", d))
	}
	return func(s *sinkSettings) { s.timeout = d }
}

// NewSink returns a sink that publishes to a subject, which must belong to a stream. A js that is not the client's own, but wraps it, needs
// [jetstream.WithPublishAsyncTimeout]. It panics if an argument is nil or empty.
func NewSink[T any](js jetstream.JetStream, subject string, c codec.Codec[T], opts ...SinkOption) *Sink[T] {
	guard.RefuseNil("jsqueue: NewSink", "JetStream", js)
	guard.RefuseNil("jsqueue: NewSink", "codec", c)
	if err := checkSubject(subject); err != nil {
		panic("jsqueue: NewSink: " + err.Error())
	}
	s := &Sink[T]{
		js: js, subject: subject, codec: c, writing: make(chan struct{}, 1),
		sinkSettings: sinkSettings{subjectOf: func(delivery.Meta) string { return "" }, timeout: defaultConfirm},
	}
	for i, opt := range opts {
		if opt == nil {
			panic(fmt.Sprintf("jsqueue: NewSink: option %d is nil", i))
		}
		opt(&s.sinkSettings)
	}
	s.pubs = pubs.Own(js, 2*s.timeout) // after PutAll has given them up
	return s
}

func checkSubject(subject string) error {
	if subject == "" || strings.ContainsAny(subject, "*> \t\r\n") {
		return fmt.Errorf("cannot publish to the subject %q", subject)
	}
	return nil
}

const defaultConfirm = 10 * time.Second

// PutAll implements [delivery.Sink]. After an error, the messages that were confirmed are acknowledged.
func (s *Sink[T]) PutAll(ctx context.Context, messages []delivery.Message[T]) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	all := make([]*nats.Msg, len(messages))
	wrong := guard.Each(len(messages), func(i int) (err error) {
		if all[i], err = s.encode(messages[i]); err != nil {
			err = refused(err)
		}
		return err
	}, func(recovered any) error { return refused(guard.Recovered("jsqueue", recovered)) })
	encoded := make([]*nats.Msg, 0, len(messages))
	kept := make([]delivery.Message[T], 0, len(messages))
	for i, m := range messages {
		if err := wrong[i]; err != nil {
			if !m.Pending() { // no source would see a rejection, and the value would be lost (law D1)
				return fmt.Errorf("jsqueue: subject %q: message %q: %w", s.subject, m.Meta().ID, err)
			}
			m.Reject(err)
			continue
		}
		encoded, kept = append(encoded, all[i]), append(kept, m)
	}
	var errs []error
	if s.only != "" {
		errs = s.publishOrdered(ctx, encoded)
	} else {
		errs = s.publish(ctx, encoded)
	}
	if first(errs) < 0 {
		return nil
	}
	for i := range kept {
		if errs[i] == nil {
			kept[i].Ack()
		} else if errs[i] = pubs.Refused(errs[i]); errors.Is(errs[i], delivery.ErrRefused) && kept[i].Pending() {
			kept[i].Reject(errs[i])
			errs[i] = nil
		}
	}
	failed := first(errs)
	if failed < 0 {
		return nil
	}
	return fmt.Errorf("jsqueue: publishing to %q: %w", encoded[failed].Subject, errs[failed])
}

// refused returns the error of a message that cannot be written.
func refused(err error) error { return fmt.Errorf("jsqueue: %w: %w", delivery.ErrRefused, err) }

// first returns the index of the first error, or -1; the others of a call usually say the same.
func first(errs []error) int {
	return slices.IndexFunc(errs, func(err error) bool { return err != nil })
}

func (s *Sink[T]) encode(m delivery.Message[T]) (*nats.Msg, error) {
	meta := m.Meta()
	meta = delivery.Meta{ID: meta.ID, Key: meta.Key, Origin: meta.Origin, Provider: meta.Provider, Headers: meta.Headers}
	out := &nats.Msg{Subject: s.subjectOf(meta)}
	if out.Subject == "" {
		out.Subject = s.subject
	}
	if err := checkSubject(out.Subject); err != nil {
		return nil, err
	}
	h, err := writeHeaders(meta, codec.SchemaOf(s.codec))
	if err != nil {
		return nil, err
	}
	out.Header = h
	out.Data, err = s.codec.Append(nil, m.Value)
	return out, err
}

// window is how many messages of a PutAll are published and not confirmed, at most: enough for servers that write many at once.
const window = 1000

// publish publishes messages and waits until they are confirmed.
func (s *Sink[T]) publish(ctx context.Context, ms []*nats.Msg) []error {
	errs := make([]error, len(ms))
	futures := make([]jetstream.PubAckFuture, len(ms))
	var over error // why nothing more is waited for: the others were published as long ago
	send := func(i int) {
		for errs[i] = over; over == nil; {
			futures[i], errs[i] = s.pubs.PublishMsgAsync(ms[i], jetstream.WithStallWait(s.timeout))
			// Others publish through this sink, and have all of its window.
			if !errors.Is(errs[i], jetstream.ErrTooManyStalledMsgs) || ctx.Err() != nil {
				break
			}
		}
	}
	wait := func(i int) {
		for tries := 0; errs[i] == nil; tries++ {
			_, errs[i], over = pubs.Confirmed(ctx, futures[i], s.timeout, over)
			if !pubs.UnderWay(errs[i]) || tries == pubs.MaxTries || pubs.Pause(ctx) != nil {
				return // else it was published before, by a PutAll that has failed
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

// publishOrdered publishes messages directly behind each other.
func (s *Sink[T]) publishOrdered(ctx context.Context, ms []*nats.Msg) []error {
	errs := make([]error, len(ms))
	s.writing <- struct{}{}
	defer func() { <-s.writing }()
	for i, m := range ms {
		if err := s.publishNext(ctx, m); err != nil {
			for j := range errs[i:] {
				errs[i+j] = err
			}
			break
		}
	}
	return errs
}

func (s *Sink[T]) publishNext(ctx context.Context, m *nats.Msg) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	if !s.known {
		stream, err := s.js.Stream(ctx, s.only)
		if err != nil {
			return err
		}
		s.last, s.known = stream.CachedInfo().State.LastSeq, true
	}
	if err := s.clearDoubts(ctx); err != nil {
		return err
	}
	for {
		ack, err := s.js.PublishMsg(ctx, m, jetstream.WithExpectLastSequence(s.last), jetstream.WithExpectStream(s.only))
		if err == nil {
			s.last, s.doubts = max(s.last, ack.Sequence), nil
			return nil
		}
		_, refused := errors.AsType[*jetstream.APIError](err)
		switch {
		case !refused || pubs.UnderWay(err):
			s.doubts = append(s.doubts, m)
			return err
		case !pubs.Moved(err):
			return err
		}
		before := s.last
		if err := s.clearDoubts(ctx); err != nil {
			return err
		}
		switch {
		case s.last > before: // one has come late
		case len(s.doubts) > 0: // it cannot be read yet
			return err
		default:
			return fmt.Errorf("%w %q: %w", ErrNotTheOnlyWriter, s.only, err)
		}
	}
}

// clearDoubts finds out whether a message was stored that was not confirmed. If nothing is stored behind the last one, it may still come.
func (s *Sink[T]) clearDoubts(ctx context.Context) error {
	if len(s.doubts) == 0 {
		return nil
	}
	stream, err := s.js.Stream(ctx, s.only)
	if err != nil {
		return err
	}
	if stream.CachedInfo().State.LastSeq <= s.last {
		return nil
	}
	next, err := stream.GetMsg(ctx, s.last+1)
	if err != nil && !errors.Is(err, jetstream.ErrMsgNotFound) {
		return err
	}
	if err == nil && slices.ContainsFunc(s.doubts, func(m *nats.Msg) bool { return isStored(next, m) }) {
		s.last++
	}
	s.doubts = nil
	return nil
}

func isStored(stored *jetstream.RawStreamMsg, m *nats.Msg) bool {
	return stored.Subject == m.Subject && stored.Header.Get(jetstream.MsgIDHeader) == m.Header.Get(jetstream.MsgIDHeader) && bytes.Equal(stored.Data, m.Data)
}
