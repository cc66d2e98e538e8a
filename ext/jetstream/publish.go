package jetstream

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/jetstream/internal/headers"
	"github.com/weirflow/weir/ext/jetstream/internal/pubs"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/message"
)

const (
	// window is how many messages are published and not confirmed, at most: enough for servers that write many at once.
	window = 1000
	// confirmWithin is how long to wait for the next confirmation.
	confirmWithin = 10 * time.Second
)

// publishFresh publishes new messages to the stream of others, and returns the rest, which is for the engine's own: what comes back, or has
// a delay. A message that was published already, within the stream's Duplicates, is stored once.
func (f *foreign) publishFresh(ctx context.Context, ms []store.Message) (rest []store.Message, _ error) {
	var fresh []*nats.Msg
	for i := range ms {
		if m := &ms[i]; m.Delay > 0 || m.Meta.Visit > 0 || m.Meta.Merges > 0 || m.Cause != "" {
			rest = append(rest, *m)
			continue
		}
		var out *nats.Msg
		err := guard.Call(func() (err error) {
			out, err = f.encode(&ms[i])
			return err
		}, func(recovered any) error { return guard.Recovered("jetstream", recovered) }) // of SubjectOf
		if err != nil {
			return nil, fmt.Errorf("jetstream: %w: message %q: %w", message.ErrRefused, ms[i].Meta.ID, err)
		}
		fresh = append(fresh, out)
	}
	for i, err := range f.s.publishEach(ctx, fresh) {
		if err != nil { // the others of a call usually say the same
			return nil, fmt.Errorf("jetstream: publishing to %q: %w", fresh[i].Subject, pubs.Refused(err))
		}
	}
	return rest, nil
}

func (f *foreign) encode(m *store.Message) (*nats.Msg, error) {
	out := &nats.Msg{Subject: f.Subject, Data: m.Payload}
	if f.SubjectOf != nil {
		if subject := f.SubjectOf(m.Meta); subject != "" {
			out.Subject = subject
		}
	}
	if err := checkSubject(out.Subject); err != nil {
		return nil, err
	}
	var err error
	out.Header, err = writeHeaders(m.Meta, m.Schema)
	if err == nil && m.Meta.ID != "" { // the subject: the server takes what is made of a message, and has its id, for the message
		out.Header.Set(jetstream.MsgIDHeader, out.Subject+" "+out.Header.Get("Weir-Id"))
	}
	return out, err
}

func checkSubject(subject string) error {
	if subject == "" || strings.ContainsAny(subject, "*> \t\r\n") {
		return fmt.Errorf("cannot publish to the subject %q", subject)
	}
	return nil
}

// writeHeaders returns the headers of a message.
func writeHeaders(meta message.Meta, schema []byte) (nats.Header, error) {
	all, err := meta.ToHeaders()
	if err != nil {
		return nil, err
	}
	h := make(nats.Header, len(all)+2)
	for name, value := range all {
		if headers.OfServer(name) {
			continue // they are about the message they came with
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

// publishEach publishes messages and waits until they are confirmed.
func (s *Engine) publishEach(ctx context.Context, ms []*nats.Msg) []error {
	errs := make([]error, len(ms))
	futures := make([]jetstream.PubAckFuture, len(ms))
	var over error // why nothing more is waited for: the others were published as long ago
	send := func(i int) {
		for errs[i] = over; over == nil; {
			futures[i], errs[i] = s.pubs.PublishMsgAsync(ms[i], jetstream.WithStallWait(confirmWithin))
			// Others publish through this engine, and have all of its window.
			if !errors.Is(errs[i], jetstream.ErrTooManyStalledMsgs) || ctx.Err() != nil {
				break
			}
		}
	}
	wait := func(i int) {
		for tries := 0; errs[i] == nil; tries++ {
			_, errs[i], over = pubs.Confirmed(ctx, futures[i], confirmWithin, over)
			if !pubs.UnderWay(errs[i]) || tries == pubs.MaxTries || pubs.Pause(ctx) != nil {
				return // else it was published before, by a call that has failed
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
